"""Long conversations in real sessions: compacted before they are sent, or refused, by the rows."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from agents.builtin_tools.toolsets.default_tools import CHUNK_LENGTH
from agents.llm.token_estimates import estimate_tokens
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import ModelEndpoint, Session, Step
from agents.sessions import services as sessions
from agents.sessions.history import load_history
from agents.sessions.worker import SessionRunner
from bonobot.core.runtime import get_runtime
from tests import factories
from tests.agents.llm.openai_server import openai_server
from tests.agents.llm.provider_server import Refuses, Says

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("workshop")]
TOO_LONG = Refuses(400, {"error": {"code": "context_length_exceeded", "message": "too long"}})
LONG = '{"characters": 9000}'


@pytest.fixture
def say(acme, helper):
    """A function that gives the agent a message and returns the session at rest."""
    runner = SessionRunner()

    async def rest(session_id):
        if (task := await runner.claim_and_run(session_id)) is not None:
            await asyncio.wait_for(task, 30)

    def said(text, session=None):
        boss = factories.build_administrator(acme)
        if session is None:
            session = sessions.start_session(boss, helper, text)
        else:
            sessions.send_message(boss, session, text)
        get_runtime().call(rest, session.pk)
        session.refresh_from_db()
        return session

    yield said
    get_runtime().call(runner.drain)


def window(tokens):
    ModelEndpoint.objects.update(context_window=tokens)


def compactions(session):
    notices = session.steps.filter(kind=Step.Kind.NOTICE).order_by("seq")
    return [one.payload for one in notices if one.payload["code"] == "compacted"]


def test_omitted_results_can_be_read_again(say):
    window(8_000)
    session = say(f"/mcp_workshop_long {LONG}")
    for _ in range(4):
        say(f"/mcp_workshop_long {LONG}", session)
    assert session.status == Session.Status.DONE
    assert compactions(session)[0]["text"].startswith("The conversation is too long for the model")
    past = load_history(session.pk)
    assert (
        estimate_tokens(past.messages)
        < 8_000
        < estimate_tokens([entry.message for entry in past.entries])
    )
    assert load_history(session.pk).messages == past.messages
    first = session.steps.filter(kind=Step.Kind.CALL).order_by("seq")[0]
    assert len(first.payload["text"]) == 9_000
    read = say(f'/read_result {{"result_id": "{first.call_id}", "offset": 8990}}', session)
    found = read.steps.filter(kind=Step.Kind.CALL).order_by("seq").last().payload
    assert found["text"] == "x" * 10 + "\n[characters 8990 to 9000 of 9000]"


def test_a_truncated_result_can_be_read_from_storage(say, settings):
    settings.BONOBOT_RESULT_LIMIT = 1_000
    session = say('/mcp_workshop_long {"characters": 40000}')
    cut = session.steps.get(kind=Step.Kind.CALL)
    assert f"read_result, result_id {cut.call_id}]" in cut.payload["text"]
    settings.BONOBOT_RESULT_LIMIT = 262_144
    say(f'/read_result {{"result_id": "{cut.call_id}", "offset": 1000}}', session)
    read = session.steps.filter(kind=Step.Kind.CALL).order_by("seq").last().payload["text"]
    assert read == "x" * CHUNK_LENGTH + f"\n[characters 1000 to {1000 + CHUNK_LENGTH} of 40000]"


def test_results_of_other_sessions_cant_be_read(say):
    foreign = say(f"/mcp_workshop_long {LONG}").steps.get(kind=Step.Kind.CALL)
    session = say(f'/read_result {{"result_id": "{foreign.call_id}"}}')
    assert session.steps.get(kind=Step.Kind.CALL).payload["code"] == "not_found"


def test_a_message_that_can_never_fit_is_refused_before_it_is_sent(say):
    window(2_000)
    session = say("word " * 4_000)
    assert (session.status, session.error_code) == (Session.Status.FAILED, "context_exceeded")
    assert "accepts 2,000" in session.error_detail
    assert not session.steps.filter(kind=Step.Kind.MODEL).exists()


@pytest.fixture
def provider(acme, helper):
    """A provider without a known window that the agent thinks at."""
    stack = AsyncExitStack()
    fake = get_runtime().call(stack.enter_async_context, openai_server())
    spec = ModelEndpointSpec(
        name="Own", base_url=fake.url, model="m", allow_private=True, retries=0
    )
    helper.model_endpoint = save_endpoint(factories.build_administrator(acme), spec)
    helper.save()
    yield fake
    get_runtime().call(stack.aclose)


def test_a_provider_that_reports_a_too_long_prompt_gets_half_of_it_once(say, provider):
    calls = tuple((f"c{n}", "mcp_workshop_long", LONG) for n in range(3))
    provider.script += [Says(calls=calls), TOO_LONG, Says("done")]
    session = say("Read it all")
    assert session.status == Session.Status.DONE, session.error_detail
    assert len(compactions(session)) == 1
    refused, sent = provider.raw[1:]
    assert len(sent) < len(refused) * 2 // 3
    assert [one["role"] for one in provider.requests[2]["messages"]] == [
        *("system", "user", "assistant", "tool", "tool", "tool")
    ]
    provider.script += [TOO_LONG, Says("fine")]
    assert say("And again", session).status == Session.Status.DONE
    assert len(compactions(session)) == 2


def test_a_prompt_that_is_too_long_again_ends_the_message(say, provider):
    provider.script += [Says(calls=(("c", "mcp_workshop_long", LONG),)), TOO_LONG, TOO_LONG]
    session = say("Read it")
    assert (session.status, session.error_code) == (
        Session.Status.FAILED,
        "model_context_exceeded",
    )
    assert len(provider.requests) == 3
