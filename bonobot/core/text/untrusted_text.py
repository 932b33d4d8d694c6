"""Make untrusted text visible and storable; JSON paths through untrusted keys.

Characters that are invisible (control, zero-width, fillers), reorder text (bidi) or carry hidden
text (tags, variation selectors) are written as `⟨U+200B⟩`. Line feeds, tabs and the joiners inside
an emoji stay.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Letters and marks by category that look blank.
BLANK_CHARACTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
VARIATION_SELECTORS = (range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))
ALLOWED_CONTROLS = frozenset("\n\t")
JOINERS = frozenset("\u200d\ufe0f")
# Sequences that a terminal interprets instead of showing.
TERMINAL_SEQUENCE = (
    r"\x1b\[[0-?]*[ -/]*[@-~]?"  # CSI: colors, cursor, erase
    r"|\x1b[\]PX^_][^\x07\x1b\r\n]*(?:\x07|\x1b\\)"  # OSC, DCS …: title, link, clipboard
    r"|\x1b[ -/]*[0-~]?"
)
_TERMINAL_PATTERN = re.compile(TERMINAL_SEQUENCE)
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

_PICTURE = (
    "[\u203c\u2049\u2122\u2139\u2190-\u27bf\u2934\u2935\u2b05-\u2b55"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
)
_STYLED = f"(?:{_PICTURE}[\ufe0f\U0001f3fb-\U0001f3ff]?\u20e3?|[0-9#*]\ufe0f\u20e3)"
_EMOJI = re.compile(f"({_STYLED}(?:\u200d{_STYLED})*)")
_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")
_MAX_KEY_LENGTH = 64


class _VisibleCharacterTable(dict[int, str]):
    """A translation table that maps characters on demand."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        return f"⟨U+{code:04X}⟩" if is_hidden(character) else character


_VISIBLE_TABLE = _VisibleCharacterTable()


def is_hidden(character: str) -> bool:
    """Return whether a character is invisible or reorders others."""
    if character in ALLOWED_CONTROLS:
        return False
    code = ord(character)
    return (
        unicodedata.category(character) in HIDDEN_CATEGORIES
        or character in BLANK_CHARACTERS
        or any(code in selectors for selectors in VARIATION_SELECTORS)
    )


def make_visible(text: str, limit: int | None = None) -> str:
    """Return the text with hidden characters made visible, truncated to `limit` characters."""
    visible, suffix = (text, "") if limit is None or len(text) <= limit else (text[:limit], "…")
    if visible.isascii() and visible.isprintable():
        return visible + suffix
    pieces = _EMOJI.split(visible.replace("\r\n", "\n"))
    # Every second piece is an emoji, because `split` also returns the pattern's group.
    for index, piece in enumerate(pieces):
        if index % 2 == 0 or not _is_visible_emoji(piece):
            pieces[index] = piece.translate(_VISIBLE_TABLE)
    return "".join(pieces) + suffix


def strip_terminal_sequences(text: str) -> str:
    """Return the text without terminal sequences: colors, cursor moves, titles, links."""
    return _TERMINAL_PATTERN.sub("", text)


def _is_visible_emoji(emoji: str) -> bool:
    # The ranges contain unassigned characters, which show as nothing or as a box.
    return not any(is_hidden(character) for character in emoji if character not in JOINERS)


def make_storable(value: Any) -> Any:
    """Return a JSON-like value that a database can store.

    Replaces NUL and lone surrogates; NaN and infinity become text.
    """
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {make_storable(key): make_storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [make_storable(item) for item in value]
    return value


def format_path_step(key: str | int) -> str:
    """Return one step of a path; hidden characters are made visible, long keys truncated."""
    if isinstance(key, int):
        return f"[{key}]"
    if len(key) <= _MAX_KEY_LENGTH and _PLAIN_KEY.fullmatch(key):
        return f".{key}"
    escaped_key = make_visible(key, _MAX_KEY_LENGTH).replace("\\", "\\\\").replace("'", "\\'")
    return f"['{escaped_key}']"


def format_json_path(keys: Iterable[str | int]) -> str:
    """Return the path from the root, `$`, through `keys`."""
    return "$" + "".join(map(format_path_step, keys))
