"""One request through `pydantic_ai.direct`: our messages out, its answer back as ours.

The only module, with `clients` and `faults` beside it, that knows the model library. Imported
late: see `direct`.
"""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import Any, cast

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
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from agents.llm import clients, conversation, providers
from agents.llm.faults import cut_off, faults_as_ours
from agents.llm.framing import framed
from agents.llm.port import (
    Endpoint,
    Finish,
    Message,
    OnText,
    Picture,
    Reply,
    ToolCall,
    ToolSpec,
    Usage,
    assistant_message,
    call_id,
)
from agents.llm.providers.ending import ending_with_us
from agents.llm.schemas import fitted

# Of an answer as the library writes it: what it needs to send it back.
KEPT = ("kind", "parts", "model_name", "provider_name", "canonical_system", "timestamp")

close = clients.close


async def ask(
    endpoint: Endpoint,
    messages: Sequence[Message],
    *,
    instructions: str,
    tools: Sequence[ToolSpec],
    max_tokens: int | None,
    on_text: OnText | None,
) -> Reply:
    """Ask the model at an endpoint once. Raises ModelError."""
    history = _history(endpoint, conversation.in_order(messages))
    parameters = _parameters(endpoint, instructions, tools)
    async with AsyncExitStack() as stack:
        stack.enter_context(ending_with_us())
        with faults_as_ours(endpoint):
            model = await stack.enter_async_context(clients.model_at(endpoint))
        settings = _settings(endpoint, max_tokens)
        if on_text is None:
            with faults_as_ours(endpoint):
                response = await model_request(
                    model,
                    history,
                    model_settings=settings,
                    model_request_parameters=parameters,
                    instrument=False,
                )
        else:
            response = await _streamed(endpoint, model, history, settings, parameters, on_text)
    return _reply(endpoint, response, conversation.next_turn(messages))


async def _streamed(
    endpoint: Endpoint,
    model: Any,
    history: list[ModelMessage],
    settings: ModelSettings,
    parameters: ModelRequestParameters,
    on_text: OnText,
) -> ModelResponse:
    opened = model_request_stream(
        model,
        history,
        model_settings=settings,
        model_request_parameters=parameters,
        instrument=False,
    )
    async with AsyncExitStack() as stack:
        with faults_as_ours(endpoint):
            stream = await stack.enter_async_context(opened)
        # Only the pulls are the model's; what the listener raises is its own.
        texts = await stack.enter_async_context(aclosing(_texts(endpoint, stream)))
        async for text in texts:
            await on_text(text)
    response = stream.get()
    if response.finish_reason is None:  # every wire says why it ends, as its last words
        raise cut_off(endpoint)
    return response


async def _texts(endpoint: Endpoint, stream: StreamedResponse) -> AsyncGenerator[str, None]:
    with faults_as_ours(endpoint, streaming=True):
        async for event in stream:
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                text = event.part.content
            elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                text = event.delta.content_delta
            else:
                continue
            if text:
                yield text


def _settings(endpoint: Endpoint, max_tokens: int | None) -> ModelSettings:
    found = providers.provider(endpoint.kind).settings(endpoint)
    if max_tokens is not None:
        found["max_tokens"] = max_tokens
    if endpoint.thinking:
        found["thinking"] = False if endpoint.thinking == "off" else endpoint.thinking
    return cast(ModelSettings, found)


def _parameters(
    endpoint: Endpoint, instructions: str, tools: Sequence[ToolSpec]
) -> ModelRequestParameters:
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=fitted(endpoint.kind, tool.parameters),
                strict=False,
            )
            for tool in tools
        ],
        instruction_parts=[InstructionPart(content=instructions)] if instructions else None,
    )


def _history(endpoint: Endpoint, messages: Sequence[Message]) -> list[ModelMessage]:
    history: list[ModelMessage] = []
    for message in messages:
        if message["role"] == "assistant":
            history.append(_said(endpoint, message))
            continue
        if not history or not isinstance(history[-1], ModelRequest):
            history.append(ModelRequest(parts=[]))
        cast(list[Any], history[-1].parts).append(_asked(message))
    return history


def _asked(message: Message) -> UserPromptPart | ToolReturnPart:
    pictures = [
        BinaryContent(data=one["data"], media_type=one["media_type"])
        for one in message.get("images", ())
        if "data" in one
    ]
    text = framed(message["text"], message.get("frame"))
    content: Any = [text, *pictures] if pictures else text
    if message["role"] == "user":
        return UserPromptPart(content=content)
    return ToolReturnPart(
        tool_name=message["name"],
        content=content,
        tool_call_id=message["call_id"],
        outcome="failed" if message["is_error"] else "success",
    )


