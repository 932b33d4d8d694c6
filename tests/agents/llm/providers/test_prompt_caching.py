"""Marks of what a provider may cache, and the cached tokens that it reports."""

import json
from typing import Any

import pytest

from agents.llm.interface import TokenUsage, ToolSpec, build_user_message
from tests.agents.llm.provider_protocols import (
    ANTHROPIC,
    BEDROCK,
    ProviderProtocol,
    ask,
    provider,
    stream_modes,
)
from tests.agents.llm.provider_server import Says

TOOLS = (ToolSpec("add", "Add two numbers.", {"type": "object", "properties": {}}),)
HI = build_user_message("hi")
cache_point_protocols = pytest.mark.parametrize("protocol", [ANTHROPIC, BEDROCK], ids=str)


def list_marked_parts(request: dict[str, Any]) -> list[bool]:
    """Return whether the tools, the instructions and the conversation end with a cache mark."""
    tools = request.get("tools") or request["toolConfig"]["tools"]
    ends = (tools[-1], request["system"][-1], request["messages"][-1]["content"][-1])
    return ["cachePoint" in end or "cache_control" in end for end in ends]


@cache_point_protocols
@stream_modes
async def test_tools_instructions_and_turns_are_marked_and_cached_tokens_are_reported(
    protocol: ProviderProtocol, stream: bool
) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}
    cache_use = {"cached_tokens": 60, "cache_write_tokens": 30}
    async with provider(protocol, Says("hello", usage=usage | cache_use)) as fake:
        reply, _ = await ask(protocol, fake, [HI], tools=TOOLS, stream=stream)
        assert list_marked_parts(fake.requests[0]) == [True, True, True]
        assert reply.usage == TokenUsage(100, 7, cached_tokens=60, cache_write_tokens=30)
        assert fake.read().system == "Be brief."


@cache_point_protocols
async def test_nothing_is_marked_without_prompt_caching(protocol: ProviderProtocol) -> None:
    async with provider(protocol, Says("hello")) as fake:
        await ask(protocol, fake, [HI], tools=TOOLS, prompt_caching=False)
        request = json.dumps(fake.requests[0])
        assert "cachePoint" not in request
        assert "cache_control" not in request


async def test_a_bedrock_model_without_prompt_caching_gets_no_cache_points() -> None:
    async with provider(BEDROCK, Says("hello")) as fake:
        await ask(BEDROCK, fake, [HI], tools=TOOLS, model="meta.llama3-8b-instruct-v1:0")
        assert "cachePoint" not in json.dumps(fake.requests[0])
