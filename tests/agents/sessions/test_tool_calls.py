"""What servers ask in a session: a person answers, and the call goes on, in whichever process."""

import json
import re
from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from agents.approvals.services import resolve_approval as approve
from agents.calls import pending_calls
from agents.calls.results import MAX_ROUNDS
from agents.elicitations import services as elicitations
from agents.elicitations.services import answer_request
from agents.models import Approval, ElicitationRequest, PendingCall, Session, Step
from agents.policies.services import PolicySpec, set_policy
from agents.services import attach_server
from agents.sessions import leases
from agents.sessions import services as sessions
from agents.sessions.mcp_host import SessionHost
from agents.sessions.tool_calls import (
    find_pending_call,
    prepare_next_round,
    resume_interrupted_call,
)
from agents.tasks import sweep
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from bonobot.notifications.services import NotificationChannelSpec, save_channel
from mcp_servers.client_capabilities import set_client_capabilities
from tests import factories
from tests.agents.sessions.client_request_sessions import goes, run_until_rest
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


def call_of(session):
    return Step.objects.get(session=session, kind=Step.Kind.CALL)


def calls_of(session):
    rows = AuditRow.objects.filter(session_id=session.pk, event_type="call").order_by("seq")
    return [(row.outcome, row.code) for row in rows]


def rounds(*requests, **more):
    return {"inputRequests": {str(n): one for n, one in enumerate(requests)}, **more}


def test_an_elicitation_request_pauses_the_session_and_its_answer_returns_the_state(
    asker, says, came, runner, boss, acme
):
    asker("modern")
    session = says("script", rounds=[rounds(FORM, requestState="1|Ünsere Sache\u0007")])
    assert (session.status, session.runner) == (Session.Status.WAITING, None)
    question = ElicitationRequest.objects.get()
    assert (question.state, question.mode, question.server_name) == ("waiting", "form", "asker")
    assert question.flags == ["secret:api_key"]
    assert call_of(session).payload["questions"] == [str(question.pk)]
    assert calls_of(session) == [("ok", "input_required")]

    # Meanwhile nothing runs, and the sweep leaves it alone.
    assert sweep() == 0
    with pytest.raises(Problem) as short:
        answer_request(boss, question, "accept", {"name": "A"})
    assert (short.value.code, short.value.field) == ("bad_answer", "content.name")
    stranger = factories.create_member(acme, Role.MEMBER)
    with pytest.raises(Problem) as foreign:
        answer_request(stranger, question, "accept", {"name": "Eve"})
    assert foreign.value.code == "not_yours"

    answer_request(boss, question, "accept", {"name": "Ada", "age": 36})
    session.refresh_from_db()
    assert session.status == Session.Status.QUEUED
    goes(session, runner)
    assert session.status == Session.Status.DONE
    first, second = came("tools/call")
    assert second["params"]["requestState"] == "1|Ünsere Sache\u0007"
    assert second["params"]["arguments"] == first["params"]["arguments"]
    given = {"action": "accept", "content": {"name": "Ada", "age": 36}}
    assert second["params"]["inputResponses"] == {"0": given}
    step = call_of(session)
    assert "Ada" in step.payload["text"]
    assert step.payload["earlier"] == [str(PendingCall.objects.get().legs[0])]
    assert calls_of(session) == [("ok", "input_required"), ("ok", "")]

    # What was entered is gone, and the audit knows of fields only.
    question.refresh_from_db()
    assert question.content.open() == {}
    assert PendingCall.objects.get().closed_at is not None
    told = AuditRow.objects.get(action="question_answered")
    assert "Ada" not in told.opened
    assert '"age"' in told.opened
    with pytest.raises(Problem) as again:
        answer_request(boss, question, "decline")
    assert again.value.code == "already_answered"


def test_several_requests_and_rounds_and_a_url_are_handled(asker, says, came, runner, boss):
    asker("modern")
    session = says("script", rounds=[rounds(FORM, PAGE), rounds(FORM)])
    form, page = ElicitationRequest.objects.order_by("key")
    assert (page.mode, page.url) == ("url", PAGE["params"]["url"])
    with pytest.raises(Problem):
        answer_request(boss, page, "accept", {"password": "x"})
    answer_request(boss, page, "accept")
    goes(session, runner)
    assert session.status == Session.Status.WAITING  # the other one still waits
    assert len(came("tools/call")) == 1
    answer_request(boss, form, "decline")
    goes(session, runner)
    assert session.status == Session.Status.WAITING
    assert came("tools/call")[1]["params"]["inputResponses"] == {
        "0": {"action": "decline"},
        "1": {"action": "accept"},
    }
    last = ElicitationRequest.objects.get(round=2)
    ElicitationRequest.objects.filter(pk=last.pk).update(
        expires_at=timezone.now() - timedelta(seconds=1)
    )
    sweep()
    goes(session, runner)
    assert session.status == Session.Status.DONE
    assert came("tools/call")[2]["params"]["inputResponses"] == {"0": {"action": "cancel"}}
    last.refresh_from_db()
    assert last.state == ElicitationRequest.State.EXPIRED


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (rounds({"method": "sampling/createMessage", "params": {}}), "doesn't support"),
        (rounds({"method": "tools/call", "params": {}}), "doesn't support"),
        (rounds(*[ROOTS] * 17), "doesn't support|more than 16"),
        ({"requestState": "x" * 70_000}, "must be a string of at most"),
        ({"requestState": None}, "without specifying"),
        (rounds({"method": "elicitation/create", "params": {"message": "?"}}), "requestedSchema"),
    ],
)
def test_a_forbidden_server_request_ends_the_call(asker, says, found, why):
    asker("modern")
    session = says("script", rounds=[found])
    step = call_of(session)
    assert (session.status, step.state) == (Session.Status.DONE, Step.State.FAILED)
    assert re.search(why, step.payload["text"])
    assert not ElicitationRequest.objects.exists()
    assert not PendingCall.objects.filter(closed_at=None).exists()


