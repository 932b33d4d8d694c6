"""Find parameters whose names or descriptions ask for the conversation or for secrets (pure).

The name of a parameter alone can ask a model for data: an undescribed `conversation_history` asks
for ours; a legitimate tool describes it ("of the assistant to create").
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from bonobot.core.text.linear_regex import LARGE_MEMORY, LinearPattern
from bonobot.core.text.untrusted_text import format_path_step
from mcp_servers.scanning.deobfuscation import fold_text, split_identifier
from mcp_servers.scanning.signals import PATTERN_PARTS

# A description with fewer letters doesn't count.
MIN_DESCRIPTION_LETTERS: Final = 12
_SCOPE_WORDS: Final = (
    "(?:full|entire|complete|whole|current|all|previous|prior|past|recent|last|user|raw)"
)
_CONTEXT_NAME: Final = LinearPattern(
    rf"^(?:{_SCOPE_WORDS} )*(?:"
    r"(?:system|developer|initial|hidden|original|assistant|llm|agent|model) (?:prompts?|messages?"
    r"|instructions?|context)"
    r"|(?:conversation|chat|dialogue?|session|message|prompt|thread) (?:history|context|transcript"
    r"|log|so far|memory|contents?|dump)"
    r"|(?:tool|function) (?:call )?(?:history|list|definitions|outputs|results)"
    r"|(?:available|other|known) tools(?: list)?|tools (?:list|you .*|available)|list of tools"
    r"|chain of thought|(?:internal |hidden )?(?:reasoning|thoughts?)(?: trace| process| chain)?"
    r"|context window|(?:model|assistant|agent|llm) memory|everything .*"
    r")$",
    LARGE_MEMORY,
)
# Names that ask for our data, whatever the description says.
_CREDENTIAL_FILES: Final = (
    "(?:ssh|id rsa|id ed25519|passwd|shadow|aws|netrc|kube|keychain|wallet|env file|private key)"
)
_PRIVATE_DATA_NAME: Final = LinearPattern(
    r"\b(?:all|previous|prior|entire|full|your|hidden|earlier)(?: \w+){0,2} (?:user )?"
    r"(?:messages|prompts?|conversation|chat|instructions|reasoning|tool calls)(?: text| log)?$"
    rf"|\bcontents? (?:of|from)\b.*\b(?:{_CREDENTIAL_FILES}|env|credentials?|secrets?|config)\b"
    rf"|\b(?:read|open|cat|fetch|get|dump|send|leak|steal)(?:ing)? (?:\w+ "
    rf"){{0,3}}{_CREDENTIAL_FILES}\b",
    LARGE_MEMORY,
)
# A description that starts with it asks for it; "number of previous messages" doesn't.
_SESSION_NOUN: Final = LinearPattern(
    r"^(?:(?:the|your|a|an|full|copy of|text of|contents? of|verbatim|complete|exact|hidden"
    rf"|json|optional|required)[ :]+)*(?:{PATTERN_PARTS['session']})",
    LARGE_MEMORY,
)
_OTHER_OWNER: Final = re.compile(r" ?(?:of|from|in|to|for|by|on) (?:the|an?|this|your|each|which) ")


def scan_parameter_names(payload: Any) -> Iterator[tuple[str, str]]:
    """Yield (JSON path, name) of parameters that ask for the conversation or for secrets."""
    if not isinstance(payload, dict):
        return
    schema = payload.get("inputSchema")
    pending: list[tuple[str, Any]] = [("$.inputSchema", schema)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, list):
            pending.extend((f"{path}[{i}]", item) for i, item in enumerate(value))
        if not isinstance(value, dict):
            continue
        raw_properties = value.get("properties")
        properties = raw_properties if isinstance(raw_properties, dict) else {}
        for name, property_schema in properties.items():
            if _is_suspicious_parameter(str(name), property_schema):
                yield f"{path}.properties{format_path_step(str(name))} (key)", str(name)
        required = value.get("required")
        for i, name in enumerate(required if isinstance(required, list) else ()):
            if (
                isinstance(name, str)
                and name not in properties
                and _is_suspicious_parameter(name, None)
            ):
                yield f"{path}.required[{i}]", name
        pending.extend((f"{path}{format_path_step(str(key))}", item) for key, item in value.items())


def _is_suspicious_parameter(name: str, property_schema: Any) -> bool:
    folded_name = fold_text(re.sub(r"\W+", " ", split_identifier(name[:128]))).strip()
    if _PRIVATE_DATA_NAME.search(folded_name):
        return True
    description = property_schema.get("description") if isinstance(property_schema, dict) else None
    if isinstance(description, str) and _is_private_data(fold_text(description[:512]).strip()):
        return True
    has_description = (
        isinstance(description, str)
        and sum(map(str.isalpha, description)) >= MIN_DESCRIPTION_LETTERS
    )
    return not has_description and _CONTEXT_NAME.search(folded_name) is not None


def _is_private_data(description: str) -> bool:
    """Tell whether a description starts with our session data, not with something else's."""
    match = _SESSION_NOUN.search(description)
    return match is not None and not _OTHER_OWNER.match(description[match.end() :])
