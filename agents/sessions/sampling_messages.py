"""Convert MCP sampling requests and results. Pure.

The model gets no tools, no history and no agent instructions; its answer goes only to the server.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput

MAX_MESSAGES = 100
MAX_CHARACTERS = 100_000
# Upper bound of `maxTokens`: no model gives a longer answer, and every budget can count it.
MAX_TOKENS = 1_000_000
ROLES = ("user", "assistant")
STOP_REASONS = {"length": "maxTokens"}


@dataclass(frozen=True)
class SamplingRequest:
    """A validated sampling request of a server."""

    messages: tuple[tuple[str, str], ...]
    system_prompt: str
    max_tokens: int

    def to_dict(self) -> dict[str, Any]:
        """Return the request as shown to people."""
        messages = [{"role": role, "text": text} for role, text in self.messages]
        return {"system": self.system_prompt, "messages": messages, "max_tokens": self.max_tokens}


def parse_request(params: Mapping[str, Any]) -> SamplingRequest:
    """Parse the parameters of `sampling/createMessage`; raises `InvalidInput`."""
    if params.get("tools") or params.get("toolChoice"):
        raise _build_error("tools", "omitted: sampling requests can't have tools")
    messages, max_tokens = params.get("messages"), params.get("maxTokens")
    if not isinstance(messages, list) or not 0 < len(messages) <= MAX_MESSAGES:
        raise _build_error("messages", f"1 to {MAX_MESSAGES} messages")
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise _build_error("maxTokens", "a whole number above 0")
    system = params.get("systemPrompt") or ""
    parsed_messages = tuple(_parse_message(message) for message in messages)
    size = (
        len(system) + sum(len(text) for _, text in parsed_messages)
        if isinstance(system, str)
        else 0
    )
    if not isinstance(system, str) or size > MAX_CHARACTERS:
        raise _build_error("messages", f"at most {MAX_CHARACTERS} characters in total")
    return SamplingRequest(parsed_messages, system, min(max_tokens, MAX_TOKENS))


def build_sampling_result(text: str, model: str, finish: str) -> dict[str, Any]:
    """Return the result for the server."""
    return {
        "role": "assistant",
        "content": {"type": "text", "text": text},
        "model": model,
        "stopReason": STOP_REASONS.get(finish, "endTurn"),
    }


def _parse_message(message: Any) -> tuple[str, str]:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ROLES:
        raise _build_error("messages", "messages of `user` and `assistant`")
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and _is_text(part)]
    if not parts or len(texts) != len(parts):
        raise _build_error("messages", "text: other content isn't supported")
    return role, "\n".join(str(text) for text in texts)


def _is_text(part: Mapping[str, Any]) -> bool:
    return part.get("type") == "text" and isinstance(part.get("text"), str)


def _build_error(field: str, expected: str) -> InvalidInput:
    return InvalidInput(
        format_message("`{field}` must be {expected}.", field=field, expected=expected),
        code="bad_sampling",
        field=field,
    )
