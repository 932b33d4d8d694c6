"""Send requests through pydantic_ai, with pooled connections.

Only this module, `provider_errors` and `providers` import the model library. Imported late: see
`interface`.

A provider's client never retries (the session does), reads nothing from the process's environment
(the operator's OPENAI_… or AWS_… variables aren't a tenant's), and connects only where the egress
rules allow.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
)
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, cast
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from django.conf import settings
from pydantic import ValidationError
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    InstructionPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from agents.llm.interface import (
    OPENAI_HOSTS,
    Finish,
    ImageData,
    LanguageModelRequest,
    Message,
    ModelEndpointConfig,
    ModelError,
    ModelReply,
    OnText,
    TokenUsage,
    ToolCall,
    build_assistant_message,
    build_call_id,
)
from agents.llm.message_order import get_next_turn, order_messages
from agents.llm.provider_errors import build_truncated_error, convert_provider_errors
from agents.llm.provider_schemas import convert_output_schema, convert_schema
from agents.llm.providers import registry as provider_registry
from agents.llm.providers.transport import (
    MAX_RESPONSE_SIZE,
    RequestScope,
    open_request_scope,
)
from agents.llm.result_frames import apply_frame
from agents.llm.token_estimates import count_tokens, estimate_tokens
from bonobot.core.http.egress import check_url

MAX_POOLS = 64  # pools a loop keeps; a changed credential leaves its old one behind
# Reading events that have already arrived lets others run after this time.
MAX_READ_S = 0.005

Key = tuple[object, ...]
# The fields of a serialized response that are needed to send it back.
KEPT_RESPONSE_FIELDS = (
    "kind",
    "parts",
    "model_name",
    "provider_name",
    "canonical_system",
    "timestamp",
)


@dataclass
class PooledModelConnection:
    """A connection with its cached models."""

    connection: provider_registry.ProviderConnection
    models: dict[str, Any] = field(default_factory=dict)
    in_use: int = 0

    def get_model(self, endpoint: ModelEndpointConfig) -> Any:
        """Return the library's model for an endpoint, cached by name."""
        if endpoint.model not in self.models:
            self.models[endpoint.model] = self.connection.build_model(endpoint)
        return self.models[endpoint.model]


@dataclass
class ModelConnectionPool:
    """The connections of one event loop, the least recently used first."""

    connections: OrderedDict[Key, PooledModelConnection] = field(default_factory=OrderedDict)
    open_lock: asyncio.Lock = field(default_factory=asyncio.Lock)


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, ModelConnectionPool] = WeakKeyDictionary()


@asynccontextmanager
async def open_model(endpoint: ModelEndpointConfig) -> AsyncIterator[Any]:
    """Yield the library's model for an endpoint; its connection stays open until `close()`.

    Raises `EgressDenied` for a denied URL, `ModelError` for a provider without its library.
    """
    check_url(endpoint.url, allow_private=endpoint.allow_private)
    pool = _pools.setdefault(asyncio.get_running_loop(), ModelConnectionPool())
    key = _build_key(endpoint)
    pooled = pool.connections.get(key) or await _open_connection(pool, key, endpoint)
    pool.connections.move_to_end(key)
    pooled.in_use += 1
    try:
        yield pooled.get_model(endpoint)
    finally:
        pooled.in_use -= 1
        await _close_idle_connections(pool)


async def close_pools() -> None:
    """Close the connections of the running event loop."""
    pool = _pools.pop(asyncio.get_running_loop(), None)
    for pooled in pool.connections.values() if pool else ():
        await pooled.connection.close()


async def _open_connection(
    pool: ModelConnectionPool, key: Key, endpoint: ModelEndpointConfig
) -> PooledModelConnection:
    """Open a connection in a thread: a provider's library can take seconds to load."""
    async with pool.open_lock:
        if key not in pool.connections:
            loop = asyncio.get_running_loop()
            pool.connections[key] = await asyncio.to_thread(_open_in_thread, endpoint, loop)
        return pool.connections[key]


def _open_in_thread(
    endpoint: ModelEndpointConfig, loop: asyncio.AbstractEventLoop
) -> PooledModelConnection:
    pooled = PooledModelConnection(
        provider_registry.get_provider(endpoint.kind).connect(endpoint, loop)
    )
    pooled.get_model(endpoint)  # load the model's modules in this thread too
    return pooled


