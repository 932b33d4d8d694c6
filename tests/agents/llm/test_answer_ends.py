"""Ends of answers: finish reasons, end markers and the limit of the text."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponseStreamEvent, PartDeltaEvent, TextPartDelta

from agents.llm import pydantic_ai_adapter
from agents.llm.interface import ModelEndpointConfig
from tests.agents.llm import ask_provider, provider_protocols
from tests.agents.llm.ask_provider import HI, ask, provider
from tests.agents.llm.openai_server import Refuses, Says
from tests.agents.llm.provider_protocols import ANTHROPIC, RESPONSES
from tests.agents.llm.provider_server import Streams

DONE = b"data: [DONE]\n\n"
MISSING = object()
MIB = 1024 * 1024


def choice(delta: Any = MISSING, finish: Any = MISSING) -> dict[str, Any]:
    fields = {"index": 0, "delta": delta, "finish_reason": finish}
    return {name: value for name, value in fields.items() if value is not MISSING}


def event(*choices: dict[str, Any], **more: Any) -> bytes:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + json.dumps(head | {"choices": choices} | more).encode() + b"\n\n"


def text_event(text: str) -> bytes:
    return event(choice({"content": text}, None))


def sse(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | fields)}\n\n".encode()


ANSWER = text_event("the answer")
USAGE = event(usage={"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18})


@pytest.mark.parametrize(
    "pieces",
    [
        [ANSWER, event(choice({}, "eos"))],
        [ANSWER, event(choice({}, "eos")), DONE],
        [ANSWER, event(choice({}, None)), DONE],
        [ANSWER, event(choice({}, "")), DONE],
        [ANSWER, event(choice({}, 7)), DONE],
        [ANSWER, event(choice(finish="stop"))],
        [ANSWER, event(choice(None, "stop")), DONE],
        [ANSWER, DONE],
        [event(choice({"content": "the answer"})), DONE],
        [event(), event(choice({"role": "assistant"}, None)), ANSWER, USAGE, DONE],
        [ANSWER, event(choice({}, "stop")), USAGE, event(), DONE],
        [event(choice({"content": "the answer"}, "weird")), DONE],
        [ANSWER.replace(b"\n\n", b"\r\n\r\n"), DONE.replace(b"\n\n", b"\r\n\r\n")],
    ],
    ids=range(13),
)
async def test_a_streamed_answer_is_kept_however_it_ends(pieces: list[bytes]) -> None:
    async with provider(Streams(pieces)) as fake:
        reply, streamed = await ask(fake, HI, stream=True)
    assert (reply.text, "".join(streamed), reply.finish) == ("the answer", "the answer", "stop")


@pytest.mark.parametrize("finish", ["eos", None, "", 7, MISSING])
async def test_a_whole_answer_is_kept_however_it_ends(finish: Any) -> None:
    message = {"role": "assistant", "content": "the answer"}
    body = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice(finish=finish) | {"message": message}],
    }
    async with provider(Refuses(200, body)) as fake:
        reply, _ = await ask(fake, HI)
    assert (reply.text, reply.finish) == ("the answer", "stop")


async def test_calls_are_kept_if_the_finish_reason_is_missing() -> None:
    function = {"name": "plain", "arguments": "{}"}
    call = {"tool_calls": [{"index": 0, "id": "x", "type": "function", "function": function}]}
    async with provider(Streams([event(choice(call, None)), DONE])) as fake:
        reply, _ = await ask(fake, HI, stream=True)
    assert [call.name for call in reply.calls] == ["plain"]
    assert reply.finish == "tool_calls"


async def test_a_stream_without_any_end_was_cut_off() -> None:
    async with provider(Streams([ANSWER, USAGE])) as fake:
        error = await ask_provider.expect_error(fake, stream=True)
    assert (error.code, error.retryable) == ("model_bad_answer", True)


async def test_an_anthropic_stream_is_complete_without_a_stop_reason() -> None:
    usage = {"input_tokens": 11, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": []}
    block = {"type": "text", "text": ""}
    pieces = [
        sse("message_start", message=message | {"stop_reason": None, "usage": usage}),
        sse("content_block_start", index=0, content_block=block),
        sse("content_block_delta", index=0, delta={"type": "text_delta", "text": "the answer"}),
        sse("content_block_stop", index=0),
        sse("message_delta", delta={"stop_reason": None}, usage={"output_tokens": 7}),
        sse("message_stop"),
    ]
    async with provider_protocols.provider(ANTHROPIC, Streams(pieces)) as fake:
        reply, _ = await provider_protocols.ask(ANTHROPIC, fake, HI, stream=True)
    assert (reply.text, reply.finish) == ("the answer", "stop")
    async with provider_protocols.provider(ANTHROPIC, Streams(pieces[:-2])) as fake:
        error = await provider_protocols.expect_error(ANTHROPIC, fake, HI, stream=True)
    assert error.code == "model_bad_answer"


async def test_an_error_of_the_anthropic_library_is_a_provider_error() -> None:
    delta = sse("content_block_delta", index=0, delta={"type": "text_delta", "text": "x"})
    async with provider_protocols.provider(ANTHROPIC, Streams([delta])) as fake:
        error = await provider_protocols.expect_error(ANTHROPIC, fake, HI, stream=True)
    assert (error.code, error.retryable) == ("provider_error", True)


async def test_a_responses_stream_is_complete_with_its_marker() -> None:
    async with provider_protocols.provider(RESPONSES, Says("the answer")) as fake:
        response = fake.respond(
            "/v1/responses", {"stream": True, "store": False}, Says("the answer")
        )
        pieces = [piece async for piece in response.body_iterator]  # type: ignore[attr-defined]
        fake.script[:] = [Streams([*pieces[:-2], DONE]), Streams(pieces[:-2])]
        reply, _ = await provider_protocols.ask(RESPONSES, fake, HI, stream=True)
        error = await provider_protocols.expect_error(RESPONSES, fake, HI, stream=True)
    assert (reply.text, error.code) == ("the answer", "model_bad_answer")


async def test_the_text_of_a_streamed_answer_is_limited() -> None:
    call = {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "plain"}}]}
    pieces = [event(choice(call, None)), *[text_event("é" * 32_768)] * 320]
    async with provider(Streams([*pieces, event(choice({}, "stop")), DONE])) as fake:
        reply, streamed = await ask(fake, HI, stream=True)
    assert len(reply.text.encode()) == MIB
    assert "".join(streamed) == reply.text == reply.message["text"]
    assert (reply.finish, reply.calls) == ("length", ())
    assert reply.usage is not None
    assert reply.usage.output_tokens == MIB // 4  # estimated, because usage is reported at the end
    assert reply.limit == "1,048,576 bytes (`BONOBOT_ANSWER_LIMIT`)"


async def test_the_text_of_a_whole_answer_is_limited(settings: Any) -> None:
    settings.BONOBOT_ANSWER_LIMIT = 5
    async with provider(Says("ab€cd"), Says("ab€")) as fake:
        reply, _ = await ask(fake, HI)
        complete, _ = await ask(fake, HI)
    assert (reply.text, reply.finish, bool(reply.limit)) == ("ab€", "length", True)
    assert (complete.text, complete.finish, complete.limit) == ("ab€", "stop", "")
    assert reply.usage == complete.usage is not None


async def test_an_answer_in_too_large_a_response_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agents.llm.providers.transport.MAX_RESPONSE_SIZE", 65_536)
    padding = b": " + b"x" * 32_768 + b"\n\n"
    async with provider(Streams([ANSWER, padding, padding, DONE])) as fake:
        reply, _ = await ask(fake, HI, stream=True)
    assert (reply.text, reply.finish) == ("the answer", "length")


async def test_reading_a_fast_stream_lets_other_tasks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pydantic_ai_adapter, "MAX_READ_S", -1)
    other_runs = 0

    async def stream() -> AsyncIterator[ModelResponseStreamEvent]:
        for _ in range(10):
            yield PartDeltaEvent(index=0, delta=TextPartDelta(content_delta="x"))

    async def count_runs() -> None:
        nonlocal other_runs
        while True:
            other_runs += 1
            await asyncio.sleep(0)

    other_task = asyncio.create_task(count_runs())
    endpoint = ModelEndpointConfig("openai")
    pieces: Any = pydantic_ai_adapter._iterate_pieces(endpoint, stream())  # type: ignore[arg-type]
    assert [piece.text async for piece in pieces] == ["x"] * 10
    other_task.cancel()
    assert other_runs >= 10
