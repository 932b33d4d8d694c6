"""OpenAI and compatible APIs, with a faster client and stream.

Tool schemas are sent unchanged. A stream with neither a finish reason nor `[DONE]` was cut off.

The model library takes 0.3 ms per stream event, so text events that have already arrived are merged
into one, without waiting for more.

The library's client also spends time on transforming request types, which chat completions don't
need, and on building each event field by field (see `benchmarks/bench_sessions.py`). Both are
skipped here; requests and replies stay the same.
"""

import asyncio
import json
import re
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
from openai._streaming import ServerSentEvent, SSEDecoder
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

from agents.llm.interface import OPENAI_HOSTS, ModelEndpointConfig
from agents.llm.providers.transport import build_client, build_timeout, mark_stream_complete

# Text fields of a delta, which continue the previous event's.
TEXT_FIELDS = frozenset({"content", "reasoning", "reasoning_content"})
_EVENT_END = b"\n\n"
_DATA_PREFIX = "data: "
_END_MARKER = "[DONE]"
_FINISH_REASON = re.compile(r'"finish_reason"\s*:\s*"[^"]')
# The last events of a Responses stream.
_FINAL_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})
T = TypeVar("T")
_REQUEST_OPTIONS = ("extra_headers", "extra_query", "extra_body", "timeout")


class ChunkStream(AsyncStream[ChatCompletionChunk]):
    """The library's stream, which reads all arrived events at once."""

    # A private method: if an upgrade removes it, events are just read one by one.
    async def _iter_events(self) -> AsyncIterator[ServerSentEvent]:
        try:
            async for text in _read_complete_events(self.response.aiter_bytes()):
                for event in merge_text_events(self._parse_events(text)):
                    if not isinstance(event, ParsedEvent):
                        _note_stream_end(event.data)
                    yield event
        except httpx2.TimeoutException as error:
            raise APITimeoutError(request=self.response.request) from error
        except httpx2.RequestError as error:
            raise APIConnectionError(request=self.response.request) from error

    def _parse_events(self, text: str) -> Iterator[ServerSentEvent]:
        for event_text in text.split("\n\n"):
            if event_text.startswith(_DATA_PREFIX) and "\n" not in event_text:
                yield ServerSentEvent(data=event_text[len(_DATA_PREFIX) :])
            elif event_text:
                yield from self._decoder.iter_bytes(iter([event_text.encode() + _EVENT_END]))


def _note_stream_end(data: str) -> None:
    if data.startswith(_END_MARKER) or _FINISH_REASON.search(data):
        mark_stream_complete()


