"""The session loop with the offline model and a real server."""

import asyncio
import sys
from datetime import timedelta
from uuid import uuid4

import pytest
from celery import current_app
from django.utils import timezone
from kombu.exceptions import OperationalError

from agents.approvals.services import resolve_approval
from agents.calls.pipeline import ApprovalRequired
from agents.elicitations import requested_schemas
from agents.elicitations import services as elicitations
from agents.elicitations.services import ElicitationOrigin
from agents.llm import interface as llm_interface
from agents.models import Agent, Approval, Budget, ElicitationRequest, Session, Step
from agents.policies.services import PolicySpec, set_policy
from agents.sessions import leases, loop, recovery, sampling, step_store
from agents.sessions import services as sessions
from agents.sessions.export import build_report
from agents.sessions.worker import SessionRunner
from bonobot.core.problems import InvalidInput
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from bonobot.ledger.types import (
    Actor,
    Admission,
    ApprovalReference,
    BudgetReservation,
    Opening,
    Settlement,
)
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.effective_labels import set_labels
from mcp_servers.models import Definition, Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.agents.conftest import WORKSHOP
from tests.bonobot.ledger.factories import load_organization_balances
from tests.ledger_chain import verify_whole_chain
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)


def list_steps(session, kind):
    return list(session.steps.filter(kind=kind).order_by("seq"))


def test_a_message_is_answered_with_a_real_server(acme, helper, run):
    factories.approve_server(acme, factories.create_stdio_server(acme, from_pypi=True), helper)
    session = run("What time is it in Asia/Tokyo?")
    assert session.status == Session.Status.DONE
    report = build_report(session.pk)
    assert [call["name"] for call in report["calls"]] == ["mcp_time_get_current_time"]
    assert "Asia/Tokyo" in report["answer"]


def test_calls_of_one_turn_run_in_parallel(workshop, run):
    session = run('/mcp_workshop_wait {"seconds": 0.4}\n/mcp_workshop_wait {"seconds": 0.4}')
    first, second = list_steps(session, Step.Kind.CALL)
    assert {first.state, second.state} == {Step.State.DONE}
    assert second.started_at < first.finished_at
    assert first.started_at < second.finished_at
    assert (first.turn, first.index, second.index) == (1, 0, 1)


def test_every_step_of_a_session_is_a_row(workshop, run):
    session = run('/mcp_workshop_echo {"text": "hi"}')
    kinds = list(session.steps.order_by("seq").values_list("kind", flat=True))
    assert kinds == ["message", "model", "call", "model", "end"]
    assert not session.steps.filter(state=Step.State.INTENT).exists()
    assert (session.turns, session.calls) == (2, 1)
    assert session.input_tokens > 0


def test_all_actions_of_a_session_are_in_a_valid_audit_log(acme, workshop, run):
    session = run('/mcp_workshop_echo {"text": "hi"}')
    actions = list(
        AuditRow.objects.filter(session_id=session.pk)
        .order_by("seq")
        .values_list("action", flat=True)
    )
    assert actions == ["agent_model_turn", "agent_tool_call", "agent_model_turn"]
    assert verify_whole_chain(acme.pk).ok


def test_a_denied_call_is_returned_to_the_model_and_the_session_continues(workshop, run):
    session = run('/mcp_workshop_nothing {}\n/mcp_workshop_echo {"text": "hi"}')
    assert session.status == Session.Status.DONE
    assert "hi" in build_report(session.pk)["answer"]


def test_a_session_continues_with_the_next_message(workshop, run):
    session = run('/mcp_workshop_echo {"text": "one"}')
    run('/mcp_workshop_echo {"text": "two"}', session)
    assert [c.payload["text"] for c in list_steps(session, Step.Kind.CALL)] == ["one", "two"]
    assert len(list_steps(session, Step.Kind.END)) == 2


def test_a_missing_tool_is_reported_once_until_a_call_was_made(acme, helper, workshop, run):
    administrator = factories.build_administrator(acme)
    set_policy(administrator, helper, PolicySpec("none"))
    session = run("one")
    run("two", session)
    assert len(list_steps(session, Step.Kind.NOTICE)) == 1
    set_policy(administrator, helper, PolicySpec("all"))
    run('/mcp_workshop_echo {"text": "hi"}', session)
    set_policy(administrator, helper, PolicySpec("none"))
    run("three", session)
    notices = list_steps(session, Step.Kind.NOTICE)
    assert [notice.payload.get("code") for notice in notices].count("no_tools") == 2


