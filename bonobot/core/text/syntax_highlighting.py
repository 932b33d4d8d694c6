"""JSON and differences as coloured HTML.

The result is made of our own tags around escaped pieces, so it may be put into a page as it is.
"""

import difflib
import json
import re
from typing import Any

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from bonobot.core.text.untrusted_text import make_visible

# Longer values are cut on the screen; the audit's and the session's rows keep the whole.
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
    """Return a JSON value as indented text, hidden characters visible, within bounds."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return make_visible(text, LONGEST_SHOWN)


def highlight_json(value: Any) -> SafeString:
    """Return a JSON value as indented, coloured HTML."""
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
    """Return a sentence of ours, which may quote strangers, with its `names` set as code."""
    safe = escape(make_visible(text, limit))
    return mark_safe(_QUOTED.sub(r"<code>\1</code>", safe))  # noqa: S308 - escaped before


def diff_json(before: Any, after: Any) -> list[tuple[str, str]]:
    """Return the lines of `after` against `before`: (`added`, `removed` or `same`, text)."""
    old, new = (format_json(value).splitlines()[:LINES_COMPARED] for value in (before, after))
    kinds = {"+": "added", "-": "removed", " ": "same"}
    lines = difflib.unified_diff(old, new, lineterm="", n=3)
    return [
        (kinds[line[0]], line[1:])
        for line in lines
        if line[:1] in kinds and not line.startswith(("+++", "---"))
    ]