async def _read_complete_events(received: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the received text up to the end of the last complete event."""
    buffer, has_half_line_end = bytearray(), False
    async for chunk in received:
        search_start = max(0, len(buffer) - 2)
        buffer += chunk
        if b"\r" in chunk or has_half_line_end:
            # Normalize line endings; a CR at the end may be half of a CRLF.
            has_half_line_end = buffer.endswith(b"\r")
            complete_part = bytes(buffer).removesuffix(b"\r")
            buffer[:] = (
                complete_part.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
                + b"\r" * has_half_line_end
            )
        end = buffer.rfind(_EVENT_END, search_start)
        if end >= 0:
            complete_text = buffer[: end + 2].decode()
            del buffer[: end + 2]
            yield complete_text
    if buffer:
        yield buffer.decode()


class ParsedEvent(ServerSentEvent):
    """An event whose data is already parsed."""

    def __init__(self, payload: dict[str, Any]) -> None:
        """Create an event with parsed data."""
        super().__init__()
        self._payload = payload

    def json(self) -> Any:
        return self._payload


def merge_text_events(events: Iterator[ServerSentEvent]) -> Iterator[ServerSentEvent]:
    """Yield events, with consecutive text events merged into one."""
    pending_chunk: _TextChunk | None = None
    for event in events:
        chunk = _parse_text_chunk(event)
        if chunk is not None and pending_chunk is not None and pending_chunk.can_merge_with(chunk):
            pending_chunk.texts += chunk.texts
            continue
        if pending_chunk is not None:
            yield pending_chunk.build_event()
        pending_chunk = chunk
        if chunk is None:
            yield event
    if pending_chunk is not None:
        yield pending_chunk.build_event()


@dataclass(slots=True)
class _TextChunk:
    """A chunk with only text, which was removed from its `delta`."""

    payload: dict[str, Any]
    delta: dict[str, Any]
    field_name: str
    texts: list[str]

    def can_merge_with(self, other: "_TextChunk") -> bool:
        """Tell whether another chunk differs only in its text.

        Leading whitespace and tags such as `<think>` aren't merged: the model library expects them
        in separate chunks.
        """
        return (
            self.field_name == other.field_name
            and self.payload == other.payload
            and not self.texts[0].isspace()
            and not _is_tag(self.texts[-1])
            and not _is_tag(other.texts[0])
        )

    def build_event(self) -> ParsedEvent:
        self.delta[self.field_name] = "".join(self.texts)
        return ParsedEvent(self.payload)


def _is_tag(text: str) -> bool:
    return text.startswith("<") and text.endswith(">")


def _parse_text_chunk(event: ServerSentEvent) -> _TextChunk | None:
    """Return an event as a text chunk; None for any other event."""
    if event.event or not event.data.startswith("{"):
        return None
    try:
        payload = json.loads(event.data)
        if payload.get("usage") or payload.get("error"):
            return None
        (choice,) = payload["choices"]
        delta = choice["delta"]
        if choice.get("finish_reason"):
            return None
        ((name, text),) = [(key, value) for key, value in delta.items() if value and key != "role"]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None  # not a text event, or an invalid one, which the library reports
    if name not in TEXT_FIELDS or not isinstance(text, str):
        return None
    del delta[name]
    return _TextChunk(payload, delta, name, [text])


class _FastCompletions(AsyncCompletions):
    # The library has an overload for each kind of answer; here all arguments are passed on.
    async def create(self, **arguments: Any) -> Any:
        """Send a request with the arguments unchanged."""
        given_arguments = {name: value for name, value in arguments.items() if is_given(value)}
        options = make_request_options(
            **{
                name: given_arguments.pop(name)
                for name in _REQUEST_OPTIONS
                if name in given_arguments
            },
            security={"bearer_auth": True},
        )
        return await self._post(
            "/chat/completions",
            body=given_arguments,
            options=options,
            cast_to=ChatCompletion,
            stream=given_arguments.get("stream", False),
            stream_cls=ChunkStream,
        )


class _FastChat(AsyncChat):
    @cached_property
    def completions(self) -> _FastCompletions:
        return _FastCompletions(self._client)


class _EndNotingDecoder(SSEDecoder):
    """The library's decoder, which notes the end of a Responses stream."""

    async def aiter_bytes(self, iterator: AsyncIterator[bytes]) -> AsyncIterator[ServerSentEvent]:
        async for event in super().aiter_bytes(iterator):
            if event.event in _FINAL_EVENTS or event.data.startswith(_END_MARKER):
                mark_stream_complete()
            yield event


class _FastOpenAI(AsyncOpenAI):
    @cached_property
    def chat(self) -> _FastChat:
        return _FastChat(self)

    def _make_sse_decoder(self) -> SSEDecoder:
        return _EndNotingDecoder()

    # A private method: if an upgrade removes it, chunks are just built more slowly, and fewer
    # unusual answers are read.
    def _process_response_data(
        self, *, data: object, cast_to: type[T], response: httpx2.Response
    ) -> T:
        if cast_to in (ChatCompletion, ChatCompletionChunk):
            _normalize_choices(data)
        if cast_to is ChatCompletionChunk:
            try:
                return cast(T, ChatCompletionChunk.model_validate(data))
            except ValidationError:
                pass  # a provider's own fields, which the library accepts unvalidated
        return super()._process_response_data(data=data, cast_to=cast_to, response=response)


def _normalize_choices(data: Any) -> None:
    """Remove finish reasons that aren't text, and fill in missing deltas; the library needs it."""
    choices = data.get("choices") if isinstance(data, dict) else None
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        reason = choice.get("finish_reason")
        if not (isinstance(reason, str) and reason):
            choice["finish_reason"] = None
        if "message" not in choice and choice.get("delta") is None:
            choice["delta"] = {}


class OpenAIClient(_FastOpenAI):
    """A client of OpenAI and compatible APIs."""


class AzureOpenAIClient(_FastOpenAI, AsyncAzureOpenAI):
    """A client of Azure's deployments with a dated API version."""


class OpenAIConnection:
    """A client of one address and key."""

    def __init__(self, endpoint: ModelEndpointConfig) -> None:
        self._client = _build_client(endpoint)

    def build_model(self, endpoint: ModelEndpointConfig) -> OpenAIChatModel | OpenAIResponsesModel:
        model_class = OpenAIResponsesModel if endpoint.kind == "responses" else OpenAIChatModel
        return model_class(
            endpoint.model,
            provider=self._build_provider(endpoint),
            profile=_build_profile(endpoint),
        )

    async def close(self) -> None:
        await self._client.close()

    def _build_provider(self, endpoint: ModelEndpointConfig) -> Provider[AsyncOpenAI]:
        if isinstance(self._client, AsyncAzureOpenAI):
            return AzureProvider(openai_client=self._client)
        host = urlsplit(endpoint.url).hostname or endpoint.url
        if host == "api.openai.com" or endpoint.kind == "responses":
            return OpenAIProvider(openai_client=self._client)
        # It escapes chat template tokens in tool results, for the model families that have them.
        return OpenAICompatibleProvider(host, openai_client=self._client)


def _build_profile(endpoint: ModelEndpointConfig) -> OpenAIModelProfile:
    host = urlsplit(endpoint.url).hostname or ""
    # Most other hosts only support `max_tokens`.
    return OpenAIModelProfile(
        json_schema_transformer=None,
        openai_chat_streaming_requires_finish_reason=False,  # the adapter checks the end
        # Documents are only sent if the endpoint says that its model accepts them.
        openai_chat_supports_document_input=True,
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
    request_settings: dict[str, Any] = {
        "timeout": build_timeout(endpoint),
        "extra_headers": headers,
    }
    if endpoint.kind == "responses":
        # Reasoning is returned encrypted with each answer, so the provider need not store it.
        request_settings["openai_store"] = False
        if endpoint.thinking_summaries and endpoint.thinking != "off":
            request_settings["openai_reasoning_summary"] = "auto"
    return request_settings


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
