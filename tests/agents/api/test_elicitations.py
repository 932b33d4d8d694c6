"""Elicitation requests of servers: read and answered over REST and in the admin."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents.models import ElicitationRequest
from agents.sessions.services import start_session
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories, rest

pytestmark = pytest.mark.django_db

PAGE = {
    "mode": "url",
    "message": "Sign in\u202e",
    "url": "http://xn--bcher-kva.example/start?state=1",
    "elicitationId": "e1",
}


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def helper(acme):
    return factories.create_agent(acme)


@pytest.fixture
def server(acme):
    return admin_client.create_web_server(acme)


def create_session(principal, agent):
    return start_session(principal, agent, "Provision it")


def test_only_the_person_who_started_the_session_can_answer(acme, helper, server):
    client = rest.as_role(acme, Role.MEMBER, helper)
    administrator = factories.build_administrator(acme)
    owner = factories.create_member(acme, Role.OWNER)
    owners_request = factories.create_elicitation(create_session(owner, helper), server)
    cli_request = factories.create_elicitation(create_session(administrator, helper), server)
    assert client.get("elicitation-requests").json["results"] == []
    assert client.get(f"elicitation-requests/{owners_request.pk}").status == 404

    auditor = rest.as_role(acme, Role.AUDITOR)
    assert (
        auditor.post(f"elicitation-requests/{cli_request.pk}/answer", {"action": "cancel"}).status
        == 403
    )
    reviewer = rest.as_role(acme, Role.OWNER)
    rows = reviewer.get("elicitation-requests?state=waiting").json["results"]
    assert {row["id"] for row in rows} == {str(owners_request.pk), str(cli_request.pk)}
    denied = reviewer.post(f"elicitation-requests/{owners_request.pk}/answer", {"action": "cancel"})
    assert (denied.status, denied.code) == (403, "not_owner")
    # No person started the other session, so people who approve calls can answer.
    path = f"elicitation-requests/{cli_request.pk}/answer"
    invalid = reviewer.post(path, {"action": "accept", "content": {"region": "mars"}})
    assert (invalid.status, invalid.code, invalid.json["field"]) == (
        400,
        "bad_answer",
        "content.region",
    )
    accepted = reviewer.post(path, {"action": "accept", "content": {"region": "eu", "count": 2}})
    assert (accepted.json["state"], "content" in accepted.json) == ("accept", False)
    assert ElicitationRequest.objects.get(pk=cli_request.pk).content.open() == {
        "region": "eu",
        "count": 2,
    }
    assert reviewer.post(path, {"action": "decline"}).code == "already_answered"
    assert AuditRow.objects.filter(action="elicitation_request_answered").count() == 1

    stranger = factories.create_organization("other")
    assert (
        rest.as_role(stranger, Role.OWNER).get(f"elicitation-requests/{cli_request.pk}").status
        == 404
    )


def test_the_list_uses_a_fixed_number_of_queries(acme, helper, server, django_assert_num_queries):
    session = create_session(factories.build_administrator(acme), helper)
    factories.create_elicitation(session, server)
    client = rest.as_role(acme, Role.AUDITOR)
    client.get("elicitation-requests")
    with CaptureQueriesContext(connection) as before:
        client.get("elicitation-requests")
    for _ in range(3):
        factories.create_elicitation(session, server)
    with django_assert_num_queries(len(before)):
        assert len(client.get("elicitation-requests").json["results"]) == 4


def test_the_admin_shows_the_form_and_accepts_the_answer(acme, helper, server):
    operator = admin_client.sign_in(acme, Role.OPERATOR)
    session = create_session(admin_client.build_principal(operator, acme), helper)
    request = factories.create_elicitation(session, server)
    page = operator.get("agents_elicitationrequest_change", request.pk)
    assert "Which region?" in admin_client.get_text(page)
    assert "Which region?" in admin_client.get_text(
        operator.get("agents_elicitationrequest_changelist")
    )
    answer_url = "agents_elicitationrequest_answer"
    too_few = {"value_1": "0", "value_0": "eu"}
    operator.post(answer_url, request.pk, status=400, answer="accept", **too_few)
    request.refresh_from_db()
    assert request.state == ElicitationRequest.State.WAITING  # a count is at least 1
    entered = {"value_0": "us", "value_1": "3", "value_2": "on"}
    operator.post(answer_url, request.pk, answer="accept", **entered)
    request.refresh_from_db()
    assert request.content.open() == {"region": "us", "count": 3, "sure": True}


def test_a_url_request_shows_the_complete_url_with_warnings(acme, helper, server):
    operator = admin_client.sign_in(acme, Role.OPERATOR)
    request = factories.create_elicitation(
        create_session(admin_client.build_principal(operator, acme), helper), server, PAGE
    )
    assert request.flags == ["not_encrypted", "unusual_host"]
    page = operator.get("agents_elicitationrequest_change", request.pk)
    assert PAGE["url"] in admin_client.get_text(page)
    assert "unusual characters" in admin_client.get_text(page)
    assert "\u202e" not in page
    assert 'rel="noopener noreferrer"' in page
    owner = admin_client.sign_in(acme, Role.OWNER)
    assert "can answer, because they started the session" in admin_client.get_text(
        owner.get("agents_elicitationrequest_change", request.pk)
    )
    operator.post("agents_elicitationrequest_answer", request.pk, answer="accept")
    request.refresh_from_db()
    assert request.state == ElicitationRequest.State.ACCEPTED
