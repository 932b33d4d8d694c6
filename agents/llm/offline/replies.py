"""Texts of the offline model.

Results of servers are shown as they are: text in a code block, JSON as a list, errors as errors.
Nothing is summarized.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from agents.llm.interface import Message, ToolSpec
from agents.llm.offline.arguments import UNSET, ParameterSlot, PartialCall, parse_slots

SHOWN = 4_000  # characters of one result
LINES = 60  # of an unpacked result
DEPTH = 5
LISTED = 12  # tools in an introduction

WHAT_I_AM = (
    "I am the offline model: rules that pick a tool, not a language model. I need no network and "
    "no key, and I can't chat, reason or write."
)
HOW_TO_TYPE = (
    "Ask for one thing that a tool does, or type the call yourself, one line each:\n\n"
    "    {example}\n\n"
    "`/tools` lists all tools, `/tools WORD` those about something."
)
FOOTNOTE = "(Offline model: rules, not a language model. This is what the tools returned.)"
NO_TOOLS = (
    "This agent has no tools that it may use, so there is nothing I can do yet. Bind a server to "
    "it, approve the server's tools and allow them in its tool policy; or give the agent a "
    "language model."
)
UNAVAILABLE = re.compile(
    r"\b(?:unreachable|unavailable|not available|skipped|disabled|disconnected|needs_reauth"
    r"|not reachable|needs re-?auth\w*|do not use|don't use|must not be used|can ?not be used"
    r"|could not be reached|not connected)\b",
    re.I,
)
TO_A_MODEL = re.compile(r",? ?\(?\b(?:do not|don't|must not be) use[d]?\b\)?", re.I)
SWITCHED_OFF = re.compile(r"\b(?:disabled|do not use|don't use|must not be used)\b", re.I)
HEADING = re.compile(r"^#{1,6}\s+(.*)")
ABOUT_TOOLS = re.compile(r"\b(?:tools?|servers?|mcp)\b", re.I)
BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")
MARKUP = re.compile(r"[\[\]<>|]|\n|^#")  # what could link, embed or break the layout
SAMPLES = {
    "timezone": "Asia/Tokyo",
    "url": "https://example.com",
    "email": "name@example.com",
    "date": "2030-01-31",
    "datetime": "2030-01-31T14:30:00",
    "time": "14:30",
    "path": "/path/to/it",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "number": 1,
    "boolean": True,
    "place": "Tokyo",
    "revision": "HEAD",
    "object": {},
}


def render_results(calls: Sequence[Message], results: Sequence[Message]) -> str:
    """Return the results of a turn's calls, in order."""
    said = {call["id"]: call for call in calls}
    return "\n\n".join(
        _render_result(said.get(result["call_id"], {}), result) for result in results
    )


def render_question(filling: PartialCall) -> str:
    """Return the question for missing arguments, with the command to type."""
    names = _join_names(f"`{name}`" for name in filling.missing)
    what = _extract_first_sentence(filling.tool.description)
    return (
        f"I would use `{filling.tool.name}`{f' ({what})' if what else ''}, but I couldn't find "
        f"{names} in what you wrote. Tell me just that, or type:\n\n"
        f"    {render_command(filling.tool, filling.arguments)}"
    )


def render_introduction(tools: Sequence[ToolSpec], notices: Sequence[str]) -> str:
    """Return an introduction with the tools and what is unavailable."""
    parts = [WHAT_I_AM]
    if tools:
        parts += [HOW_TO_TYPE.format(example=render_command(tools[0], {})), render_tools(tools)]
    else:
        parts.append(NO_TOOLS)
    return "\n\n".join([*parts, *_format_notices(notices)])


def render_no_match(
    tools: Sequence[ToolSpec], nearby: Sequence[ToolSpec], notices: Sequence[str]
) -> str:
    """Return that no tool was selected, with similar ones."""
    if not tools:
        return render_introduction(tools, notices)
    if nearby:
        head = "Several tools could be meant, and I can't tell which. Say more, or type one:"
        lines = "\n".join(f"    {render_command(tool, {})}" for tool in nearby)
        return "\n\n".join([head, lines, *_format_notices(notices)])
    return "I found no tool that fits. " + render_introduction(tools, notices)


def render_tools(tools: Sequence[ToolSpec], word: str = "", limit: int = LISTED) -> str:
    """Return a list of tools with a sentence each; `word` filters them."""
    kept = [tool for tool in tools if word.lower() in f"{tool.name} {tool.description}".lower()]
    if not kept:
        return f"No tool is about `{word}`." if word else NO_TOOLS
    lines = [_render_tool(tool) for tool in kept[:limit]]
    if len(kept) > limit:
        lines.append(f"- … and {len(kept) - limit} more")
    return "Tools:\n\n" + "\n".join(lines)


def render_command(tool: ToolSpec, known: dict[str, Any]) -> str:
    """Return the command that calls a tool, with sample values for unknown arguments."""
    arguments = {
        slot.name: known.get(slot.name, build_sample(slot))
        for slot in parse_slots(tool.parameters)
        if slot.required or slot.name in known
    }
    return f"/{tool.name} {json.dumps(arguments, ensure_ascii=False)}"


