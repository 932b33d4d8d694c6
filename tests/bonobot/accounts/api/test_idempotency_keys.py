"""`Idempotency-Key`: one effect and one response for a day."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import time_machine
from django.db import connection, connections
from django.utils import timezone

from agents.models import Agent
from bonobot.accounts.api.idempotency_keys import IdempotentReplay, claim_key, store_answer
from bonobot.accounts.models import Organization, StoredResponse, Token
from bonobot.accounts.roles import Role
from bonobot.core.crypto.encrypted_fields import SealedValue
from bonobot.core.problems import Conflict, InvalidInput
from tests import factories, rest
from tests.rest import RestClient

KEY = "0191f2d0-7f0c-7c3e-9d1f-0d5f2b8f6a11"
OFFLINE = {"name": "Offline", "kind": "offline"}


@pytest.fixture
def acme(db: None) -> Organization:
    return factories.create_organization()


@pytest.fixture
def owner(acme: Organization) -> RestClient:
    factories.create_agent(acme)
    return rest.as_role(acme, Role.OWNER)


def test_a_repeated_write_has_one_effect_and_the_same_response(owner):
    first = owner.post("agents", {"name": "One"}, Idempotency_Key=KEY)
    second = owner.post("agents", {"name": "One"}, Idempotency_Key=KEY)
    assert (first.status, second.status) == (201, 201)
    assert first.json == second.json
    assert "Idempotent-Replayed" not in first.headers
    assert second.headers["Idempotent-Replayed"] == "true"
    assert Agent.objects.filter(name="One").count() == 1


def test_an_error_is_replayed_as_the_same_problem(owner):
    first = owner.post("agents", {"name": ""}, Idempotency_Key=KEY)
    second = owner.post("agents", {"name": ""}, Idempotency_Key=KEY)
    assert (second.status, second.json) == (400, first.json)
    assert second.headers["Content-Type"] == rest.PROBLEM


def test_an_empty_response_is_replayed(owner):
    response = owner.post("agents", {"name": "One"}).json
    for _ in range(2):
        assert owner.delete(f"agents/{response['id']}", Idempotency_Key=KEY).status == 204


def test_another_body_with_the_same_key_is_refused(owner):
    owner.post("agents", {"name": "One"}, Idempotency_Key=KEY)
    response = owner.post("agents", {"name": "Two"}, Idempotency_Key=KEY)
    assert (response.status, response.code) == (422, "idempotency_mismatch")
    assert not Agent.objects.filter(name="Two").exists()


def test_another_path_with_the_same_key_is_refused(owner):
    owner.post("model-endpoints", OFFLINE, Idempotency_Key=KEY)
    assert owner.post("agents", OFFLINE, Idempotency_Key=KEY).code == "idempotency_mismatch"


def test_the_order_of_fields_doesnt_change_the_body(owner):
    bodies = b'{"name": "One", "enabled": true}', b'{"enabled":true,"name":"One"}'
    responses = [owner.send("POST", "agents", body, Idempotency_Key=KEY) for body in bodies]
    assert [response.status for response in responses] == [201, 201]


def test_keys_of_different_people_are_independent(acme, owner):
    other_client = rest.as_role(acme, Role.OPERATOR)
    owner.post("agents", {"name": "One"}, Idempotency_Key=KEY)
    assert other_client.post("agents", {"name": "Two"}, Idempotency_Key=KEY).status == 201


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "a b"])
def test_an_invalid_key_is_refused(owner, key):
    response = owner.post("agents", {"name": "One"}, Idempotency_Key=key)
    assert (response.status, response.code) == (400, "bad_idempotency_key")


def test_an_unfinished_first_request_is_never_repeated(acme, owner):
    owner.post("agents", {"name": "One"}, Idempotency_Key=KEY)
    StoredResponse.objects.update(status=None)
    response = owner.post("agents", {"name": "One"}, Idempotency_Key=KEY)
    assert (response.status, response.code) == (409, "idempotency_in_progress")
    assert int(response.headers["Retry-After"]) > 0


def test_a_key_can_be_used_again_after_a_day(owner):
    owner.post("agents", {"name": "One"}, Idempotency_Key=KEY)
    with time_machine.travel(timezone.now() + timedelta(hours=25)):
        response = owner.post("agents", {"name": "Two"}, Idempotency_Key=KEY)
    assert response.status == 201


def test_a_caller_that_lost_its_permission_gets_no_replay(acme, owner):
    owner.post("agents", {"name": "One"}, Idempotency_Key=KEY)
    Token.objects.update(role=Role.AUDITOR)
    assert owner.post("agents", {"name": "One"}, Idempotency_Key=KEY).status == 403


def test_the_secret_of_a_new_token_is_replayed_and_encrypted_at_rest(owner):
    body = {"name": "pipeline", "role": "member"}
    first = owner.post("tokens", body, Idempotency_Key=KEY)
    second = owner.post("tokens", body, Idempotency_Key=KEY)
    assert second.json["token"] == first.json["token"]
    with connection.cursor() as cursor:
        cursor.execute("SELECT body FROM tenancy_keptanswer")
        assert first.json["token"] not in str(cursor.fetchall())


def test_responses_that_can_be_retried_arent_stored(acme):
    administrator = factories.build_administrator(acme)
    for status in (429, 503):
        store_answer(claim_key(administrator, KEY, {"body": 1}), status, "{}")
        assert not StoredResponse.objects.exists()


def test_after_an_internal_error_the_outcome_is_unknown(acme):
    administrator = factories.build_administrator(acme)
    store_answer(claim_key(administrator, KEY, {"body": 1}), 500, "{}")
    with pytest.raises(Conflict) as raised:
        claim_key(administrator, KEY, {"body": 1})
    assert raised.value.code == "idempotency_in_progress"


def test_a_response_is_replayed_unchanged(acme):
    administrator = factories.build_administrator(acme)
    store_answer(claim_key(administrator, KEY, {"body": 1}), 201, '{"id": 1}')
    with pytest.raises(IdempotentReplay) as replay:
        claim_key(administrator, KEY, {"body": 1})
    assert (replay.value.status, replay.value.body) == (201, '{"id": 1}')
    assert isinstance(StoredResponse.objects.get().body, SealedValue)
    with pytest.raises(InvalidInput):
        claim_key(administrator, KEY, {"body": 2})


@pytest.mark.django_db(transaction=True)
def test_concurrent_requests_with_one_key_have_one_effect():
    acme = factories.create_organization()
    factories.create_agent(acme)
    owner = rest.as_role(acme, Role.OWNER)

    def create_agent(_: int) -> rest.RestResponse:
        try:
            return owner.post("agents", {"name": "One"}, Idempotency_Key=KEY)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as threads:
        responses = list(threads.map(create_agent, range(24)))
    assert {response.status for response in responses} <= {201, 409}
    assert len({response.json["id"] for response in responses if response.status == 201}) == 1
    assert Agent.objects.filter(name="One").count() == 1
