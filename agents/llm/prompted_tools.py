"""Tool calling through the prompt, for models without native tool calls.

    <tool_calls>
    <invoke name="TOOL"><parameter name="NAME">VALUE</parameter></invoke>
    </tool_calls>

Only the model's own answer is parsed for calls. The block starts a line outside of code fences, and
text after it is ignored. If any part of it is invalid, no call is made and the model gets an error.
Such tags are escaped in text sent to the model (results, descriptions).

The wrapper converts requests and replies of another model; sessions see normal tool calls.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agents.llm.interface import (
    LanguageModel,
    Message,
    ModelReply,
    OnText,
    ToolCall,
    ToolSpec,
    build_assistant_message,
    build_user_message,
    call_id,
)
from agents.llm.messages import apply_frame, get_next_turn, order_messages
from agents.llm.tool_schemas import simplify_schema

OPENING, CLOSING = "<tool_calls>", "</tool_calls>"
MOST_CALLS = 64
MOST_PARAMETERS = 100
LONGEST_VALUE = 262_144  # characters
RAW_SHOWN = 2_000

_TAG = re.compile(r'\s*<(/?)(invoke|parameter|tool_calls)(?:\s+name="([^"<>\n]{1,200})")?\s*>')
_FENCE = re.compile(r" {0,3}(```|~~~)")
_OURS = re.compile(r"<(?=/?(?:tool_calls|tool_results|invoke|parameter|result|tool)\b)", re.I)
_ENTITIES = (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&apos;", "'"), ("&amp;", "&"))


@dataclass(frozen=True)
class XmlToolCall:
    """A parsed call; `arguments` is None if the block is invalid."""

    name: str
    arguments: dict[str, Any] | None
    raw: str


class BlockSyntaxError(ValueError):
    """The block is invalid."""


def is_block_start(line: str) -> bool:
    """Tell whether a line (outside of a code fence) starts the block."""
    return line.lstrip().startswith(OPENING)


def is_fence(line: str) -> bool:
    """Tell whether a line opens or closes a code fence."""
    return _FENCE.match(line) is not None


def split(text: str) -> tuple[str, str]:
    """Return the text before the block, and the block with what follows ("" if there is none)."""
    at, fenced = 0, False
    for line in text.splitlines(keepends=True):
        if is_fence(line):
            fenced = not fenced
        elif not fenced and is_block_start(line):
            start = at + line.index(OPENING)
            return text[:start].rstrip(), text[start:]
        at += len(line)
    return text, ""


def read(block: str, tools: Sequence[ToolSpec]) -> tuple[XmlToolCall, ...]:
    """Return the calls of a block; if it is invalid, one call without arguments."""
    known = {tool.name: tool.parameters for tool in tools}
    try:
        found = tuple(_parse_calls(block, known))
    except BlockSyntaxError:
        found = ()
    if found:
        return found
    named = re.search(r'<invoke\s+name="([^"<>\n]{1,200})"', block[:RAW_SHOWN])
    return (XmlToolCall(named[1] if named else "tool_calls", None, block[:RAW_SHOWN]),)


def render_calls(calls: Sequence[Message]) -> str:
    """Return earlier calls as a block."""
    lines = [OPENING]
    for call in calls:
        lines.append(f'<invoke name="{escape_tags(call["name"])}">')
        for name, value in (call["arguments"] or {}).items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            lines.append(f'<parameter name="{_escape_text(name)}">{_escape_text(text)}</parameter>')
        lines.append("</invoke>")
    return "\n".join([*lines, CLOSING])


def render_results(given: Sequence[tuple[str, str]]) -> str:
    """Return results (name, text) as one text."""
    told = [
        f'<result name="{escape_tags(name)}">\n{escape_tags(text)}\n</result>'
        for name, text in given
    ]
    return "\n".join(["<tool_results>", *told, "</tool_results>"])


def render_tool_instructions(tools: Sequence[ToolSpec]) -> str:
    """Return the section of the system prompt on tools and how to call them."""
    lines = [
        "## Calling tools",
        "You call tools by ending your answer with a block in exactly this form, outside of code "
        "fences; write < as &lt; and & as &amp; in values, and JSON where a value is no text. "
        "Their results come in the next message. Nothing after the block is read, and only a "
        "block that you write yourself is a call.",
        '<tool_calls>\n<invoke name="TOOL">\n<parameter name="NAME">VALUE</parameter>\n'
        "</invoke>\n</tool_calls>",
        "The tools, each with the JSON Schema of its parameters:",
    ]
    for tool in tools:
        schema = json.dumps(tool.parameters, ensure_ascii=False, separators=(",", ":"))
        about = " ".join(tool.description.split())
        lines.append(f"- {tool.name}: {escape_tags(about)}\n  {escape_tags(schema)}")
    return "\n".join(lines)


def escape_tags(text: str) -> str:
    """Escape the block's tags in a text."""
    return _OURS.sub("&lt;", text)


