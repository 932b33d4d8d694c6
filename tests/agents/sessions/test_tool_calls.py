"""Input requests of servers in sessions: people answer, and any process continues the call."""

import asyncio
import json
import re
from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from agents.approvals.services import resolve_approval as approve
from agents.calls import pending_calls
from agents.calls.incomplete_results import MAX_ROUNDS
from agents.elicitations.services import answer_request
from agents.models import Approval, ElicitationRequest, PendingCall, Session, Step
from agents.models.page_urls import build_page_url
from agents.policies.services import PolicySpec, set_policy
from agents.services import attach_server
from agents.sessions import leases, recovery
from agents.sessions import services as sessions
from agents.sessions.mcp_host import SessionHost
from agents.sessions.tool_calls import (
    find_pending_call,
    parse_tool_output,
    prepare_next_round,
    resume_interrupted_call,
)
from agents.tasks import sweep
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from bonobot.notifications.channels import NotificationChannelSpec, save_channel
from mcp_servers.server_config import build_changed_spec
from mcp_servers.services import update_server
from tests import factories
from tests.agents.sessions.client_request_sessions import run_session, run_until_rest
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)

FIELDS = {
    "name": {"type": "string", "title": "Your name", "minLength": 2},
    "age": {"type": "integer", "minimum": 1},
    "api_key": {"type": "string"},
}
FORM = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Who are you?",
        "requestedSchema": {"type": "object", "properties": FIELDS, "required": ["name"]},
    },
}
PAGE = {
    "method": "elicitation/create",
    "params": {
        **{"mode": "url", "message": "Sign in", "elicitationId": "e1"},
        "url": "https://sign-in.example.com/start?state=1",
    },
}
ROOTS = {"method": "roots/list"}


def get_call(session):
    return Step.objects.get(session=session, kind=Step.Kind.CALL)


def list_outcomes(session):
    rows = AuditRow.objects.filter(session_id=session.pk, event_type="call").order_by("seq")
    return [(row.outcome, row.code) for row in rows]


def build_round(*requests, **more):
    return {"inputRequests": {str(n): request for n, request in enumerate(requests)}, **more}


def test_an_elicitation_request_pauses_the_session_and_its_answer_returns_the_state(
    register_asker, run_tool, get_received, runner, administrator, acme
):
    register_asker("modern")
    session = run_tool("script", rounds=[build_round(FORM, requestState="1|Ünsere Sache\u0007")])
    assert (session.status, session.runner) == (Session.Status.WAITING, None)
    request = ElicitationRequest.objects.get()
    assert (request.state, request.mode, request.server_name) == ("waiting", "form", "asker")
    assert request.flags == ["secret:api_key"]
    assert get_call(session).payload["questions"] == [str(request.pk)]
    assert list_outcomes(session) == [("ok", "input_required")]

    # While it waits nothing runs, and the sweep doesn't requeue it.
    assert sweep() == 0
    with pytest.raises(Problem) as too_short:
        answer_request(administrator, request, "accept", {"name": "A"})
    assert (too_short.value.code, too_short.value.field) == ("bad_answer", "content.name")
    member = factories.create_member(acme, Role.MEMBER)
    with pytest.raises(Problem) as not_theirs:
        answer_request(member, request, "accept", {"name": "Eve"})
    assert not_theirs.value.code == "not_owner"

    answer_request(administrator, request, "accept", {"name": "Ada", "age": 36})
    session.refresh_from_db()
    assert session.status == Session.Status.QUEUED
    run_session(session, runner)
    assert session.status == Session.Status.DONE
    first, second = get_received("tools/call")
    assert second["params"]["requestState"] == "1|Ünsere Sache\u0007"
    assert second["params"]["arguments"] == first["params"]["arguments"]
    answer = {"action": "accept", "content": {"name": "Ada", "age": 36}}
    assert second["params"]["inputResponses"] == {"0": answer}
    step = get_call(session)
    assert "Ada" in step.payload["text"]
    assert step.payload["earlier"] == [str(PendingCall.objects.get().call_ids[0])]
    assert list_outcomes(session) == [("ok", "input_required"), ("ok", "")]

    # The answer is deleted, and the audit log has only field names.
    request.refresh_from_db()
    assert request.content.open() == {}
    assert PendingCall.objects.get().closed_at is not None
    entry = AuditRow.objects.get(action="elicitation_request_answered")
    assert "Ada" not in entry.opened
    assert '"age"' in entry.opened
    with pytest.raises(Problem) as repeated:
        answer_request(administrator, request, "decline")
    assert repeated.value.code == "already_answered"


