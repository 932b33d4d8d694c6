"""The interface of language models: endpoints, messages, replies and errors.

All types are our own dataclasses, and messages are JSON. No type of a model library is exposed, so
that stored messages don't depend on a library and a session can change its model.

A message is one of

    {"role": "user", "text": …}
    {"role": "assistant", "turn": n, "text": …, "calls": [{"id", "name", "arguments", "raw"}, …]}
    {"role": "tool", "call_id": …, "name": …, "text": …, "is_error": …}

where user and tool messages may have `images`: [{"media_type", "data"}, …], and user messages
`documents`: [{"media_type", "data", "pages"}, …], PDF files. The result of a call that was denied
also has `"is_denied": True`.

The assistant's message is `ModelReply.message`: store it and send it back unchanged (it may have
more fields, which only the model that wrote them reads). A tool's message has the id of its call,
`ToolCall.id`, built from (turn, index) because providers reuse their ids.

The model library takes two seconds and fifty megabytes to import, so `pydantic_ai_adapter` is
imported in a thread for the first request, without blocking the event loop.
"""

import asyncio
import gc
import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, Protocol

from agents.llm.provider_kinds import PROVIDER_KINDS
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem

# Hosts of OpenAI's own API.
OPENAI_HOSTS = ("api.openai.com", ".openai.azure.com")
# Vertex AI's URL without a region.
VERTEX_GLOBAL_URL = "https://aiplatform.googleapis.com"
Message = dict[str, Any]
OnText = Callable[[str], Awaitable[Any]]
Finish = Literal["stop", "tool_calls", "length", "content_filter", "error"]
RETRYABLE_CODES = frozenset(
    {"model_unreachable", "model_rate_limited", "model_timeout", "provider_error"}
)
ADAPTER_MODULE = "agents.llm.pydantic_ai_adapter"
_loaded_modules: dict[str, ModuleType] = {}


@dataclass(frozen=True)
class ModelEndpointConfig:
    """The configuration of a model endpoint; prices are micro-dollars per million tokens.

    `kind` is one of `PROVIDER_KINDS`.
    `api_key` is the provider's API key; for Bedrock the secret access key of `access_key_id`, or a
    Bedrock API key without one; for Vertex AI a service account's JSON. `timeout_s` limits a whole
    request, including a streamed answer. `thinking` is "" (the model's default), "off" or an
    effort; with `thinking_summaries` the provider is asked for readable thinking. `prompt_caching`
    marks what the provider may cache, where it must be marked. `retries` and `fallback_on` are used
    by sessions, not here.
    """

    kind: str
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    model: str = ""
    timeout_s: float = 120.0
    allow_private: bool = False
    input_price: int | None = None
    output_price: int | None = None
    cache_read_price: int | None = None
    cache_write_price: int | None = None
    id: str = ""
    name: str = ""
    region: str = ""
    access_key_id: str = ""
    api_version: str = ""
    max_tokens: int | None = None
    context_window: int | None = None
    thinking: str = ""
    thinking_summaries: bool = False
    native_tools: bool = True
    image_input: bool = False
    pdf_input: bool = False
    prompt_caching: bool = True
    retries: int = 0
    fallback_on: str = "unavailable"

    @property
    def url(self) -> str:
        """The base URL, by default the provider's."""
        if self.base_url:
            return self.base_url
        if self.kind == "vertex" and self.region in ("", "global"):
            return VERTEX_GLOBAL_URL
        return PROVIDER_KINDS[self.kind].default_url.format(region=self.region)

    @property
    def origin(self) -> str:
        """The origin of provider-specific message parts, which are only sent back to it."""
        return f"{self.kind} {self.url} {self.model}"

    @property
    def title(self) -> str:
        """The name shown to people."""
        return self.name or self.model or self.kind


@dataclass(frozen=True)
class ToolSpec:
    """A tool for a model; `parameters` is its JSON Schema.

    `own_name` is its name on its server `server_name`, as people know it; models get `name`.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    own_name: str = ""
    server_name: str = ""


@dataclass(frozen=True)
class ToolCall:
    """A call requested by the model; `arguments` is None if they aren't a JSON object."""

    index: int
    name: str
    arguments: dict[str, Any] | None
    raw_arguments: str
    id: str = ""


