"""OpenAI and compatible APIs, with a faster client and stream.

Tool schemas are sent unchanged, and a stream without a finish reason was cut off.

The model library takes 0.3 ms per stream event, so text events that have already arrived are merged
into one, without waiting for more.

The library's client also spends time on transforming request types, which chat completions don't
need, and on building each event field by field (see `benchmarks/bench_sessions.py`). Both are
skipped here; requests and replies stay the same.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import httpx2
from openai import (
    APIConnectionError,
    APITimeoutError,
    AsyncAzureOpenAI,
    AsyncOpenAI,
    AsyncStream,
    Omit,
)
from openai._base_client import make_request_options
from openai._streaming import ServerSentEvent
from openai._utils import is_given
from openai.resources.chat import AsyncChat, AsyncCompletions
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import ValidationError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers import Provider
from pydantic_ai.providers.azure import AzureProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from agents.llm.interface import ModelEndpointConfig
from agents.llm.providers.transport import build_client, build_timeout

# Text fields of a delta, which continue the previous event's.
TEXTS = frozenset({"content", "reasoning", "reasoning_content"})
_END = b"\n\n"
_DATA = "data: "


class ChunkStream(AsyncStream[ChatCompletionChunk]):
    """The library's stream, which reads all arrived events at once."""

    # A private method: if an upgrade removes it, events are just read one by one.
    async def _iter_events(self) -> AsyncIterator[ServerSentEvent]:
        try:
            async for text in _read_complete_events(self.response.aiter_bytes()):
                for event in merge_text_events(self._events(text)):
                    yield event
        except httpx2.TimeoutException as error:
            raise APITimeoutError(request=self.response.request) from error
        except httpx2.RequestError as error:
            raise APIConnectionError(request=self.response.request) from error

    def _events(self, text: str) -> Iterator[ServerSentEvent]:
        for one in text.split("\n\n"):
            if one.startswith(_DATA) and "\n" not in one:
                yield ServerSentEvent(data=one[len(_DATA) :])
            elif one:
                yield from self._decoder.iter_bytes(iter([one.encode() + _END]))


