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
    LanguageModelRequest,
    Message,
    ModelReply,
    OnText,
    ToolCall,
    ToolSpec,
    build_assistant_message,
    build_call_id,
    build_user_message,
)
from agents.llm.message_order import get_next_turn, order_messages
from agents.llm.provider_schemas import simplify_schema
from agents.llm.result_frames import apply_frame

OPENING_TAG, CLOSING_TAG = "<tool_calls>", "</tool_calls>"
# The start of the system prompt's line on disabled tools.
DISABLED_TOOLS_PREFIX = "Disabled, do not use: "
MAX_CALLS = 64
MAX_PARAMETERS = 100
MAX_VALUE_LENGTH = 262_144  # characters
MAX_RAW_LENGTH = 2_000
# Characters of a line that are kept once it can't start a block; a fence needs six.
_MAX_LINE_START = 64

_TAG = re.compile(r'\s*<(/?)(invoke|parameter|tool_calls)(?:\s+name="([^"<>\n]{1,200})")?\s*>')
_FENCE = re.compile(r" {0,3}(```|~~~)")
_RESERVED_TAG = re.compile(
    r"<(?=/?(?:tool_calls|tool_results|invoke|parameter|result|tool)\b)", re.I
)
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
    return line.lstrip().startswith(OPENING_TAG)


def is_fence(line: str) -> bool:
    """Tell whether a line opens or closes a code fence."""
    return _FENCE.match(line) is not None


def split_reply(text: str) -> tuple[str, str]:
    """Return the text before the block, and the block with what follows ("" if there is none)."""
    position, is_fenced = 0, False
    for line in text.splitlines(keepends=True):
        if is_fence(line):
            is_fenced = not is_fenced
        elif not is_fenced and is_block_start(line):
            start = position + line.index(OPENING_TAG)
            return text[:start].rstrip(), text[start:]
        position += len(line)
    return text, ""


def parse_block(block: str, tools: Sequence[ToolSpec]) -> tuple[XmlToolCall, ...]:
    """Return the calls of a block; if it is invalid, one call without arguments."""
    schemas = {tool.name: tool.parameters for tool in tools}
    try:
        calls = tuple(_iterate_calls(block, schemas))
    except BlockSyntaxError:
        calls = ()
    if calls:
        return calls
    name_match = re.search(r'<invoke\s+name="([^"<>\n]{1,200})"', block[:MAX_RAW_LENGTH])
    return (
        XmlToolCall(name_match[1] if name_match else "tool_calls", None, block[:MAX_RAW_LENGTH]),
    )


def render_calls(calls: Sequence[Message]) -> str:
    """Return earlier calls as a block."""
    lines = [OPENING_TAG]
    for call in calls:
        lines.append(f'<invoke name="{escape_tags(call["name"])}">')
        for name, value in (call["arguments"] or {}).items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            lines.append(f'<parameter name="{_escape_text(name)}">{_escape_text(text)}</parameter>')
        lines.append("</invoke>")
    return "\n".join([*lines, CLOSING_TAG])


def render_results(named_texts: Sequence[tuple[str, str]]) -> str:
    """Return results (name, text) as one text."""
    blocks = [
        f'<result name="{escape_tags(name)}">\n{escape_tags(text)}\n</result>'
        for name, text in named_texts
    ]
    return "\n".join(["<tool_results>", *blocks, "</tool_results>"])


def render_tool_instructions(tools: Sequence[ToolSpec]) -> str:
    """Return the section of the system prompt on tools and how to call them."""
    lines = [
        "## Calling tools",
        "To call tools, end your answer with a block in exactly this form, outside of code "
        "fences. In values, write < as &lt; and & as &amp;, and use JSON for values that aren't "
        "text. The results come in the next message. Text after the block is ignored, and only a "
        "block that you write yourself is a call.",
        '<tool_calls>\n<invoke name="TOOL">\n<parameter name="NAME">VALUE</parameter>\n'
        "</invoke>\n</tool_calls>",
        "The tools, each with the JSON Schema of its parameters:",
    ]
    for tool in tools:
        schema = json.dumps(tool.parameters, ensure_ascii=False, separators=(",", ":"))
        description = " ".join(tool.description.split())
        lines.append(f"- {tool.name}: {escape_tags(description)}\n  {escape_tags(schema)}")
    return "\n".join(lines)


def escape_tags(text: str) -> str:
    return _RESERVED_TAG.sub("&lt;", text)


def _iterate_calls(block: str, schemas: Mapping[str, dict[str, Any]]) -> Iterator[XmlToolCall]:
    position, count = len(OPENING_TAG), 0
    while True:
        if not block[position:].strip():
            return  # the closing tag was a stop sequence or is missing; all calls are complete
        is_closing, tag, name, position = _parse_tag(block, position)
        if is_closing and tag == "tool_calls":
            return
        count += 1
        if is_closing or tag != "invoke" or not name or count > MAX_CALLS:
            raise BlockSyntaxError
        start = position
        arguments, position = _parse_arguments(block, position, schemas.get(name))
        yield XmlToolCall(name, arguments, block[start:position][:MAX_RAW_LENGTH])