def _said(endpoint: Endpoint, message: Message) -> ModelResponse:
    """Return the model's own answer, with what its provider wants back, under our call ids.

    What a model thought, and the signatures of it, go back to the model that wrote them only.
    """
    calls = iter(message["calls"])
    native = _native(message) if message.get("origin") == endpoint.origin else None
    if native is not None:
        native.parts = [
            _under_our_id(endpoint, part, next(calls)) if isinstance(part, ToolCallPart) else part
            for part in native.parts
        ]
        return native
    plain = [TextPart(content=message["text"])] if message["text"] else []
    asked = [_under_our_id(endpoint, ToolCallPart(one["name"]), one) for one in calls]
    return ModelResponse(parts=[*plain, *asked])


def _under_our_id(endpoint: Endpoint, part: ToolCallPart, call: Message) -> ToolCallPart:
    args = call["arguments"]
    if args is None:
        # OpenAI's wire carries text; the others carry objects, and what isn't one breaks them.
        as_text = endpoint.kind in ("openai", "responses", "azure")
        args = call["raw"] if as_text else {"not_a_json_object": call["raw"]}
    return replace(part, args=args, tool_call_id=call["id"])


def _native(message: Message) -> ModelResponse | None:
    """Return an answer as the library wrote it; None where it can't be used any more."""
    try:
        (native,) = ModelMessagesTypeAdapter.validate_python([message["native"]])
    except (KeyError, ValidationError):  # none, or written by another version of the library
        return None
    if not isinstance(native, ModelResponse):
        return None
    asked = [part for part in native.parts if isinstance(part, ToolCallPart)]
    return native if len(asked) == len(message["calls"]) else None


def _reply(endpoint: Endpoint, response: ModelResponse, turn: int) -> Reply:
    texts = [part.content for part in response.parts if isinstance(part, TextPart)]
    text = "".join(texts) or str((response.provider_details or {}).get("refusal") or "")
    asked = [part for part in response.parts if isinstance(part, ToolCallPart)]
    calls = tuple(_call(part, turn, index) for index, part in enumerate(asked))
    pictures = [part for part in response.parts if isinstance(part, FilePart)]
    # Words stand for them in the conversation: no model gets its own images back.
    drawn = [f"[{p.content.media_type}, {len(p.content.data)} bytes]" for p in pictures]
    text = "\n".join([*([text] if text else []), *drawn])
    response.parts = [part for part in response.parts if not isinstance(part, FilePart)]
    extra: dict[str, Any] = {}
    if any(_is_private(part) for part in response.parts):
        # Reasoning, which some providers want back with the results of the calls it led to.
        native = ModelMessagesTypeAdapter.dump_python([response], mode="json")[0]
        kept = {name: native[name] for name in KEPT if native[name] is not None}
        extra = {"native": kept, "origin": endpoint.origin}
    return Reply(
        text=text,
        calls=calls,
        usage=_usage(response),
        finish=_finish(response, bool(calls)),
        message=assistant_message(turn, text, calls, **extra),
        images=tuple(Picture(one.content.media_type, one.content.data) for one in pictures),
    )


def _is_private(part: Any) -> bool:
    """Tell whether a part carries what only its own provider can read."""
    if not isinstance(part, TextPart | ToolCallPart):
        return True
    return bool(part.provider_details or part.id)


def _call(part: ToolCallPart, turn: int, index: int) -> ToolCall:
    raw = part.args if isinstance(part.args, str) else json.dumps(part.args or {})
    return ToolCall(
        index=index,
        name=part.tool_name,
        arguments=_arguments(raw),
        raw_arguments=raw,
        id=call_id(turn, index),
    )


def _arguments(raw: str) -> dict[str, Any] | None:
    """Return the JSON object in `raw`, or None; no text at all means no arguments."""
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw, parse_constant=_not_json)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _not_json(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _usage(response: ModelResponse) -> Usage | None:
    used = response.usage
    if used.unmeasured_requests or not (used.input_tokens or used.output_tokens):
        return None  # a report of nothing at all is none: no request has an empty input
    return Usage(
        used.input_tokens,
        used.output_tokens,
        cached_tokens=used.cache_read_tokens,
        cache_write_tokens=used.cache_write_tokens,
        reasoning_tokens=used.details.get("reasoning_tokens", 0),
    )


def _finish(response: ModelResponse, has_calls: bool) -> Finish:
    match response.finish_reason:
        case "length" | "content_filter" | "error" as reason:
            return reason
        case _:
            return "tool_calls" if has_calls else "stop"
