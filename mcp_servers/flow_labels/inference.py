"""Suggest labels from a tool's name, description and schema (pure).

Suggestions apply until a person sets labels. They use words of the name and description, the
arguments, and the catalog's labels for the server. Unknown tools are assumed to read private data
and untrusted content; calculations and clocks get no label. The server's own hints only add labels.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mcp_servers.flow_labels import BITS, FlowLabel
from mcp_servers.flow_labels.label_words import words
from mcp_servers.flow_labels.tool_clues import ToolClues, may_be_text, read_clues
from mcp_servers.openapi.operations import find_declared_labels

Labels = tuple[FlowLabel, ...]
SEEN: Labels = (FlowLabel.PRIVATE_DATA, FlowLabel.UNTRUSTED_CONTENT)
# A page is private in a notebook and public on the web.
_AMBIGUOUS = frozenset({"page"})


@dataclass(frozen=True, slots=True)
class LabelContext:
    """What is known about a definition's server: its transport and the catalog's labels.

    `preset_labels` are pairs of a tool's own name (or `*`) and its labels. `is_declared` means that
    an administrator declared the operations: labels in them are trusted.
    """

    transport: str = "stdio"
    preset: tuple[tuple[str, Labels], ...] = ()
    declared: bool = False


def build_label_context(
    transport: str, preset: object = None, *, declared: bool = False
) -> LabelContext:
    """Return the context of a server; `preset` are its preset's labels: a list, or by tool."""
    if isinstance(preset, Mapping):
        pairs = tuple((str(name), read(labels)) for name, labels in preset.items())
    else:
        found = read(preset)
        pairs = (("*", found),) if found else ()
    return LabelContext(transport, pairs, declared)


def read(said: object) -> Labels:
    """Parse labels of a file: `private-data` or `private_data`; ignore unknown ones."""
    if not isinstance(said, Collection) or isinstance(said, str):
        return ()
    found = {str(one).replace("-", "_") for one in said}
    return tuple(label for label in FlowLabel if label in found)


def infer_labels(kind: str, payload: Mapping[str, Any], known: LabelContext) -> Labels:
    """Return the suggested labels of a definition, in a fixed order."""
    if known.declared and (said := find_declared_labels(payload)) is not None:
        return read(said)
    found = _infer_flow_labels(kind, payload, known)
    again = kind == "tool" and _is_repeatable(payload, known)
    return (*found, FlowLabel.REPEATABLE) if again else found


def _infer_flow_labels(kind: str, payload: Mapping[str, Any], known: LabelContext) -> Labels:
    if kind in ("resource", "resource_template"):
        return _infer_resource_labels(known)
    if kind != "tool":
        return ()
    by_preset = dict(known.preset)
    name = str(payload.get("name") or "")
    clues = read_clues(payload)
    if name in by_preset:
        found = {*by_preset[name]}
    elif known.transport == "openapi":
        found = _infer_operation_labels(payload, clues)
    else:
        found = _infer_tool_labels(clues, payload, known)
        if "*" in by_preset and not clues.is_pure:
            found = _apply_server_labels(found, frozenset(by_preset["*"]), clues)
    return _with_hints(found, payload, clues)


def list_missing_labels(suggestion: Collection[str], labels: Collection[str] | None) -> Labels:
    """Return the suggested flow labels that the set labels lack; empty if none were set."""
    return () if labels is None else tuple(one for one in BITS if one in {*suggestion} - {*labels})


def _is_repeatable(payload: Mapping[str, Any], known: LabelContext) -> bool:
    """Tell whether the tool is idempotent.

    A preset may say so. For API operations, our own annotations do, from the method; else the
    server must declare the tool read-only, and its name and arguments must agree.
    """
    if FlowLabel.REPEATABLE in dict(known.preset).get(str(payload.get("name") or ""), ()):
        return True
    said = payload.get("annotations")
    hints = said if isinstance(said, Mapping) else {}
    if known.transport == "openapi":
        return hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True
    clues = read_clues(payload)
    looks = clues.is_pure or (clues.deed == "read" and not _has_external_effect(clues))
    return looks and hints.get("readOnlyHint") is True


def _infer_resource_labels(known: LabelContext) -> Labels:
    of_server = dict(known.preset).get("*")
    if of_server is None:
        return (FlowLabel.PRIVATE_DATA,)
    return tuple(label for label in of_server if label in SEEN) or (FlowLabel.PRIVATE_DATA,)


def _infer_operation_labels(payload: Mapping[str, Any], clues: ToolClues) -> set[FlowLabel]:
    """Return the labels of an API operation; our annotation says whether it only reads."""
    hints = payload.get("annotations")
    only_reads = isinstance(hints, Mapping) and hints.get("readOnlyHint") is True
    found = {FlowLabel.PRIVATE_DATA if only_reads else FlowLabel.SENDS_OUT}
    return found | ({FlowLabel.SENDS_OUT} if clues.has_address else set())