def _build_key(endpoint: ModelEndpointConfig) -> Key:
    return (
        endpoint.kind,
        endpoint.url,
        endpoint.region,
        endpoint.access_key_id,
        endpoint.api_key,
        endpoint.api_version,
        endpoint.allow_private,
        endpoint.timeout_s,
    )


async def _close_idle_connections(pool: ModelConnectionPool) -> None:
    idle = [key for key, pooled in pool.connections.items() if not pooled.in_use]
    for key in idle[: max(0, len(pool.connections) - MAX_POOLS)]:
        await pool.connections.pop(key).connection.close()


async def ask(endpoint: ModelEndpointConfig, request: LanguageModelRequest) -> ModelReply:
    """Send one request to an endpoint's model. Raises `ModelError`.

    If the provider rejects a request with an output schema, it is sent once more without it.
    """
    has_text, on_text = False, request.on_text

    async def note_text(text: str) -> None:
        nonlocal has_text
        has_text = True
        if on_text is not None:
            await on_text(text)

    if request.output_schema and await _can_enforce_schema(endpoint, has_tools=bool(request.tools)):
        try:
            return await _send_request(
                endpoint, replace(request, on_text=note_text if on_text else None)
            )
        except ModelError as error:
            if error.code != "model_error" or has_text:
                raise
    return await _send_request(endpoint, replace(request, output_schema=None))


async def _can_enforce_schema(endpoint: ModelEndpointConfig, *, has_tools: bool) -> bool:
    """Return whether the API of the model enforces an output schema, also with tools."""
    with convert_provider_errors(endpoint):
        async with open_model(endpoint) as model:
            profile = model.profile
    if not profile.get("supports_json_schema_output", False):
        return False
    if not has_tools:
        return True
    if endpoint.kind in ("google", "vertex"):
        return bool(profile.get("google_supports_tool_combination", False))
    # Many compatible servers make no calls if the answer has to be JSON.
    host = urlsplit(endpoint.url).hostname or ""
    return endpoint.kind != "openai" or host.endswith(OPENAI_HOSTS)


async def _send_request(endpoint: ModelEndpointConfig, request: LanguageModelRequest) -> ModelReply:
    history = _build_history(endpoint, order_messages(request.messages))
    parameters = _build_parameters(endpoint, request)
    turn = get_next_turn(request.messages)
    async with AsyncExitStack() as stack:
        request_scope = stack.enter_context(open_request_scope())
        with convert_provider_errors(endpoint):
            model = await stack.enter_async_context(open_model(endpoint))
        request_settings = _build_settings(endpoint, request.max_tokens)
        if request.on_text is not None:
            with convert_provider_errors(endpoint):
                stream_request = model_request_stream(
                    model,
                    history,
                    model_settings=request_settings,
                    model_request_parameters=parameters,
                    instrument=False,
                )
            listeners = _StreamListeners(request.on_text, request.on_thinking)
            reply = await _stream_reply(endpoint, stream_request, request_scope, listeners, turn)
            if reply.limit:  # the usage would have come at the end
                input_tokens = estimate_tokens(
                    request.messages, request.instructions, request.tools
                )
                reply = replace(reply, usage=TokenUsage(input_tokens, count_tokens(reply.text)))
            return reply
        with convert_provider_errors(endpoint):
            response = await model_request(
                model,
                history,
                model_settings=request_settings,
                model_request_parameters=parameters,
                instrument=False,
            )
    with convert_provider_errors(endpoint):
        return _build_reply(endpoint, response, turn)


@dataclass(frozen=True)
class _StreamListeners:
    """What is called with pieces of the answer and of the thinking before it."""

    on_text: OnText
    on_thinking: OnText | None