@dataclass(frozen=True)
class TokenUsage:
    """Token counts of one request.

    `cached_tokens` and `cache_write_tokens` are the parts of the input that were read from a cache
    and written to one; `reasoning_tokens` is the part of the output used for reasoning.
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True)
class ImageData:
    """An image generated by a model."""

    media_type: str
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class ModelReply:
    """A model's reply; `message` is to be stored and sent back in later requests.

    `usage` is None if the endpoint didn't report it. `limit` describes our limit that cut off the
    answer, if one did; `finish` is then `length`. `thinking` is the readable thinking, up to
    `BONOBOT_THINKING_LIMIT`; models get it back from `message` only, as their provider requires.
    """

    text: str
    calls: tuple[ToolCall, ...]
    usage: TokenUsage | None
    finish: Finish
    message: Message
    images: tuple[ImageData, ...] = ()
    limit: str = ""
    thinking: str = ""


@dataclass(frozen=True)
class LanguageModelRequest:
    """A conversation to which a model replies.

    `max_tokens` limits the answer, including reasoning; a truncated one has `finish` `length`.
    `on_text` is called with pieces of text as they arrive, `on_thinking` with pieces of thinking,
    if there is an `on_text` too. `output_schema` is the JSON Schema of the final answer, which the
    instructions also contain: a provider that supports it enforces it.
    """

    messages: Sequence[Message]
    instructions: str = ""
    tools: Sequence[ToolSpec] = ()
    max_tokens: int | None = None
    on_text: OnText | None = None
    on_thinking: OnText | None = None
    output_schema: Mapping[str, Any] | None = None


class LanguageModel(Protocol):
    """A language model: takes a conversation and returns one reply."""

    async def request(self, request: LanguageModelRequest) -> ModelReply:
        """Send one request. Raises `ModelError`. Never retries."""
        ...


class ModelError(Problem):
    """The model gave no usable answer; `retryable`: a retry may help.

    Codes: model_unreachable, model_auth, model_rate_limited (with `retry_after`, seconds),
    model_no_credit, model_error, model_context_exceeded, model_timeout, model_bad_answer (cut off),
    model_no_answer, provider_error (a malformed answer, or a fault of the provider's library),
    provider_missing; and those of egress (`private_address` …).
    """

    code = "model_error"
    status = 502
    title = "The model returned no answer"

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
        self.retryable = self.code in RETRYABLE_CODES if retryable is None else retryable


def build_call_id(turn: int, index: int) -> str:
    """Return the id of a call: nine letters and digits, as the strictest provider requires."""
    return f"t{turn:04d}c{index:03d}"


def parse_call_index(call_id: str) -> int:
    """Return the index in an id built by `build_call_id`."""
    return int(call_id.rpartition("c")[2])


def build_user_message(text: str) -> Message:
    return {"role": "user", "text": text}


def build_tool_result(
    call_id: str,
    name: str,
    text: str,
    is_error: bool = False,
    frame: Mapping[str, Any] | None = None,
) -> Message:
    """Return a tool message; `call_id` is the `ToolCall.id` that it answers.

    `frame` (see `messages`) marks untrusted text; our own texts have none.
    """
    result = {"role": "tool", "call_id": call_id, "name": name, "text": text, "is_error": is_error}
    return result | ({"frame": frame} if frame else {})


def build_assistant_message(
    turn: int, text: str, calls: Sequence[ToolCall], **extra: Any
) -> Message:
    """Return an assistant message; `extra` fields are for the model that wrote it."""
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
    # Imported here to avoid a cycle, and because a process that only shows sessions doesn't need
    # the implementations.
    if endpoint.kind == "offline":
        from agents.llm.offline import OfflineModel

        return OfflineModel()
    from agents.llm.xml_tool_calls import PromptedToolModel

    model = ProviderModel(endpoint)
    return model if endpoint.native_tools else PromptedToolModel(model)


class ProviderModel:
    """A model at a provider; implements `agents.llm.interface.LanguageModel`."""

    def __init__(self, endpoint: ModelEndpointConfig) -> None:
        self.endpoint = endpoint

    async def request(self, request: LanguageModelRequest) -> ModelReply:
        """Send one request, streaming if `on_text` is given. Raises `ModelError`."""
        adapter = await _get_adapter()
        try:
            async with asyncio.timeout(self.endpoint.timeout_s) as limit:
                reply: ModelReply = await adapter.ask(self.endpoint, request)
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
                remedy="Try again, or set a longer timeout on the model endpoint.",
            ) from error


async def close_models() -> None:
    """Close the connections of this event loop's models; called when the runtime closes."""
    if ADAPTER_MODULE in _loaded_modules:
        await _loaded_modules[ADAPTER_MODULE].close_pools()


async def _get_adapter() -> ModuleType:
    return (
        _loaded_modules[ADAPTER_MODULE]
        if ADAPTER_MODULE in _loaded_modules
        else await asyncio.to_thread(_load_adapter)
    )


def _load_adapter() -> ModuleType:
    adapter = _loaded_modules[ADAPTER_MODULE] = importlib.import_module(ADAPTER_MODULE)
    gc.freeze()  # the library stays loaded, so exclude it from garbage collection
    return adapter
