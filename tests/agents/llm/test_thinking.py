"""Readable thinking of models: streamed, limited, and asked for."""

from typing import Any

import pytest

from agents.llm.interface import LanguageModelRequest, build_model, build_user_message
from tests.agents.llm.provider_protocols import (
    ANTHROPIC,
    GOOGLE,
    RESPONSES,
    ProviderProtocol,
    ask,
    build_endpoint,
    every_protocol,
    provider,
    stream_modes,
)
from tests.agents.llm.provider_server import Says

HI = [build_user_message("hi")]


@every_protocol
async def test_thinking_is_streamed_apart_from_the_text(protocol: ProviderProtocol) -> None:
    texts: list[str] = []
    thinking: list[str] = []

    async def add_text(piece: str) -> None:
        texts.append(piece)

    async def add_thinking(piece: str) -> None:
        thinking.append(piece)

    async with provider(protocol, Says("hello", reasoning="I should greet.")) as fake:
        reply = await build_model(build_endpoint(protocol, fake)).request(
            LanguageModelRequest(HI, on_text=add_text, on_thinking=add_thinking)
        )
    assert ("".join(texts), "".join(thinking)) == ("hello", "I should greet.")
    assert (reply.text, reply.thinking) == ("hello", "I should greet.")


@stream_modes
async def test_thinking_beyond_the_limit_is_left_out(settings: Any, stream: bool) -> None:
    settings.BONOBOT_THINKING_LIMIT = 6
    async with provider(ANTHROPIC, Says("hello", reasoning="I should greet.")) as fake:
        reply, _ = await ask(ANTHROPIC, fake, HI, stream=stream)
    assert (reply.text, reply.thinking) == ("hello", "I shou")
    # What the provider requires is kept in full.
    assert "I should greet." in str(reply.message)


def find_thinking_request(protocol: ProviderProtocol, request: dict[str, Any]) -> Any:
    """Return the part of a request that asks for thinking."""
    if protocol is GOOGLE:
        return request.get("generationConfig", {}).get("thinkingConfig")
    return request.get("reasoning" if protocol is RESPONSES else "thinking")


@pytest.mark.parametrize(
    ("protocol", "thinking", "expected"),
    [
        (RESPONSES, "high", {"effort": "high", "summary": "auto"}),
        (RESPONSES, "", {"summary": "auto"}),
        (ANTHROPIC, "high", {"type": "adaptive", "display": "summarized"}),
        (ANTHROPIC, "", None),
        (GOOGLE, "", {"include_thoughts": True}),
    ],
)
async def test_summaries_are_requested_when_the_endpoint_says_so(
    protocol: ProviderProtocol, thinking: str, expected: Any
) -> None:
    async with provider(protocol, Says("hello")) as fake:
        await ask(protocol, fake, HI, thinking=thinking, thinking_summaries=True)
        assert find_thinking_request(protocol, fake.requests[0]) == expected


@pytest.mark.parametrize("protocol", [RESPONSES, ANTHROPIC], ids=str)
async def test_summaries_arent_requested_by_default(protocol: ProviderProtocol) -> None:
    async with provider(protocol, Says("hello")) as fake:
        await ask(protocol, fake, HI, thinking="high")
        request = find_thinking_request(protocol, fake.requests[0])
        assert not {"summary", "display"} & request.keys()
