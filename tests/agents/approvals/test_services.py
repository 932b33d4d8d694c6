"""Calls that wait for a person: asked once, answered once, spent once."""

import json
from datetime import timedelta

import pytest
import time_machine
from django.db.models import F
from django.utils import timezone

from agents.approvals.services import expire_overdue, resolve_approval, revoke_session_approval
from agents.calls.pipeline import ApprovalRequired
from agents.flow_labels.services import list_approval_label_sources
from agents.models import Approval, Session, SessionApproval, Step
from agents.policies.services import PolicySpec, RuleSpec, set_policy
from agents.sessions import services as sessions
from agents.tasks import sweep
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.ledger.audit.verify_chain import verify_whole_chain
from bonobot.ledger.models import ApprovalCell, AuditRow
from bonobot.ledger.writer.writer_thread import get_writer
from bonobot.notifications.models import Notification
from bonobot.notifications.services import NotificationChannelSpec, save_channel
from mcp_servers.models import Definition
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)

ECHO = "mcp_workshop_echo"
ADD = "mcp_workshop_add"


@pytest.fixture
def reviewer(acme):
    return factories.create_member(acme, Role.REVIEWER)


@pytest.fixture
def asking(acme, helper, workshop):
    """The agent's policy asks about `echo`."""
    set_policy(factories.build_administrator(acme), helper, PolicySpec("all", ask=(ECHO,)))


def refused(call, *args, **more) -> Problem:
    with pytest.raises(Problem) as caught:
        call(*args, **more)
    return caught.value


def asked() -> Approval:
    return Approval.objects.get(state=Approval.State.WAITING)


def test_a_call_that_requires_approval_is_pending_with_its_url(asking, call):
    problem = refused(call, ECHO, {"text": "x"})
    assert isinstance(problem, ApprovalRequired)
    approval = asked()
    assert problem.extra["approval_url"].endswith(f"/admin/agents/approval/{approval.pk}/change/")
    assert (approval.label, approval.arguments) == (ECHO, {"text": "x"})
    row = AuditRow.objects.get(code="approval_required")
    assert (row.decision, row.outcome) == ("ask", "refused")
    assert json.loads(row.opened)["details"]["approval_id"] == str(approval.pk)


def test_a_pending_call_that_is_repeated_later_stays_pending_and_then_runs(asking, call, reviewer):
    """Each process, and each minute, writes a row of its own about the same question."""
    for _ in range(3):
        assert refused(call, ECHO, {"text": "x"}).code == "approval_required"
        get_writer().close()
    assert AuditRow.objects.filter(code="approval_required").count() == 3
    resolve_approval(reviewer, asked(), "approve")
    assert call(ECHO, {"text": "x"}).text == "x"


def test_an_approved_call_runs_once(asking, call, reviewer, acme):
    refused(call, ECHO, {"text": "x"})
    resolve_approval(reviewer, asked(), "approve")
    assert call(ECHO, {"text": "x"}).text == "x"
    row = AuditRow.objects.filter(event_type="call", outcome="ok").get()
    assert "approval_id" in json.loads(row.opened)["details"]
    assert refused(call, ECHO, {"text": "x"}).code == "approval_required"
    assert verify_whole_chain(acme.pk).ok


def test_other_arguments_need_another_approval(asking, call, reviewer):
    refused(call, ECHO, {"text": "x"})
    resolve_approval(reviewer, asked(), "approve")
    assert refused(call, ECHO, {"text": "y"}).code == "approval_required"
    assert Approval.objects.count() == 2


def test_a_changed_definition_needs_another_approval(asking, call, reviewer):
    refused(call, ECHO, {"text": "x"})
    resolve_approval(reviewer, asked(), "approve")
    Definition.objects.filter(name="echo").update(digest="new", pinned_digest="new")
    assert refused(call, ECHO, {"text": "x"}).code == "approval_required"


def test_changed_rules_need_another_approval(asking, call, reviewer, acme, helper):
    refused(call, ECHO, {"text": "x"})
    resolve_approval(reviewer, asked(), "approve")
    set_policy(
        factories.build_administrator(acme), helper, PolicySpec("all", ask=("mcp_workshop_*",))
    )
    assert refused(call, ECHO, {"text": "x"}).code == "approval_required"


def test_another_caller_cant_use_an_approval(asking, call, reviewer, acme):
    refused(call, ECHO, {"text": "x"})
    resolve_approval(reviewer, asked(), "approve")
    other = factories.create_member(acme, Role.OPERATOR)
    assert refused(call, ECHO, {"text": "x"}, principal=other).code == "approval_required"


def test_the_same_call_has_one_approval(asking, call):
    for _ in range(3):
        refused(call, ECHO, {"text": "x"})
    assert Approval.objects.count() == 1