def test_several_requests_and_rounds_and_a_url_are_handled(
    register_asker, run_tool, get_received, runner, administrator
):
    register_asker("modern")
    session = run_tool("script", rounds=[build_round(FORM, PAGE), build_round(FORM)])
    form, page = ElicitationRequest.objects.order_by("key")
    assert (page.mode, page.url) == ("url", PAGE["params"]["url"])
    with pytest.raises(Problem):
        answer_request(administrator, page, "accept", {"password": "x"})
    answer_request(administrator, page, "accept")
    run_session(session, runner)
    assert session.status == Session.Status.WAITING  # the other request is still pending
    assert len(get_received("tools/call")) == 1
    answer_request(administrator, form, "decline")
    run_session(session, runner)
    assert session.status == Session.Status.WAITING
    assert get_received("tools/call")[1]["params"]["inputResponses"] == {
        "0": {"action": "decline"},
        "1": {"action": "accept"},
    }
    last_request = ElicitationRequest.objects.get(round=2)
    ElicitationRequest.objects.filter(pk=last_request.pk).update(
        expires_at=timezone.now() - timedelta(seconds=1)
    )
    sweep()
    run_session(session, runner)
    assert session.status == Session.Status.DONE
    assert get_received("tools/call")[2]["params"]["inputResponses"] == {"0": {"action": "cancel"}}
    last_request.refresh_from_db()
    assert last_request.state == ElicitationRequest.State.EXPIRED


@pytest.mark.parametrize(
    ("request_round", "pattern"),
    [
        (build_round({"method": "sampling/createMessage", "params": {}}), "doesn't support"),
        (build_round({"method": "tools/call", "params": {}}), "doesn't support"),
        (build_round(*[ROOTS] * 17), "doesn't support|more than 16"),
        ({"requestState": "x" * 70_000}, "must be a string of at most"),
        ({"requestState": None}, "without specifying"),
        (
            build_round({"method": "elicitation/create", "params": {"message": "?"}}),
            "requestedSchema",
        ),
    ],
)
def test_a_forbidden_server_request_ends_the_call(register_asker, run_tool, request_round, pattern):
    register_asker("modern")
    session = run_tool("script", rounds=[request_round])
    step = get_call(session)
    assert (session.status, step.state) == (Session.Status.DONE, Step.State.FAILED)
    assert re.search(pattern, step.payload["text"])
    assert not ElicitationRequest.objects.exists()
    assert not PendingCall.objects.filter(closed_at=None).exists()


def test_a_server_with_endless_requests_is_stopped(
    register_asker, run_tool, get_received, runner, administrator
):
    register_asker("modern")
    session = run_tool("script", rounds=[{"requestState": "0"}] * 2)
    assert "required more than 10 retries" in get_call(session).payload["text"]
    assert len(get_received("tools/call")) == MAX_ROUNDS + 1
    session = run_tool("script", rounds=[build_round(FORM, requestState="0")])
    for _ in range(MAX_ROUNDS):
        answer_request(administrator, ElicitationRequest.objects.pending().get(), "decline")
        run_session(session, runner)
    assert session.status == Session.Status.DONE
    assert "more than 10 times" in get_call(session).payload["text"]


def test_a_call_continues_after_its_process_died(
    register_asker, run_tool, get_received, runner, administrator
):
    """The process dies between two parts of the call."""
    register_asker("modern")
    session = run_tool("script", rounds=[build_round(FORM)])
    answer_request(administrator, ElicitationRequest.objects.get(), "accept", {"name": "Ada"})

    async def die_after_gathering():
        await runner.start()
        lease = await get_runtime().run_orm(leases.claim_session, session.pk, runner.runner_id)
        step = await get_runtime().run_orm(get_call, session)
        assert await resume_interrupted_call(lease, step)
        pending_call = await find_pending_call(step)
        row = await get_runtime().run_orm(Session.objects.get, pk=session.pk)
        assert await prepare_next_round(SessionHost(lease, row), step, pending_call)

    get_runtime().call(die_after_gathering)
    Session.objects.filter(pk=session.pk).update(status=Session.Status.QUEUED, runner=None)
    run_session(session, runner)
    assert session.status == Session.Status.DONE
    assert [len(get_received("tools/call")), get_call(session).state] == [2, Step.State.DONE]


