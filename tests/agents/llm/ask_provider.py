"""Requests to a scripted OpenAI provider, as sessions make them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agents.llm.interface import (
    LanguageModelRequest,
    Message,
    ModelEndpointConfig,
    ModelError,
    ModelReply,
    ToolSpec,
    build_model,
    build_user_message,
    close_models,
)
from tests.agents.llm.openai_server import FakeOpenAI, Refuses, Says, Waits, openai_server
from tests.agents.llm.provider_server import Streams

KEY = "sk-made-up-key-0123456789"
ODD_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Odd",
    "type": "object",
    "properties": {
        "zebra": {"type": "string", "format": "uri", "title": "Zebra"},
        "aardvark": {"$ref": "#/$defs/Count"},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    },
    "$defs": {"Count": {"type": "integer", "minimum": 3, "x-unknown": [1, {"a": None}]}},
    "required": ["zebra"],
    "additionalProperties": True,
}
TOOLS = (ToolSpec("odd", "An odd tool", ODD_SCHEMA), ToolSpec("plain", "", {"type": "object"}))
HI = [build_user_message("hi")]


stream_modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@asynccontextmanager
async def provider(*script: Says | Refuses | Streams | Waits) -> AsyncIterator[FakeOpenAI]:
    """Serve a script, and close the models' connections at the end."""
    async with asyncio.timeout(60), openai_server(*script) as fake:
        try:
            yield fake
        finally:
            await close_models()


def build_endpoint(fake: FakeOpenAI, **more: Any) -> ModelEndpointConfig:
    fields = {"kind": "openai", "base_url": fake.url, "api_key": KEY, "model": "some-model"}
    return ModelEndpointConfig(**(fields | {"allow_private": True, "timeout_s": 30.0} | more))


async def ask(
    fake: FakeOpenAI, messages: list[Message], *, stream: bool = False, **more: Any
) -> tuple[ModelReply, list[str]]:
    streamed: list[str] = []

    async def listen(text: str) -> None:
        streamed.append(text)

    reply = await build_model(build_endpoint(fake, **more)).request(
        LanguageModelRequest(messages, "Be brief.", TOOLS, on_text=listen if stream else None)
    )
    return reply, streamed


async def expect_error(fake: FakeOpenAI, *, stream: bool = False, **more: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await ask(fake, HI, stream=stream, **more)
    assert KEY not in str(caught.value)
    return caught.value
