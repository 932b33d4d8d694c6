"""Suggest labels from a tool's name, description and schema (pure).

Suggestions apply until a person sets labels. They use words of the name and description, the
arguments, and the catalog's labels for the server. Unknown tools are assumed to read private data
and untrusted content; calculations and clocks get no label. The server's own hints only add labels.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mcp_servers.flow_labels import LABEL_BITS, FlowLabel
from mcp_servers.flow_labels.tool_clues import ToolClues, can_be_text, extract_clues, get_words
from mcp_servers.openapi.operations import find_declared_labels

Labels = tuple[FlowLabel, ...]
READ_DATA_LABELS: Labels = (FlowLabel.PRIVATE_DATA, FlowLabel.UNTRUSTED_CONTENT)
# A page is private in a notebook and public on the web.
_AMBIGUOUS = frozenset({"page"})


@dataclass(frozen=True, slots=True)
class LabelContext:
    """What is known about a definition's server: its transport and the catalog's labels.

    `preset_labels` are pairs of a tool's own name (or `*`) and its labels. `is_declared` means that
    an administrator declared the operations: labels in them are trusted.
    """

    transport: str = "stdio"
    preset_labels: tuple[tuple[str, Labels], ...] = ()
    is_declared: bool = False


def build_label_context(
    transport: str, preset: object = None, *, declared: bool = False
) -> LabelContext:
    """Return the context of a server; `preset` are its preset's labels: a list, or by tool."""
    if isinstance(preset, Mapping):
        pairs = tuple((str(name), parse_labels(labels)) for name, labels in preset.items())
    else:
        labels_for_all = parse_labels(preset)
        pairs = (("*", labels_for_all),) if labels_for_all else ()
    return LabelContext(transport, pairs, declared)


def parse_labels(raw: object) -> Labels:
    """Parse labels of a file: `private-data` or `private_data`; ignore unknown ones."""
    if not isinstance(raw, Collection) or isinstance(raw, str):
        return ()
    names = {str(item).replace("-", "_") for item in raw}
    return tuple(label for label in FlowLabel if label in names)


def infer_labels(kind: str, payload: Mapping[str, Any], context: LabelContext) -> Labels:
    """Return the suggested labels of a definition, in a fixed order."""
    if context.is_declared and (declared_labels := find_declared_labels(payload)) is not None:
        return parse_labels(declared_labels)
    labels = _infer_flow_labels(kind, payload, context)
    is_repeatable = kind == "tool" and _is_repeatable(payload, context)
    return (*labels, FlowLabel.REPEATABLE) if is_repeatable else labels


def _infer_flow_labels(kind: str, payload: Mapping[str, Any], context: LabelContext) -> Labels:
    if kind in ("resource", "resource_template", "skill"):
        return _infer_resource_labels(context)
    if kind != "tool":
        return ()
    preset_labels = dict(context.preset_labels)
    name = str(payload.get("name") or "")
    clues = extract_clues(payload)
    if name in preset_labels:
        labels = {*preset_labels[name]}
    elif context.transport == "openapi":
        labels = _infer_operation_labels(payload, clues)
    else:
        labels = _infer_tool_labels(clues, payload, context)
        if "*" in preset_labels and not clues.is_pure:
            labels = _apply_server_labels(labels, frozenset(preset_labels["*"]), clues)
    return _apply_hints(labels, payload, clues)


def list_missing_labels(suggestion: Collection[str], labels: Collection[str] | None) -> Labels:
    """Return the suggested flow labels that the set labels lack; empty if none were set."""
    return (
        ()
        if labels is None
        else tuple(label for label in LABEL_BITS if label in {*suggestion} - {*labels})
    )


def _is_repeatable(payload: Mapping[str, Any], context: LabelContext) -> bool:
    """Tell whether the tool is idempotent.

    A preset may say so. For API operations, our own annotations do, from the method; else the
    server must declare the tool read-only, and its name and arguments must agree.
    """
    if FlowLabel.REPEATABLE in dict(context.preset_labels).get(str(payload.get("name") or ""), ()):
        return True
    annotations = payload.get("annotations")
    hints = annotations if isinstance(annotations, Mapping) else {}
    if context.transport == "openapi":
        return hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True
    clues = extract_clues(payload)
    appears_read_only = clues.is_pure or (
        clues.action == "read" and not _has_external_effect(clues)
    )
    return appears_read_only and hints.get("readOnlyHint") is True


def _infer_resource_labels(context: LabelContext) -> Labels:
    server_labels = dict(context.preset_labels).get("*")
    if server_labels is None:
        return (FlowLabel.PRIVATE_DATA,)
    return tuple(label for label in server_labels if label in READ_DATA_LABELS) or (
        FlowLabel.PRIVATE_DATA,
    )


def _infer_operation_labels(payload: Mapping[str, Any], clues: ToolClues) -> set[FlowLabel]:
    """Return the labels of an API operation; our annotation says whether it only reads."""
    hints = payload.get("annotations")
    only_reads = isinstance(hints, Mapping) and hints.get("readOnlyHint") is True
    labels = {FlowLabel.PRIVATE_DATA if only_reads else FlowLabel.SENDS_OUT}
    return labels | ({FlowLabel.SENDS_OUT} if clues.has_address else set())


def _apply_server_labels(
    tool_labels: set[FlowLabel], server_labels: frozenset[FlowLabel], clues: ToolClues
) -> set[FlowLabel]:
    """Return a tool's labels if the catalog has labels for its server.

    Labels of read data apply to all tools; an external effect depends on the tool.
    """
    read_labels = server_labels & frozenset(READ_DATA_LABELS)
    has_external_effect = FlowLabel.SENDS_OUT in tool_labels or (
        FlowLabel.SENDS_OUT in server_labels and clues.action not in ("read", "look")
    )
    return {*read_labels, *((FlowLabel.SENDS_OUT,) if has_external_effect else ())}


