"""Approvals: requested once, answered once, used once."""

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
from bonobot.ledger.actor_names import get_actor_name
from bonobot.ledger.models import ApprovalCell, AuditRow
from bonobot.ledger.writer.writer_thread import get_writer
from bonobot.notifications.channels import NotificationChannelSpec, save_channel
from bonobot.notifications.models import Notification
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.models import Definition
from tests import factories
from tests.ledger_chain import verify_whole_chain

pytestmark = pytest.mark.django_db(transaction=True)

ECHO = "mcp_workshop_echo"
ADD = "mcp_workshop_add"


@pytest.fixture
def reviewer(acme):
    return factories.create_member(acme, Role.REVIEWER)


@pytest.fixture
def approval_policy(acme, helper, workshop):
    """The agent's policy requires approval of `echo`."""
    set_policy(factories.build_administrator(acme), helper, PolicySpec("all", ask=(ECHO,)))


def catch_problem(call, *args, **kwargs) -> Problem:
    with pytest.raises(Problem) as caught:
        call(*args, **kwargs)
    return caught.value


def get_pending_approval() -> Approval:
    return Approval.objects.get(state=Approval.State.WAITING)


def test_a_call_that_requires_approval_is_pending_with_its_url(approval_policy, call):
    problem = catch_problem(call, ECHO, {"text": "x"})
    assert isinstance(problem, ApprovalRequired)
    approval = get_pending_approval()
    assert problem.extra["approval_url"].endswith(f"/admin/approvals/{approval.pk}/change/")
    assert (approval.label, approval.arguments) == (ECHO, {"text": "x"})
    row = AuditRow.objects.get(code="approval_required")
    assert (row.decision, row.outcome) == ("ask", "refused")
    assert json.loads(row.opened)["details"]["approval_id"] == str(approval.pk)


def test_a_pending_call_that_is_repeated_later_stays_pending_and_then_runs(
    approval_policy, call, reviewer
):
    """Each process, and each minute, records its own audit row for the same approval."""
    for _ in range(3):
        assert catch_problem(call, ECHO, {"text": "x"}).code == "approval_required"
        get_writer().close()
    assert AuditRow.objects.filter(code="approval_required").count() == 3
    resolve_approval(reviewer, get_pending_approval(), "approve")
    assert call(ECHO, {"text": "x"}).text == "x"


def test_an_approved_call_runs_once(approval_policy, call, reviewer, acme):
    catch_problem(call, ECHO, {"text": "x"})
    resolve_approval(reviewer, get_pending_approval(), "approve")
    assert call(ECHO, {"text": "x"}).text == "x"
    row = AuditRow.objects.filter(event_type="call", outcome="ok").get()
    assert "approval_id" in json.loads(row.opened)["details"]
    assert catch_problem(call, ECHO, {"text": "x"}).code == "approval_required"
    assert verify_whole_chain(acme.pk).ok


def test_other_arguments_need_another_approval(approval_policy, call, reviewer):
    catch_problem(call, ECHO, {"text": "x"})
    resolve_approval(reviewer, get_pending_approval(), "approve")
    assert catch_problem(call, ECHO, {"text": "y"}).code == "approval_required"
    assert Approval.objects.count() == 2


def test_a_changed_definition_needs_another_approval(approval_policy, call, reviewer):
    catch_problem(call, ECHO, {"text": "x"})
    resolve_approval(reviewer, get_pending_approval(), "approve")
    Definition.objects.filter(name="echo").update(digest="new", pinned_digest="new")
    assert catch_problem(call, ECHO, {"text": "x"}).code == "approval_required"


def test_changed_rules_need_another_approval(approval_policy, call, reviewer, acme, helper):
    catch_problem(call, ECHO, {"text": "x"})
    resolve_approval(reviewer, get_pending_approval(), "approve")
    set_policy(
        factories.build_administrator(acme), helper, PolicySpec("all", ask=("mcp_workshop_*",))
    )
    assert catch_problem(call, ECHO, {"text": "x"}).code == "approval_required"


def test_another_caller_cant_use_an_approval(approval_policy, call, reviewer, acme):
    catch_problem(call, ECHO, {"text": "x"})
    resolve_approval(reviewer, get_pending_approval(), "approve")
    other_member = factories.create_member(acme, Role.OPERATOR)
    assert (
        catch_problem(call, ECHO, {"text": "x"}, principal=other_member).code == "approval_required"
    )


def test_the_same_call_has_one_approval(approval_policy, call):
    for _ in range(3):
        catch_problem(call, ECHO, {"text": "x"})
    assert Approval.objects.count() == 1


