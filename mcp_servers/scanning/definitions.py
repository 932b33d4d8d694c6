"""Scan a definition: every string of it, keys too, wherever it stands (reference T16, T22)."""

import re
from collections.abc import Collection, Iterator
from typing import Any, Final

from bonobot.lib.untrusted import visible
from mcp_servers.json_paths import step
from mcp_servers.scanning.characters import hidden
from mcp_servers.scanning.findings import Finding, Tier
from mcp_servers.scanning.instructions import ENOUGH, named, orders
from mcp_servers.scanning.parameters import asked
from mcp_servers.scanning.resemblance import judge

MOST_FINDINGS = 50
_AROUND = 24
_LONGEST_EXCERPT = 160
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{5,127}")
# What a parameter may be is no prose: it has no reason for half an order.
_VALUE: Final = re.compile(
    r"Schema\b.*\.(?:default|const|pattern|title|\$comment|(?:enum|examples)\[\d+\])$"
)
ENOUGH_OF_A_VALUE: Final = 0.6
# `search` is a word; `create_issue` is a name.
_DISTINCT = re.compile(r"[A-Za-z0-9][_-][A-Za-z0-9]|[a-z][A-Z]", re.A)


def scan(
    payload: Any, *, own: Collection[str] = (), peers: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Return what a definition hides (hard) and what of it orders the model about (soft).

    `own` are the names of the server's own tools, `peers` those of other servers: what a definition
    says of a tool beside it counts for more. One finding for each rule and place, at most 50; what
    refuses comes first.
    """
    found = scan_by_rules(payload, own=own, peers=peers)
    if len(found) < MOST_FINDINGS:
        found += tuple(judge(payload, own=own, peers=peers))
    return found


def scan_by_rules(
    payload: Any, *, own: Collection[str] = (), peers: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Return what the rules find, without the classifier's judgement."""
    found: dict[tuple[str, str], Finding] = {}
    foreign = frozenset(name for name in peers if len(name) >= 6 and _DISTINCT.search(name))
    foreign -= frozenset(own)
    for path, name in asked(payload):
        shown = visible(name, _LONGEST_EXCERPT)
        found["asks_for_context", path] = Finding(
            "soft", "asks_for_context", path, shown, 0, len(name)
        )
    for path, text in _strings(payload):
        for finding in (*_hidden(path, text), *_spoken(path, text), *_named(path, text, foreign)):
            found.setdefault((finding.rule, finding.path), finding)
        if len(found) >= MOST_FINDINGS:
            break
    ordered = sorted(found.values(), key=lambda finding: finding.tier != "hard")
    return tuple(ordered[:MOST_FINDINGS])


def _hidden(path: str, text: str) -> Iterator[Finding]:
    for run in hidden(text):
        shown = _excerpt(text, run.start, run.end)
        yield Finding("hard", run.rule, path, shown, run.start, run.end)


def _spoken(path: str, text: str) -> Iterator[Finding]:
    """Yield what gives orders: a sentence, or an identifier read as words."""
    identifier = path.endswith("(key)") or " " not in text
    enough = ENOUGH_OF_A_VALUE if _VALUE.search(path) else ENOUGH
    for order in (*orders(text, enough=enough), *(named(text[:512]) if identifier else ())):
        tier: Tier = "hard" if order.disguise else "soft"
        shown = visible(text[order.start : order.end], _LONGEST_EXCERPT)
        yield Finding(tier, order.disguise or order.rule, path, shown, order.start, order.end)


def _named(path: str, text: str, foreign: frozenset[str]) -> Iterator[Finding]:
    """Yield where a tool of another server is named; a schema's own members may be called so."""
    if not foreign or path.endswith(("(key)", "$.name")):
        return
    for match in _WORD.finditer(text):
        if match.group() in foreign:
            shown = _excerpt(text, match.start(), match.end())
            yield Finding("soft", "other_tool_named", path, shown, match.start(), match.end())
            return


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