async def _read_complete_events(received: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the received text up to the end of the last complete event."""
    waiting, half = bytearray(), False
    async for chunk in received:
        seen = max(0, len(waiting) - 2)
        waiting += chunk
        if b"\r" in chunk or half:
            # Normalize line endings; a CR at the end may be half of a CRLF.
            half = waiting.endswith(b"\r")
            ready = bytes(waiting).removesuffix(b"\r")
            waiting[:] = ready.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + b"\r" * half
        end = waiting.rfind(_END, seen)
        if end >= 0:
            whole = waiting[: end + 2].decode()
            del waiting[: end + 2]
            yield whole
    if waiting:
        yield waiting.decode()


class ParsedEvent(ServerSentEvent):
    """An event whose data is already parsed."""

    def __init__(self, known: dict[str, Any]) -> None:
        """Create an event with parsed data."""
        super().__init__()
        self._known = known

    def json(self) -> Any:
        """Return the parsed data."""
        return self._known


def merge_text_events(events: Iterator[ServerSentEvent]) -> Iterator[ServerSentEvent]:
    """Yield events, with consecutive text events merged into one."""
    last: _TextChunk | None = None
    for event in events:
        piece = _parse_text_chunk(event)
        if piece is not None and last is not None and last.goes_on(piece):
            last.texts += piece.texts
            continue
        if last is not None:
            yield last.event()
        last = piece
        if piece is None:
            yield event
    if last is not None:
        yield last.event()


@dataclass(slots=True)
class _TextChunk:
    """A chunk with only text, which was removed from its `delta`."""

    said: dict[str, Any]
    delta: dict[str, Any]
    name: str
    texts: list[str]

    def goes_on(self, other: "_TextChunk") -> bool:
        """Tell whether another chunk differs only in its text.

        Leading whitespace and tags such as `<think>` aren't merged: the model library expects them
        in separate chunks.
        """
        return (
            self.name == other.name
            and self.said == other.said
            and not self.texts[0].isspace()
            and not _is_mark(self.texts[-1])
            and not _is_mark(other.texts[0])
        )

    def event(self) -> ParsedEvent:
        """Return the chunk's event, with its text restored."""
        self.delta[self.name] = "".join(self.texts)
        return ParsedEvent(self.said)


def _is_mark(text: str) -> bool:
    return text.startswith("<") and text.endswith(">")


def _parse_text_chunk(event: ServerSentEvent) -> _TextChunk | None:
    """Return an event as a text chunk; None for any other event."""
    if event.event or not event.data.startswith("{"):
        return None
    try:
        said = json.loads(event.data)
        if said.get("usage") or said.get("error"):
            return None
        (choice,) = said["choices"]
        delta = choice["delta"]
        if choice["finish_reason"]:
            return None
        ((name, text),) = [(key, value) for key, value in delta.items() if value and key != "role"]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None  # not a text event, or an invalid one, which the library reports
    if name not in TEXTS or not isinstance(text, str):
        return None
    del delta[name]
    return _TextChunk(said, delta, name, [text])


T = TypeVar("T")

_OF_THE_REQUEST = ("extra_headers", "extra_query", "extra_body", "timeout")


class _FastCompletions(AsyncCompletions):
    # The library has an overload for each kind of answer; here all arguments are passed on.
    async def create(self, **asked: Any) -> Any:
        """Send a request with the arguments unchanged."""
        said = {name: value for name, value in asked.items() if is_given(value)}
        options = make_request_options(
            **{name: said.pop(name) for name in _OF_THE_REQUEST if name in said},
            security={"bearer_auth": True},
        )
        return await self._post(
            "/chat/completions",
            body=said,
            options=options,
            cast_to=ChatCompletion,
            stream=said.get("stream", False),
            stream_cls=ChunkStream,
        )


class _FastChat(AsyncChat):
    @cached_property
    def completions(self) -> _FastCompletions:
        return _FastCompletions(self._client)


class _FastOpenAI(AsyncOpenAI):
    @cached_property
    def chat(self) -> _FastChat:
        return _FastChat(self)

    # A private method: if an upgrade removes it, chunks are just built more slowly.
    def _process_response_data(
        self, *, data: object, cast_to: type[T], response: httpx2.Response
    ) -> T:
        if cast_to is ChatCompletionChunk:
            try:
                return cast(T, ChatCompletionChunk.model_validate(data))
            except ValidationError:
                pass  # a provider's own fields, which the library accepts unvalidated
        return super()._process_response_data(data=data, cast_to=cast_to, response=response)


class OpenAIClient(_FastOpenAI):
    """A client of OpenAI and compatible APIs."""


class AzureOpenAIClient(_FastOpenAI, AsyncAzureOpenAI):
    """A client of Azure's deployments with a dated API version."""


# Hosts with `max_completion_tokens`; most others only support `max_tokens`.
OPENAI_HOSTS = ("api.openai.com", ".openai.azure.com")


class OpenAIConnection:
    """A client of one address and key."""

    def __init__(self, endpoint: ModelEndpointConfig) -> None:
        self._client = _build_client(endpoint)

    def model(self, endpoint: ModelEndpointConfig) -> OpenAIChatModel | OpenAIResponsesModel:
        """Return the library's model for an endpoint."""
        kind = OpenAIResponsesModel if endpoint.kind == "responses" else OpenAIChatModel
        return kind(
            endpoint.model, provider=self._provider(endpoint), profile=_build_profile(endpoint)
        )

    async def close(self) -> None:
        """Close its sockets."""
        await self._client.close()

    def _provider(self, endpoint: ModelEndpointConfig) -> Provider[AsyncOpenAI]:
        if isinstance(self._client, AsyncAzureOpenAI):
            return AzureProvider(openai_client=self._client)
        host = urlsplit(endpoint.url).hostname or endpoint.url
        if host == "api.openai.com" or endpoint.kind == "responses":
            return OpenAIProvider(openai_client=self._client)
        # It escapes chat template tokens in tool results, for the model families that have them.
        return OpenAICompatibleProvider(host, openai_client=self._client)


def _build_profile(endpoint: ModelEndpointConfig) -> OpenAIModelProfile:
    host = urlsplit(endpoint.url).hostname or ""
    return OpenAIModelProfile(
        json_schema_transformer=None,
        openai_chat_streaming_requires_finish_reason=True,
        openai_chat_supports_max_completion_tokens=host.endswith(OPENAI_HOSTS),
    )


def connect(endpoint: ModelEndpointConfig, loop: asyncio.AbstractEventLoop) -> OpenAIConnection:
    """Return a connection; opens no socket yet."""
    return OpenAIConnection(endpoint)


def build_settings(endpoint: ModelEndpointConfig) -> dict[str, Any]:
    """Return the library's settings for one request."""
    headers: dict[str, Any] = {"User-Agent": "bonobot"}
    if not endpoint.api_key:
        headers["Authorization"] = Omit()
    found: dict[str, Any] = {"timeout": build_timeout(endpoint), "extra_headers": headers}
    if endpoint.kind == "responses":
        # Reasoning is returned encrypted with each answer, so the provider need not store it.
        found["openai_store"] = False
    return found


def _build_client(endpoint: ModelEndpointConfig) -> AsyncOpenAI:
    common: dict[str, Any] = {
        "api_key": endpoint.api_key or "none",  # required, `build_settings` omits it
        "max_retries": 0,
        "http_client": build_client(endpoint),
    }
    if endpoint.kind == "azure" and endpoint.api_version:
        azure = AzureOpenAIClient(
            azure_endpoint=endpoint.url, api_version=endpoint.api_version, **common
        )
        azure._azure_ad_token = None
        return _clear_environment_values(azure)
    url = f"{endpoint.url.rstrip('/')}/openai/v1" if endpoint.kind == "azure" else endpoint.url
    return _clear_environment_values(OpenAIClient(base_url=url, **common))


def _clear_environment_values(client: AsyncOpenAI) -> AsyncOpenAI:
    """Clear values that the client read from the environment.

    It would send OPENAI_ORG_ID, OPENAI_PROJECT_ID, OPENAI_ADMIN_KEY and OPENAI_CUSTOM_HEADERS to
    a tenant's URL.
    """
    client.organization = client.project = client.admin_api_key = None
    client._custom_headers = {}
    return client