def _apply_hints(labels: set[FlowLabel], payload: Mapping[str, Any], clues: ToolClues) -> Labels:
    """Add untrusted content for `openWorldHint` if no other clue decides.

    Libraries set this hint for every tool.
    """
    hints = payload.get("annotations")
    if isinstance(hints, Mapping) and hints.get("openWorldHint") is True:
        is_decided = (
            clues.action in ("change", "control", "send", "look")
            or FlowLabel.PRIVATE_DATA in labels
        )
        is_decided = is_decided and not clues.is_pure
        labels = labels if is_decided else labels | {FlowLabel.UNTRUSTED_CONTENT}
    return tuple(label for label in LABEL_BITS if label in labels)


def _infer_tool_labels(
    clues: ToolClues, payload: Mapping[str, Any], context: LabelContext
) -> set[FlowLabel]:
    if clues.is_pure:
        return set()
    labels = (
        {FlowLabel.SENDS_OUT}
        if _has_external_effect(clues) or _can_send(clues, payload, context)
        else set()
    )
    return labels | _infer_answer_labels(clues)


def _has_external_effect(clues: ToolClues) -> bool:
    """Tell whether a call has an external effect: by address, code or action."""
    if clues.has_address or clues.can_run_code:
        return True
    if clues.has_recipient_and_text and clues.action != "read" and "draft" not in clues.name_words:
        return True
    if clues.action in ("send", "act"):
        return clues.action == "send" or clues.is_browser_tool
    if clues.action == "control":
        hosted_words = get_words("things", "hosted") | get_words("things", "public")
        return clues.is_shared_service or bool(clues.meaningful_words & hosted_words)
    if clues.action in ("change", "run"):
        return _is_change_visible(clues)
    return not clues.action and not clues.is_local and clues.mentions_sending


def _is_change_visible(clues: ToolClues) -> bool:
    """Tell whether others see the change; assumed if nothing else is known."""
    if clues.is_personal or (clues.is_browser_tool):
        return False
    if clues.is_local:
        return clues.mentions_sending and not {*clues.name_words} & get_words("things", "local")
    return True


def _can_send(clues: ToolClues, payload: Mapping[str, Any], context: LabelContext) -> bool:
    """Tell whether an unclear tool may send: it takes text remotely, or has a destructive hint."""
    if clues.is_local or clues.is_personal or clues.is_browser_tool:
        return False
    hints = payload.get("annotations")
    if isinstance(hints, Mapping) and hints.get("destructiveHint") is True:
        return not clues.has_read_verb
    if clues.action:
        return False
    has_text_argument = any(_is_text(schema) for schema in clues.arguments.values())
    return has_text_argument and (context.transport != "stdio" or clues.is_shared_service)


def _infer_answer_labels(clues: ToolClues) -> set[FlowLabel]:
    if clues.can_run_code and not clues.is_browser_tool:
        return {*READ_DATA_LABELS}
    if clues.is_browser_tool:
        reads = clues.action in ("read", "act", "send", "run") or clues.has_address
        return {FlowLabel.UNTRUSTED_CONTENT} if reads else set()
    is_quiet = clues.action in ("change", "control", "look") and not clues.is_action_guessed
    if (is_quiet or clues.action in ("send", "act")) and "read" not in clues.selectable_actions:
        return {FlowLabel.UNTRUSTED_CONTENT} if clues.has_url and not is_quiet else set()
    return _infer_read_labels(clues)


def _infer_read_labels(clues: ToolClues) -> set[FlowLabel]:
    """Return the labels of read data; both if nothing is known."""
    private_words, guide_words = get_words("things", "private"), get_words("things", "guide")
    if (
        not clues.meaningful_words & private_words
        and (clues.meaningful_words | {*clues.sentence_words}) & guide_words
    ):
        return set()
    if is_public_web(clues):
        return {FlowLabel.UNTRUSTED_CONTENT}
    has_private_subject = clues.subject_words & private_words - _AMBIGUOUS or clues.is_local
    if _is_untrusted(clues) or not has_private_subject:
        return {*READ_DATA_LABELS}
    return {FlowLabel.PRIVATE_DATA}


def is_public_web(clues: ToolClues) -> bool:
    """Tell whether the tool reads public data: nothing private, or a web page by URL."""
    web_words, published_words = get_words("things", "web"), get_words("things", "published")
    if clues.meaningful_words & get_words("things", "private") - _AMBIGUOUS:
        return bool(clues.meaningful_words & web_words) and clues.has_address
    if clues.meaningful_words & (web_words | published_words) or clues.has_address:
        return True
    if {*clues.sentence_words} & (web_words | published_words) and not clues.is_shared_service:
        return True
    # A search without a description is a web search.
    return "search" in clues.name_words and not clues.sentence_words


def _is_untrusted(clues: ToolClues) -> bool:
    if clues.has_address:
        return True
    last_word = clues.name_words[-1] if clues.name_words else ""
    if last_word in get_words("things", "structure") or clues.is_named_local:
        return False
    untrusted_words = get_words("things", "untrusted") | get_words("things", "shared_source")
    if clues.meaningful_words & untrusted_words:
        return True
    # Descriptions of services mention things that aren't in the answer.
    ignored_words = get_words("things", "passing") if clues.is_shared_service else frozenset()
    return bool(clues.subject_words & untrusted_words - ignored_words)


def _is_text(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string" and can_be_text(schema)
