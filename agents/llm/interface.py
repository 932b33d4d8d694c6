"""Messages, replies, errors, endpoints, the Model protocol.

Everything here is ours and plain: dataclasses, and messages that are JSON. No type of a model
library passes this module, so that rows outlive libraries and a session can change its model.

A message is one of

    {"role": "user", "text": …}
    {"role": "assistant", "turn": n, "text": …, "calls": [{"id", "name", "arguments", "raw"}, …]}
    {"role": "tool", "call_id": …, "name": …, "text": …, "is_error": …}

where those of users and tools may carry `images`: [{"media_type", "data"}, …].

The assistant's message is `Reply.message`: persist it as it is, send it back as it is (it may
carry more members, which only the model that wrote them reads). A tool's message names the id of
the call that it answers, `ToolCall.id`, which we make from (turn, index): providers repeat theirs.

The model library takes two seconds and fifty megabytes to import, so this module doesn't import
it: `wire` does, in a thread when the first request is made, so that the loop keeps ticking.
"""

import asyncio
import gc
import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, Protocol

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem

Kind = Literal[
    "offline", "openai", "responses", "azure", "anthropic", "google", "vertex", "bedrock"
]

# Where requests go without a base URL.
HOMES: dict[str, str] = {
    "openai": "https://api.openai.com/v1",
    "responses": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "google": "https://generativelanguage.googleapis.com",
    "vertex": "https://{region}-aiplatform.googleapis.com",
    "bedrock": "https://bedrock-runtime.{region}.amazonaws.com",
}
# Vertex AI's host without a region.
GLOBAL = "https://aiplatform.googleapis.com"


@dataclass(frozen=True)
class ModelEndpointConfig:
    """Where a model is and how to reach it; prices are micro-dollars per million tokens.

    `api_key` is the provider's secret: a key; of Bedrock the secret access key that belongs to
    `access_key_id`, or a Bedrock key without one; of Vertex AI a service account's JSON.
    `timeout_s` bounds one whole request, the reading of a streamed answer included. `thinking` is
    "" (as the model does by itself), "off", or an effort. `retries` and `falls_over` are for the
    session: a model is asked once.
    """

    kind: Kind
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    model: str = ""
    timeout_s: float = 120.0
    allow_private: bool = False
    input_price: int | None = None
    output_price: int | None = None
    id: str = ""
    name: str = ""
    region: str = ""
    access_key_id: str = ""
    api_version: str = ""
    max_tokens: int | None = None
    context_window: int | None = None
    thinking: str = ""
    native_tools: bool = True
    sees_images: bool = False
    retries: int = 0
    falls_over: str = "unavailable"

    @property
    def url(self) -> str:
        """Return where requests go; without a base URL that is the provider itself."""
        if self.base_url:
            return self.base_url
        if self.kind == "vertex" and self.region in ("", "global"):
            return GLOBAL
        return HOMES.get(self.kind, "").format(region=self.region)

    @property
    def origin(self) -> str:
        """Return whose words an answer's private parts are: nobody else gets them."""
        return f"{self.kind} {self.url} {self.model}"

    @property
    def title(self) -> str:
        """Return how people know it."""
        return self.name or self.model or self.kind


__all__ = [
    "Finish",
    "ImageData",
    "Kind",
    "LanguageModel",
    "Message",
    "ModelEndpointConfig",
    "ModelError",
    "ModelReply",
    "OnText",
    "TokenUsage",
    "ToolCall",
    "ToolSpec",
    "build_assistant_message",
    "build_model",
    "build_tool_result",
    "build_user_message",
    "call_id",
    "call_index",
    "close_models",
]

Message = dict[str, Any]
OnText = Callable[[str], Awaitable[Any]]
Finish = Literal["stop", "tool_calls", "length", "content_filter", "error"]

RETRYABLE = frozenset({"model_unreachable", "model_rate_limited", "model_timeout"})


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the model sees it; `parameters` is its JSON Schema, sent unchanged."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class ToolCall:
    """A call that the model asks for; `arguments` is None when they aren't a JSON object."""

    index: int
    name: str
    arguments: dict[str, Any] | None
    raw_arguments: str
    id: str = ""


