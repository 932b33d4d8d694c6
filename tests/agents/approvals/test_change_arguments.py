"""Approvals with changed arguments: a new digest, decided again."""

import pytest

from agents.approvals.change_arguments import approve_with_changes
from agents.models import Approval, Session, Step
from agents.policies.services import PolicySpec, RuleSpec, set_policy
from agents.sessions import services as sessions
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.core.text.masked_values import MASK
from bonobot.ledger.models import ApprovalCell, AuditRow
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)

ECHO = "mcp_workshop_echo"


@pytest.fixture
def reviewer(acme):
    return factories.create_member(acme, Role.REVIEWER)


@pytest.fixture
def waiting(acme, helper, workshop, run_to_rest):
    """A session whose call of `echo` waits for approval."""
    administrator = factories.build_administrator(acme)
    set_policy(administrator, helper, PolicySpec("all", ask=(ECHO,)))
    session = sessions.start_session(administrator, helper, f'/{ECHO} {{"text": "one"}}')
    assert run_to_rest(session) == Session.Status.WAITING
    return session


def get_call(session: Session) -> Step:
    return Step.objects.get(session=session, kind=Step.Kind.CALL)


def test_the_call_is_made_once_with_the_changed_arguments(waiting, reviewer, run_to_rest):
    approval = Approval.objects.get()
    changed = approve_with_changes(reviewer, approval, {"text": "two"})
    assert (changed.state, changed.arguments) == ("approved", {"text": "two"})
    assert (changed.is_changed, changed.requested_arguments) == (True, {"text": "one"})
    assert run_to_rest(waiting) == Session.Status.DONE
    call = get_call(waiting)
    assert (call.payload["arguments"], call.payload["text"]) == ({"text": "two"}, "two")
    assert Approval.objects.count() == 1
    assert ApprovalCell.objects.exclude(spent_by=None).count() == 1
    answer = AuditRow.objects.get(action="call_approved")
    assert answer.resource_name == "echo (workshop)"
    assert '"arguments_changed":true' in answer.opened


def test_a_rule_about_the_changed_arguments_still_denies_the_call(
    waiting, reviewer, run_to_rest, acme, helper
):
    condition = {"properties": {"text": {"const": "two"}}, "required": ["text"]}
    deny = (RuleSpec(ECHO, condition),)
    set_policy(
        factories.build_administrator(acme), helper, PolicySpec("all", ask=(ECHO,), deny=deny)
    )
    approve_with_changes(reviewer, Approval.objects.get(), {"text": "two"})
    assert run_to_rest(waiting) == Session.Status.DONE
    assert get_call(waiting).payload["code"] == "denied_by_policy"


def test_arguments_that_dont_match_the_schema_are_refused_and_the_call_stays_pending(
    waiting, reviewer
):
    with pytest.raises(Problem) as caught:
        approve_with_changes(reviewer, Approval.objects.get(), {"text": 2})
    assert (caught.value.code, caught.value.field) == ("invalid_arguments", "$.text")
    assert get_call(waiting).payload["arguments"] == {"text": "one"}
    assert Approval.objects.get().state == "waiting"


def test_a_masked_value_keeps_its_secret_and_cant_be_moved(waiting, reviewer, run_to_rest):
    Approval.objects.update(arguments={"text": MASK})
    for arguments in ({"text": f"x{MASK}"}, {"other": MASK}, {"text": MASK}):
        with pytest.raises(Problem) as caught:
            approve_with_changes(reviewer, Approval.objects.get(), arguments)
        assert (caught.value.code, caught.value.field) == ("invalid", "arguments")
    assert get_call(waiting).payload["arguments"] == {"text": "one"}
    assert Approval.objects.get().state == "waiting"
    approve_with_changes(reviewer, Approval.objects.get(), {"text": MASK, "extra": 1})
    assert get_call(waiting).payload["arguments"] == {"text": "one", "extra": 1}


def test_a_call_without_a_session_cant_be_changed(helper, reviewer):
    with pytest.raises(Problem) as caught:
        approve_with_changes(reviewer, factories.create_approval(helper), {"a": 2})
    assert caught.value.code == "invalid"


def test_changing_needs_the_permission_to_approve(waiting, acme):
    operator = factories.create_member(acme, Role.OPERATOR)
    with pytest.raises(Problem) as caught:
        approve_with_changes(operator, Approval.objects.get(), {"text": "two"})
    assert caught.value.status == 403
    assert get_call(waiting).payload["arguments"] == {"text": "one"}
    assert Approval.objects.get().arguments == {"text": "one"}
