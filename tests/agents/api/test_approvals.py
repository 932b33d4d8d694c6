"""Approvals over REST: listed, shown, answered; session approvals are revoked."""

import pytest

from agents.models import Session, SessionApproval
from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories, rest
from tests.rest import RestClient

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def helper(acme):
    return factories.create_agent(acme)


@pytest.fixture
def approval(helper):
    return factories.create_waiting_session(helper)[1]


@pytest.fixture
def reviewer(acme):
    return rest.as_role(acme, Role.REVIEWER)


def test_approvals_are_filtered(acme, helper, approval, reviewer):
    factories.create_approval(
        factories.create_agent(acme, "other"), state="denied", own_name="x", rule="flow"
    )
    for query in (
        "state=waiting",
        "agent=helper",
        f"session={approval.session_id}",
        "tool=add",
        "rule=policy:ask",
    ):
        (row,) = reviewer.get(f"approvals?{query}").json["results"]
        assert row["id"] == str(approval.pk), query
    assert len(reviewer.get("approvals").json["results"]) == 2


def test_the_list_uses_the_same_queries_for_any_number_of_approvals(
    helper, reviewer, django_assert_num_queries
):
    for _ in range(5):
        factories.create_approval(helper)
    reviewer.get("approvals")  # the token's first use is recorded
    with django_assert_num_queries(3):  # the token, the approvals, their labels
        assert len(reviewer.get("approvals").json["results"]) == 5


def test_an_approval_has_the_call_and_its_url(approval, reviewer):
    data = reviewer.get(f"approvals/{approval.pk}").json
    assert (data["arguments"], data["state"]) == ({"a": 1}, "waiting")
    assert data["url"].endswith(f"/admin/approvals/{approval.pk}/change/")


def test_an_approval_is_answered_once(approval, reviewer):
    path = f"approvals/{approval.pk}/answer"
    assert reviewer.post(path, {"answer": "deny", "message": "No."}).json["message"] == "No."
    assert Session.objects.get().status == Session.Status.QUEUED
    response = reviewer.post(path, {"answer": "approve"})
    assert (response.status, response.code) == (409, "already_answered")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"answer": "perhaps"}, "answer"),
        ({}, "answer"),
        ({"answer": "deny", "message": 2001 * "x"}, "message"),
    ],
)
def test_an_invalid_answer_is_refused(approval, reviewer, body, field):
    response = reviewer.post(f"approvals/{approval.pk}/answer", body)
    assert (response.status, response.json["field"]) == (400, field)


def test_a_persons_own_call_needs_another_approver_under_four_eyes(acme, helper):
    Organization.objects.update(four_eyes=True)
    owner = factories.create_member(acme, Role.OWNER)
    own_approval = factories.create_approval(
        helper, requested_by_kind="user", requested_by_id=owner.id
    )
    client = RestClient(user=User.objects.get(pk=owner.id))
    response = client.post(f"approvals/{own_approval.pk}/answer", {"answer": "approve"})
    assert (response.status, response.code) == (403, "own_call")


def test_a_member_sees_their_own_approvals_and_cant_answer(acme, helper, approval):
    member = factories.create_member(acme, Role.MEMBER)
    own_approval = factories.create_approval(
        helper, requested_by_kind="user", requested_by_id=member.id
    )
    client = RestClient(user=User.objects.get(pk=member.id))
    assert [row["id"] for row in client.get("approvals").json["results"]] == [str(own_approval.pk)]
    assert client.get(f"approvals/{approval.pk}").status == 404
    assert client.post(f"approvals/{own_approval.pk}/answer", {"answer": "approve"}).status == 403


def test_a_token_for_one_agent_reads_approvals_of_that_agent(acme, helper, approval):
    other_approval = factories.create_approval(factories.create_agent(acme, "other"))
    client = rest.as_role(acme, Role.OWNER, helper)
    assert [row["id"] for row in client.get("approvals").json["results"]] == [str(approval.pk)]
    assert client.get(f"approvals/{other_approval.pk}").status == 404
    assert client.post(f"approvals/{approval.pk}/answer", {"answer": "approve"}).status == 403


def test_session_approvals_are_listed_and_revoked(approval, reviewer):
    reviewer.post(f"approvals/{approval.pk}/answer", {"answer": "approve_session"})
    path = f"sessions/{approval.session_id}/approvals"
    (session_approval,) = reviewer.get(path).json["results"]
    assert session_approval["tool"] == "add"
    assert reviewer.delete(f"{path}/{session_approval['id']}").status == 204
    assert not SessionApproval.objects.exists()
    assert reviewer.delete(f"{path}/{session_approval['id']}").status == 404
    assert AuditRow.objects.filter(action="session_approval_revoked").exists()


def test_an_owner_sets_the_approval_rules(acme, reviewer):
    owner = rest.as_role(acme, Role.OWNER)
    rules = {"four_eyes": True, "approval_hours": 2}
    organization = owner.patch("organization", rules).json
    assert {name: organization[name] for name in rules} == rules
    assert owner.patch("organization", {"approval_hours": 721}).json["field"] == "approval_hours"
    assert reviewer.patch("organization", {"four_eyes": False}).status == 403
    assert reviewer.get("organization").json["four_eyes"] is True


def test_an_approval_whose_definition_changed_cant_be_approved(acme, helper, reviewer):
    server = admin_client.create_web_server(acme)
    definition = admin_client.declare_tool(server, description="Adds numbers.")
    approval = factories.create_approval(
        helper, server_id=server.pk, definition_digest=definition.digest
    )
    definition.pinned, definition.pinned_digest = definition.payload, definition.digest
    shown = reviewer.get(f"approvals/{approval.pk}").json
    assert (shown["definition_changed"], shown["definition_diff"]) == (False, "")
    definition.set_payload({**definition.payload, "description": "Forwards customers."})
    definition.save()
    factories.create_approval(helper)
    other, listed = sorted(
        reviewer.get("approvals").json["results"], key=lambda row: row["definition_changed"]
    )
    assert (listed["id"], listed["definition_changed"]) == (str(approval.pk), True)
    # The databases keep keys in different orders, and with them the commas.
    diff = [line.rstrip(",") for line in listed["definition_diff"].splitlines()]
    assert '-  "description": "Adds numbers."' in diff
    assert '+  "description": "Forwards customers."' in diff
    assert (other["definition_changed"], other["definition_diff"]) == (False, "")
    path = f"approvals/{approval.pk}/answer"
    response = reviewer.post(path, {"answer": "approve"})
    assert (response.status, response.code) == (409, "definition_changed")
    denied = reviewer.post(path, {"answer": "deny"}).json
    assert (denied["state"], denied["definition_changed"]) == ("denied", False)
