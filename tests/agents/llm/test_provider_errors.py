"""Errors of providers: their codes, texts and whether a retry may help."""

import asyncio
from typing import Any

import pytest

from agents.llm.interface import LanguageModelRequest, ModelEndpointConfig, ModelError, build_model
from tests.agents.llm.ask_provider import (
    HI,
    KEY,
    TOOLS,
    ask,
    build_endpoint,
    expect_error,
    provider,
    stream_modes,
)
from tests.agents.llm.openai_server import Refuses, Says, Waits
from tests.agents.llm.provider_server import Streams
from tests.agents.llm.test_answer_ends import text_event

REFUSALS = [
    (Refuses(401, {"error": {"message": f"Incorrect key {KEY}"}}), "model_auth", False),
    (Refuses(403, {"error": {"message": "not yours"}}), "model_auth", False),
    (Refuses(429, {"error": {"message": "slow down"}}), "model_rate_limited", True),
    (Refuses(429, {"error": {"code": "insufficient_quota"}}), "model_no_credit", False),
    (Refuses(402, {"error": {"message": "Insufficient Balance"}}), "model_no_credit", False),
    (
        Refuses(400, {"error": {"message": "Your credit balance is too low to access it."}}),
        "model_no_credit",
        False,
    ),
    (Refuses(403, {"error": {"code": "insufficient_balance"}}), "model_no_credit", False),
    (Refuses(500, "<h1>oops</h1>"), "model_error", True),
    (Refuses(503, {"error": "overloaded"}), "model_error", True),
    (Refuses(404, {"error": {"code": "model_not_found"}}), "model_error", False),
    (Refuses(400, {"error": {"code": "context_length_exceeded"}}), "model_context_exceeded", False),
    (Refuses(422, {"detail": [{"msg": "?"}]}), "model_error", False),
]


@stream_modes
@pytest.mark.parametrize(("refusal", "code", "retryable"), REFUSALS)
async def test_an_error_response_has_a_code_and_a_remedy_and_isnt_retried(
    stream: bool, refusal: Refuses, code: str, retryable: bool
) -> None:
    async with provider(refusal) as fake:
        error = await expect_error(fake, stream=stream)
    assert (error.code, error.retryable) == (code, retryable)
    assert f"HTTP {refusal.status}" in str(error)
    assert error.remedy
    assert len(fake.requests) == 1


async def test_the_text_of_the_provider_is_quoted_safely() -> None:
    message = "bad\u200b \u202e thing " + "x" * 5_000
    async with provider(Refuses(400, {"error": {"message": message}})) as fake:
        error = await expect_error(fake)
    assert "⟨U+200B⟩" in str(error)
    assert len(str(error)) < 600


@stream_modes
async def test_retry_after_is_kept(stream: bool) -> None:
    async with provider(Refuses(429, {}, {"Retry-After": "7"})) as fake:
        error = await expect_error(fake, stream=stream)
    assert (error.code, error.retry_after) == ("model_rate_limited", 7.0)


async def test_an_error_inside_a_stream_is_the_same_error() -> None:
    event = 'data: {"error": {"message": "slow down", "code": 429}}\n\n'
    sse = {"Content-Type": "text/event-stream"}
    async with provider(Refuses(200, event, sse)) as fake:
        error = await expect_error(fake, stream=True)
    assert error.code == "model_rate_limited"


@pytest.mark.parametrize(
    ("event", "code", "retryable"),
    [
        (
            'data: {"error": {"message": "no", "code": "insufficient_quota"}}',
            "model_no_credit",
            False,
        ),
        ('data: {"error": {"message": "it failed"}}', "provider_error", True),
        ('data: {"choices": [', "provider_error", True),
        ("data: [1, 2]", "provider_error", True),
    ],
)
async def test_an_error_after_the_first_text_has_its_own_code(
    event: str, code: str, retryable: bool
) -> None:
    async with provider(Streams([text_event("Hello"), f"{event}\n\n".encode()])) as fake:
        error = await expect_error(fake, stream=True)
    assert (error.code, error.retryable) == (code, retryable)