def build_sample(slot: ParameterSlot) -> Any:
    """Return a sample value for a slot."""
    if slot.choices:
        return slot.choices[0]
    if slot.default is not UNSET:
        return slot.default
    if slot.kind == "array":
        return [build_sample(slot.item)] if slot.item else []
    return SAMPLES.get(slot.kind, "…")


def parse_notices(instructions: str) -> list[str]:
    """Return the instructions' lines on unavailable tools and servers.

    Only sections with a heading about tools are read. Items below a heading or line that says
    "disabled" (or similar) count too: `### Disabled tools` and the names that follow.
    """
    found: list[str] = []
    about_tools = False
    above = line_above = ""
    for line in filter(str.strip, instructions.splitlines()):
        if heading := HEADING.match(line):
            about_tools = bool(ABOUT_TOOLS.search(line))
            above = heading.group(1).strip() if UNAVAILABLE.search(line) else ""
            line_above = ""
            continue
        is_item, text = bool(BULLET.match(line)), BULLET.sub("", line).strip()
        says_so = bool(UNAVAILABLE.search(text))
        if not is_item:
            line_above = text.rstrip(":") if says_so and text.endswith(":") else ""
        head = (line_above if is_item else "") or above
        if about_tools and not line_above.startswith(text.rstrip(":")) and (head or says_so):
            found.append(f"{head}: {text}" if head else text)
    return found


def filter_failures(notices: Sequence[str]) -> list[str]:
    """Return the notices on failures, without those on disabled tools."""
    return [notice for notice in notices if not SWITCHED_OFF.search(notice)]


def _format_notices(notices: Sequence[str]) -> list[str]:
    if not notices:
        return []
    said = (TO_A_MODEL.sub("", notice).rstrip(".") for notice in notices)
    return ["\n".join(f"{notice}." for notice in said)]


def render_unavailable(notices: Sequence[str]) -> str:
    """Return a paragraph on what is unavailable; empty if nothing is."""
    return "".join(_format_notices(notices))


def _render_tool(tool: ToolSpec) -> str:
    what = _extract_first_sentence(tool.description)
    return f"- `/{tool.name}`{f': {what}' if what else ''}"


def _extract_first_sentence(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    sentence = re.split(r"(?<=[.!?])\s", line)[0].rstrip(".")
    return _escape_markup(sentence if len(sentence) <= 120 else sentence[:119] + "…")


def _render_result(call: Message, result: Message) -> str:
    name = f"`{result['name']}`"
    arguments = call.get("arguments") or {}
    given = ", ".join(f"{key}: {_format_value(value)}" for key, value in arguments.items())
    head = f"{name} ({given})" if given else name
    text = result["text"].strip()
    if result["is_error"]:
        return f"{head} failed: {_escape_markup(text[:SHOWN]) or 'no reason was given.'}"
    if not text:
        return f"{head} answered with nothing."
    value = _parse_json(text)
    if isinstance(value, dict | list) and value:
        return f"{head} answered:\n\n{_render_bounded_lines(value)}"
    if value is not UNSET and not isinstance(value, dict | list):
        text = str(value) if isinstance(value, str) else text
    if "\n" not in text and len(text) <= 300:
        return f"{head} answered: {_escape_markup(text)}"
    return f"{head} answered:\n\n{_render_code_block(text)}"


def _render_code_block(text: str) -> str:
    shown = text[:SHOWN]
    ticks = max((len(run) for run in re.findall(r"`{3,}", shown)), default=2) + 1
    note = f"\n\n(… and {len(text) - SHOWN:,} more characters)" if len(text) > SHOWN else ""
    return f"{'`' * ticks}\n{shown}\n{'`' * ticks}{note}"


def _render_bounded_lines(value: Any) -> str:
    lines: list[str] = []
    size = 0
    for line in _render_lines(value, 0):
        size += len(line) + 1
        if len(lines) == LINES or size > SHOWN:
            return "\n".join([*lines, "- …"])
        lines.append(line)
    return "\n".join(lines)


def _render_lines(value: Any, depth: int) -> Iterator[str]:
    """Yield JSON as an indented list; small values stay on one line."""
    pairs = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    for key, item in pairs:
        label = "" if key is None else f"{_escape_markup(str(key).replace('_', ' '))}: "
        nested = isinstance(item, dict | list) and item
        if not nested or depth >= DEPTH or _is_small(item):
            yield f"{'  ' * depth}- {label}{_format_value(item)}"
        else:
            yield f"{'  ' * depth}- {label.rstrip()}" if label else f"{'  ' * depth}-"
            yield from _render_lines(item, depth + 1)


def _is_small(value: dict[str, Any] | list[Any]) -> bool:
    items = list(value.values()) if isinstance(value, dict) else value
    flat = not any(isinstance(item, dict | list) for item in items)
    return flat and len(items) <= 6 and sum(len(str(item)) for item in items) <= 100


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
        return UNSET
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return UNSET


def _join_names(names: Iterator[str]) -> str:
    *most, last = list(names)
    return f"{', '.join(most)} and {last}" if most else last
