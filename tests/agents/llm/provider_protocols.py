"""Every provider's wire by one name: how it is served, and how an endpoint reaches it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from agents.llm.interface import (
    Kind,
    Message,
    ModelEndpointConfig,
    ModelError,
    ModelReply,
    ToolSpec,
    build_model,
    build_user_message,
    close_models,
)
from tests.agents.llm.anthropic_server import anthropic_server
from tests.agents.llm.bedrock_server import bedrock_server
from tests.agents.llm.google_server import google_server
from tests.agents.llm.openai_server import azure_server, openai_server
from tests.agents.llm.provider_server import FakeProvider, Refuses, Says, Streams, Waits
from tests.agents.llm.responses_server import responses_server

KEY = "made-up-key-0123456789"


@dataclass(frozen=True)
class Wire:
    """One wire: its kind of endpoint, its server, and what the endpoint needs besides."""

    kind: Kind
    server: Callable[..., Any]
    model: str
    # What an error answer looks like.
    error: Callable[[int, str], Any]
    more: dict[str, Any] = field(default_factory=dict)
    keeps_bad_arguments: bool = True
    signs: bool = True
    # What the wire's specification doesn't leave out.
    requires_usage: bool = False

    def __str__(self) -> str:
        return self.kind


def _openai_error(status: int, words: str) -> Any:
    return {"error": {"message": words, "type": "error", "code": None, "param": None}}


def _anthropic_error(status: int, words: str) -> Any:
    kinds = {429: "rate_limit_error", 401: "authentication_error", 404: "not_found_error"}
    kind = kinds.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": words}}


def _google_error(status: int, words: str) -> Any:
    kinds = {
        400: "INVALID_ARGUMENT",
        401: "UNAUTHENTICATED",
        404: "NOT_FOUND",
        429: "RESOURCE_EXHAUSTED",
        503: "UNAVAILABLE",
    }
    return {"error": {"code": status, "message": words, "status": kinds.get(status, "INTERNAL")}}


def _bedrock_error(status: int, words: str) -> Any:
    kinds = {
        400: "ValidationException",
        401: "UnrecognizedClientException",
        404: "ResourceNotFoundException",
        429: "ThrottlingException",
        500: "InternalServerException",
        503: "ServiceUnavailableException",
    }
    return {"__type": kinds[status], "message": words}


OPENAI = Wire("openai", openai_server, "some-model", _openai_error, signs=False)
RESPONSES = Wire("responses", responses_server, "gpt-5-mini", _openai_error)
AZURE = Wire(
    "azure",
    azure_server,
    "gpt-5-mini",
    _openai_error,
    more={"api_version": "2024-10-21"},
    signs=False,
)
ANTHROPIC = Wire(
    "anthropic", anthropic_server, "claude-opus-4-8", _anthropic_error, requires_usage=True
)
GOOGLE = Wire(
    "google", google_server, "gemini-3-pro-preview", _google_error, keeps_bad_arguments=False
)
BEDROCK = Wire(
    "bedrock",
    bedrock_server,
    "eu.anthropic.claude-opus-4-6-v1",
    _bedrock_error,
    more={"region": "eu-central-1", "access_key_id": "AKIAMADEUP"},
)
WIRES = (OPENAI, RESPONSES, AZURE, ANTHROPIC, GOOGLE, BEDROCK)

every_wire = pytest.mark.parametrize("wire", WIRES, ids=str)
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@asynccontextmanager
async def provider(
    wire: Wire, *script: Says | Refuses | Streams | Waits
) -> AsyncIterator[FakeProvider]:
    """Serve a script on a wire, and close what was opened to it."""
    async with wire.server(*script) as fake:
        try:
            yield fake
        finally:
            await close_models()


def at(wire: Wire, fake: FakeProvider, **more: Any) -> ModelEndpointConfig:
    """Return the endpoint of a served wire."""
    known = {"base_url": fake.url, "api_key": KEY, "model": wire.model, "allow_private": True}
    return ModelEndpointConfig(wire.kind, **(known | {"timeout_s": 30.0} | wire.more | more))


async def ask(
    wire: Wire,
    fake: FakeProvider,
    messages: list[Message],
    *,
    stream: bool = False,
    tools: tuple[ToolSpec, ...] = (),
    **more: Any,
) -> tuple[ModelReply, list[str]]:
    """Ask once; return the reply and what was heard of it meanwhile."""
    heard: list[str] = []

    async def listen(text: str) -> None:
        heard.append(text)

    reply = await build_model(at(wire, fake, **more)).request(
        messages, instructions="Be brief.", tools=tools, on_text=listen if stream else None
    )
    return reply, heard


async def fails(wire: Wire, fake: FakeProvider, messages: list[Message], **more: Any) -> ModelError:
    """Ask, and return how it failed."""
    with pytest.raises(ModelError) as caught:
        await ask(wire, fake, messages, **more)
    assert KEY not in str(caught.value)
    return caught.value


async def outcome(wire: Wire, fake: FakeProvider, *, stream: bool) -> str | None:
    """Ask, and return the code of the failure, or what was said: None where it was nothing."""
    try:
        reply, _ = await ask(wire, fake, [build_user_message("hi")], stream=stream)
    except ModelError as error:
        return error.code
    return reply.text or (None if not reply.calls and reply.usage is None else "something")
