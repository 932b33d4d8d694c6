"""Texts of the offline model.

Results of servers are shown as they are: text in a code block, JSON as a list, errors as errors.
Nothing is summarized.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agents.llm.interface import Message, ModelError, ToolSpec
from agents.llm.offline.choose_tool import ToolChoice, build_sample_arguments
from mcp_servers.schemas import InvalidArguments, SubprocessNeeded, is_valid_for_schema

MAX_RESULT_LENGTH = 4_000  # characters of one result
MAX_LINES = 60  # of an unpacked result
MAX_DEPTH = 5
MAX_LISTED_TOOLS = 12  # tools in an introduction

INTRODUCTION = (
    "I am the offline model: rules that choose a tool, not a language model. I need no network and "
    "no key, and I can't chat, reason, or write."
)
USAGE = (
    "Ask for one thing that a tool does, or enter the call yourself, one line each:\n\n"
    "    {example}\n\n"
    "`/tools` lists all tools, `/tools WORD` those about something."
)
FOOTNOTE = "(Offline model: rules, not a language model. This is what the tools returned.)"
NO_TOOLS = (
    "This agent has no tools that it may use, so there is nothing that I can do yet. Attach a "
    "server to it, approve the server's tools, and allow them in its policy; or choose a language "
    "model."
)
MARKUP = re.compile(r"[\[\]<>|]|\n|^#")  # what could link, embed or break the layout
MAX_SCHEMA_DEPTH = 8
MAX_ITEMS = 8
_SIMPLE_VALUES: Mapping[str, Any] = {"boolean": False, "null": None}


def render_results(calls: Sequence[Message], results: Sequence[Message]) -> str:
    """Return the results of a turn's calls, in order."""
    calls_by_id = {call["id"]: call for call in calls}
    return "\n\n".join(
        _render_result(calls_by_id.get(result["call_id"], {}), result) for result in results
    )


def render_missing_arguments(choice: ToolChoice) -> str:
    """Return which arguments the message didn't have, with the command to type."""
    names = " and ".join(f"`{name}`" for name in choice.missing)
    known_arguments = choice.arguments[0] if choice.arguments else {}
    return (
        f"To call `{choice.tool.name}`, I also need {names}. Enter the call with your values:\n\n"
        f"    {render_command(choice.tool, known_arguments)}"
    )


def render_introduction(tools: Sequence[ToolSpec]) -> str:
    """Return an introduction with the tools."""
    if not tools:
        return f"{INTRODUCTION}\n\n{NO_TOOLS}"
    usage = USAGE.format(example=render_command(tools[0], {}))
    return f"{INTRODUCTION}\n\n{usage}\n\n{render_tools(tools)}"


def render_no_match(tools: Sequence[ToolSpec], possible: Sequence[ToolSpec]) -> str:
    """Return that no tool was chosen, with those that may be meant."""
    if not possible:
        return render_introduction(tools)
    lines = "\n".join(f"    {render_command(tool, {})}" for tool in possible[:MAX_LISTED_TOOLS])
    return f"Several tools match. Enter one of these calls with your values:\n\n{lines}"


def render_tools(tools: Sequence[ToolSpec], word: str = "", limit: int = MAX_LISTED_TOOLS) -> str:
    """Return a list of tools with a sentence each; `word` filters them."""
    matching_tools = [
        tool for tool in tools if word.lower() in f"{tool.name} {tool.description}".lower()
    ]
    if not matching_tools:
        return f"No tool is about `{word}`." if word else NO_TOOLS
    lines = [_render_tool(tool) for tool in matching_tools[:limit]]
    if len(matching_tools) > limit:
        lines.append(f"- … and {len(matching_tools) - limit} more")
    return "Tools:\n\n" + "\n".join(lines)


def render_command(tool: ToolSpec, known_arguments: Mapping[str, Any]) -> str:
    """Return the command that calls a tool, with samples of unknown required arguments."""
    arguments = build_sample_arguments(tool) | dict(known_arguments)
    return f"/{tool.name} {json.dumps(arguments, ensure_ascii=False)}"


def _render_tool(tool: ToolSpec) -> str:
    summary = _extract_first_sentence(tool.description)
    return f"- `/{tool.name}`{f': {summary}' if summary else ''}"