async def _stream_reply(
    endpoint: ModelEndpointConfig,
    stream_request: AbstractAsyncContextManager[StreamedResponse],
    request_scope: RequestScope,
    listeners: _StreamListeners,
    turn: int,
) -> ModelReply:
    answer, thinking = _AnswerText(), _ThinkingText()
    async with AsyncExitStack() as stack:
        with convert_provider_errors(endpoint):
            stream = await stack.enter_async_context(stream_request)
        # Don't convert exceptions that the listeners raise.
        pieces = await stack.enter_async_context(aclosing(_stream_pieces(endpoint, stream, answer)))
        async for piece in pieces:
            if not piece.is_thinking:
                await listeners.on_text(piece.text)
            elif (new_thinking := thinking.add(piece)) and listeners.on_thinking is not None:
                await listeners.on_thinking(new_thinking)
    with convert_provider_errors(endpoint):
        if answer.limit:
            cut_reply = _build_cut_reply(answer.text, answer.limit, turn)
            return replace(cut_reply, thinking=thinking.text)
        response = stream.get()
        if not (request_scope.is_stream_complete or _has_finish_reason(response)):
            raise build_truncated_error(endpoint)
        return _build_reply(endpoint, response, turn)


class _AnswerText:
    """The text of a streamed answer, up to the limit; `limit` names it if it was exceeded."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0
        self.limit = ""

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def add(self, piece: str) -> str:
        """Add a piece; return the part of it that is within the limit."""
        kept_piece, size = cut_text(piece, settings.BONOBOT_ANSWER_LIMIT - self._size)
        if kept_piece != piece:
            self.limit = describe_answer_limit()
        self._pieces.append(kept_piece)
        self._size += size
        return kept_piece


@dataclass(frozen=True)
class _StreamedPiece:
    """A piece of a streamed answer, or of the thinking before it."""

    text: str
    is_thinking: bool = False
    starts_part: bool = False


class _ThinkingText:
    """The thinking of a streamed answer, up to the limit; its parts are paragraphs."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0
        self._starts_paragraph = False

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def add(self, piece: _StreamedPiece) -> str:
        """Add a piece; return the part of it that is within the limit."""
        self._starts_paragraph = self._starts_paragraph or piece.starts_part
        if not piece.text:
            return ""
        is_next_paragraph = self._starts_paragraph and self._pieces
        self._starts_paragraph = False
        text = f"\n\n{piece.text}" if is_next_paragraph else piece.text
        kept_text, size = cut_text(text, settings.BONOBOT_THINKING_LIMIT - self._size)
        self._pieces.append(kept_text)
        self._size += size
        return kept_text


def _get_thinking(response: ModelResponse) -> str:
    """Return the readable thinking of a response, up to the limit."""
    thinking = _ThinkingText()
    for part in response.parts:
        if isinstance(part, ThinkingPart):
            thinking.add(_StreamedPiece(part.content, is_thinking=True, starts_part=True))
    return thinking.text


def cut_text(text: str, max_size: int) -> tuple[str, int]:
    """Return the first `max_size` bytes (UTF-8) of a text, and their number."""
    if text.isascii():
        return text[:max_size], min(len(text), max_size)
    encoded_text = text.encode("utf-8", "surrogatepass")
    if len(encoded_text) <= max_size:
        return text, len(encoded_text)
    return encoded_text[:max_size].decode("utf-8", "ignore"), max_size


def describe_answer_limit() -> str:
    """Return the limit of an answer's text, and its setting."""
    return f"{settings.BONOBOT_ANSWER_LIMIT:,} bytes (`BONOBOT_ANSWER_LIMIT`)"


def _has_finish_reason(response: ModelResponse) -> bool:
    """Return whether the provider said why it ended, even for a reason the library doesn't know."""
    return "finish_reason" in (response.provider_details or {}) or response.finish_reason not in (
        None,
        "stop",  # also what the library fills in
    )


async def _stream_pieces(
    endpoint: ModelEndpointConfig, stream: StreamedResponse, answer: _AnswerText
) -> AsyncGenerator[_StreamedPiece, None]:
    """Yield pieces until the end, or until the answer exceeds a limit."""
    try:
        async with aclosing(_iterate_pieces(endpoint, stream)) as pieces:
            async for piece in pieces:
                if piece.is_thinking:
                    yield piece
                elif kept_text := answer.add(piece.text):
                    yield replace(piece, text=kept_text)
                if answer.limit:
                    return
    except ModelError as error:
        if error.code != "response_too_large" or not answer.text:
            raise
        answer.limit = f"{MAX_RESPONSE_SIZE:,} bytes of its response"


async def _iterate_pieces(
    endpoint: ModelEndpointConfig, stream: StreamedResponse
) -> AsyncGenerator[_StreamedPiece, None]:
    resumed_at = monotonic()
    with convert_provider_errors(endpoint, streaming=True):
        async for event in stream:
            if monotonic() - resumed_at > MAX_READ_S:
                await asyncio.sleep(0)
                resumed_at = monotonic()
            if (piece := _build_piece(event)) is not None:
                yield piece


