"""Split messages that quote the output of a program, such as npm, for a page. No I/O."""

import re
from dataclasses import dataclass

MAX_BRIEF = 320  # characters of a message that is shown as it is
MAX_BEGINNING = 140
MAX_REMEDY = 220  # characters of the last sentences, which say what to do
_SENTENCE_START = re.compile(r"(?<=[.!?]) +(?=[A-ZÄÖÜ])")
_LINE_START = re.compile(r" +(?=npm (?:error|ERR!|warn|WARN)\b)")


@dataclass(frozen=True)
class LongMessage:
    """The parts of a long message: its beginning, its last sentences, and its lines."""

    beginning: str
    remedy: str
    lines: str


def split_long_message(text: str) -> LongMessage | None:
    """Return the parts of a message that is too long to be read at once, or else None.

    Messages end with what to do, so that the last sentences stay visible.
    """
    if len(text) <= MAX_BRIEF:
        return None
    start = len(text)
    for match in reversed(list(_SENTENCE_START.finditer(text, MAX_BEGINNING))):
        if len(text) - match.end() > MAX_REMEDY:
            break
        start = match.end()
    beginning = text[:MAX_BEGINNING].rsplit(" ", 1)[0].rstrip(" .,:;")
    return LongMessage(beginning + "…", text[start:], _LINE_START.sub("\n", text[:start].rstrip()))