def test_an_unreachable_server_is_reported_and_the_session_continues(acme, helper, workshop, run):
    unreachable = factories.create_http_server(acme, "http://127.0.0.1:9/mcp", "gone")
    factories.attach_server(factories.build_administrator(acme), helper, unreachable)
    session = run('/mcp_workshop_echo {"text": "hi"}')
    assert session.status == Session.Status.DONE
    (notice,) = list_steps(session, Step.Kind.NOTICE)
    assert "gone" in notice.payload["text"]


def test_a_server_that_died_is_unreachable_and_the_agent_continues(acme, workshop, run):
    Server.objects.filter(pk=workshop.pk).update(
        endpoint_config={"command": "/nowhere/at-all", "args": []}, status="error"
    )
    session = run('/mcp_workshop_echo {"text": "hi"}')
    assert session.status == Session.Status.DONE
    (call,) = list_steps(session, Step.Kind.CALL)
    assert call.state == Step.State.FAILED


def test_turns_per_message_are_limited(helper, workshop, run):
    Agent.objects.filter(pk=helper.pk).update(max_turns=1)
    session = run('/mcp_workshop_echo {"text": "hi"}')
    assert (session.status, session.error_code) == (Session.Status.FAILED, "turns_exhausted")


def test_calls_per_message_are_limited(helper, workshop, run, effects):
    Agent.objects.filter(pk=helper.pk).update(max_calls=1)
    session = run('/mcp_workshop_count {"what": "a"}\n/mcp_workshop_count {"what": "b"}')
    assert (session.status, session.error_code) == (Session.Status.FAILED, "calls_exhausted")
    assert effects.read_text() == ""


def test_time_per_message_is_limited(helper, workshop, run):
    Agent.objects.filter(pk=helper.pk).update(max_run_s=5)
    session = run('/mcp_workshop_wait {"seconds": 60}')
    assert (session.status, session.error_code) == (Session.Status.FAILED, "time_exhausted")
    (call,) = list_steps(session, Step.Kind.CALL)
    assert call.state == Step.State.UNKNOWN


def test_another_timeout_isnt_taken_for_the_time_limit(helper, workshop, run, monkeypatch):
    original, faults = loop.recover_calls, [TimeoutError()]

    async def recover_at_second_try(*args):
        if faults:
            raise faults.pop()
        return await original(*args)

    monkeypatch.setattr(loop, "recover_calls", recover_at_second_try)
    assert run("hello").error_code == "internal_error"


def test_a_token_budget_stops_the_session_before_a_model_request(acme, helper, workshop, run):
    Budget.objects.create(organization=acme, agent=helper, unit="tokens", period="day", limit=10)
    session = run("hello")
    assert (session.status, session.error_code) == (Session.Status.FAILED, "budget_exhausted")
    assert list_steps(session, Step.Kind.MODEL) == []


def test_canceling_ends_a_running_session(acme, helper, workshop, runner, effects):
    administrator = factories.build_administrator(acme)
    session = sessions.start_session(administrator, helper, '/mcp_workshop_wait {"seconds": 60}')
    task = get_runtime().call(runner.claim_and_run, session.pk)
    eventually(effects.read_text, within=10, what="the call of the server")
    assert sessions.cancel_session(administrator, session)
    get_runtime().call(asyncio.wait, [task], timeout=10)
    session.refresh_from_db()
    assert session.status == Session.Status.CANCELLED
    (call,) = list_steps(session, Step.Kind.CALL)
    assert call.state == Step.State.UNKNOWN
    assert AuditRow.objects.get(pk=call.call_id).outcome == "unknown"


def test_a_read_only_call_is_canceled_with_its_session(acme, helper, workshop, runner, effects):
    tool = Definition.objects.get(server=workshop, name="wait")
    tool.payload = {**tool.payload, "annotations": {"readOnlyHint": True}}
    tool.save(update_fields=["payload"])
    administrator = factories.build_administrator(acme)
    session = sessions.start_session(administrator, helper, '/mcp_workshop_wait {"seconds": 60}')
    task = get_runtime().call(runner.claim_and_run, session.pk)
    eventually(effects.read_text, within=10, what="the call of the server")
    assert sessions.cancel_session(administrator, session)
    get_runtime().call(asyncio.wait, [task], timeout=10)
    (call,) = list_steps(session, Step.Kind.CALL)
    assert (call.state, call.payload["code"]) == (Step.State.FAILED, "cancelled")
    assert AuditRow.objects.get(pk=call.call_id).outcome == "cancelled"


