"""The port to language models: what a session asks of a model, and what it gets back.

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
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from agents.llm.endpoints import Endpoint, Kind
from bonobot.lib.problems import Problem

__all__ = [
    "Endpoint",
    "Finish",
    "Kind",
    "Message",
    "Model",
    "ModelError",
    "OnText",
    "Picture",
    "Reply",
    "ToolCall",
    "ToolSpec",
    "Usage",
    "assistant_message",
    "call_id",
    "call_index",
    "close",
    "model_for",
    "tool_result",
    "user_message",
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
class Usage:
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
class Picture:
    """An image that a model drew."""

    media_type: str
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Reply:
    """What the model answered; `message` is what to persist and to send back next time.

    `usage` is None when the endpoint didn't report it: then nothing is known of the cost.
    """

    text: str
    calls: tuple[ToolCall, ...]
    usage: Usage | None
    finish: Finish
    message: Message
    images: tuple[Picture, ...] = ()


class Model(Protocol):
    """A model that can be asked: the whole conversation in, one reply out."""

    async def request(
        self,
        messages: Sequence[Message],
        *,
        instructions: str = "",
        tools: Sequence[ToolSpec] = (),
        max_tokens: int | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
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


def user_message(text: str) -> Message:
    """Return what a person said."""
    return {"role": "user", "text": text}


def tool_result(
    call_id: str,
    name: str,
    text: str,
    is_error: bool = False,
    frame: Mapping[str, Any] | None = None,
) -> Message:
    """Return what a call gave; `call_id` is the `ToolCall.id` that it answers.

    `frame` (of `framing`) marks text from outside; our own words have none.
    """
    given = {"role": "tool", "call_id": call_id, "name": name, "text": text, "is_error": is_error}
    return given | ({"frame": frame} if frame else {})


def assistant_message(turn: int, text: str, calls: Sequence[ToolCall], **extra: Any) -> Message:
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


def model_for(endpoint: Endpoint) -> Model:
    """Return the model behind an endpoint."""
    # Imported here because the implementations speak this port, and because a process that only
    # shows sessions shouldn't load what runs them.
    if endpoint.kind == "offline":
        from agents.llm.offline import OfflineModel

        return OfflineModel()
    from agents.llm.described import DescribedTools
    from agents.llm.direct import DirectModel

    model = DirectModel(endpoint)
    return model if endpoint.native_tools else DescribedTools(model)


async def close() -> None:
    """Close the connections that this loop's models hold; the Runtime calls it when it ends."""
    from agents.llm import direct

    await direct.close()