def test_a_denial_is_returned_with_its_message_and_not_requested_again(asking, call, reviewer):
    refused(call, ECHO, {"text": "x"})
    resolve_approval(reviewer, asked(), "deny", "Use the other tool.")
    problem = refused(call, ECHO, {"text": "x"})
    assert problem.code == "approval_denied"
    assert "Use the other tool." in str(problem)
    assert Approval.objects.count() == 1


def test_an_unanswered_approval_is_a_denial(asking, call, reviewer):
    refused(call, ECHO, {"text": "x"})
    with time_machine.travel(timezone.now() + timedelta(hours=25)):
        with pytest.raises(Problem) as late:
            resolve_approval(reviewer, asked(), "approve")
        assert late.value.code == "approval_expired"
        assert expire_overdue() == 1
    assert Approval.objects.get().state == Approval.State.EXPIRED
    assert not ApprovalCell.objects.exists()


def test_an_approval_that_wasnt_used_in_time_is_invalid(asking, call, reviewer):
    refused(call, ECHO, {"text": "x"})
    resolve_approval(reviewer, asked(), "approve")
    # Whether it is too late is told by the database's own clock.
    ApprovalCell.objects.update(expires=F("expires") - 25 * 3_600 * 1_000_000)
    assert refused(call, ECHO, {"text": "x"}).code == "approval_expired"


def test_an_approval_is_answered_once(asking, call, reviewer):
    refused(call, ECHO, {"text": "x"})
    approval = asked()
    resolve_approval(reviewer, approval, "approve")
    with pytest.raises(Problem) as again:
        resolve_approval(reviewer, approval, "deny")
    assert again.value.code == "already_answered"


def test_only_approvers_can_answer(asking, call, acme):
    refused(call, ECHO, {"text": "x"})
    with pytest.raises(Problem) as problem:
        resolve_approval(factories.create_member(acme, Role.OPERATOR), asked(), "approve")
    assert problem.value.code == "forbidden"


def test_under_four_eyes_nobody_can_approve_their_own_call(asking, call, acme):
    Organization.objects.filter(pk=acme.pk).update(four_eyes=True)
    owner = factories.create_member(acme, Role.OWNER)
    refused(call, ECHO, {"text": "x"}, principal=owner)
    with pytest.raises(Problem) as problem:
        resolve_approval(owner, asked(), "approve")
    assert problem.value.code == "own_call"
    assert resolve_approval(owner, asked(), "deny").state == Approval.State.DENIED


def test_approvers_are_notified_once(asking, call, acme):
    spec = NotificationChannelSpec("Pager", "webhook", url="https://hooks.example.com/x")
    save_channel(factories.build_administrator(acme), spec)
    for _ in range(2):
        refused(call, ECHO, {"text": "secret"})
    notice = Notification.objects.get()
    assert (notice.event, notice.subject_name) == ("approval_waiting", ECHO)
    assert notice.link.endswith(f"/admin/agents/approval/{asked().pk}/change/")
    assert "secret" not in notice.text


def test_the_organization_sets_how_long_an_approval_waits(asking, call, acme):
    Organization.objects.filter(pk=acme.pk).update(approval_hours=2)
    refused(call, ECHO, {"text": "x"})
    left = asked().expires_at - timezone.now()
    assert timedelta(minutes=119) < left <= timedelta(hours=2)


def test_a_call_without_a_session_cant_get_a_session_approval(asking, call, reviewer):
    refused(call, ECHO, {"text": "x"})
    for said in ("approve_session", "perhaps"):
        with pytest.raises(Problem) as problem:
            resolve_approval(reviewer, asked(), said)
        assert problem.value.field == "answer"


def test_a_conditional_ask_rule_applies_only_if_its_condition_matches(acme, helper, workshop, call):
    large = RuleSpec(ADD, {"properties": {"a": {"minimum": 100}}, "required": ["a"]})
    set_policy(factories.build_administrator(acme), helper, PolicySpec("all", ask=(large,)))
    assert call(ADD, {"a": 1, "b": 2}).outcome == "ok"
    assert refused(call, ADD, {"a": 100, "b": 2}).code == "approval_required"