@pytest.fixture
def interrupted_session(acme, helper):
    """A session whose worker died between the intent of a call and its result."""
    administrator = factories.build_administrator(acme)
    arguments = {"what": "once"}
    session = sessions.start_session(administrator, helper, "count once")
    lease = leases.claim_session(session.pk, dead_runner := leases.register_runner())
    step_store.take_messages(lease)
    tool_call = llm_interface.ToolCall(
        0, "mcp_workshop_count", arguments, "{}", llm_interface.build_call_id(1, 0)
    )
    message = llm_interface.build_assistant_message(1, "", [tool_call])
    step_store.append_step(lease, Step.Kind.MODEL, {"text": "", "message": message}, turn=1)
    payload = {"name": "mcp_workshop_count", "arguments": arguments, "raw": "{}"}
    step_store.append_step(
        lease, Step.Kind.CALL, payload, state=Step.State.INTENT, turn=1, call_id=uuid4()
    )
    leases.stop_runner(dead_runner)
    return session


def admit_call(step, acme, limit, approval=None):
    """Admit the call of a step, as its worker did before it died."""
    opening = Opening(
        call_id=step.call_id,
        organization_id=acme.pk,
        action="agent_tool_call",
        event_type="call",
        resource_type="mcp_tool",
        resource_id="mcp_workshop_count",
        actor=Actor("session", "s", "s"),
        decision="allow",
        session_id=step.session_id,
    )
    get_writer().admit_call(
        Admission(
            opening,
            reservations=(BudgetReservation(f"budget:{acme.pk}:x", limit, 3),),
            approval=approval and ApprovalReference(approval.pk, approval.digest),
        )
    ).result()


def test_a_sent_call_waits_for_a_person_and_a_denial_keeps_it_unrepeated(
    acme, workshop, interrupted_session, run, run_to_rest, effects
):
    (step,) = list_steps(interrupted_session, Step.Kind.CALL)
    admit_call(step, acme, limit=10)
    run("and now?", interrupted_session)
    assert interrupted_session.status == Session.Status.WAITING
    approval = Approval.objects.get(session=interrupted_session)
    assert (approval.code, approval.call_id) == ("call_interrupted", step.call_id)
    assert AuditRow.objects.get(pk=step.call_id).outcome == "unknown"
    (cell,) = load_organization_balances(acme.pk).values()
    assert (cell.spent, cell.reserved) == (3, 0)
    resolve_approval(factories.build_administrator(acme), approval, "deny", "I did it by hand.")
    run_to_rest(interrupted_session)
    (call,) = list_steps(interrupted_session, Step.Kind.CALL)
    assert (call.state, call.call_id) == (Step.State.UNKNOWN, step.call_id)
    assert "I did it by hand." in call.payload["text"]
    assert effects.read_text() == ""
    assert interrupted_session.status == Session.Status.DONE


def test_a_call_that_may_have_run_is_repeated_after_approval(
    acme, workshop, interrupted_session, run, run_to_rest, effects
):
    (step,) = list_steps(interrupted_session, Step.Kind.CALL)
    admit_call(step, acme, limit=10)
    run("and now?", interrupted_session)
    resolve_approval(
        factories.build_administrator(acme),
        Approval.objects.get(session=interrupted_session),
        "approve",
    )
    run_to_rest(interrupted_session)
    (call,) = list_steps(interrupted_session, Step.Kind.CALL)
    assert call.state == Step.State.DONE
    assert call.call_id != step.call_id
    assert call.payload["earlier"] == [str(step.call_id)]
    assert effects.read_text().splitlines() == ["once"]