def _extract_first_sentence(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    sentence = re.split(r"(?<=[.!?])\s", line)[0].rstrip(".")
    return _escape_markup(sentence if len(sentence) <= 120 else sentence[:119] + "…")


def _render_result(call: Message, result: Message) -> str:
    name = f"`{result['name']}`"
    arguments = call.get("arguments") or {}
    formatted_arguments = ", ".join(
        f"{key}: {_format_value(value)}" for key, value in arguments.items()
    )
    prefix = f"{name} ({formatted_arguments})" if formatted_arguments else name
    text = result["text"].strip()
    if result["is_error"]:
        return (
            f"{prefix} failed: {_escape_markup(text[:MAX_RESULT_LENGTH]) or 'no reason was given.'}"
        )
    if not text:
        return f"{prefix} returned nothing."
    value = _parse_json(text)
    if isinstance(value, dict | list) and value:
        return f"{prefix} answered:\n\n{_render_bounded_lines(value)}"
    if isinstance(value, str):
        text = value
    if "\n" not in text and len(text) <= 300:
        return f"{prefix} answered: {_escape_markup(text)}"
    return f"{prefix} answered:\n\n{_render_code_block(text)}"


def _render_code_block(text: str) -> str:
    visible_text = text[:MAX_RESULT_LENGTH]
    ticks = max((len(run) for run in re.findall(r"`{3,}", visible_text)), default=2) + 1
    note = (
        f"\n\n(… and {len(text) - MAX_RESULT_LENGTH:,} more characters)"
        if len(text) > MAX_RESULT_LENGTH
        else ""
    )
    return f"{'`' * ticks}\n{visible_text}\n{'`' * ticks}{note}"


def _render_bounded_lines(value: Any) -> str:
    lines: list[str] = []
    size = 0
    for line in _render_lines(value, 0):
        size += len(line) + 1
        if len(lines) == MAX_LINES or size > MAX_RESULT_LENGTH:
            return "\n".join([*lines, "- …"])
        lines.append(line)
    return "\n".join(lines)


def _render_lines(value: Any, depth: int) -> Iterator[str]:
    """Yield JSON as an indented list; small values stay on one line."""
    pairs = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    for key, item in pairs:
        label = "" if key is None else f"{_escape_markup(str(key).replace('_', ' '))}: "
        nested = isinstance(item, dict | list) and item
        if not nested or depth >= MAX_DEPTH or _is_small(item):
            yield f"{'  ' * depth}- {label}{_format_value(item)}"
        else:
            yield f"{'  ' * depth}- {label.rstrip()}" if label else f"{'  ' * depth}-"
            yield from _render_lines(item, depth + 1)


def _is_small(value: dict[str, Any] | list[Any]) -> bool:
    items = list(value.values()) if isinstance(value, dict) else value
    is_flat = not any(isinstance(item, dict | list) for item in items)
    return is_flat and len(items) <= 6 and sum(len(str(item)) for item in items) <= 100


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return _escape_markup(value if len(value) <= 300 else value[:299] + "…")
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        text = ", ".join(_format_value(item) for item in value[:20])
        return (text if len(value) <= 20 else text + ", …") or "none"
    if isinstance(value, dict) and value and _is_small(value):
        return ", ".join(f"{key}: {_format_value(item)}" for key, item in value.items())
    text = json.dumps(value, ensure_ascii=False)
    return _escape_markup(text if len(text) <= 300 else text[:299] + "…")


def _escape_markup(text: str) -> str:
    """Escape a server's text so that its markup has no effect."""
    if not MARKUP.search(text):
        return text
    text = " ".join(text.split())
    ticks = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    pad = " " if "`" in text else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def _parse_json(text: str) -> Any:
    if text[:1] not in ("{", "[", '"'):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class _UnsupportedSchema(ValueError):
    """The schema isn't simple enough."""


def render_output(schema: Mapping[str, Any], text: str) -> str:
    """Return JSON that matches the schema, with `text` as its strings.

    Raises `ModelError` if the schema isn't simple enough.
    """
    try:
        value = _build_value(schema, text, 0)
        if is_valid_for_schema(dict(schema), value):
            return json.dumps(value, ensure_ascii=False)
    except (_UnsupportedSchema, InvalidArguments, SubprocessNeeded):
        pass
    raise ModelError(
        "The offline model can't produce a value for this output schema.",
        code="model_no_answer",
        remedy="Simplify the output schema, or choose another model.",
        retryable=False,
    )


def _build_value(schema: Any, text: str, depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth > MAX_SCHEMA_DEPTH:
        raise _UnsupportedSchema
    given_values = [schema[keyword] for keyword in ("const", "default") if keyword in schema]
    if choices := [*given_values, *schema.get("enum", ())]:
        return choices[0]
    kind = schema.get("type", "string")
    if kind in _SIMPLE_VALUES:
        return _SIMPLE_VALUES[kind]
    if kind == "string":
        shortened = text[: schema.get("maxLength", len(text))]
        return shortened.ljust(min(schema.get("minLength", 0), 1_000), ".")
    if kind in ("integer", "number"):
        return _build_number(schema)
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _build_value(child, text, depth + 1) for name, child in properties.items()}
    count = schema.get("minItems", 0)
    if kind != "array" or count > MAX_ITEMS:
        raise _UnsupportedSchema
    return [_build_value(schema.get("items", {}), text, depth + 1) for _ in range(count)]


def _build_number(schema: Mapping[str, Any]) -> float:
    least, most = schema.get("minimum", 0), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        least = max(least, schema["exclusiveMinimum"] + 1)
    number: float = least if most is None or least <= most else most
    return number