def test_an_approval_applies_to_all_parts_of_a_call(
    register_asker, run_tool, helper, runner, administrator, get_received
):
    register_asker("modern")
    set_policy(administrator, helper, PolicySpec("all", ask=("mcp_asker_script",)))
    session = run_tool("script", rounds=[build_round(FORM)])
    approve(administrator, Approval.objects.get(), "approve")
    run_session(session, runner)
    answer_request(administrator, ElicitationRequest.objects.get(), "accept", {"name": "Ada"})
    run_session(session, runner)
    assert session.status == Session.Status.DONE
    assert (Approval.objects.count(), len(get_received("tools/call"))) == (1, 2)


def test_a_canceled_session_withdraws_its_elicitation_request(
    register_asker, run_tool, runner, administrator
):
    register_asker("modern")
    session = run_tool("script", rounds=[build_round(FORM)])
    sessions.cancel_session(administrator, session)
    run_session(session, runner)
    assert session.status == Session.Status.CANCELLED
    assert ElicitationRequest.objects.get().state == ElicitationRequest.State.WITHDRAWN
    assert get_call(session).payload["code"] == "unfinished"
    assert pending_calls.list_open_calls(session.pk) == []


def test_a_signal_to_cancel_doesnt_interrupt_the_recording_of_the_cancellation(
    register_asker, run_tool, runner, administrator, monkeypatch
):
    register_asker("modern")
    session = run_tool("script", rounds=[build_round(FORM)])
    original = recovery.cancel_pending_call

    async def close_call_and_signal(lease, step):
        is_closed = await original(lease, step)
        await runner._cancel_requested_sessions()
        await asyncio.sleep(0)
        return is_closed

    monkeypatch.setattr(recovery, "cancel_pending_call", close_call_and_signal)
    sessions.cancel_session(administrator, session)
    run_session(session, runner)
    assert session.status == Session.Status.CANCELLED
    assert get_call(session).payload["code"] == "unfinished"


def test_the_other_requests_of_a_call_end_when_the_call_fails(register_asker, run_tool):
    register_asker("modern")
    invalid = {"method": "elicitation/create", "params": {"mode": "form"}}
    session = run_tool("script", rounds=[build_round(FORM, invalid)])
    assert (session.status, get_call(session).payload["code"]) == ("done", "bad_elicitation")
    assert ElicitationRequest.objects.get().state == ElicitationRequest.State.WITHDRAWN


def test_requests_end_at_once_when_a_session_is_canceled(register_asker, run_tool, administrator):
    register_asker("modern")
    session = run_tool("script", rounds=[build_round(FORM)])
    sessions.cancel_session(administrator, session)
    assert ElicitationRequest.objects.get().state == ElicitationRequest.State.WITHDRAWN


def test_a_live_connection_waits_for_a_person(
    register_asker, run_tool, runner, administrator, helper, get_received, settings
):
    register_asker("handshake")
    session = sessions.start_session(
        administrator, helper, f"/mcp_asker_ask {json.dumps({'requests': [FORM, ROOTS]})}"
    )
    future = get_runtime().spawn(run_until_rest(runner, session.pk), name="run")
    request = eventually(lambda: ElicitationRequest.objects.pending().first())
    assert request.pending_call is None
    notice = eventually(lambda: session.steps.filter(kind=Step.Kind.NOTICE).last())
    assert notice.payload["question_id"] == str(request.pk)
    answer_request(administrator, request, "accept", {"name": "Ada"})
    future.result(30)
    text = get_call(session).payload["text"]
    assert '"name": "Ada"' in text
    assert "not_offered" in text or "-32601" in text  # roots are off
    request.refresh_from_db()
    assert request.content.open() == {}

    settings.BONOBOT_ANSWER_S = 1
    session = run_tool("ask", requests=[FORM])
    assert '"cancel"' in get_call(session).payload["text"]


