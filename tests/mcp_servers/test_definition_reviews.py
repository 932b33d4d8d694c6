"""Reviews pin exactly the definitions that a person has seen."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from bonobot.accounts.roles import Role
from bonobot.core.problems import Conflict, Forbidden, InvalidInput
from bonobot.ledger.models import AuditRow
from mcp_servers.definition_reviews import (
    approve_definitions,
    pin_trusted_definitions,
    reject_definition,
    reset_review,
)
from mcp_servers.models import Definition, Server
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def reviewer(acme):
    return factories.create_member(acme, Role.REVIEWER)


@pytest.fixture
def server(acme):
    reviewed_server = Server.objects.create(
        organization=acme, scope_id=acme.pk, name="s", slug="s", transport_type="http"
    )
    for name in ("one", "two"):
        Definition.objects.create(
            organization=acme,
            server=reviewed_server,
            kind="tool",
            name=name,
            digest=f"digest of {name}",
            payload={"name": name},
        )
    return reviewed_server


def test_approving_all_pins_the_pending_definitions(reviewer, server):
    result = approve_definitions(reviewer, server)
    assert set(result.approved) == {"one", "two"}
    row = server.definitions.get(name="one")
    assert (row.state, row.pinned, row.pinned_digest) == ("approved", row.payload, row.digest)
    assert row.pinned_by == reviewer.label


def test_an_approval_is_recorded_with_its_digests(reviewer, server):
    approve_definitions(reviewer, server)
    assert "digest of one" in AuditRow.objects.get(action="definitions_approved").opened


def test_only_seen_definitions_are_approved(reviewer, server):
    one, two = server.definitions.order_by("name")
    Definition.objects.filter(pk=two.pk).update(digest="changed meanwhile")
    result = approve_definitions(reviewer, server, {one.pk: one.digest, two.pk: two.digest})
    assert (result.approved, result.skipped) == (("one",), ("two",))
    assert server.definitions.get(name="two").state == "pending"


def test_approving_only_changed_definitions_is_a_conflict(reviewer, server):
    one = server.definitions.get(name="one")
    with pytest.raises(Conflict) as caught:
        approve_definitions(reviewer, server, {one.pk: "what was shown before"})
    assert caught.value.code == "nothing_approved"


def test_refused_definitions_cant_be_approved(reviewer, server):
    Definition.objects.filter(name="one").update(fault="it hides text")
    assert approve_definitions(reviewer, server).approved == ("two",)


def test_a_definition_of_another_server_is_skipped(acme, reviewer, server):
    other_server = Server.objects.create(
        organization=acme, scope_id=acme.pk, name="t", slug="t", transport_type="http"
    )
    one = server.definitions.get(name="one")
    with pytest.raises(Conflict):
        approve_definitions(reviewer, other_server, {one.pk: one.digest})
    assert server.definitions.get(name="one").state == "pending"


@pytest.mark.parametrize("role", [Role.MEMBER, Role.AUDITOR, Role.OPERATOR])
def test_a_role_without_permission_cant_approve(acme, server, role):
    with pytest.raises(Forbidden):
        approve_definitions(factories.create_member(acme, role), server)
    assert not server.definitions.callable().exists()


def test_a_rejected_definition_is_neither_approved_with_all_nor_automatically(reviewer, server):
    server.approval = Server.Approval.ALWAYS
    row = server.definitions.get(name="one")
    reject_definition(reviewer, row, row.digest, " Sends files away. ")
    assert approve_definitions(reviewer, server).approved == ("two",)
    row.refresh_from_db()
    pin_trusted_definitions(server, [row], "automatic")
    row.refresh_from_db()
    assert (row.state, row.rejected_by) == ("rejected", reviewer.label)
    assert row.rejection_reason == "Sends files away."
    assert not server.definitions.callable().filter(pk=row.pk).exists()
    assert "Sends files away." in AuditRow.objects.get(action="definition_rejected").opened


def test_a_rejected_definition_can_be_approved_later(reviewer, server):
    row = server.definitions.get(name="one")
    reject_definition(reviewer, row, row.digest, "No.")
    approve_definitions(reviewer, server, {row.pk: row.digest})
    row.refresh_from_db()
    assert (row.state, row.rejected_digest, row.rejection_reason) == ("approved", "", "")


def test_a_rejected_definition_is_pending_review_when_it_changes(reviewer, server):
    row = server.definitions.get(name="one")
    reject_definition(reviewer, row, row.digest, "No.")
    server.definitions.filter(pk=row.pk).update(digest="another")
    assert server.definitions.awaiting_review().filter(pk=row.pk).exists()
    row.refresh_from_db()
    assert row.state == "pending"


def test_only_what_was_shown_and_is_pending_review_can_be_rejected(reviewer, server):
    one, two = server.definitions.order_by("name")
    approve_definitions(reviewer, server, {two.pk: two.digest})
    for row, digest in ((one, "another"), (two, two.digest)):
        with pytest.raises(Conflict) as refusal:
            reject_definition(reviewer, row, digest, "No.")
        assert refusal.value.code == "nothing_rejected"
    with pytest.raises(InvalidInput):
        reject_definition(reviewer, one, one.digest, " ")
    assert not AuditRow.objects.filter(action="definition_rejected").exists()


def test_a_role_without_permission_cant_reject(acme, server):
    row = server.definitions.get(name="one")
    operator = factories.create_member(acme, Role.OPERATOR)
    with pytest.raises(Forbidden):
        reject_definition(operator, row, row.digest, "No.")


def test_a_revoked_approval_is_pending_review_again(reviewer, server):
    approve_definitions(reviewer, server)
    reset_review(reviewer, server.definitions.get(name="one"))
    assert server.definitions.get(name="one").state == "pending"


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({}, "pending"),
        ({"pinned_digest": "digest of one"}, "approved"),
        ({"pinned_digest": "older"}, "changed"),
        ({"rejected_digest": "digest of one"}, "rejected"),
        ({"rejected_digest": "digest of one", "pinned_digest": "older"}, "rejected"),
        ({"rejected_digest": "older"}, "pending"),
        ({"fault": "x", "pinned_digest": "digest of one"}, "refused"),
        ({"present": False, "pinned_digest": "digest of one"}, "gone"),
    ],
)
def test_the_state_agrees_with_the_querysets(server, values, state):
    Definition.objects.filter(name="one").update(**values)
    row = server.definitions.get(name="one")
    assert row.state == state
    only = server.definitions.filter(name="one")
    assert only.callable().exists() == (state == "approved")
    assert only.awaiting_review().exists() == (state in ("pending", "changed"))
    assert [value for value in Definition.State if only.in_state(value).exists()] == [state]


def flag_definition(server, name="two"):
    findings = [{"tier": "soft", "rule": "keep_from_user", "path": "$.description", "excerpt": "…"}]
    server.definitions.filter(name=name).update(findings=findings)


def test_definitions_that_contain_instructions_arent_approved_with_all(reviewer, server):
    flag_definition(server)
    result = approve_definitions(reviewer, server)
    assert (result.approved, result.skipped, result.needs_review) == (("one",), (), ("two",))
    assert server.definitions.get(name="two").state == "pending"


def test_flagged_definitions_are_approved_by_name(reviewer, server):
    flag_definition(server)
    two = server.definitions.get(name="two")
    assert approve_definitions(reviewer, server, {two.pk: two.digest}).approved == ("two",)


@pytest.mark.parametrize(("mode", "pinned"), [("first", {"one"}), ("always", {"one", "two"})])
def test_automatic_approval_excludes_flagged_definitions_unless_it_is_always(server, mode, pinned):
    flag_definition(server)
    server.approval = mode
    pin_trusted_definitions(server, server.definitions.all(), pinned_by=f"approval:{mode}")
    assert {row.name for row in Definition.objects.callable()} == pinned


def test_the_number_of_queries_doesnt_depend_on_how_many_definitions_are_approved(
    acme, reviewer, server
):
    def count_queries():
        with CaptureQueriesContext(connection) as queries:
            approve_definitions(reviewer, server)
        return len(queries)

    few = count_queries()
    for number in range(10):
        name = f"more {number}"
        Definition.objects.create(
            organization=acme, server=server, kind="tool", name=name, digest=f"digest of {name}"
        )
    assert count_queries() <= few
    assert server.definitions.callable().count() == 12