@stream_modes
async def test_an_assertion_of_the_library_is_a_provider_error(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("unexpected part")

    monkeypatch.setattr(f"agents.llm.pydantic_ai_adapter.model_request{'_stream' * stream}", fail)
    async with provider(Says("never")) as fake:
        error = await expect_error(fake, stream=stream)
    assert (error.code, error.retryable) == ("provider_error", True)
    assert "AssertionError: unexpected part" in str(error)


@pytest.mark.parametrize("cut", ["closed", "ended"])
async def test_a_truncated_stream_isnt_an_answer(
    cut: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply = Says("Some text first", calls=(("x", "odd", '{"zebra": "long enough"}'),), cut=cut)
    streamed: list[str] = []

    async def listen(text: str) -> None:
        streamed.append(text)

    async with provider(reply) as fake:
        with pytest.raises(ModelError) as caught:
            await build_model(build_endpoint(fake)).request(
                LanguageModelRequest(HI, tools=TOOLS, on_text=listen)
            )
    assert (caught.value.code, caught.value.retryable) == ("model_bad_answer", True)
    assert "".join(streamed) == "Some text first"


@stream_modes
@pytest.mark.parametrize(
    "body", ["<html>a login page</html>", "", {}, [1], {"choices": []}, {"choices": [{}]}, "null"]
)
async def test_a_response_that_isnt_a_chat_completion_is_an_error(stream: bool, body: Any) -> None:
    async with provider(Refuses(200, body)) as fake:
        error = await expect_error(fake, stream=stream)
    assert (error.code, error.retryable) == ("provider_error", True)


@stream_modes
async def test_a_redirect_is_refused(stream: bool) -> None:
    async with provider(Refuses(302, "", {"Location": "http://10.0.0.1/v1"})) as fake:
        error = await expect_error(fake, stream=stream)
    assert (error.code, error.retryable) == ("redirect_denied", False)


@stream_modes
async def test_an_endless_answer_ends_at_the_limit(stream: bool) -> None:
    async with provider(Refuses(200, "x" * (17 * 1024 * 1024))) as fake:
        error = await expect_error(fake, stream=stream)
    assert error.code == "response_too_large"


async def test_a_private_address_needs_permission() -> None:
    async with provider() as fake:
        error = await expect_error(fake, allow_private=False)
    assert (error.code, error.retryable) == ("private_address", False)
    assert "model endpoint" in error.remedy
    assert fake.requests == []


@pytest.mark.parametrize(
    "url", ["ftp://host/v1", "http://user:pass@host/v1", "not a url", "http://[bad/v1"]
)
async def test_an_invalid_url_is_reported_by_its_code(url: str) -> None:
    with pytest.raises(ModelError) as caught:
        await build_model(ModelEndpointConfig("openai", url, model="m")).request(
            LanguageModelRequest(HI)
        )
    assert caught.value.code == "bad_url"
    assert not caught.value.retryable


async def test_a_server_that_isnt_running_is_unreachable(free_port: int) -> None:
    endpoint = ModelEndpointConfig(
        "openai", f"http://127.0.0.1:{free_port}/v1", "", "m", allow_private=True
    )
    with pytest.raises(ModelError) as caught:
        await build_model(endpoint).request(LanguageModelRequest(HI))
    assert (caught.value.code, caught.value.retryable) == ("model_unreachable", True)
    assert caught.value.remedy


@stream_modes
async def test_an_answer_that_takes_too_long_is_a_timeout(stream: bool) -> None:
    async with provider(Waits()) as fake:
        error = await expect_error(fake, stream=stream, timeout_s=0.2)
        await fake.wait_until_abandoned()
    assert (error.code, error.retryable) == ("model_timeout", True)


@stream_modes
async def test_canceling_closes_the_request_immediately(stream: bool) -> None:
    async with provider(Waits()) as fake:
        task = asyncio.create_task(ask(fake, HI, stream=stream))
        await fake.request_received.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await fake.client_left.wait()


async def test_an_exception_of_the_listener_is_raised_unchanged() -> None:
    async def listen(text: str) -> None:
        raise KeyError("of the listener")

    async with provider(Says("some text"), Says("ok")) as fake:
        with pytest.raises(KeyError, match="of the listener"):
            await build_model(build_endpoint(fake)).request(
                LanguageModelRequest(HI, on_text=listen)
            )
        reply, _ = await ask(fake, HI)
    assert reply.text == "ok"


async def test_consecutive_errors_arent_confused() -> None:
    async with provider(Refuses(401, {}), Refuses(500, {})) as fake:
        try:
            await ask(fake, HI)
        except ModelError:
            error = await expect_error(fake)
    assert error.code == "model_error"
