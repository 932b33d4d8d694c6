"""Calls written in an answer's text, for models that can't call tools natively (FEATURES B5). Pure.

    <tool_calls>
    <invoke name="TOOL"><parameter name="NAME">VALUE</parameter></invoke>
    </tool_calls>

Only what the model itself answers is read so. The block begins a line outside of code fences, what
follows it is not read, and it counts as a whole: where anything in it is broken, none of it is
called and the model is told. Text that goes to the model (results, descriptions) can't hold a tag
of this form.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.llm.port import Message, ToolSpec
from agents.llm.schemas import simplified

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
class Written:
    """A call as it was written; `arguments` is None where it can't be read."""

    name: str
    arguments: dict[str, Any] | None
    raw: str


class Broken(ValueError):
    """The block isn't in the form."""


def begins_block(line: str) -> bool:
    """Tell whether a line (outside of a code fence) begins the block."""
    return line.lstrip().startswith(OPENING)


def is_fence(line: str) -> bool:
    """Tell whether a line opens or closes a code fence."""
    return _FENCE.match(line) is not None


def split(text: str) -> tuple[str, str]:
    """Return what the model said, and its block with all that follows ("" where there is none)."""
    at, fenced = 0, False
    for line in text.splitlines(keepends=True):
        if is_fence(line):
            fenced = not fenced
        elif not fenced and begins_block(line):
            start = at + line.index(OPENING)
            return text[:start].rstrip(), text[start:]
        at += len(line)
    return text, ""


def read(block: str, tools: Sequence[ToolSpec]) -> tuple[Written, ...]:
    """Return the calls of a block; one without arguments where the block is broken."""
    known = {tool.name: tool.parameters for tool in tools}
    try:
        found = tuple(_calls(block, known))
    except Broken:
        found = ()
    if found:
        return found
    named = re.search(r'<invoke\s+name="([^"<>\n]{1,200})"', block[:RAW_SHOWN])
    return (Written(named[1] if named else "tool_calls", None, block[:RAW_SHOWN]),)


def written(calls: Sequence[Message]) -> str:
    """Return calls of the past as the model wrote them, or might have."""
    lines = [OPENING]
    for call in calls:
        lines.append(f'<invoke name="{harmless(call["name"])}">')
        for name, value in (call["arguments"] or {}).items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            lines.append(f'<parameter name="{_escaped(name)}">{_escaped(text)}</parameter>')
        lines.append("</invoke>")
    return "\n".join([*lines, CLOSING])


def results(given: Sequence[tuple[str, str]]) -> str:
    """Return what calls gave (name, text) as one text to the model."""
    told = [
        f'<result name="{harmless(name)}">\n{harmless(text)}\n</result>' for name, text in given
    ]
    return "\n".join(["<tool_results>", *told, "</tool_results>"])


def described(tools: Sequence[ToolSpec]) -> str:
    """Return the section of the system prompt that says how tools are called, and which."""
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
        lines.append(f"- {tool.name}: {harmless(about)}\n  {harmless(schema)}")
    return "\n".join(lines)


def harmless(text: str) -> str:
    """Return a text without any tag of this form."""
    return _OURS.sub("&lt;", text)


def _calls(block: str, known: Mapping[str, dict[str, Any]]) -> Iterator[Written]:
    at, count = len(OPENING), 0
    while True:
        if not block[at:].strip():
            return  # the end was a stop sequence, or was forgotten: each call is whole
        closing, tag, name, at = _tag(block, at)
        if closing and tag == "tool_calls":
            return
        count += 1
        if closing or tag != "invoke" or not name or count > MOST_CALLS:
            raise Broken
        start = at
        arguments, at = _arguments(block, at, known.get(name))
        yield Written(name, arguments, block[start:at][:RAW_SHOWN])


def _arguments(block: str, at: int, schema: dict[str, Any] | None) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    properties = simplified(schema).get("properties", {}) if schema else {}
    while True:
        closing, tag, name, at = _tag(block, at)
        if closing and tag == "invoke":
            return found, at
        if closing or tag != "parameter" or not name:
            raise Broken
        end = block.find("</parameter>", at, at + LONGEST_VALUE)
        name = _unescaped(name)
        if end < 0 or name in found or len(found) >= MOST_PARAMETERS:
            raise Broken
        text = _unescaped(block[at:end].removeprefix("\n").removesuffix("\n"))
        found[name] = _value(text, properties.get(name, {}))
        at = end + len("</parameter>")


def _tag(block: str, at: int) -> tuple[bool, str, str, int]:
    """Return the tag that comes next (closing, tag, name) and where it ends."""
    found = _TAG.match(block, at)
    if found is None:
        raise Broken
    return bool(found[1]), found[2], found[3] or "", found.end()


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """Return a value as its schema wants it: text, else JSON where it is some."""
    kinds = _kinds(schema)
    if "string" in kinds and not (text == "null" and "null" in kinds):
        return text
    if not kinds and text[:1] not in ("{", "["):
        return text
    try:
        return json.loads(text, parse_constant=_not_json)
    except (ValueError, RecursionError):
        return text  # the check against the original schema says what is wrong with it


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    one = {schema["type"]} if isinstance(schema.get("type"), str) else set()
    union = schema.get("anyOf", [])
    return one.union(*(_kinds(member) for member in union if isinstance(member, dict)))


def _not_json(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


def _unescaped(text: str) -> str:
    for entity, plain in _ENTITIES:
        text = text.replace(entity, plain)
    return text
