"""Scan definitions with rules and the classifier (pure).

The name of a parameter alone can ask a model for data: an undescribed `conversation_history` asks
for ours; a legitimate tool describes it ("of the assistant to create").

Each definition stores the version of the rules; with an older version, it is rescanned in the
background (`mcp_servers.scanning.services`).
"""

import re
from collections.abc import Collection, Iterator
from typing import Any, Final

from bonobot.core.text.linear_regex import ROOMY, LinearPattern
from bonobot.core.text.untrusted_text import format_path_step, make_visible
from mcp_servers.scanning.attack_resemblance import judge
from mcp_servers.scanning.deobfuscation import fold, split_identifier
from mcp_servers.scanning.findings import ScanFinding, Tier
from mcp_servers.scanning.hidden_characters import find_hidden_runs
from mcp_servers.scanning.prompt_injection import (
    DEFINITION_THRESHOLD,
    find_instructions,
    find_name_instructions,
)
from mcp_servers.scanning.signals import PARTS

# A description with fewer letters doesn't count.
SHORTEST: Final = 12
_WHOLE: Final = (
    "(?:full|entire|complete|whole|current|all|previous|prior|past|recent|last|user|raw)"
)
_CONTEXT: Final = LinearPattern(
    rf"^(?:{_WHOLE} )*(?:"
    r"(?:system|developer|initial|hidden|original|assistant|llm|agent|model) (?:prompts?|messages?"
    r"|instructions?|context)"
    r"|(?:conversation|chat|dialogue?|session|message|prompt|thread) (?:history|context|transcript"
    r"|log|so far|memory|contents?|dump)"
    r"|(?:tool|function) (?:call )?(?:history|list|definitions|outputs|results)"
    r"|(?:available|other|known) tools(?: list)?|tools (?:list|you .*|available)|list of tools"
    r"|chain of thought|(?:internal |hidden )?(?:reasoning|thoughts?)(?: trace| process| chain)?"
    r"|context window|(?:model|assistant|agent|llm) memory|everything .*"
    r")$",
    ROOMY,
)
# Names that ask for our data, whatever the description says.
_FILES: Final = (
    "(?:ssh|id rsa|id ed25519|passwd|shadow|aws|netrc|kube|keychain|wallet|env file|private key)"
)
_OURS: Final = LinearPattern(
    r"\b(?:all|previous|prior|entire|full|your|hidden|earlier)(?: \w+){0,2} (?:user )?"
    r"(?:messages|prompts?|conversation|chat|instructions|reasoning|tool calls)(?: text| log)?$"
    rf"|\bcontents? (?:of|from)\b.*\b(?:{_FILES}|env|credentials?|secrets?|config)\b"
    rf"|\b(?:read|open|cat|fetch|get|dump|send|leak|steal)(?:ing)? (?:\w+ ){{0,3}}{_FILES}\b",
    ROOMY,
)
# A description that starts with it asks for it; "number of previous messages" doesn't.
_NOUN: Final = LinearPattern(
    r"^(?:(?:the|your|a|an|full|copy of|text of|contents? of|verbatim|complete|exact|hidden"
    rf"|json|optional|required)[ :]+)*(?:{PARTS['session']})",
    ROOMY,
)
_ELSEWHERE: Final = re.compile(r" ?(?:of|from|in|to|for|by|on) (?:the|an?|this|your|each|which) ")


def scan_parameter_names(payload: Any) -> Iterator[tuple[str, str]]:
    """Yield (JSON path, name) of parameters that ask for the conversation or for secrets."""
    if not isinstance(payload, dict):
        return
    schema = payload.get("inputSchema")
    waiting: list[tuple[str, Any]] = [("$.inputSchema", schema)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, list):
            waiting.extend((f"{path}[{i}]", one) for i, one in enumerate(value))
        if not isinstance(value, dict):
            continue
        members = value.get("properties")
        named = members if isinstance(members, dict) else {}
        for name, member in named.items():
            if _is_suspicious_parameter(str(name), member):
                yield f"{path}.properties{format_path_step(str(name))} (key)", str(name)
        required = value.get("required")
        for i, name in enumerate(required if isinstance(required, list) else ()):
            if isinstance(name, str) and name not in named and _is_suspicious_parameter(name, None):
                yield f"{path}.required[{i}]", name
        waiting.extend((f"{path}{format_path_step(str(key))}", one) for key, one in value.items())


def _is_suspicious_parameter(name: str, member: Any) -> bool:
    words = fold(re.sub(r"\W+", " ", split_identifier(name[:128]))).strip()
    if _OURS.search(words):
        return True
    said = member.get("description") if isinstance(member, dict) else None
    if isinstance(said, str) and _is_ours(fold(said[:512]).strip()):
        return True
    described = isinstance(said, str) and sum(map(str.isalpha, said)) >= SHORTEST
    return not described and _CONTEXT.search(words) is not None


