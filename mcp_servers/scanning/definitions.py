"""Scan a definition: every string of it, keys too, wherever it stands (reference T16, T22)."""

from collections.abc import Iterator
from typing import Any

from bonobot.lib.untrusted import visible
from mcp_servers.json_paths import step
from mcp_servers.scanning.characters import hidden
from mcp_servers.scanning.findings import Finding

MOST_FINDINGS = 50
_AROUND = 24
_LONGEST_EXCERPT = 160


def scan(payload: Any) -> tuple[Finding, ...]:
    """Return what a definition's payload hides, one finding for each rule and place, at most 50."""
    found: dict[tuple[str, str], Finding] = {}
    for path, text in _strings(payload):
        for run in hidden(text):
            found.setdefault(
                (run.rule, path),
                Finding(
                    "hard", run.rule, path, _excerpt(text, run.start, run.end), run.start, run.end
                ),
            )
        if len(found) >= MOST_FINDINGS:
            break
    return tuple(found.values())[:MOST_FINDINGS]


def _strings(payload: Any) -> Iterator[tuple[str, str]]:
    """Yield (JSON path, text) of every string; iterative, because payloads nest as they like."""
    waiting: list[tuple[str, Any]] = [("$", payload)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str):
            yield path, value
        elif isinstance(value, dict):
            for key in value:
                yield f"{path}{step(str(key))} (key)", str(key)
            waiting.extend((f"{path}{step(str(key))}", value[key]) for key in reversed(value))
        elif isinstance(value, list | tuple):
            waiting.extend((f"{path}[{i}]", value[i]) for i in range(len(value) - 1, -1, -1))


def _excerpt(text: str, start: int, end: int) -> str:
    head = "…" if start > _AROUND else ""
    shown = visible(text[max(start - _AROUND, 0) : end + _AROUND], _LONGEST_EXCERPT)
    return head + shown + ("…" if end + _AROUND < len(text) and not shown.endswith("…") else "")