def test_a_server_with_endless_requests_is_stopped(asker, says, came, runner, boss):
    asker("modern")
    session = says("script", rounds=[{"requestState": "0"}] * 2)
    assert "required more than 10 retries" in call_of(session).payload["text"]
    assert len(came("tools/call")) == MAX_ROUNDS + 1
    session = says("script", rounds=[rounds(FORM, requestState="0")])
    for _ in range(MAX_ROUNDS):
        answer_request(boss, ElicitationRequest.objects.waiting().get(), "decline")
        goes(session, runner)
    assert session.status == Session.Status.DONE
    assert "more than 10 times" in call_of(session).payload["text"]


def test_a_call_continues_after_its_process_died(asker, says, came, runner, boss):
    """The process dies between two parts, before and after the next one has its id."""
    asker("modern")
    session = says("script", rounds=[rounds(FORM)])
    answer_request(boss, ElicitationRequest.objects.get(), "accept", {"name": "Ada"})

    async def die_after_gathering():
        await runner.start()
        hold = await get_runtime().run_orm(leases.claim_session, session.pk, runner.runner_id)
        step = await get_runtime().run_orm(call_of, session)
        assert await resume_interrupted_call(hold, step)
        pending_call = await find_pending_call(step)
        row = await get_runtime().run_orm(Session.objects.get, pk=session.pk)
        assert await prepare_next_round(SessionHost(hold, row), step, pending_call)

    get_runtime().call(die_after_gathering)
    Session.objects.filter(pk=session.pk).update(status=Session.Status.QUEUED, runner=None)
    goes(session, runner)
    assert session.status == Session.Status.DONE
    assert [len(came("tools/call")), call_of(session).state] == [2, Step.State.DONE]


def test_an_approval_applies_to_all_parts_of_a_call(asker, says, helper, runner, boss, came):
    asker("modern")
    set_policy(boss, helper, PolicySpec("all", ask=("mcp_asker_script",)))
    session = says("script", rounds=[rounds(FORM)])
    approve(boss, Approval.objects.get(), "approve")
    goes(session, runner)
    answer_request(boss, ElicitationRequest.objects.get(), "accept", {"name": "Ada"})
    goes(session, runner)
    assert session.status == Session.Status.DONE
    assert (Approval.objects.count(), len(came("tools/call"))) == (1, 2)


def test_a_canceled_session_withdraws_its_elicitation_request(asker, says, runner, boss):
    asker("modern")
    session = says("script", rounds=[rounds(FORM)])
    sessions.cancel_session(boss, session)
    goes(session, runner)
    assert session.status == Session.Status.CANCELLED
    assert ElicitationRequest.objects.get().state == ElicitationRequest.State.WITHDRAWN
    assert call_of(session).payload["code"] == "unfinished"
    assert pending_calls.list_open_calls(session.pk) == []


def test_the_other_requests_of_a_call_end_when_the_call_fails(asker, says):
    asker("modern")
    undisplayable = {"method": "elicitation/create", "params": {"mode": "form"}}
    session = says("script", rounds=[rounds(FORM, undisplayable)])
    assert (session.status, call_of(session).payload["code"]) == ("done", "bad_elicitation")
    assert ElicitationRequest.objects.get().state == ElicitationRequest.State.WITHDRAWN


def test_requests_end_at_once_when_a_session_is_canceled(asker, says, boss):
    asker("modern")
    session = says("script", rounds=[rounds(FORM)])
    sessions.cancel_session(boss, session)
    assert ElicitationRequest.objects.get().state == ElicitationRequest.State.WITHDRAWN


