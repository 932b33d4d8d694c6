"""Find parameters that ask for what is none of a tool's business: conversation, prompt (T16).

A parameter says what a model shall fill in by its mere name. `conversation_history` without a word
about whose it is asks for ours; an honest tool describes it ("of the assistant to create").
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from mcp_servers.json_paths import step
from mcp_servers.scanning.folding import fold
from mcp_servers.scanning.layers import spoken
from mcp_servers.scanning.patterns import ROOMY, Pattern
from mcp_servers.scanning.signals import PARTS

# A description of fewer letters describes nothing.
SHORTEST: Final = 12
_WHOLE: Final = (
    "(?:full|entire|complete|whole|current|all|previous|prior|past|recent|last|user|raw)"
)
_CONTEXT: Final = Pattern(
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
# What says plainly that it is ours, whatever else is said about it.
_FILES: Final = (
    "(?:ssh|id rsa|id ed25519|passwd|shadow|aws|netrc|kube|keychain|wallet|env file|private key)"
)
_OURS: Final = Pattern(
    r"\b(?:all|previous|prior|entire|full|your|hidden|earlier)(?: \w+){0,2} (?:user )?"
    r"(?:messages|prompts?|conversation|chat|instructions|reasoning|tool calls)(?: text| log)?$"
    rf"|\bcontents? (?:of|from)\b.*\b(?:{_FILES}|env|credentials?|secrets?|config)\b"
    rf"|\b(?:read|open|cat|fetch|get|dump|send|leak|steal)(?:ing)? (?:\w+ ){{0,3}}{_FILES}\b",
    ROOMY,
)
# A description that begins with the thing asks for it; "number of previous messages" doesn't.
_NOUN: Final = Pattern(
    r"^(?:(?:the|your|a|an|full|copy of|text of|contents? of|verbatim|complete|exact|hidden"
    rf"|json|optional|required)[ :]+)*(?:{PARTS['session']})",
    ROOMY,
)
_ELSEWHERE: Final = re.compile(r" ?(?:of|from|in|to|for|by|on) (?:the|an?|this|your|each|which) ")


def asked(payload: Any) -> Iterator[tuple[str, str]]:
    """Yield (JSON path, name) of parameters whose name asks for the conversation or for secrets."""
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
            if _asks(str(name), member):
                yield f"{path}.properties{step(str(name))} (key)", str(name)
        required = value.get("required")
        for i, name in enumerate(required if isinstance(required, list) else ()):
            if isinstance(name, str) and name not in named and _asks(name, None):
                yield f"{path}.required[{i}]", name
        waiting.extend((f"{path}{step(str(key))}", one) for key, one in value.items())


def _asks(name: str, member: Any) -> bool:
    words = fold(re.sub(r"\W+", " ", spoken(name[:128]))).strip()
    if _OURS.search(words):
        return True
    said = member.get("description") if isinstance(member, dict) else None
    if isinstance(said, str) and _is_ours(fold(said[:512]).strip()):
        return True
    described = isinstance(said, str) and sum(map(str.isalpha, said)) >= SHORTEST
    return not described and _CONTEXT.search(words) is not None


def _is_ours(said: str) -> bool:
    """Tell whether a description begins with a thing of ours, and not of something else."""
    found = _NOUN.search(said)
    return found is not None and not _ELSEWHERE.match(said[found.end() :])
