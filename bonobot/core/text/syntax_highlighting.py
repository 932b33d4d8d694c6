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
LONGEST_SHOWN = 64 * 1024
LINES_COMPARED = 4_000

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
    return make_visible(text, LONGEST_SHOWN)


def highlight_json(value: Any) -> SafeString:
    """Return a JSON value as indented, colored HTML."""
    text = format_json(value)
    pieces: list[str] = []
    end = 0
    for found in _TOKENS.finditer(text):
        pieces.append(escape(text[end : found.start()]))
        kind = found.lastgroup if found.lastgroup != "colon" else "key"
        pieces.append(f'<span class="bb-{kind}">{escape(found[kind or 0])}</span>')
        pieces.append(escape(found["colon"] or ""))
        end = found.end()
    pieces.append(escape(text[end:]))
    return mark_safe("".join(pieces))  # noqa: S308 - our own tags around escaped pieces


def render_sentence(text: str, limit: int | None = None) -> SafeString:
    """Return a message, which may quote untrusted text, with `names` rendered as code."""
    safe = escape(make_visible(text, limit))
    return mark_safe(_QUOTED.sub(r"<code>\1</code>", safe))  # noqa: S308 - escaped before


def diff_json(before: Any, after: Any) -> list[tuple[str, str]]:
    """Return the diff of two values as lines of (`added`, `removed` or `same`, text)."""
    old, new = (format_json(value).splitlines()[:LINES_COMPARED] for value in (before, after))
    kinds = {"+": "added", "-": "removed", " ": "same"}
    lines = difflib.unified_diff(old, new, lineterm="", n=3)
    return [
        (kinds[line[0]], line[1:])
        for line in lines
        if line[:1] in kinds and not line.startswith(("+++", "---"))
    ]
