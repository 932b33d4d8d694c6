"""Escape the turn separators of chat formats, such as `<|im_start|>` and `[INST]` (pure).

A model may take one in a text for the start of a turn of its own.
"""

import re
from collections import Counter
from typing import Final

_CHAT_TOKEN: Final = re.compile(
    r"<(?=\|[a-z_ ]{2,24}\|?>|/?(?:start|end)_of_turn>|<SYS>>|</SYS>>"
    r"|[|\uff5c][^|\uff5c<>\n]{2,40}[|\uff5c]>)"
    r"|\[(?=/?INST\])",
    re.IGNORECASE,
)


def escape_chat_tokens(text: str, counts: Counter[str]) -> str:
    """Return `text` with its turn separators escaped, counted as `chat_token`."""
    if "<" not in text and "[" not in text:
        return text
    escaped, count = _CHAT_TOKEN.subn(_escape_bracket, text)
    if count:
        counts["chat_token"] += count
    return escaped


def _escape_bracket(match: re.Match[str]) -> str:
    return "&lt;" if match.group() == "<" else "&#91;"