def _build_piece(event: object) -> _StreamedPiece | None:
    """Return a stream event's piece of text or thinking; None for other events."""
    if isinstance(event, PartStartEvent):
        if isinstance(event.part, ThinkingPart):
            return _StreamedPiece(event.part.content, is_thinking=True, starts_part=True)
        if isinstance(event.part, TextPart) and event.part.content:
            return _StreamedPiece(event.part.content)
    elif isinstance(event, PartDeltaEvent):
        if isinstance(event.delta, ThinkingPartDelta) and event.delta.content_delta:
            return _StreamedPiece(event.delta.content_delta, is_thinking=True)
        if isinstance(event.delta, TextPartDelta) and event.delta.content_delta:
            return _StreamedPiece(event.delta.content_delta)
    return None


def _build_settings(endpoint: ModelEndpointConfig, max_tokens: int | None) -> ModelSettings:
    request_settings = provider_registry.get_provider(endpoint.kind).build_settings(endpoint)
    if max_tokens is not None:
        request_settings["max_tokens"] = max_tokens
    if endpoint.thinking:
        request_settings["thinking"] = False if endpoint.thinking == "off" else endpoint.thinking
    return cast(ModelSettings, request_settings)


def _build_parameters(
    endpoint: ModelEndpointConfig, request: LanguageModelRequest
) -> ModelRequestParameters:
    output: dict[str, Any] = {}
    if request.output_schema is not None:
        schema = convert_output_schema(endpoint.kind, dict(request.output_schema))
        # OpenAI's strict mode rejects most schemas; the others have no such mode.
        strict = False if endpoint.kind in ("openai", "responses", "azure") else None
        definition = OutputObjectDefinition(schema, name="final_answer", strict=strict)
        output = {"output_mode": "native", "output_object": definition}
    return ModelRequestParameters(
        **output,
        function_tools=[
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=convert_schema(endpoint.kind, tool.parameters),
                strict=False,
            )
            for tool in request.tools
        ],
        instruction_parts=[InstructionPart(content=request.instructions)]
        if request.instructions
        else None,
    )


def _build_history(
    endpoint: ModelEndpointConfig, messages: Sequence[Message]
) -> list[ModelMessage]:
    history: list[ModelMessage] = []
    for message in messages:
        if message["role"] == "assistant":
            history.append(_build_response(endpoint, message))
            continue
        if not history or not isinstance(history[-1], ModelRequest):
            history.append(ModelRequest(parts=[]))
        cast(list[Any], history[-1].parts).append(_build_request_part(message))
    return history


def _build_request_part(message: Message) -> UserPromptPart | ToolReturnPart:
    files = [
        BinaryContent(data=file["data"], media_type=file["media_type"])
        for file in (*message.get("images", ()), *message.get("documents", ()))
        if "data" in file
    ]
    text = apply_frame(message["text"], message.get("frame"))
    content: Any = [text, *files] if files else text
    if message["role"] == "user":
        return UserPromptPart(content=content)
    return ToolReturnPart(
        tool_name=message["name"],
        content=content,
        tool_call_id=message["call_id"],
        outcome="failed" if message["is_error"] else "success",
    )


def _build_response(endpoint: ModelEndpointConfig, message: Message) -> ModelResponse:
    """Return an assistant message as a response with our call ids.

    Reasoning and its signatures are only sent back to the model that wrote them.
    """
    calls = iter(message["calls"])
    native = _find_native_response(message) if message.get("origin") == endpoint.origin else None
    if native is not None:
        native.parts = [
            _replace_call_id(endpoint, part, next(calls))
            if isinstance(part, ToolCallPart)
            else part
            for part in native.parts
        ]
        return native
    text_parts = [TextPart(content=message["text"])] if message["text"] else []
    call_parts = [_replace_call_id(endpoint, ToolCallPart(call["name"]), call) for call in calls]
    return ModelResponse(parts=[*text_parts, *call_parts])


