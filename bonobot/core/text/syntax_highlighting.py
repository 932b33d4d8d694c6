"""Render JSON and diffs as colored HTML.

The result consists of our own tags around escaped text, so it is safe to insert into a page.
"""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from bonobot.core.text.untrusted_text import make_visible

# Longer values are truncated on screens; the database keeps them in full.
MAX_SHOWN_LENGTH = 64 * 1024
MAX_COMPARED_LINES = 4_000

_QUOTED = re.compile(r"`([^`\n]{1,300})`")
# The start of a member of the outermost object.
_MEMBER = re.compile(r'  ("(?:[^"\\]|\\.)*"):')
_TOKENS = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*")(?P<colon>\s*:)'
    r'|(?P<text>"(?:[^"\\]|\\.)*")'
    r"|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
    r"|(?P<word>true|false|null)"
)


def format_json(value: Any) -> str:
    """Return a JSON value as indented, truncated text with hidden characters made visible."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return make_visible(text, MAX_SHOWN_LENGTH)


def highlight_json(value: Any) -> SafeString:
    """Return a JSON value as indented, colored HTML."""
    text = format_json(value)
    pieces: list[str] = []
    end = 0
    for match in _TOKENS.finditer(text):
        pieces.append(escape(text[end : match.start()]))
        kind = match.lastgroup if match.lastgroup != "colon" else "key"
        pieces.append(f'<span class="bb-{kind}">{escape(match[kind or 0])}</span>')
        pieces.append(escape(match["colon"] or ""))
        end = match.end()
    pieces.append(escape(text[end:]))
    return mark_safe("".join(pieces))  # noqa: S308 - our own tags around escaped pieces


@dataclass(frozen=True)
class JsonLine:
    """A line of highlighted JSON; `mark` says why it is marked, on the first line of a value."""

    html: SafeString
    is_marked: bool = False
    mark: str = ""


def highlight_json_lines(value: Any, marks: Mapping[str, str]) -> list[JsonLine]:
    """Return an object as highlighted lines; `marks` are texts for some of its members."""
    lines, current = [], ""
    # Strings have no line breaks in JSON, so a line has whole tokens.
    for text, html in zip(
        format_json(value).split("\n"), highlight_json(value).split("\n"), strict=True
    ):
        name = _MEMBER.match(text)
        is_end = not text.startswith("  ")
        if name is not None or is_end:
            current = json.loads(name[1]) if name is not None else ""
        is_marked = current in marks
        mark = marks[current] if is_marked and name is not None else ""
        lines.append(JsonLine(mark_safe(html), is_marked, mark))  # noqa: S308 - escaped text in our tags
    return lines


def render_sentence(text: str, limit: int | None = None) -> SafeString:
    """Return a message, which may quote untrusted text, with `names` rendered as code."""
    safe = escape(make_visible(text, limit))
    return mark_safe(_QUOTED.sub(r"<code>\1</code>", safe))  # noqa: S308 - escaped before


def diff_json(before: Any, after: Any) -> list[tuple[str, str]]:
    """Return the diff of two values as lines of (`added`, `removed` or `same`, text)."""
    old_lines, new_lines = (
        format_json(value).splitlines()[:MAX_COMPARED_LINES] for value in (before, after)
    )
    kinds = {"+": "added", "-": "removed", " ": "same"}
    lines = difflib.unified_diff(old_lines, new_lines, lineterm="", n=3)
    return [
        (kinds[line[0]], line[1:])
        for line in lines
        if line[:1] in kinds and not line.startswith(("+++", "---"))
    ]