@pytest.mark.parametrize("labels", [[], [FlowLabel.REPEATABLE]])
def test_an_approval_is_still_valid_when_its_interrupted_call_is_repeated(
    acme, helper, workshop, interrupted_session, run, run_to_rest, call, effects, labels
):
    administrator = factories.build_administrator(acme)
    count = list(workshop.definitions.filter(name="count"))
    set_labels(administrator, workshop, count, labels)
    set_policy(administrator, helper, PolicySpec("all", ask=("mcp_workshop_count",)))
    (step,) = list_steps(interrupted_session, Step.Kind.CALL)
    caller = {
        "principal": sessions.build_principal(interrupted_session),
        "session_id": interrupted_session.pk,
    }
    with pytest.raises(ApprovalRequired) as caught:
        call("mcp_workshop_count", {"what": "once"}, call_id=step.call_id, **caller)
    approval = Approval.objects.get(pk=caught.value.approval_id)
    resolve_approval(administrator, approval, "approve")
    admit_call(step, acme, limit=10, approval=approval)
    run("and now?", interrupted_session)
    for waiting in Approval.objects.filter(code="call_interrupted"):
        resolve_approval(administrator, waiting, "approve")
        run_to_rest(interrupted_session)
    assert (interrupted_session.status, effects.read_text()) == (Session.Status.DONE, "once\n")