def _replace_call_id(
    endpoint: ModelEndpointConfig, part: ToolCallPart, call: Message
) -> ToolCallPart:
    args = call["arguments"]
    if args is None:
        # OpenAI's APIs take arguments as text; the others require an object.
        as_text = endpoint.kind in ("openai", "responses", "azure")
        args = call["raw"] if as_text else {"not_a_json_object": call["raw"]}
    return replace(part, args=args, tool_call_id=call["id"])


def _find_native_response(message: Message) -> ModelResponse | None:
    """Return the stored response of the library; None if it can't be used."""
    try:
        (native,) = ModelMessagesTypeAdapter.validate_python([message["native"]])
    except (KeyError, ValidationError):  # none, or written by another version of the library
        return None
    if not isinstance(native, ModelResponse):
        return None
    call_parts = [part for part in native.parts if isinstance(part, ToolCallPart)]
    return native if len(call_parts) == len(message["calls"]) else None


def _build_cut_reply(text: str, limit: str, turn: int) -> ModelReply:
    """Return a reply that exceeded a limit, without its calls, which may be incomplete."""
    return ModelReply(
        text=text,
        calls=(),
        usage=None,
        finish="length",
        message=build_assistant_message(turn, text, ()),
        limit=limit,
    )


def _build_reply(endpoint: ModelEndpointConfig, response: ModelResponse, turn: int) -> ModelReply:
    texts = [part.content for part in response.parts if isinstance(part, TextPart)]
    text = "".join(texts) or str((response.provider_details or {}).get("refusal") or "")
    kept_text, _ = cut_text(text, settings.BONOBOT_ANSWER_LIMIT)
    if kept_text != text:
        reply = _build_cut_reply(kept_text, describe_answer_limit(), turn)
        return replace(reply, usage=_build_usage(response), thinking=_get_thinking(response))
    call_parts = [part for part in response.parts if isinstance(part, ToolCallPart)]
    calls = tuple(_build_call(part, turn, index) for index, part in enumerate(call_parts))
    image_parts = [part for part in response.parts if isinstance(part, FilePart)]
    # Models don't get their own images back, only a note.
    image_notes = [
        f"[{image_part.content.media_type}, {len(image_part.content.data)} bytes]"
        for image_part in image_parts
    ]
    text = "\n".join([*([text] if text else []), *image_notes])
    response.parts = [part for part in response.parts if not isinstance(part, FilePart)]
    extra: dict[str, Any] = {}
    if any(_is_private(part) for part in response.parts):
        # Some providers require reasoning to be sent back with the results of its calls.
        native = ModelMessagesTypeAdapter.dump_python([response], mode="json")[0]
        stored_fields = {
            name: native[name] for name in KEPT_RESPONSE_FIELDS if native[name] is not None
        }
        extra = {"native": stored_fields, "origin": endpoint.origin}
    return ModelReply(
        text=text,
        calls=calls,
        usage=_build_usage(response),
        finish=_get_finish(response, bool(calls)),
        message=build_assistant_message(turn, text, calls, **extra),
        images=tuple(
            ImageData(file_part.content.media_type, file_part.content.data)
            for file_part in image_parts
        ),
        thinking=_get_thinking(response),
    )


def _is_private(part: Any) -> bool:
    """Tell whether a part has content that only its provider can read."""
    if not isinstance(part, TextPart | ToolCallPart):
        return True
    return bool(part.provider_details or part.id)


def _build_call(part: ToolCallPart, turn: int, index: int) -> ToolCall:
    raw = part.args if isinstance(part.args, str) else json.dumps(part.args or {})
    return ToolCall(
        index=index,
        name=part.tool_name,
        arguments=_parse_arguments(raw),
        raw_arguments=raw,
        id=build_call_id(turn, index),
    )


def _parse_arguments(raw: str) -> dict[str, Any] | None:
    """Return the JSON object in `raw`, or None; an empty text means no arguments."""
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _build_usage(response: ModelResponse) -> TokenUsage | None:
    usage = response.usage
    if usage.unmeasured_requests or not (usage.input_tokens or usage.output_tokens):
        return None  # zero usage means that it wasn't reported
    return TokenUsage(
        usage.input_tokens,
        usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.details.get("reasoning_tokens", 0),
    )


def _get_finish(response: ModelResponse, has_calls: bool) -> Finish:
    match response.finish_reason:
        case "length" | "content_filter" | "error" as reason:
            return reason
        case _:
            return "tool_calls" if has_calls else "stop"
