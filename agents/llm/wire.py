"""One request through `pydantic_ai.direct`: our messages out, its answer back as ours.

The only module, with `clients` and `faults` beside it, that knows the model library. Imported
late: see `direct`.
"""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, cast

import httpx2
from openai import Omit
from pydantic import ValidationError
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import (
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
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from agents.llm import clients, conversation
from agents.llm.faults import faults_as_ours
from agents.llm.framing import framed
from agents.llm.port import (
    Endpoint,
    Finish,
    Message,
    OnText,
    Reply,
    ToolCall,
    ToolSpec,
    Usage,
    assistant_message,
    call_id,
)

CONNECT_S = 30.0
# Of an answer as the library writes it: what it needs to send it back.
KEPT = ("kind", "parts", "model_name", "provider_name", "canonical_system", "timestamp")

close = clients.close
warm = clients.warm


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
    history = _history(conversation.in_order(messages))
    parameters = _parameters(instructions, tools)
    settings = _settings(endpoint, max_tokens)
    async with AsyncExitStack() as stack:
        with faults_as_ours(endpoint):
            model = await stack.enter_async_context(clients.model_at(endpoint))
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
    return _reply(response, conversation.next_turn(messages))


async def _streamed(
    endpoint: Endpoint,
    model: OpenAIChatModel,
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
    return stream.get()


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
    headers: dict[str, Any] = {"User-Agent": "bonobot"}
    if not endpoint.api_key:
        headers["Authorization"] = Omit()
    timeout = httpx2.Timeout(endpoint.timeout_s, connect=min(CONNECT_S, endpoint.timeout_s))
    # The library's type still names httpx's Timeout; what it passes on to is httpx2.
    said = ModelSettings(timeout=cast(Any, timeout), extra_headers=headers)
    if max_tokens is not None:
        said["max_tokens"] = max_tokens
    return said


def _parameters(instructions: str, tools: Sequence[ToolSpec]) -> ModelRequestParameters:
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=tool.parameters,
                strict=False,
            )
            for tool in tools
        ],
        instruction_parts=[InstructionPart(content=instructions)] if instructions else None,
    )


def _history(messages: Sequence[Message]) -> list[ModelMessage]:
    history: list[ModelMessage] = []
    for message in messages:
        if message["role"] == "assistant":
            history.append(_said(message))
            continue
        if not history or not isinstance(history[-1], ModelRequest):
            history.append(ModelRequest(parts=[]))
        cast(list[Any], history[-1].parts).append(_asked(message))
    return history


def _asked(message: Message) -> UserPromptPart | ToolReturnPart:
    if message["role"] == "user":
        return UserPromptPart(content=message["text"])
    return ToolReturnPart(
        tool_name=message["name"],
        content=framed(message["text"], message.get("frame")),
        tool_call_id=message["call_id"],
        outcome="failed" if message["is_error"] else "success",
    )


def _said(message: Message) -> ModelResponse:
    """Return the model's own answer, with what its provider wants back, under our call ids."""
    calls = [
        ToolCallPart(
            tool_name=call["name"],
            args=call["raw"] if call["arguments"] is None else call["arguments"],
            tool_call_id=call["id"],
        )
        for call in message["calls"]
    ]
    plain = [TextPart(content=message["text"])] if message["text"] else []
    if "native" not in message:
        return ModelResponse(parts=[*plain, *calls])
    try:
        (native,) = ModelMessagesTypeAdapter.validate_python([message["native"]])
    except ValidationError:  # written by another version of the library
        return ModelResponse(parts=[*plain, *calls])
    if not isinstance(native, ModelResponse):
        return ModelResponse(parts=[*plain, *calls])
    own = [part for part in native.parts if not isinstance(part, ToolCallPart)]
    native.parts = [*own, *calls]
    return native


def _reply(response: ModelResponse, turn: int) -> Reply:
    texts = [part.content for part in response.parts if isinstance(part, TextPart)]
    text = "".join(texts) or str((response.provider_details or {}).get("refusal") or "")
    asked = [part for part in response.parts if isinstance(part, ToolCallPart)]
    calls = tuple(_call(part, turn, index) for index, part in enumerate(asked))
    extra: dict[str, Any] = {}
    if any(not isinstance(part, TextPart | ToolCallPart) for part in response.parts):
        # Reasoning, which some providers want back with the results of the calls it led to.
        native = ModelMessagesTypeAdapter.dump_python([response], mode="json")[0]
        extra["native"] = {name: native[name] for name in KEPT if native[name] is not None}
    return Reply(
        text=text,
        calls=calls,
        usage=_usage(response),
        finish=_finish(response, bool(calls)),
        message=assistant_message(turn, text, calls, **extra),
    )


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
    return Usage(used.input_tokens, used.output_tokens, used.cache_read_tokens)


def _finish(response: ModelResponse, has_calls: bool) -> Finish:
    match response.finish_reason:
        case "length" | "content_filter" | "error" as reason:
            return reason
        case _:
            return "tool_calls" if has_calls else "stop"