def test_requests_on_the_connection_of_a_dead_process_end(
    acme, helper, workshop, interrupted_session, run
):
    form = requested_schemas.parse_elicitation(
        {"mode": "form", "message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
    )
    origin = ElicitationOrigin(interrupted_session.pk, workshop.pk, workshop.name)
    elicitations.create_request(origin, form, timezone.now() + timedelta(minutes=5))
    factories.create_approval(helper, interrupted_session, method=sampling.METHOD)
    run("and now?", interrupted_session)
    assert not ElicitationRequest.objects.pending().exists()
    assert not Approval.objects.pending().exists()
    assert interrupted_session.status == Session.Status.DONE


def test_a_session_approval_doesnt_cover_a_call_that_may_have_run(
    acme, workshop, interrupted_session, run
):
    admit_call(list_steps(interrupted_session, Step.Kind.CALL)[0], acme, limit=10)
    run("and now?", interrupted_session)
    with pytest.raises(InvalidInput):
        resolve_approval(
            factories.build_administrator(acme), Approval.objects.get(), "approve_session"
        )


def test_an_idempotent_call_is_repeated_automatically(
    acme, workshop, interrupted_session, run, effects
):
    admit_call(list_steps(interrupted_session, Step.Kind.CALL)[0], acme, limit=10)
    count = workshop.definitions.filter(name="count")
    set_labels(factories.build_administrator(acme), workshop, list(count), [FlowLabel.REPEATABLE])
    run("and now?", interrupted_session)
    (call,) = list_steps(interrupted_session, Step.Kind.CALL)
    assert (call.state, interrupted_session.status) == (Step.State.DONE, Session.Status.DONE)
    assert effects.read_text().splitlines() == ["once"]


def test_a_call_that_ended_in_the_audit_log_has_a_lost_result(
    acme, workshop, interrupted_session, run, effects
):
    (step,) = list_steps(interrupted_session, Step.Kind.CALL)
    admit_call(step, acme, limit=10)
    get_writer().settle_call(
        Settlement(call_id=step.call_id, organization_id=acme.pk, outcome="ok", duration_ms=1)
    ).result()
    run("and now?", interrupted_session)
    (call,) = list_steps(interrupted_session, Step.Kind.CALL)
    assert (call.state, call.payload["text"]) == (Step.State.UNKNOWN, recovery.LOST_TEXT)
    assert effects.read_text() == ""


def test_canceling_asks_nobody_about_a_call_that_may_have_run(
    acme, workshop, interrupted_session, run, run_to_rest
):
    admit_call(list_steps(interrupted_session, Step.Kind.CALL)[0], acme, limit=10)
    run("and now?", interrupted_session)
    sessions.cancel_session(factories.build_administrator(acme), interrupted_session)
    run_to_rest(interrupted_session)
    assert interrupted_session.status == Session.Status.CANCELLED
    assert Approval.objects.get().state == Approval.State.WITHDRAWN
    assert list_steps(interrupted_session, Step.Kind.CALL)[0].state == Step.State.UNKNOWN


def test_an_unsent_call_runs_once(workshop, interrupted_session, run, effects):
    run("and now?", interrupted_session)
    (call,) = list_steps(interrupted_session, Step.Kind.CALL)
    assert call.state == Step.State.DONE
    assert effects.read_text().splitlines() == ["once"]


def test_canceling_doesnt_run_an_unsent_call(
    acme, helper, workshop, interrupted_session, runner, effects
):
    lease = leases.claim_session(interrupted_session.pk, leases.register_runner())
    get_runtime().call(loop.cancel_run, lease)
    (call,) = list_steps(interrupted_session, Step.Kind.CALL)
    assert (call.state, call.payload["code"]) == (Step.State.FAILED, "not_made")
    assert effects.read_text() == ""


@pytest.fixture
def stop_during_call(acme, helper, workshop):
    """Return a function that stops a worker during a call of its session."""

    def start_and_stop(seconds, within_s):
        text = f'/mcp_workshop_wait {{"seconds": {seconds}}}'
        session = sessions.start_session(factories.build_administrator(acme), helper, text)
        stopping_runner = SessionRunner()
        get_runtime().call(stopping_runner.claim_and_run, session.pk)
        eventually(AuditRow.objects.filter(event_type="call").exists, within=10)
        get_runtime().call(stopping_runner.drain, within_s)
        session.refresh_from_db()
        assert session.status == Session.Status.QUEUED
        return session

    return start_and_stop


def test_a_stopping_worker_waits_for_its_calls(stop_during_call, run_to_rest):
    session = stop_during_call(seconds=1, within_s=30)
    (call,) = list_steps(session, Step.Kind.CALL)
    assert call.state == Step.State.DONE
    run_to_rest(session)
    assert session.status == Session.Status.DONE
    assert len(list_steps(session, Step.Kind.CALL)) == 1


@pytest.mark.parametrize("moment", ["begin", "claim"])
def test_a_worker_that_stops_while_claiming_a_session_runs_nothing(
    acme, helper, runner, moment, monkeypatch
):
    session = sessions.start_session(factories.build_administrator(acme), helper, "hello")
    function_name = {"begin": "register_runner", "claim": "claim_session"}[moment]
    original = getattr(leases, function_name)

    def stop_and_run(*args):
        result = original(*args)
        get_runtime().loop.call_soon_threadsafe(setattr, runner, "_is_draining", True)
        return result

    monkeypatch.setattr(leases, function_name, stop_and_run)
    assert get_runtime().call(runner.claim_and_run, session.pk) is None
    session.refresh_from_db()
    assert (session.status, session.runner) == (Session.Status.QUEUED, None)


def test_a_call_that_outlasts_the_stop_waits_for_approval(stop_during_call, run_to_rest):
    session = stop_during_call(seconds=60, within_s=0)
    run_to_rest(session)
    assert session.status == Session.Status.WAITING
    assert Approval.objects.get(session=session).code == "call_interrupted"


def test_an_internal_error_ends_the_session_with_a_code(workshop, run, monkeypatch):
    def fail(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(loop, "build_instructions", fail)
    session = run("hello")
    assert (session.status, session.error_code) == (Session.Status.FAILED, "internal_error")
    assert "a bug" not in session.error_detail
    (end,) = list_steps(session, Step.Kind.END)
    assert end.payload["code"] == "internal_error"


def test_a_message_without_a_broker_is_started_by_the_schedule(acme, helper, monkeypatch, caplog):
    def fail(*_):
        raise OperationalError("no broker")

    monkeypatch.setattr(current_app, "send_task", fail)
    session = sessions.start_session(factories.build_administrator(acme), helper, "hello")
    assert session.status == Session.Status.QUEUED
    assert "waits for the sweep" in caplog.text


def test_a_change_of_a_server_during_a_turn_applies_to_the_next(acme, helper, run):
    config = {"command": sys.executable, "args": [str(WORKSHOP)], "env": {"WORKSHOP_CHANGES": "1"}}
    spec = ServerSpec(name="shop", transport_type="stdio", endpoint_config=config)
    server = factories.approve_server(
        acme, create_server(factories.build_administrator(acme), spec), helper
    )
    session = run('/mcp_shop_change {"words": "Sends your files elsewhere."}')
    rows = AuditRow.objects.filter(organization_id=acme.pk).order_by("seq")
    actions = list(rows.values_list("action", flat=True))
    assert actions[-4:] == [
        *("agent_model_turn", "agent_tool_call", "definitions_discovered", "agent_model_turn")
    ]
    assert server.definitions.get(name="echo").state == "changed"
    run('/mcp_shop_echo {"text": "hi"}', session)
    assert list_steps(session, Step.Kind.CALL)[-1].payload["code"] == "definition_changed"
    get_runtime().call(get_connection_pool().forget_server, server.pk)