def test_a_url_request_waits_until_the_page_was_visited(
    register_asker, run_tool, runner, administrator, helper, get_received
):
    register_asker("handshake")
    url = PAGE["params"]["url"]
    session = sessions.start_session(
        administrator, helper, f'/mcp_asker_url_first {{"url": "{url}"}}'
    )
    future = get_runtime().spawn(run_until_rest(runner, session.pk), name="run")
    request = eventually(lambda: ElicitationRequest.objects.pending().first())
    assert (request.mode, request.url) == ("url", url)
    answer_request(administrator, request, "accept")
    future.result(30)
    assert "signed in" in get_call(session).payload["text"]
    assert [received["params"]["arguments"] for received in get_received("tools/call")] == [
        {"url": url}
    ] * 2


def test_without_a_session_server_requests_are_refused(register_asker, acme, helper, call):
    server = register_asker("modern")
    outcome = call("mcp_asker_script", {"rounds": [build_round(FORM)]})
    assert (outcome.outcome, outcome.code) == ("error", "protocol_error")
    assert not ElicitationRequest.objects.exists()
    assert call("mcp_asker_script", {"rounds": [{"requestState": "1"}]}).outcome == "ok"
    update_server(
        factories.build_administrator(acme), server, build_changed_spec(server, elicitation=False)
    )


def test_a_resource_read_can_request_input(
    register_asker, get_received, runner, administrator, helper
):
    server = register_asker("modern")
    attach_server(administrator, helper, server, allowed_resources=["ask://one"])
    text = '/read_resource {"server": "asker", "uri": "ask://one"}'
    session = run_session(sessions.start_session(administrator, helper, text), runner)
    assert session.status == Session.Status.WAITING
    answer_request(administrator, ElicitationRequest.objects.get(), "accept", {"name": "Ada"})
    run_session(session, runner)
    assert session.status == Session.Status.DONE
    step = get_call(session)
    assert step.state == Step.State.DONE
    assert "Ada" in step.payload["text"]
    assert len(get_received("resources/read")) == 2
    # Two parts of the tool call, each with its own read.
    tool_calls, reads = (
        AuditRow.objects.filter(action=action).order_by("seq")
        for action in ("agent_tool_call", "agent_resource_read")
    )
    assert [row.code for row in tool_calls] == [row.code for row in reads] == ["input_required", ""]
    assert [row.parent_id for row in reads] == [row.pk for row in tool_calls]
    assert pending_calls.list_open_calls(session.pk) == []


def test_a_prompt_can_request_input(
    register_asker, run_tool, get_received, runner, administrator, helper, call
):
    """Sessions don't get prompts themselves, but requests in a session can be answered."""
    server = register_asker("modern")
    attach_server(administrator, helper, server, allowed_prompts=["ask"])
    session = factories.create_answered_session(helper)
    host = SessionHost(leases.SessionLease(session.pk, uuid4(), 1), session)
    fields = {"method": "prompts/get", "server_id": server.pk}
    outside_session = call("ask", **fields)
    assert (outside_session.outcome, outside_session.code) == ("error", "protocol_error")
    in_session = fields | {"session_id": session.pk, "host": host}
    first = call("ask", **in_session)
    pending_call = PendingCall.objects.get(pk=first.pending_call_id)
    pending_calls.save_responses(pending_call, {"name": {"action": "decline"}})
    completed = call(
        "ask", continuation=pending_calls.build_continuation(pending_call), **in_session
    )
    assert (completed.pending_call_id, completed.outcome) == (None, "ok")
    assert '"decline"' in completed.text
    assert len(get_received("prompts/get")) == 3


def test_a_stored_secret_cant_be_entered_as_an_answer(
    register_asker, run_tool, administrator, acme
):
    channel = NotificationChannelSpec(
        "Pager", "webhook", url="https://hooks.example.com/very-secret-path-1"
    )
    save_channel(administrator, channel)
    register_asker("modern")
    run_tool("script", rounds=[build_round(FORM)])
    with pytest.raises(Problem) as caught:
        answer_request(
            administrator,
            ElicitationRequest.objects.get(),
            "accept",
            {"name": "it is https://hooks.example.com/very-secret-path-1"},
        )
    assert caught.value.code == "secret_in_answer"
    assert build_page_url(ElicitationRequest.objects.get()).startswith("http")


@pytest.mark.parametrize("depth", [5_000, 100_000])
def test_a_result_of_too_many_levels_is_only_text(depth: int) -> None:
    assert parse_tool_output({}, "[" * depth + "]" * depth) is None
    assert parse_tool_output({}, "[" * depth) is None