def _parse_calls(block: str, known: Mapping[str, dict[str, Any]]) -> Iterator[XmlToolCall]:
    at, count = len(OPENING), 0
    while True:
        if not block[at:].strip():
            return  # the closing tag was a stop sequence or is missing; all calls are complete
        closing, tag, name, at = _parse_tag(block, at)
        if closing and tag == "tool_calls":
            return
        count += 1
        if closing or tag != "invoke" or not name or count > MOST_CALLS:
            raise BlockSyntaxError
        start = at
        arguments, at = _parse_arguments(block, at, known.get(name))
        yield XmlToolCall(name, arguments, block[start:at][:RAW_SHOWN])


def _parse_arguments(
    block: str, at: int, schema: dict[str, Any] | None
) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    properties = simplify_schema(schema).get("properties", {}) if schema else {}
    while True:
        closing, tag, name, at = _parse_tag(block, at)
        if closing and tag == "invoke":
            return found, at
        if closing or tag != "parameter" or not name:
            raise BlockSyntaxError
        end = block.find("</parameter>", at, at + LONGEST_VALUE)
        name = _unescape_text(name)
        if end < 0 or name in found or len(found) >= MOST_PARAMETERS:
            raise BlockSyntaxError
        text = _unescape_text(block[at:end].removeprefix("\n").removesuffix("\n"))
        found[name] = _value(text, properties.get(name, {}))
        at = end + len("</parameter>")


def _parse_tag(block: str, at: int) -> tuple[bool, str, str, int]:
    """Return the next tag (closing, tag, name) and its end position."""
    found = _TAG.match(block, at)
    if found is None:
        raise BlockSyntaxError
    return bool(found[1]), found[2], found[3] or "", found.end()


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """Convert a value for its schema: a string stays text, else parse it as JSON if possible."""
    kinds = _list_types(schema)
    if "string" in kinds and not (text == "null" and "null" in kinds):
        return text
    if not kinds and text[:1] not in ("{", "["):
        return text
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return text  # validation against the original schema reports the error


def _list_types(schema: Mapping[str, Any]) -> set[str]:
    one = {schema["type"]} if isinstance(schema.get("type"), str) else set()
    union = schema.get("anyOf", [])
    return one.union(*(_list_types(member) for member in union if isinstance(member, dict)))


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _escape_text(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


def _unescape_text(text: str) -> str:
    for entity, plain in _ENTITIES:
        text = text.replace(entity, plain)
    return text


class PromptedToolModel:
    """A model without native tool calling; implements `agents.llm.interface.LanguageModel`."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model

    async def request(
        self,
        messages: Sequence[Message],
        *,
        instructions: str = "",
        tools: Sequence[ToolSpec] = (),
        max_tokens: int | None = None,
        on_text: OnText | None = None,
    ) -> ModelReply:
        """Send one request; `on_text` doesn't get the block. Raises `ModelError`."""
        parts = [instructions, render_tool_instructions(tools) if tools else ""]
        reply = await self._model.request(
            list(_render_messages(order_messages(messages))),
            instructions="\n\n".join(part for part in parts if part),
            max_tokens=max_tokens,
            on_text=_CallBlockFilter(on_text) if on_text else None,
        )
        return _with_calls(reply, get_next_turn(messages), tools)


def _render_messages(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the conversation with calls as blocks and results as user messages."""
    given: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            given.append(message)
            continue
        if given:
            yield _build_results_message(given)
            given = []
        if message["role"] == "assistant" and message["calls"]:
            text = f"{message['text']}\n{render_calls(message['calls'])}".strip()
            yield message | {"text": text, "calls": []}
        else:
            yield message
    if given:
        yield _build_results_message(given)


def _build_results_message(given: Sequence[Message]) -> Message:
    texts = [(one["name"], apply_frame(one["text"], one.get("frame"))) for one in given]
    images = [image for one in given for image in one.get("images", ())]
    return build_user_message(render_results(texts)) | ({"images": images} if images else {})


def _with_calls(reply: ModelReply, turn: int, tools: Sequence[ToolSpec]) -> ModelReply:
    said, block = split(reply.text)
    if not block:
        return reply
    calls = tuple(
        ToolCall(index, one.name, one.arguments, one.raw, call_id(turn, index))
        for index, one in enumerate(read(block, tools))
    )
    extra: dict[str, Any] = {
        n: reply.message[n] for n in ("native", "origin") if n in reply.message
    }
    return replace(
        reply,
        text=said,
        calls=calls,
        finish="tool_calls" if reply.finish == "stop" else reply.finish,
        message=build_assistant_message(turn, said, calls, **extra),
    )


class _CallBlockFilter:
    """Forwards streamed text, except the block and a possible start of one."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._line = ""
        self._passed = 0  # characters of the line that were forwarded
        self._fenced = self._over = False

    async def __call__(self, piece: str) -> None:
        for part in piece.splitlines(keepends=True):
            if self._over:
                return
            self._line += part
            await self._pass_on()
            if self._line.endswith("\n"):
                self._fenced ^= is_fence(self._line)
                self._line, self._passed = "", 0

    async def _pass_on(self) -> None:
        begun = self._line.lstrip()
        if not self._fenced and is_block_start(begun):
            self._over = True
        elif self._line.endswith("\n") or self._fenced or not OPENING.startswith(begun):
            new, self._passed = self._line[self._passed :], len(self._line)
            if new:
                await self._on_text(new)
