"""Anthropic's Messages API and compatible ones."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from typing import Any, TypeVar, cast

import httpx2
from anthropic import AsyncAnthropic, Omit
from anthropic.types.beta import BetaThinkingConfigParam
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
from pydantic_ai.profiles.anthropic import AnthropicModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider

from agents.llm.interface import ModelEndpointConfig
from agents.llm.providers.transport import build_client, build_timeout, mark_stream_complete

T = TypeVar("T")
# Our own key in the library's settings.
SUMMARIES_SETTING = "bonobot_thinking_summaries"
# Mark the ends of the tools, the instructions and the conversation as cacheable. Markers in the
# blocks are understood by compatible services too, unlike the one for a whole request.
CACHE_SETTINGS: dict[str, Any] = {
    "anthropic_cache_tool_definitions": True,
    "anthropic_cache_instructions": True,
    "anthropic_cache_messages": True,
}
DELTA_EVENT = b"event: content_block_delta\ndata: "
FRAME_END = b"\n\n"
# A longer incomplete event, in bytes, is passed on in parts.
MAX_REST_SIZE = 64 * 1024
_DELTA_FIELDS = {"type", "index", "delta"}
_TEXT_FIELDS = {"type", "text"}
# Send tool schemas unchanged.
PROFILE = AnthropicModelProfile(json_schema_transformer=None)


class MergedStream(httpx2.AsyncByteStream):
    """A response's stream with merged deltas."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield chunks of complete events."""
        merger = DeltaMerger()
        async for chunk in self._stream:
            if events := merger.add_chunk(chunk):
                yield events
        if remainder := merger.take_rest():
            yield remainder

    async def aclose(self) -> None:
        """Close the wrapped stream."""
        await self._stream.aclose()


async def merge_response_deltas(response: httpx2.Response) -> None:
    """Merge the deltas of a response, if it is an uncompressed event stream; an event hook."""
    is_event_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    is_plain = response.headers.get("content-encoding", "identity") == "identity"
    if is_event_stream and is_plain and isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = MergedStream(response.stream)


class AnthropicClient(AsyncAnthropic):
    """A client that notes the end of a stream."""

    # A private method: if an upgrade removes it, streams without a stop reason count as cut off.
    def _process_response_data(
        self, *, data: object, cast_to: type[T], response: httpx2.Response
    ) -> T:
        if isinstance(data, dict) and data.get("type") == "message_stop":
            mark_stream_complete()
        return super()._process_response_data(data=data, cast_to=cast_to, response=response)


class SummarizingAnthropicModel(AnthropicModel):
    """A model that asks for readable thinking, which newer models leave out by default."""

    # A private method: if an upgrade removes it, these models' thinking isn't shown.
    def _translate_thinking(
        self,
        model_settings: AnthropicModelSettings,
        model_request_parameters: ModelRequestParameters,
    ) -> BetaThinkingConfigParam:
        config = super()._translate_thinking(model_settings, model_request_parameters)
        if not model_settings.get(SUMMARIES_SETTING):
            return config
        if isinstance(config, dict) and config["type"] in ("adaptive", "enabled"):
            return cast(BetaThinkingConfigParam, {**config, "display": "summarized"})
        return config


class AnthropicConnection:
    """A client of one address and key."""

    def __init__(self, endpoint: ModelEndpointConfig) -> None:
        http_client = build_client(endpoint)
        http_client.event_hooks["response"].append(merge_response_deltas)
        self._client = AnthropicClient(
            base_url=endpoint.url,
            api_key=endpoint.api_key or "none",  # without one the library searches the environment
            max_retries=0,
            open_telemetry=False,
            http_client=http_client,
        )
        # Drop ANTHROPIC_CUSTOM_HEADERS, which would be sent to a tenant's URL.
        self._client._custom_headers = {}

    def build_model(self, endpoint: ModelEndpointConfig) -> AnthropicModel:
        provider = AnthropicProvider(anthropic_client=self._client)
        return SummarizingAnthropicModel(endpoint.model, provider=provider, profile=PROFILE)

    async def close(self) -> None:
        await self._client.close()


def connect(endpoint: ModelEndpointConfig, loop: asyncio.AbstractEventLoop) -> AnthropicConnection:
    """Return a connection; opens no socket yet."""
    return AnthropicConnection(endpoint)


def build_settings(endpoint: ModelEndpointConfig) -> dict[str, Any]:
    """Return the library's settings for one request."""
    headers: dict[str, Any] = {"User-Agent": "bonobot"}
    if not endpoint.api_key:
        headers["X-Api-Key"] = Omit()
    request_settings = {"timeout": build_timeout(endpoint), "extra_headers": headers}
    if endpoint.thinking_summaries:
        request_settings[SUMMARIES_SETTING] = True
    return request_settings | (CACHE_SETTINGS if endpoint.prompt_caching else {})


class DeltaMerger:
    """Merges the deltas of a stream, chunk by chunk; keeps an incomplete event for the next one."""

    def __init__(self) -> None:
        """Create a merger for a new stream."""
        self._rest = b""

    def add_chunk(self, chunk: bytes) -> bytes:
        """Return the events that are complete now."""
        *frames, self._rest = (self._rest + chunk).split(FRAME_END)
        events = b"".join(frame + FRAME_END for frame in merge_text_deltas(frames))
        return events if len(self._rest) <= MAX_REST_SIZE else events + self.take_rest()

    def take_rest(self) -> bytes:
        """Return what is left at the end of the stream."""
        remainder, self._rest = self._rest, b""
        return remainder


def merge_text_deltas(frames: Sequence[bytes]) -> list[bytes]:
    """Merge consecutive text deltas of the same content block; keep all other events."""
    if len(frames) < 2:
        return list(frames)
    merged_frames: list[bytes] = []
    pairs = ((_parse_text_delta(frame), frame) for frame in frames)
    for index, group in groupby(pairs, key=lambda pair: pair[0] and pair[0][0]):
        members = list(group)
        if index is None or len(members) == 1:
            merged_frames += (frame for _, frame in members)
        else:
            text = "".join(delta[1] for delta, _ in members if delta is not None)
            merged_frames.append(_build_text_delta(index, text))
    return merged_frames


def _parse_text_delta(frame: bytes) -> tuple[int, str] | None:
    """Return the content block and the text of a plain text delta; None for other events."""
    if not frame.startswith(DELTA_EVENT) or b'"text_delta"' not in frame:
        return None
    try:
        event = json.loads(frame[len(DELTA_EVENT) :])
        index, delta = event["index"], event["delta"]
        is_plain = event.keys() == _DELTA_FIELDS and delta.keys() == _TEXT_FIELDS
        is_text = delta["type"] == "text_delta" and isinstance(delta["text"], str)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return (index, delta["text"]) if is_plain and is_text and type(index) is int else None


def _build_text_delta(index: int, text: str) -> bytes:
    event = {
        "type": "content_block_delta",
        "index": index,
        "delta": {"type": "text_delta", "text": text},
    }
    return DELTA_EVENT + json.dumps(event).encode("ascii")