def test_a_denial_is_returned_with_its_message_and_not_requested_again(
    approval_policy, call, reviewer
):
    catch_problem(call, ECHO, {"text": "x"})
    resolve_approval(reviewer, get_pending_approval(), "deny", "Use the other tool.")
    problem = catch_problem(call, ECHO, {"text": "x"})
    assert problem.code == "approval_denied"
    assert "Use the other tool." in str(problem)
    assert Approval.objects.count() == 1


def test_an_unanswered_approval_is_a_denial(approval_policy, call, reviewer):
    catch_problem(call, ECHO, {"text": "x"})
    with time_machine.travel(timezone.now() + timedelta(hours=25)):
        with pytest.raises(Problem) as raised:
            resolve_approval(reviewer, get_pending_approval(), "approve")
        assert raised.value.code == "approval_expired"
        assert expire_overdue() == 1
    assert Approval.objects.get().state == Approval.State.EXPIRED
    assert not ApprovalCell.objects.exists()


def test_an_approval_that_wasnt_used_in_time_is_invalid(approval_policy, call, reviewer):
    catch_problem(call, ECHO, {"text": "x"})
    resolve_approval(reviewer, get_pending_approval(), "approve")
    # Expiry is checked with the database's clock.
    ApprovalCell.objects.update(expires=F("expires") - 25 * 3_600 * 1_000_000)
    assert catch_problem(call, ECHO, {"text": "x"}).code == "approval_expired"


def test_an_approval_is_answered_once(approval_policy, call, reviewer):
    catch_problem(call, ECHO, {"text": "x"})
    approval = get_pending_approval()
    resolve_approval(reviewer, approval, "approve")
    with pytest.raises(Problem) as raised:
        resolve_approval(reviewer, approval, "deny")
    assert raised.value.code == "already_answered"


def test_only_approvers_can_answer(approval_policy, call, acme):
    catch_problem(call, ECHO, {"text": "x"})
    with pytest.raises(Problem) as raised:
        resolve_approval(
            factories.create_member(acme, Role.OPERATOR), get_pending_approval(), "approve"
        )
    assert raised.value.code == "forbidden"


def test_people_cant_approve_their_own_calls_under_four_eyes(approval_policy, call, acme):
    Organization.objects.filter(pk=acme.pk).update(four_eyes=True)
    owner = factories.create_member(acme, Role.OWNER)
    catch_problem(call, ECHO, {"text": "x"}, principal=owner)
    with pytest.raises(Problem) as raised:
        resolve_approval(owner, get_pending_approval(), "approve")
    assert raised.value.code == "own_call"
    assert resolve_approval(owner, get_pending_approval(), "deny").state == Approval.State.DENIED


def test_approvers_are_notified_once(approval_policy, call, acme):
    spec = NotificationChannelSpec("Pager", "webhook", url="https://hooks.example.com/x")
    save_channel(factories.build_administrator(acme), spec)
    for _ in range(2):
        catch_problem(call, ECHO, {"text": "secret"})
    notification = Notification.objects.get()
    assert (notification.event, notification.subject_name) == (
        "approval_waiting",
        "echo (workshop)",
    )
    assert notification.link.endswith(f"/admin/approvals/{get_pending_approval().pk}/change/")
    assert "secret" not in notification.text


def test_the_organization_sets_how_long_an_approval_waits(approval_policy, call, acme):
    Organization.objects.filter(pk=acme.pk).update(approval_hours=2)
    catch_problem(call, ECHO, {"text": "x"})
    remaining = get_pending_approval().expires_at - timezone.now()
    assert timedelta(minutes=119) < remaining <= timedelta(hours=2)


def test_a_call_without_a_session_cant_get_a_session_approval(approval_policy, call, reviewer):
    catch_problem(call, ECHO, {"text": "x"})
    for answer in ("approve_session", "perhaps"):
        with pytest.raises(Problem) as raised:
            resolve_approval(reviewer, get_pending_approval(), answer)
        assert raised.value.field == "answer"


def test_a_conditional_ask_rule_applies_only_if_its_condition_matches(acme, helper, workshop, call):
    large = RuleSpec(ADD, {"properties": {"a": {"minimum": 100}}, "required": ["a"]})
    set_policy(factories.build_administrator(acme), helper, PolicySpec("all", ask=(large,)))
    assert call(ADD, {"a": 1, "b": 2}).outcome == "ok"
    assert catch_problem(call, ADD, {"a": 100, "b": 2}).code == "approval_required"


