"""Long conversations in sessions: compacted before they are sent, or refused."""

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
def send_message(acme, helper):
    """Return a function that sends a message and runs the session until it rests."""
    runner = SessionRunner()

    async def run_until_rest(session_id):
        if (task := await runner.claim_and_run(session_id)) is not None:
            await asyncio.wait_for(task, 30)

    def send(text, session=None):
        administrator = factories.build_administrator(acme)
        if session is None:
            session = sessions.start_session(administrator, helper, text)
        else:
            sessions.send_message(administrator, session, text)
        get_runtime().call(run_until_rest, session.pk)
        session.refresh_from_db()
        return session

    yield send
    get_runtime().call(runner.drain)


def set_context_window(tokens):
    ModelEndpoint.objects.update(context_window=tokens)


def list_compactions(session):
    notices = session.steps.filter(kind=Step.Kind.NOTICE).order_by("seq")
    return [notice.payload for notice in notices if notice.payload["code"] == "compacted"]


def test_omitted_results_can_be_read_again(send_message):
    set_context_window(8_000)
    session = send_message(f"/mcp_workshop_long {LONG}")
    for _ in range(4):
        send_message(f"/mcp_workshop_long {LONG}", session)
    assert session.status == Session.Status.DONE
    assert list_compactions(session)[0]["text"].startswith(
        "The conversation is too long for the model"
    )
    history = load_history(session.pk)
    assert (
        estimate_tokens(history.messages)
        < 8_000
        < estimate_tokens([entry.message for entry in history.entries])
    )
    assert load_history(session.pk).messages == history.messages
    first = session.steps.filter(kind=Step.Kind.CALL).order_by("seq")[0]
    assert len(first.payload["text"]) == 9_000
    reading = send_message(
        f'/read_result {{"result_id": "{first.call_id}", "offset": 8990}}', session
    )
    payload = reading.steps.filter(kind=Step.Kind.CALL).order_by("seq").last().payload
    assert payload["text"] == "x" * 10 + "\n[characters 8990 to 9000 of 9000]"


def test_a_truncated_result_can_be_read_from_storage(send_message, settings):
    settings.BONOBOT_RESULT_LIMIT = 1_000
    session = send_message('/mcp_workshop_long {"characters": 40000}')
    truncated = session.steps.get(kind=Step.Kind.CALL)
    assert f"read_result with result_id {truncated.call_id}]" in truncated.payload["text"]
    settings.BONOBOT_RESULT_LIMIT = 262_144
    send_message(f'/read_result {{"result_id": "{truncated.call_id}", "offset": 1000}}', session)
    text = session.steps.filter(kind=Step.Kind.CALL).order_by("seq").last().payload["text"]
    assert text == "x" * CHUNK_LENGTH + f"\n[characters 1000 to {1000 + CHUNK_LENGTH} of 40000]"


def test_results_of_other_sessions_cant_be_read(send_message):
    foreign = send_message(f"/mcp_workshop_long {LONG}").steps.get(kind=Step.Kind.CALL)
    session = send_message(f'/read_result {{"result_id": "{foreign.call_id}"}}')
    assert session.steps.get(kind=Step.Kind.CALL).payload["code"] == "not_found"


def test_a_message_that_can_never_fit_is_refused_before_it_is_sent(send_message):
    set_context_window(2_000)
    session = send_message("word " * 4_000)
    assert (session.status, session.error_code) == (Session.Status.FAILED, "context_exceeded")
    assert "accepts 2,000" in session.error_detail
    assert not session.steps.filter(kind=Step.Kind.MODEL).exists()


@pytest.fixture
def provider(acme, helper):
    """The provider of the agent's endpoint, which has no known context window."""
    stack = AsyncExitStack()
    fake = get_runtime().call(stack.enter_async_context, openai_server())
    spec = ModelEndpointSpec(
        name="Own", base_url=fake.url, model="m", allow_private=True, retries=0
    )
    helper.model_endpoint = save_endpoint(factories.build_administrator(acme), spec)
    helper.save()
    yield fake
    get_runtime().call(stack.aclose)


def test_a_provider_that_reports_a_too_long_prompt_gets_half_of_it_once(send_message, provider):
    calls = tuple((f"c{n}", "mcp_workshop_long", LONG) for n in range(3))
    provider.script += [Says(calls=calls), TOO_LONG, Says("done")]
    session = send_message("Read it all")
    assert session.status == Session.Status.DONE, session.error_detail
    assert len(list_compactions(session)) == 1
    refused_request, sent = provider.raw[1:]
    assert len(sent) < len(refused_request) * 2 // 3
    assert [message["role"] for message in provider.requests[2]["messages"]] == [
        *("system", "user", "assistant", "tool", "tool", "tool")
    ]
    provider.script += [TOO_LONG, Says("fine")]
    assert send_message("And again", session).status == Session.Status.DONE
    assert len(list_compactions(session)) == 2


def test_a_prompt_that_is_too_long_again_ends_the_message(send_message, provider):
    provider.script += [Says(calls=(("c", "mcp_workshop_long", LONG),)), TOO_LONG, TOO_LONG]
    session = send_message("Read it")
    assert (session.status, session.error_code) == (
        Session.Status.FAILED,
        "model_context_exceeded",
    )
    assert len(provider.requests) == 3