@dataclass(frozen=True)
class TokenUsage:
    """Tokens of one request.

    `cached_tokens` and `cache_write_tokens` are the parts of the input that were read from a cache
    and written to one; `reasoning_tokens` is the part of the output that was thought, not said.
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True)
class ImageData:
    """An image that a model drew."""

    media_type: str
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class ModelReply:
    """What the model answered; `message` is what to persist and to send back next time.

    `usage` is None when the endpoint didn't report it: then nothing is known of the cost.
    """

    text: str
    calls: tuple[ToolCall, ...]
    usage: TokenUsage | None
    finish: Finish
    message: Message
    images: tuple[ImageData, ...] = ()


class LanguageModel(Protocol):
    """A model that can be asked: the whole conversation in, one reply out."""

    async def request(
        self,
        messages: Sequence[Message],
        *,
        instructions: str = "",
        tools: Sequence[ToolSpec] = (),
        max_tokens: int | None = None,
        on_text: OnText | None = None,
    ) -> ModelReply:
        """Ask once and wait; text arrives at `on_text` in pieces as it is written.

        The answer has at most `max_tokens`, reasoning included; one that was cut there finishes
        with `length`.
        Raises ModelError. Never asks twice by itself: repeating is the caller's decision.
        """
        ...


class ModelError(Problem):
    """The model gave no usable answer; `retryable` says whether asking again may help.

    Codes: model_unreachable, model_auth, model_rate_limited (with `retry_after`, seconds),
    model_error, model_context_exceeded, model_timeout, model_bad_answer, model_no_answer,
    provider_missing; and those of egress (`private_address` …).
    """

    code = "model_error"
    status = 502
    title = "The model gave no answer"

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        remedy: str = "",
        retry_after: float | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(detail, code=code, remedy=remedy, retry_after=retry_after)
        self.retryable = self.code in RETRYABLE if retryable is None else retryable


def call_id(turn: int, index: int) -> str:
    """Return the id of a call: nine letters and digits, which is what the strictest wire takes."""
    return f"t{turn:04d}c{index:03d}"


def call_index(call_id: str) -> int:
    """Return the index in an id that `call_id` made."""
    return int(call_id.rpartition("c")[2])


def build_user_message(text: str) -> Message:
    """Return what a person said."""
    return {"role": "user", "text": text}


def build_tool_result(
    call_id: str,
    name: str,
    text: str,
    is_error: bool = False,
    frame: Mapping[str, Any] | None = None,
) -> Message:
    """Return what a call gave; `call_id` is the `ToolCall.id` that it answers.

    `frame` (see `messages`) marks text from outside; our own words have none.
    """
    given = {"role": "tool", "call_id": call_id, "name": name, "text": text, "is_error": is_error}
    return given | ({"frame": frame} if frame else {})


def build_assistant_message(
    turn: int, text: str, calls: Sequence[ToolCall], **extra: Any
) -> Message:
    """Return what the model said and asked for; `extra` is for the model that wrote it."""
    return {
        "role": "assistant",
        "turn": turn,
        "text": text,
        "calls": [
            {"id": call.id, "name": call.name, "arguments": call.arguments}
            | ({"raw": call.raw_arguments} if call.arguments is None else {})
            for call in calls
        ],
    } | extra


def build_model(endpoint: ModelEndpointConfig) -> LanguageModel:
    """Return the model behind an endpoint."""
    # Imported here because the implementations speak this port, and because a process that only
    # shows sessions shouldn't load what runs them.
    if endpoint.kind == "offline":
        from agents.llm.offline import OfflineModel

        return OfflineModel()
    from agents.llm.prompted_tools import PromptedToolModel

    model = ProviderModel(endpoint)
    return model if endpoint.native_tools else PromptedToolModel(model)


async def close_models() -> None:
    """Close the connections that this loop's models hold; the Runtime calls it when it ends."""

    await close_adapter()


WIRE = "agents.llm.pydantic_ai_adapter"

_loaded: dict[str, ModuleType] = {}


class ProviderModel:
    """A model at a provider; implements `agents.llm.interface.LanguageModel`."""

    def __init__(self, endpoint: ModelEndpointConfig) -> None:
        self.endpoint = endpoint

    async def request(
        self,
        messages: Sequence[Message],
        *,
        instructions: str = "",
        tools: Sequence[ToolSpec] = (),
        max_tokens: int | None = None,
        on_text: OnText | None = None,
    ) -> ModelReply:
        """Ask once, streaming when somebody listens. Raises ModelError."""
        wire = await _get_adapter()
        try:
            async with asyncio.timeout(self.endpoint.timeout_s) as limit:
                reply: ModelReply = await wire.ask(
                    self.endpoint,
                    messages,
                    instructions=instructions,
                    tools=tools,
                    max_tokens=max_tokens,
                    on_text=on_text,
                )
                return reply
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ModelError(
                format_message(
                    "`{model}` didn't finish within {timeout_s:g} s.",
                    model=self.endpoint.model,
                    timeout_s=self.endpoint.timeout_s,
                ),
                code="model_timeout",
                remedy="Try again, or give the model endpoint a longer timeout.",
            ) from error


async def close_adapter() -> None:
    """Close the connections that were opened on this loop."""
    if WIRE in _loaded:
        await _loaded[WIRE].close()


async def _get_adapter() -> ModuleType:
    return _loaded[WIRE] if WIRE in _loaded else await asyncio.to_thread(_load)


def _load() -> ModuleType:
    wire = _loaded[WIRE] = importlib.import_module(WIRE)
    gc.freeze()  # it stays, so nobody needs to look through it for garbage
    return wire