def test_an_external_effect_requires_approval_after_private_and_untrusted_data(
    workshop, call, reviewer
):
    labels = {"echo": ["private_data"], "add": ["untrusted_content"], "fail": ["sends_out"]}
    for name, flow_labels in labels.items():
        Definition.objects.filter(name=name).update(labels=flow_labels)
    external_call = ("mcp_workshop_fail", {"reason": "out"})
    assert call(*external_call).outcome == "error"
    call(ECHO, {"text": "secret"})
    assert call(*external_call).outcome == "error"
    call(ADD, {"a": 1, "b": 2})
    problem = catch_problem(call, *external_call)
    assert problem.code == "approval_required"
    approval = get_pending_approval()
    assert (approval.code, approval.flow_labels) == (
        "flow_needs_approval",
        ["private_data", "untrusted_content"],
    )
    sources = {
        source.label: [row.tool_name for row in source.calls]
        for source in list_approval_label_sources(approval)
    }
    assert sources == {"private_data": ["echo"], "untrusted_content": ["add"]}
    resolve_approval(reviewer, approval, "approve")
    assert call(*external_call).outcome == "error"
    assert catch_problem(call, *external_call).code == "approval_required"


def start_session(acme, helper, text):
    return sessions.start_session(factories.build_administrator(acme), helper, text)


def list_call_steps(session):
    return list(session.steps.filter(kind=Step.Kind.CALL).order_by("seq"))


def test_a_session_waits_and_continues_after_the_answer(
    approval_policy, acme, helper, run_to_rest, reviewer
):
    session = start_session(acme, helper, f'/{ECHO} {{"text": "hello"}}')
    assert run_to_rest(session) == Session.Status.WAITING
    assert session.runner is None
    (step,) = list_call_steps(session)
    assert step.payload["approval"]["approval_id"] == str(get_pending_approval().pk)
    resolve_approval(reviewer, get_pending_approval(), "approve")
    assert run_to_rest(session) == Session.Status.DONE
    (step,) = list_call_steps(session)
    assert (step.state, step.payload["text"]) == (Step.State.DONE, "hello")


def test_the_other_calls_of_the_turn_dont_wait(
    approval_policy, acme, helper, run_to_rest, reviewer
):
    text = f'/{ECHO} {{"text": "hello"}}\n/{ADD} {{"a": 1, "b": 2}}'
    session = start_session(acme, helper, text)
    assert run_to_rest(session) == Session.Status.WAITING
    assert [step.state for step in list_call_steps(session)] == [Step.State.INTENT, Step.State.DONE]
    resolve_approval(reviewer, get_pending_approval(), "deny", "No echo today.")
    assert run_to_rest(session) == Session.Status.DONE
    first, _ = list_call_steps(session)
    assert (first.state, first.payload["code"]) == (Step.State.FAILED, "approval_denied")
    assert "No echo today." in first.payload["text"]


def test_a_session_approval_is_valid_until_revoked(
    approval_policy, acme, helper, run_to_rest, reviewer
):
    session = start_session(acme, helper, f'/{ECHO} {{"text": "one"}}')
    run_to_rest(session)
    resolve_approval(reviewer, get_pending_approval(), "approve_session")
    assert run_to_rest(session) == Session.Status.DONE
    administrator = factories.build_administrator(acme)
    sessions.send_message(administrator, session, f'/{ECHO} {{"text": "two"}}')
    assert run_to_rest(session) == Session.Status.DONE
    rows = AuditRow.objects.filter(event_type="call", outcome="ok").order_by("seq")
    details = [json.loads(row.opened)["details"] for row in rows]
    assert [entry["approval_id"] for entry in details] == ["session"] * 2
    assert {entry["approved_by"] for entry in details} == {SessionApproval.objects.get().granted_by}
    revoke_session_approval(reviewer, SessionApproval.objects.get())
    sessions.send_message(administrator, session, f'/{ECHO} {{"text": "three"}}')
    assert run_to_rest(session) == Session.Status.WAITING


def test_canceling_a_waiting_session_withdraws_its_approval(
    approval_policy, acme, helper, run_to_rest
):
    session = start_session(acme, helper, f'/{ECHO} {{"text": "hello"}}')
    run_to_rest(session)
    assert sessions.cancel_session(factories.build_administrator(acme), session)
    assert Approval.objects.get().state == Approval.State.WITHDRAWN
    assert run_to_rest(session) == Session.Status.CANCELLED
    (step,) = list_call_steps(session)
    assert (step.state, step.payload["code"]) == (Step.State.FAILED, "not_made")


