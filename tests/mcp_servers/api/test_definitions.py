"""Definitions and their approval over REST."""

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from mcp_servers.models import Definition, Server
from tests import factories, rest
from tests.rest import RestClient

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def server(acme: Organization) -> Server:
    created = Server.objects.create(
        organization=acme, scope_id=acme.pk, name="s", slug="s", transport_type="http"
    )
    for kind, name in (("tool", "one"), ("tool", "two"), ("resource", "r"), ("prompt", "p")):
        Definition.objects.create(
            organization=acme,
            server=created,
            kind=kind,
            name=name,
            digest=f"digest of {name}",
            payload={"name": name, "inputSchema": {"type": "object"}},
        )
    return created


@pytest.fixture
def reviewer(acme: Organization) -> RestClient:
    return rest.as_role(acme, Role.REVIEWER)


@pytest.fixture
def path(server: Server) -> str:
    return f"mcp-servers/{server.pk}"


def list_names(response: rest.RestResponse) -> list[str]:
    return [row["name"] for row in response.json["results"]]


def get_definition(server: Server) -> Definition:
    return server.definitions.get(name="one")


def test_definitions_are_listed_by_kind_and_state(reviewer, server, path):
    Definition.objects.filter(name="two").update(pinned_digest="digest of two")
    assert list_names(reviewer.get(f"{path}/definitions")) == ["one", "p", "r", "two"]
    assert list_names(reviewer.get(f"{path}/definitions?kind=tool&state=pending")) == ["one"]
    assert list_names(reviewer.get(f"{path}/definitions?state=approved")) == ["two"]
    assert list_names(reviewer.get(f"{path}/tools")) == ["one", "two"]
    assert list_names(reviewer.get(f"{path}/resources")) == ["r"]
    assert list_names(reviewer.get(f"{path}/prompts")) == ["p"]


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({}, "pending"),
        ({"pinned_digest": "digest of one"}, "approved"),
        ({"pinned_digest": "another"}, "changed"),
        ({"fault": "it hides text"}, "refused"),
        ({"present": False}, "gone"),
        ({"present": False, "fault": "it hides text"}, "refused"),
    ],
)
def test_a_definition_has_the_state_it_is_filtered_by(reviewer, server, path, values, state):
    Definition.objects.filter(name="one").update(**values)
    for query_state in Definition.State.values:
        rows = reviewer.get(f"{path}/tools?state={query_state}&q=one").json["results"]
        assert [row["state"] for row in rows] == ([state] if query_state == state else [])


def test_an_unknown_state_is_refused_with_its_value(reviewer, path):
    assert reviewer.get(f"{path}/definitions?state=fine").json["field"] == "state"


def test_all_pending_definitions_are_approved_together(reviewer, server, path):
    response = reviewer.post(f"{path}/approve", {"all": True})
    assert (sorted(response.json["approved"]), response.json["pending_review"]) == (
        ["one", "p", "r", "two"],
        0,
    )
    assert reviewer.post(f"{path}/approve", {"all": True}).json["approved"] == []


def test_only_definitions_with_the_given_digest_are_approved(reviewer, server, path):
    rows = [{"id": str(row.pk), "digest": row.digest} for row in server.definitions.tools()]
    Definition.objects.filter(name="two").update(digest="changed meanwhile")
    response = reviewer.post(f"{path}/approve", {"definitions": rows})
    assert response.json == {
        "approved": ["one"],
        "skipped": ["two"],
        "needs_review": [],
        "pending_review": 3,
    }


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"all": False},
        {"definitions": []},
        {
            "all": True,
            "definitions": [{"id": "0191f2d0-7f0c-7c3e-9d1f-0d5f2b8f6a11", "digest": ""}],
        },
        {"definitions": [{"id": "x", "digest": "y"}]},
        {"definitions": [{"id": "0191f2d0-7f0c-7c3e-9d1f-0d5f2b8f6a11"}]},
    ],
)
def test_an_approval_returns_the_approved_definitions(reviewer, path, body):
    response = reviewer.post(f"{path}/approve", body)
    assert (response.status, response.code) == (400, "invalid")
    assert response.json["field"].startswith("definitions")
    assert not Definition.objects.exclude(pinned_digest="").exists()


def test_one_definition_is_approved_by_its_digest(reviewer, server, path):
    row = get_definition(server)
    address = f"{path}/definitions/{row.pk}"
    conflict = reviewer.post(f"{address}/approve", {"digest": "what was shown before"})
    assert (conflict.status, conflict.code) == (409, "nothing_approved")
    approved = reviewer.post(f"{address}/approve", {"digest": row.digest})
    assert (approved.json["state"], approved.json["approved_digest"]) == ("approved", row.digest)
    assert approved.json["approved_declaration"] == row.payload
    revoked = reviewer.delete(f"{address}/approve")
    assert (revoked.json["state"], revoked.json["approved_declaration"]) == ("pending", None)


def test_one_definition_is_disabled(acme, server, path):
    operator = rest.as_role(acme, Role.OPERATOR)
    address = f"{path}/definitions/{get_definition(server).pk}"
    assert operator.patch(address, {"enabled": False}).json["enabled"] is False
    assert operator.get(address).json["enabled"] is False
    assert operator.patch(address, {}).json["field"] == "enabled"


def test_a_definition_of_another_server_isnt_found(acme, reviewer, server, path):
    other_server = Server.objects.create(
        organization=acme, scope_id=acme.pk, name="t", slug="t", transport_type="http"
    )
    response = reviewer.get(
        f"mcp-servers/{other_server.pk}/definitions/{get_definition(server).pk}"
    )
    assert (response.status, response.json["field"]) == (404, "definition_id")


def test_the_list_uses_the_same_queries_for_any_number_of_definitions(
    acme, reviewer, server, path, django_assert_num_queries
):
    reviewer.get(f"{path}/tools")
    for number in range(20):
        Definition.objects.create(
            organization=acme, server=server, kind="tool", name=f"t{number}", digest="d", payload={}
        )
    with django_assert_num_queries(5):  # the token, the server, the definitions, the labels of both
        assert len(reviewer.get(f"{path}/tools").json["results"]) == 22


def test_labels_are_suggested_set_and_reset(reviewer, server, path):
    definition = reviewer.get(f"{path}/tools").json["results"][0]
    assert (definition["labels"], definition["labels_suggested"]) == (
        None,
        ["private_data", "untrusted_content"],
    )
    body = {"names": ["one", "two"], "labels": ["sends_out"]}
    assert reviewer.send("PUT", f"{path}/labels", body).status == 200
    assert get_definition(server).labels == ["sends_out"]
    assert reviewer.send("PUT", f"{path}/labels", body | {"labels": None}).status == 200
    assert get_definition(server).labels is None


def test_invalid_labels_change_nothing(reviewer, server, path):
    for body, code in (
        ({"names": ["one"], "labels": ["kind"]}, "unknown_label"),
        ({"names": ["nine"], "labels": []}, "not_found"),
    ):
        assert reviewer.send("PUT", f"{path}/labels", body).code == code
    assert get_definition(server).labels is None