def test_a_live_connection_waits_for_a_person(asker, says, runner, boss, helper, came, settings):
    asker("handshake")
    session = sessions.start_session(
        boss, helper, f"/mcp_asker_ask {json.dumps({'requests': [FORM, ROOTS]})}"
    )
    running = get_runtime().spawn(run_until_rest(runner, session.pk), name="run")
    question = eventually(lambda: ElicitationRequest.objects.waiting().first())
    assert question.pending_call is None
    notice = eventually(lambda: session.steps.filter(kind=Step.Kind.NOTICE).last())
    assert notice.payload["question_id"] == str(question.pk)
    answer_request(boss, question, "accept", {"name": "Ada"})
    running.result(30)
    said = call_of(session).payload["text"]
    assert '"name": "Ada"' in said
    assert "not_offered" in said or "-32601" in said  # roots are off
    question.refresh_from_db()
    assert question.content.open() == {}

    settings.BONOBOT_ANSWER_S = 1
    session = says("ask", requests=[FORM])
    assert '"cancel"' in call_of(session).payload["text"]


def test_a_url_request_waits_until_the_page_was_visited(asker, says, runner, boss, helper, came):
    asker("handshake")
    url = PAGE["params"]["url"]
    session = sessions.start_session(boss, helper, f'/mcp_asker_url_first {{"url": "{url}"}}')
    running = get_runtime().spawn(run_until_rest(runner, session.pk), name="run")
    question = eventually(lambda: ElicitationRequest.objects.waiting().first())
    assert (question.mode, question.url) == ("url", url)
    answer_request(boss, question, "accept")
    running.result(30)
    assert "signed in" in call_of(session).payload["text"]
    assert [one["params"]["arguments"] for one in came("tools/call")] == [{"url": url}] * 2


def test_without_a_session_server_requests_are_refused(asker, acme, helper, call):
    server = asker("modern")
    outcome = call("mcp_asker_script", {"rounds": [rounds(FORM)]})
    assert (outcome.outcome, outcome.code) == ("error", "protocol_error")
    assert not ElicitationRequest.objects.exists()
    assert call("mcp_asker_script", {"rounds": [{"requestState": "1"}]}).outcome == "ok"
    set_client_capabilities(factories.build_administrator(acme), server, elicitation=False)


def test_a_resource_read_can_request_input(asker, came, runner, boss, helper):
    server = asker("modern")
    attach_server(boss, helper, server, allowed_resources=["ask://one"])
    text = '/read_resource {"server": "asker", "uri": "ask://one"}'
    session = goes(sessions.start_session(boss, helper, text), runner)
    assert session.status == Session.Status.WAITING
    answer_request(boss, ElicitationRequest.objects.get(), "accept", {"name": "Ada"})
    goes(session, runner)
    assert session.status == Session.Status.DONE
    step = call_of(session)
    assert step.state == Step.State.DONE
    assert "Ada" in step.payload["text"]
    assert len(came("resources/read")) == 2
    # Two parts of the tool's call, each with a read of its own.
    tool, read = (
        AuditRow.objects.filter(action=action).order_by("seq")
        for action in ("agent_tool_call", "agent_resource_read")
    )
    assert [row.code for row in tool] == [row.code for row in read] == ["input_required", ""]
    assert [row.parent_id for row in read] == [row.pk for row in tool]
    assert pending_calls.list_open_calls(session.pk) == []


def test_a_prompt_can_request_input(asker, says, came, runner, boss, helper, call):
    """Sessions fill none by themselves; what is asked in one can be answered."""
    server = asker("modern")
    attach_server(boss, helper, server, allowed_prompts=["ask"])
    session = factories.create_answered_session(helper)
    host = SessionHost(leases.SessionLease(session.pk, uuid4(), 1), session)
    asked = {"method": "prompts/get", "server_id": server.pk}
    alone = call("ask", **asked)
    assert (alone.outcome, alone.code) == ("error", "protocol_error")
    inside = asked | {"session_id": session.pk, "host": host}
    first = call("ask", **inside)
    pending_call = PendingCall.objects.get(pk=first.exchange_id)
    pending_calls.save_responses(pending_call, {"name": {"action": "decline"}})
    whole = call("ask", continuation=pending_calls.build_continuation(pending_call), **inside)
    assert (whole.exchange_id, whole.outcome) == (None, "ok")
    assert '"decline"' in whole.text
    assert len(came("prompts/get")) == 3


def test_a_stored_secret_cant_be_entered_as_an_answer(asker, says, boss, acme):
    channel = NotificationChannelSpec(
        "Pager", "webhook", url="https://hooks.example.com/very-secret-path-1"
    )
    save_channel(boss, channel)
    asker("modern")
    says("script", rounds=[rounds(FORM)])
    with pytest.raises(Problem) as caught:
        answer_request(
            boss,
            ElicitationRequest.objects.get(),
            "accept",
            {"name": "it is https://hooks.example.com/very-secret-path-1"},
        )
    assert caught.value.code == "secret_in_answer"
    assert elicitations.build_page_url(ElicitationRequest.objects.get()).startswith("http")