def test_an_approval_ends_when_its_call_is_made_without_it(
    approval_policy, acme, helper, run_to_rest, reviewer
):
    administrator = factories.build_administrator(acme)
    set_policy(administrator, helper, PolicySpec("all", ask=(ECHO, ADD)))
    session = start_session(acme, helper, f'/{ECHO} {{"text": "hello"}}\n/{ADD} {{"a": 1, "b": 2}}')
    run_to_rest(session)
    set_policy(administrator, helper, PolicySpec("all", ask=(ADD,)))
    resolve_approval(reviewer, Approval.objects.pending().get(own_name="add"), "deny")
    assert run_to_rest(session) == Session.Status.DONE
    assert not Approval.objects.pending().exists()


def test_the_schedule_continues_a_session_whose_answer_came_early(
    approval_policy, acme, helper, run_to_rest, reviewer
):
    session = start_session(acme, helper, f'/{ECHO} {{"text": "hello"}}')
    run_to_rest(session)
    resolve_approval(reviewer, get_pending_approval(), "approve")
    Session.objects.filter(pk=session.pk).update(status=Session.Status.WAITING)
    sweep()
    assert run_to_rest(session) == Session.Status.DONE


def test_an_expired_approval_continues_the_session_without_the_call(
    approval_policy, acme, helper, run_to_rest
):
    session = start_session(acme, helper, f'/{ECHO} {{"text": "hello"}}')
    run_to_rest(session)
    Approval.objects.update(expires_at=timezone.now())
    sweep()
    assert run_to_rest(session) == Session.Status.DONE
    (step,) = list_call_steps(session)
    assert step.payload["code"] == "approval_expired"


def change_definition(name="echo"):
    """Store what a discovery does when the server declares a tool in another way."""
    definition = Definition.objects.get(name=name)
    definition.set_payload({**definition.payload, "description": "Also forwards customers."})
    definition.save()
    return definition


@pytest.mark.parametrize("answer", ["approve", "approve_session"])
def test_a_call_cant_be_approved_when_its_definition_changed_meanwhile(
    approval_policy, acme, helper, run_to_rest, reviewer, answer
):
    session = start_session(acme, helper, f'/{ECHO} {{"text": "hello"}}')
    run_to_rest(session)
    change_definition()
    problem = catch_problem(resolve_approval, reviewer, get_pending_approval(), answer)
    assert (problem.status, problem.code) == (409, "definition_changed")
    assert get_pending_approval()
    assert not ApprovalCell.objects.exists()


def test_a_call_can_be_denied_when_its_definition_changed_meanwhile(
    approval_policy, acme, helper, run_to_rest, reviewer
):
    session = start_session(acme, helper, f'/{ECHO} {{"text": "hello"}}')
    run_to_rest(session)
    change_definition()
    assert resolve_approval(reviewer, get_pending_approval(), "deny").state == "denied"
    assert run_to_rest(session) == Session.Status.DONE
    (step,) = list_call_steps(session)
    assert (step.state, step.payload["code"]) == (Step.State.FAILED, "definition_changed")


def test_a_sessions_call_requests_a_new_approval_when_its_changed_definition_is_approved(
    approval_policy, acme, helper, run_to_rest, reviewer, workshop
):
    session = start_session(acme, helper, f'/{ECHO} {{"text": "hello"}}')
    run_to_rest(session)
    replaced = get_pending_approval()
    definition = change_definition()
    approve_definitions(reviewer, workshop, {definition.pk: definition.digest})
    session.refresh_from_db()
    assert session.status == Session.Status.QUEUED
    assert run_to_rest(session) == Session.Status.WAITING
    approval = get_pending_approval()
    assert approval.pk != replaced.pk
    assert approval.definition_digest == definition.digest
    replaced.refresh_from_db()
    assert replaced.state == Approval.State.WITHDRAWN
    canceled = AuditRow.objects.get(action="approval_request_canceled")
    actor = (canceled.actor_kind, canceled.actor_id, canceled.actor_label)
    assert get_actor_name(*actor) == "Definition change"
    resolve_approval(reviewer, approval, "approve")
    assert run_to_rest(session) == Session.Status.DONE
    (step,) = list_call_steps(session)
    assert (step.state, step.payload["text"]) == (Step.State.DONE, "hello")
    assert verify_whole_chain(acme.pk).ok


def test_a_repeated_call_replaces_the_approval_for_the_definition_before(
    approval_policy, call, reviewer, workshop
):
    catch_problem(call, ECHO, {"text": "x"})
    definition = change_definition()
    approve_definitions(reviewer, workshop, {definition.pk: definition.digest})
    assert catch_problem(call, ECHO, {"text": "x"}).code == "approval_required"
    assert get_pending_approval().definition_digest == definition.digest