def test_an_external_effect_requires_approval_after_private_and_untrusted_data(
    workshop, call, reviewer
):
    labels = {"echo": ["private_data"], "add": ["untrusted_content"], "fail": ["sends_out"]}
    for name, legs in labels.items():
        Definition.objects.filter(name=name).update(labels=legs)
    send = ("mcp_workshop_fail", {"reason": "out"})
    assert call(*send).outcome == "error"
    call(ECHO, {"text": "secret"})
    assert call(*send).outcome == "error"
    call(ADD, {"a": 1, "b": 2})
    problem = refused(call, *send)
    assert problem.code == "approval_required"
    approval = asked()
    assert (approval.code, approval.flow_labels) == (
        "flow_needs_approval",
        ["private_data", "untrusted_content"],
    )
    brought = {
        one.label: [row.tool_name for row in one.calls]
        for one in list_approval_label_sources(approval)
    }
    assert brought == {"private_data": ["echo"], "untrusted_content": ["add"]}
    resolve_approval(reviewer, approval, "approve")
    assert call(*send).outcome == "error"
    assert refused(call, *send).code == "approval_required"


def started(acme, helper, text):
    return sessions.start_session(factories.build_administrator(acme), helper, text)


def calls_of(session):
    return list(session.steps.filter(kind=Step.Kind.CALL).order_by("seq"))


def test_a_session_waits_and_continues_after_the_answer(asking, acme, helper, take, reviewer):
    session = started(acme, helper, f'/{ECHO} {{"text": "hello"}}')
    assert take(session) == Session.Status.WAITING
    assert session.runner is None
    (step,) = calls_of(session)
    assert step.payload["approval"]["approval_id"] == str(asked().pk)
    resolve_approval(reviewer, asked(), "approve")
    assert take(session) == Session.Status.DONE
    (step,) = calls_of(session)
    assert (step.state, step.payload["text"]) == (Step.State.DONE, "hello")


def test_the_other_calls_of_the_turn_dont_wait(asking, acme, helper, take, reviewer):
    text = f'/{ECHO} {{"text": "hello"}}\n/{ADD} {{"a": 1, "b": 2}}'
    session = started(acme, helper, text)
    assert take(session) == Session.Status.WAITING
    assert [step.state for step in calls_of(session)] == [Step.State.INTENT, Step.State.DONE]
    resolve_approval(reviewer, asked(), "deny", "No echo today.")
    assert take(session) == Session.Status.DONE
    first, _ = calls_of(session)
    assert (first.state, first.payload["code"]) == (Step.State.FAILED, "approval_denied")
    assert "No echo today." in first.payload["text"]


def test_a_session_approval_is_valid_until_revoked(asking, acme, helper, take, reviewer):
    session = started(acme, helper, f'/{ECHO} {{"text": "one"}}')
    take(session)
    resolve_approval(reviewer, asked(), "approve_session")
    assert take(session) == Session.Status.DONE
    boss = factories.build_administrator(acme)
    sessions.send_message(boss, session, f'/{ECHO} {{"text": "two"}}')
    assert take(session) == Session.Status.DONE
    revoke_session_approval(reviewer, SessionApproval.objects.get())
    sessions.send_message(boss, session, f'/{ECHO} {{"text": "three"}}')
    assert take(session) == Session.Status.WAITING


def test_canceling_a_waiting_session_withdraws_its_approval(asking, acme, helper, take):
    session = started(acme, helper, f'/{ECHO} {{"text": "hello"}}')
    take(session)
    assert sessions.cancel_session(factories.build_administrator(acme), session)
    assert Approval.objects.get().state == Approval.State.WITHDRAWN
    assert take(session) == Session.Status.CANCELLED
    (step,) = calls_of(session)
    assert (step.state, step.payload["code"]) == (Step.State.FAILED, "not_made")


def test_an_approval_ends_when_its_call_is_made_without_it(asking, acme, helper, take, reviewer):
    boss = factories.build_administrator(acme)
    set_policy(boss, helper, PolicySpec("all", ask=(ECHO, ADD)))
    session = started(acme, helper, f'/{ECHO} {{"text": "hello"}}\n/{ADD} {{"a": 1, "b": 2}}')
    take(session)
    set_policy(boss, helper, PolicySpec("all", ask=(ADD,)))
    resolve_approval(reviewer, Approval.objects.waiting().get(own_name="add"), "deny")
    assert take(session) == Session.Status.DONE
    assert not Approval.objects.waiting().exists()


def test_the_schedule_continues_a_session_whose_answer_came_early(
    asking, acme, helper, take, reviewer
):
    session = started(acme, helper, f'/{ECHO} {{"text": "hello"}}')
    take(session)
    resolve_approval(reviewer, asked(), "approve")
    Session.objects.filter(pk=session.pk).update(status=Session.Status.WAITING)
    sweep()
    assert take(session) == Session.Status.DONE


def test_an_expired_approval_continues_the_session_without_the_call(asking, acme, helper, take):
    session = started(acme, helper, f'/{ECHO} {{"text": "hello"}}')
    take(session)
    Approval.objects.update(expires_at=timezone.now())
    sweep()
    assert take(session) == Session.Status.DONE
    (step,) = calls_of(session)
    assert step.payload["code"] == "approval_expired"