def _apply_server_labels(
    found: set[FlowLabel], server: frozenset[FlowLabel], clues: ToolClues
) -> set[FlowLabel]:
    """Return a tool's labels if the catalog has labels for its server.

    Labels of read data apply to all tools; an external effect depends on the tool.
    """
    seen = server & frozenset(SEEN)
    sends = FlowLabel.SENDS_OUT in found or (
        FlowLabel.SENDS_OUT in server and clues.deed not in ("read", "look")
    )
    return {*seen, *((FlowLabel.SENDS_OUT,) if sends else ())}


def _with_hints(found: set[FlowLabel], payload: Mapping[str, Any], clues: ToolClues) -> Labels:
    """Add untrusted content for `openWorldHint` if no other clue decides.

    Libraries set this hint for every tool.
    """
    hints = payload.get("annotations")
    if isinstance(hints, Mapping) and hints.get("openWorldHint") is True:
        known = (
            clues.deed in ("change", "control", "send", "look") or FlowLabel.PRIVATE_DATA in found
        )
        known = known and not clues.is_pure
        found = found if known else found | {FlowLabel.UNTRUSTED_CONTENT}
    return tuple(label for label in BITS if label in found)


def _infer_tool_labels(
    clues: ToolClues, payload: Mapping[str, Any], known: LabelContext
) -> set[FlowLabel]:
    if clues.is_pure:
        return set()
    found = (
        {FlowLabel.SENDS_OUT}
        if _has_external_effect(clues) or _may_send(clues, payload, known)
        else set()
    )
    return found | _brings(clues)


def _has_external_effect(clues: ToolClues) -> bool:
    """Tell whether a call has an external effect: by address, code or action."""
    if clues.has_address or clues.runs_code:
        return True
    if clues.names_recipients and clues.deed != "read" and "draft" not in clues.name:
        return True
    if clues.deed in ("send", "act"):
        return clues.deed == "send" or clues.is_in_browser
    if clues.deed == "control":
        hosted = words("things", "hosted") | words("things", "public")
        return clues.is_at_service or bool(clues.named & hosted)
    if clues.deed in ("change", "run"):
        return _changes_elsewhere(clues)
    return not clues.deed and not clues.is_local and clues.says_it_sends


def _changes_elsewhere(clues: ToolClues) -> bool:
    """Tell whether others see the change; assumed if nothing else is known."""
    if clues.is_own or (clues.is_in_browser):
        return False
    if clues.is_local:
        return clues.says_it_sends and not {*clues.name} & words("things", "local")
    return True


def _may_send(clues: ToolClues, payload: Mapping[str, Any], known: LabelContext) -> bool:
    """Tell whether an unclear tool may send: it takes text remotely, or has a destructive hint."""
    if clues.is_local or clues.is_own or clues.is_in_browser:
        return False
    hints = payload.get("annotations")
    if isinstance(hints, Mapping) and hints.get("destructiveHint") is True:
        return not clues.is_named_a_reader
    if clues.deed:
        return False
    texts = any(_is_text(one) for one in clues.arguments.values())
    return texts and (known.transport != "stdio" or clues.is_at_service)


def _brings(clues: ToolClues) -> set[FlowLabel]:
    """Return the labels of the answer."""
    if clues.runs_code and not clues.is_in_browser:
        return {*SEEN}
    if clues.is_in_browser:
        reads = clues.deed in ("read", "act", "send", "run") or clues.has_address
        return {FlowLabel.UNTRUSTED_CONTENT} if reads else set()
    quiet = clues.deed in ("change", "control", "look") and not clues.is_deed_a_guess
    if (quiet or clues.deed in ("send", "act")) and "read" not in clues.chooses:
        return {FlowLabel.UNTRUSTED_CONTENT} if clues.has_url and not quiet else set()
    return _read(clues)


def _read(clues: ToolClues) -> set[FlowLabel]:
    """Return the labels of read data; both if nothing is known."""
    private, guide = words("things", "private"), words("things", "guide")
    if not clues.named & private and (clues.named | {*clues.sentence}) & guide:
        return set()
    if is_of_the_web(clues):
        return {FlowLabel.UNTRUSTED_CONTENT}
    known = clues.things & private - _AMBIGUOUS or clues.is_local
    if _is_untrusted(clues) or not known:
        return {*SEEN}
    return {FlowLabel.PRIVATE_DATA}


def is_of_the_web(clues: ToolClues) -> bool:
    """Tell whether the tool reads public data: nothing private, or a web page by URL."""
    web, published = words("things", "web"), words("things", "published")
    if clues.named & words("things", "private") - _AMBIGUOUS:
        return bool(clues.named & web) and clues.has_address
    if clues.named & (web | published) or clues.has_address:
        return True
    if {*clues.sentence} & (web | published) and not clues.is_at_service:
        return True
    # A search without a description is a web search.
    return "search" in clues.name and not clues.sentence


def _is_untrusted(clues: ToolClues) -> bool:
    if clues.has_address:
        return True
    last = clues.name[-1] if clues.name else ""
    if last in words("things", "structure") or clues.is_named_local:
        return False
    untrusted = words("things", "untrusted") | words("things", "shared_source")
    if clues.named & untrusted:
        return True
    # Descriptions of services mention things that aren't in the answer.
    passing = words("things", "passing") if clues.is_at_service else frozenset()
    return bool(clues.things & untrusted - passing)


def _is_text(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string" and may_be_text(schema)