def _is_ours(said: str) -> bool:
    """Tell whether a description starts with our session data, not with something else's."""
    found = _NOUN.search(said)
    return found is not None and not _ELSEWHERE.match(said[found.end() :])


MOST_FINDINGS = 50
_AROUND = 24
_LONGEST_EXCERPT = 160
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{5,127}")
# Values in a schema are no prose: the threshold is lower.
_VALUE: Final = re.compile(
    r"Schema\b.*\.(?:default|const|pattern|title|\$comment|(?:enum|examples)\[\d+\])$"
)
ENOUGH_OF_A_VALUE: Final = 0.6
# `search` is a word; `create_issue` is a name.
_DISTINCT = re.compile(r"[A-Za-z0-9][_-][A-Za-z0-9]|[a-z][A-Z]", re.A)


def scan(
    payload: Any, *, own: Collection[str] = (), peers: Collection[str] = ()
) -> tuple[ScanFinding, ...]:
    """Return findings of hidden text (hard) and of instructions to the model (soft).

    `own_names` are the server's tools, `peer_names` those of other servers: naming another tool
    weighs more. One finding per rule and path, at most 50; hard ones first.
    """
    found = scan_by_rules(payload, own=own, peers=peers)
    if len(found) < MOST_FINDINGS:
        found += tuple(judge(payload, own=own, peers=peers))
    return found


def scan_by_rules(
    payload: Any, *, own: Collection[str] = (), peers: Collection[str] = ()
) -> tuple[ScanFinding, ...]:
    """Return the findings of the rules, without the classifier."""
    found: dict[tuple[str, str], ScanFinding] = {}
    foreign = frozenset(name for name in peers if len(name) >= 6 and _DISTINCT.search(name))
    foreign -= frozenset(own)
    for path, name in scan_parameter_names(payload):
        shown = make_visible(name, _LONGEST_EXCERPT)
        found["asks_for_context", path] = ScanFinding(
            "soft", "asks_for_context", path, shown, 0, len(name)
        )
    for path, text in _walk_strings(payload):
        for finding in (
            *_scan_hidden_text(path, text),
            *_scan_instructions(path, text),
            *_scan_tool_names(path, text, foreign),
        ):
            found.setdefault((finding.rule, finding.path), finding)
        if len(found) >= MOST_FINDINGS:
            break
    ordered = sorted(found.values(), key=lambda finding: finding.tier != "hard")
    return tuple(ordered[:MOST_FINDINGS])


def _scan_hidden_text(path: str, text: str) -> Iterator[ScanFinding]:
    for run in find_hidden_runs(text):
        shown = _cut_excerpt(text, run.start, run.end)
        yield ScanFinding("hard", run.rule, path, shown, run.start, run.end)


def _scan_instructions(path: str, text: str) -> Iterator[ScanFinding]:
    """Yield instructions in sentences, or in an identifier split into words."""
    identifier = path.endswith("(key)") or " " not in text
    enough = ENOUGH_OF_A_VALUE if _VALUE.search(path) else DEFINITION_THRESHOLD
    for order in (
        *find_instructions(text, enough=enough),
        *(find_name_instructions(text[:512]) if identifier else ()),
    ):
        tier: Tier = "hard" if order.disguise else "soft"
        shown = make_visible(text[order.start : order.end], _LONGEST_EXCERPT)
        yield ScanFinding(tier, order.disguise or order.rule, path, shown, order.start, order.end)


def _scan_tool_names(path: str, text: str, foreign: frozenset[str]) -> Iterator[ScanFinding]:
    """Yield the first name of another server's tool; schema keys are ignored."""
    if not foreign or path.endswith(("(key)", "$.name")):
        return
    for match in _WORD.finditer(text):
        if match.group() in foreign:
            shown = _cut_excerpt(text, match.start(), match.end())
            yield ScanFinding("soft", "other_tool_named", path, shown, match.start(), match.end())
            return


def _walk_strings(payload: Any) -> Iterator[tuple[str, str]]:
    """Yield (JSON path, text) of every string; not recursive, payloads may nest deeply."""
    waiting: list[tuple[str, Any]] = [("$", payload)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str):
            yield path, value
        elif isinstance(value, dict):
            for key in value:
                yield f"{path}{format_path_step(str(key))} (key)", str(key)
            waiting.extend(
                (f"{path}{format_path_step(str(key))}", value[key]) for key in reversed(value)
            )
        elif isinstance(value, list | tuple):
            waiting.extend((f"{path}[{i}]", value[i]) for i in range(len(value) - 1, -1, -1))


def _cut_excerpt(text: str, start: int, end: int) -> str:
    head = "…" if start > _AROUND else ""
    shown = make_visible(text[max(start - _AROUND, 0) : end + _AROUND], _LONGEST_EXCERPT)
    return head + shown + ("…" if end + _AROUND < len(text) and not shown.endswith("…") else "")


RULES: Final = 4