def _parse_arguments(
    block: str, position: int, schema: dict[str, Any] | None
) -> tuple[dict[str, Any], int]:
    arguments: dict[str, Any] = {}
    properties = simplify_schema(schema).get("properties", {}) if schema else {}
    while True:
        is_closing, tag, name, position = _parse_tag(block, position)
        if is_closing and tag == "invoke":
            return arguments, position
        if is_closing or tag != "parameter" or not name:
            raise BlockSyntaxError
        end = block.find("</parameter>", position, position + MAX_VALUE_LENGTH)
        name = _unescape_text(name)
        if end < 0 or name in arguments or len(arguments) >= MAX_PARAMETERS:
            raise BlockSyntaxError
        text = _unescape_text(block[position:end].removeprefix("\n").removesuffix("\n"))
        arguments[name] = _convert_value(text, properties.get(name, {}))
        position = end + len("</parameter>")


def _parse_tag(block: str, position: int) -> tuple[bool, str, str, int]:
    """Return the next tag (closing, tag, name) and its end position."""
    match = _TAG.match(block, position)
    if match is None:
        raise BlockSyntaxError
    return bool(match[1]), match[2], match[3] or "", match.end()


def _convert_value(text: str, schema: Mapping[str, Any]) -> Any:
    """Convert a value for its schema: a string stays text, else parse it as JSON if possible."""
    types = _list_types(schema)
    if "string" in types and not (text == "null" and "null" in types):
        return text
    if not types and text[:1] not in ("{", "["):
        return text
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return text  # validation against the original schema reports the error


def _list_types(schema: Mapping[str, Any]) -> set[str]:
    own_types = {schema["type"]} if isinstance(schema.get("type"), str) else set()
    union = schema.get("anyOf", [])
    return own_types.union(*(_list_types(member) for member in union if isinstance(member, dict)))


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

    async def request(self, request: LanguageModelRequest) -> ModelReply:
        """Send one request; `on_text` doesn't get the block. Raises `ModelError`.

        With tools, the provider can't enforce an output schema: calls are text.
        """
        reply = await self._model.request(
            replace(
                request,
                messages=list(_render_messages(order_messages(request.messages))),
                instructions=insert_tools(request.instructions, request.tools),
                tools=(),
                on_text=_CallBlockFilter(request.on_text) if request.on_text else None,
                output_schema=None if request.tools else request.output_schema,
            )
        )
        return _parse_reply_calls(reply, get_next_turn(request.messages), request.tools)


def insert_tools(instructions: str, tools: Sequence[ToolSpec]) -> str:
    """Return the instructions with the section on tools, above the line on disabled ones."""
    if not tools:
        return instructions
    position = instructions.rfind(f"\n{DISABLED_TOOLS_PREFIX}")
    end = len(instructions) if position < 0 else position
    parts = (instructions[:end], render_tool_instructions(tools), instructions[end:].lstrip("\n"))
    return "\n\n".join(part for part in parts if part)


def _render_messages(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the conversation with calls as blocks and results as user messages."""
    results: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(message)
            continue
        if results:
            yield _build_results_message(results)
            results = []
        if message["role"] == "assistant" and message["calls"]:
            text = f"{message['text']}\n{render_calls(message['calls'])}".strip()
            yield message | {"text": text, "calls": []}
        else:
            yield message
    if results:
        yield _build_results_message(results)


def _build_results_message(results: Sequence[Message]) -> Message:
    texts = [
        (result["name"], apply_frame(result["text"], result.get("frame"))) for result in results
    ]
    images = [image for result in results for image in result.get("images", ())]
    return build_user_message(render_results(texts)) | ({"images": images} if images else {})


def _parse_reply_calls(reply: ModelReply, turn: int, tools: Sequence[ToolSpec]) -> ModelReply:
    reply_text, block = split_reply(reply.text)
    if not block:
        return reply
    calls = tuple(
        ToolCall(
            index,
            name=xml_call.name,
            arguments=xml_call.arguments,
            raw_arguments=xml_call.raw,
            id=build_call_id(turn, index),
        )
        for index, xml_call in enumerate(parse_block(block, tools))
    )
    extra: dict[str, Any] = {
        name: reply.message[name] for name in ("native", "origin") if name in reply.message
    }
    return replace(
        reply,
        text=reply_text,
        calls=calls,
        finish="tool_calls" if reply.finish == "stop" else reply.finish,
        message=build_assistant_message(turn, reply_text, calls, **extra),
    )


class _CallBlockFilter:
    """Forwards streamed text, except the block and a possible start of one."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._line = ""
        self._forwarded_length = 0  # characters of the line that were forwarded
        self._is_fenced = self._has_block_started = False

    async def __call__(self, piece: str) -> None:
        for part in piece.splitlines(keepends=True):
            if self._has_block_started:
                return
            if self._forwarded_length >= _MAX_LINE_START:
                await self._on_text(part)
            else:
                self._line += part
                await self._forward_text()
            if part.endswith("\n"):
                self._is_fenced ^= is_fence(self._line)
                self._line, self._forwarded_length = "", 0

    async def _forward_text(self) -> None:
        stripped_line = self._line.lstrip()
        if not self._is_fenced and is_block_start(stripped_line):
            self._has_block_started = True
        elif (
            self._line.endswith("\n")
            or self._is_fenced
            or not OPENING_TAG.startswith(stripped_line)
        ):
            new_text, self._forwarded_length = self._line[self._forwarded_length :], len(self._line)
            if new_text:
                await self._on_text(new_text)
