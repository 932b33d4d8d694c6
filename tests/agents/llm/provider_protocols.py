"""The protocols of all providers: their test servers and their endpoints."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
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
from agents.llm.providers.registry import get_provider
from tests.agents.llm.anthropic_server import anthropic_server
from tests.agents.llm.bedrock_server import bedrock_server
from tests.agents.llm.google_server import google_server
from tests.agents.llm.openai_server import azure_server, openai_server
from tests.agents.llm.provider_server import FakeProvider, Refuses, Says, Streams, Waits
from tests.agents.llm.responses_server import responses_server

KEY = "made-up-key-0123456789"


@dataclass(frozen=True)
class ProviderProtocol:
    """A provider's protocol: its kind of endpoint, its test server and further endpoint fields."""

    kind: str
    server: Callable[..., Any]
    model: str
    # Builds the body of an error response.
    error: Callable[[int, str], Any]
    more: dict[str, Any] = field(default_factory=dict)
    keeps_bad_arguments: bool = True
    signs: bool = True
    # Whether the provider always reports the usage.
    requires_usage: bool = False

    def __str__(self) -> str:
        return self.kind


def _openai_error(status: int, message: str) -> Any:
    return {"error": {"message": message, "type": "error", "code": None, "param": None}}


def _anthropic_error(status: int, message: str) -> Any:
    kinds = {429: "rate_limit_error", 401: "authentication_error", 404: "not_found_error"}
    kind = kinds.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def _google_error(status: int, message: str) -> Any:
    kinds = {
        400: "INVALID_ARGUMENT",
        401: "UNAUTHENTICATED",
        404: "NOT_FOUND",
        429: "RESOURCE_EXHAUSTED",
        503: "UNAVAILABLE",
    }
    return {"error": {"code": status, "message": message, "status": kinds.get(status, "INTERNAL")}}


def _bedrock_error(status: int, message: str) -> Any:
    kinds = {
        400: "ValidationException",
        401: "UnrecognizedClientException",
        404: "ResourceNotFoundException",
        429: "ThrottlingException",
        500: "InternalServerException",
        503: "ServiceUnavailableException",
    }
    return {"__type": kinds[status], "message": message}


OPENAI = ProviderProtocol("openai", openai_server, "some-model", _openai_error, signs=False)
RESPONSES = ProviderProtocol("responses", responses_server, "gpt-5-mini", _openai_error)
AZURE = ProviderProtocol(
    "azure",
    azure_server,
    "gpt-5-mini",
    _openai_error,
    more={"api_version": "2024-10-21"},
    signs=False,
)
ANTHROPIC = ProviderProtocol(
    "anthropic", anthropic_server, "claude-opus-4-8", _anthropic_error, requires_usage=True
)
GOOGLE = ProviderProtocol(
    "google", google_server, "gemini-3-pro-preview", _google_error, keeps_bad_arguments=False
)
BEDROCK = ProviderProtocol(
    "bedrock",
    bedrock_server,
    "eu.anthropic.claude-opus-4-6-v1",
    _bedrock_error,
    more={"region": "eu-central-1", "access_key_id": "AKIAMADEUP"},
)
PROTOCOLS = (OPENAI, RESPONSES, AZURE, ANTHROPIC, GOOGLE, BEDROCK)

every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
stream_modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@asynccontextmanager
async def provider(
    protocol: ProviderProtocol, *script: Says | Refuses | Streams | Waits
) -> AsyncIterator[FakeProvider]:
    """Serve a script with a protocol, and close the models' connections at the end."""
    get_provider(protocol.kind)  # loads the library, which isn't part of a request's time
    async with protocol.server(*script) as fake:
        try:
            yield fake
        finally:
            await close_models()


def build_endpoint(
    protocol: ProviderProtocol, fake: FakeProvider, **more: Any
) -> ModelEndpointConfig:
    """Return the endpoint of a test server."""
    fields = {"base_url": fake.url, "api_key": KEY, "model": protocol.model, "allow_private": True}
    return ModelEndpointConfig(
        protocol.kind, **(fields | {"timeout_s": 30.0} | protocol.more | more)
    )


async def ask(
    protocol: ProviderProtocol,
    fake: FakeProvider,
    messages: list[Message],
    *,
    stream: bool = False,
    tools: tuple[ToolSpec, ...] = (),
    **more: Any,
) -> tuple[ModelReply, list[str]]:
    """Make one request; return the reply and its streamed text."""
    streamed: list[str] = []

    async def listen(text: str) -> None:
        streamed.append(text)

    reply = await build_model(build_endpoint(protocol, fake, **more)).request(
        LanguageModelRequest(messages, "Be brief.", tools, on_text=listen if stream else None)
    )
    return reply, streamed


async def expect_error(
    protocol: ProviderProtocol, fake: FakeProvider, messages: list[Message], **more: Any
) -> ModelError:
    """Make a request that fails, and return the error."""
    with pytest.raises(ModelError) as caught:
        await ask(protocol, fake, messages, **more)
    assert KEY not in str(caught.value)
    return caught.value


async def get_text_or_error_code(
    protocol: ProviderProtocol, fake: FakeProvider, *, stream: bool
) -> str | None:
    """Make a request, and return the error code or the text; None for an empty reply."""
    try:
        reply, _ = await ask(protocol, fake, [build_user_message("hi")], stream=stream)
    except ModelError as error:
        return error.code
    return reply.text or (None if not reply.calls and reply.usage is None else "something")
