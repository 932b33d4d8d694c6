"""Render JSON and diffs as colored HTML.

The result consists of our own tags around escaped text, so it is safe to insert into a page.
"""

import difflib
import json
import re
from typing import Any

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from bonobot.core.text.untrusted_text import make_visible

# Longer values are truncated on screens; the database keeps them in full.
MAX_SHOWN_LENGTH = 64 * 1024
MAX_COMPARED_LINES = 4_000

_QUOTED = re.compile(r"`([^`\n]{1,300})`")
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
