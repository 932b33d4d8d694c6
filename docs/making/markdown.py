"""Pieces of Markdown for pages that are made: tables whose cells can't break out of them."""

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, blank where it would have no rows."""
    lines = ["| " + " | ".join(_cell(text) for text in row) + " |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *lines, ""])


def code(text: object) -> str:
    """Return a text as code in a line, blank for nothing."""
    return f"`{text}`" if str(text) else ""


def fenced(text: str, language: str = "") -> str:
    """Return a block of code."""
    return f"```{language}\n{text.rstrip()}\n```\n"


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
