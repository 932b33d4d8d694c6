"""Suggest labels from a tool's name, description and schema (pure).

Suggestions apply until a person sets labels. They use words of the name and description, the
arguments, and the catalog's labels for the server. Unknown tools are assumed to read private data
and untrusted content; calculations and clocks get no label. The server's own hints only add labels.

They follow from clues in the declaration: its action, subjects, location and arguments, by words
(`label_words.toml`) in the name, the first sentence of the description and the argument names.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from bonobot.core.process_cache import compute_once
from mcp_servers.flow_labels import LABEL_BITS, FlowLabel
from mcp_servers.openapi.operations import find_declared_labels

MAX_DESCRIPTION_CHARACTERS = 4_096
MAX_ARGUMENTS = 200
MAX_CHOICES = 50
# A description has its verb among the first words, if at all.
_MAX_VERB_POSITION = 8
_MAX_VAGUE_VERB_POSITION = 3
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+\d*|\d+")
_LOWERCASE_WORD = re.compile(r"[a-z]+\d*")
_SENTENCE_END = re.compile(r"[.\n]\s|[.\n]$|\n")
_OPEN_PAGE = re.compile(r"\b(?:current|web)\s+page\b")
# Anywhere in a description, an external effect; negations are ignored, to be safe.
_SENDING_PHRASE = re.compile(
    r"\b(?:send|post|publish|forward|upload|transmit|deliver)(?:s|ing|es)?\s+"
    r"(?:\w+\s+){0,4}(?:to|an?|the|e?mails?|messages?|via|over)\b"
    r"|\bmakes?\s+(?:an?\s+)?(?:http|web|api|network)\s+(?:request|call)s?\b"
    r"|\bweb\s?hooks?\b|\bout(?:going|bound)\b|\bruns?\s+(?:a\s+)?(?:shell|command|script)s?\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ToolClues:
    """The words of a tool's name and first sentence, in order, and its arguments."""

    name_words: tuple[str, ...]
    sentence_words: tuple[str, ...]
    description: str
    arguments: Mapping[str, Any]

    @cached_property
    def meaningful_words(self) -> frozenset[str]:
        """Return the words of the name without filler words."""
        return frozenset(self.name_words) - get_words("other", "filler")

    @cached_property
    def subject_words(self) -> frozenset[str]:
        """Return the words of the name, with known ones of the sentence if the name has none."""
        known_words = get_words("things", "private") | get_words("things", "untrusted")
        known_words |= get_words("things", "web") | get_words("things", "published")
        return (
            self.meaningful_words
            if self.meaningful_words & known_words
            else self.meaningful_words | (frozenset(self.sentence_words) & known_words)
        )

    @cached_property
    def action(self) -> str:
        """Return the action: `read`, `change`, `send`, `act`, `run`, `look` …, or "".

        From a clear verb of the name, else the description's verb, else a vague verb of the name.
        """
        if {"or", "and"} & {*self.name_words} and any(
            _get_clear_action(word) == "change" for word in self.name_words
        ):
            return "change"
        if self.name_words and self.name_words[-1] in get_words("other", "closing"):
            return "read"
        if clear_action := _find_first_action(_get_clear_action, self.name_words):
            return clear_action
        if self.selectable_actions & {"change", "send"}:
            return "change"
        leading_words = self.sentence_words[:_MAX_VERB_POSITION]
        return (
            _find_first_action(_get_clear_action, leading_words)
            or _find_first_action(_get_vague_action, leading_words[:_MAX_VAGUE_VERB_POSITION])
            or _find_first_action(_get_vague_action, self.name_words)
        )

    @cached_property
    def is_action_guessed(self) -> bool:
        """Tell whether the action comes only from a vague word of the name (`git_branch`)."""
        leading_words = self.sentence_words[:_MAX_VERB_POSITION]
        explicit_action = _find_first_action(
            _get_clear_action, (*self.name_words, *leading_words)
        ) or _find_first_action(_get_vague_action, leading_words[:_MAX_VAGUE_VERB_POSITION])
        return bool(self.action) and not explicit_action and not self.selectable_actions

    @cached_property
    def has_read_verb(self) -> bool:
        """Tell whether the name has a clear or vague verb for reading."""
        return any(
            "read" in (_get_clear_action(word), _get_vague_action(word)) for word in self.name_words
        )

    @cached_property
    def selectable_actions(self) -> frozenset[str]:
        """Return the actions that an argument selects from (`action`: `list`, `delete`)."""
        actions = set()
        for name, schema in self.arguments.items():
            choices = schema.get("enum") if isinstance(schema, Mapping) else None
            if name.lower() in get_words("arguments", "choice") and isinstance(choices, list):
                for value in choices[:MAX_CHOICES]:
                    actions |= {
                        _get_clear_action(word) or _get_vague_action(word)
                        for word in split_words(str(value)[:80])
                    }
        return frozenset(actions - {""})

    @cached_property
    def argument_words(self) -> frozenset[str]:
        return frozenset(word for name in self.arguments for word in split_argument_name(name))

    @cached_property
    def has_address(self) -> bool:
        """Tell whether an argument is an address, so that the caller selects the destination."""
        return any(_is_address(name, schema) for name, schema in self.arguments.items())

    @cached_property
    def has_url(self) -> bool:
        """Tell whether an argument is a URL by its full name: its content is returned."""
        return bool({name.lower() for name in self.arguments} & get_words("arguments", "url"))

    @cached_property
    def has_recipient_and_text(self) -> bool:
        """Tell whether the arguments include a recipient and a text."""
        recipients = get_words("arguments", "recipient")
        argument_name_words = [split_argument_name(name) for name in self.arguments]
        has_recipient = any(
            parts and {parts[0], parts[-1]} & recipients for parts in argument_name_words
        )
        return has_recipient and bool(self.argument_words & get_words("arguments", "text"))

    @cached_property
    def can_run_code(self) -> bool:
        """Tell whether the tool runs code from its arguments."""
        if {*self.name_words} & get_words("things", "shell"):
            return True
        if any(
            name.lower() in get_words("arguments", "command") and can_be_text(schema)
            for name, schema in self.arguments.items()
        ):
            return True
        is_run_action = self.action == "run" or bool({*self.name_words} & get_words("verbs", "run"))
        code_words = get_words("things", "code") | {"function", "expression"}
        return is_run_action and bool(({*self.name_words} | self.argument_words) & code_words)

    @cached_property
    def is_browser_tool(self) -> bool:
        """Tell whether the tool controls a browser."""
        all_words = {*self.name_words, *self.sentence_words}
        if all_words & get_words("things", "browser") or {*self.name_words} & get_words(
            "verbs", "act"
        ):
            return True
        if {name.lower() for name in self.arguments} & get_words("arguments", "page_part"):
            return True
        return not self.is_shared_service and bool(_OPEN_PAGE.search(" ".join(self.sentence_words)))

    @cached_property
    def is_shared_service(self) -> bool:
        """Tell whether arguments look like those of a shared service: owners, tenants, IDs."""
        if self.argument_words & get_words("things", "service") and not self._has_local_clone:
            return True
        return any(_is_id(name) for name in self.arguments)

    @property
    def _has_local_clone(self) -> bool:
        """Tell whether the repository is a local folder (`repo_path`)."""
        return not self.argument_words & (get_words("things", "service") - {"repo"}) and any(
            {"repo", "path"} <= {*split_argument_name(name)} for name in self.arguments
        )

    @cached_property
    def is_local(self) -> bool:
        """Tell whether the tool works on local data that others can't read."""
        if self.is_shared_service:
            return False
        local_words = get_words("things", "local") | get_words("things", "at_hand")
        relevant_words = (
            {*self.name_words} if {*self.name_words} & local_words else {*self.sentence_words}
        )
        path_words = self.argument_words & get_words("arguments", "path")
        return bool(relevant_words & local_words) or self._has_local_clone or bool(path_words)

    @cached_property
    def is_named_local(self) -> bool:
        """Tell whether the name, or a local clone in the arguments, says that the data is local."""
        has_local_word = bool({*self.name_words} & get_words("things", "local"))
        return self.is_local and (has_local_word or self._has_local_clone)

    @cached_property
    def is_personal(self) -> bool:
        """Tell whether the tool organizes a person's own data without notifying others."""
        if self.action == "send" or self.argument_words & get_words("things", "service"):
            return False
        return bool({*self.name_words} & get_words("things", "own"))

    @cached_property
    def is_pure(self) -> bool:
        """Tell whether all words of the name are about calculations, clocks and similar."""
        if not self.name_words or not self.meaningful_words <= get_words("other", "pure"):
            return False
        if not self.meaningful_words and {*self.name_words} != {"test"}:
            return False
        risky_words = get_words("things", "code") | get_words("arguments", "recipient")
        risky_words |= get_words("things", "local") | get_words("things", "service")
        return not self.has_address and not self.argument_words & risky_words

    @cached_property
    def mentions_sending(self) -> bool:
        """Tell whether the description mentions sending."""
        return bool(_SENDING_PHRASE.search(self.description))


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


def extract_clues(payload: Mapping[str, Any]) -> ToolClues:
    """Return the clues in a declaration; never raises."""
    description = payload.get("description")
    text = description[:MAX_DESCRIPTION_CHARACTERS] if isinstance(description, str) else ""
    sentence = _SENTENCE_END.split(text.strip(), maxsplit=1)[0].lower()
    return ToolClues(
        name_words=tuple(split_words(str(payload.get("name") or "")[:512])),
        sentence_words=tuple(singularize(word) for word in _LOWERCASE_WORD.findall(sentence)),
        description=text,
        arguments=_get_arguments(payload),
    )


def split_words(text: str) -> list[str]:
    """Return the words of a name in lower case and singular."""
    return [singularize(word.lower()) for word in _WORD.findall(text)]


def singularize(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    if word.endswith(("sses", "xes", "ches", "shes")) or word in ("aliases", "statuses"):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is", "dns", "rss", "sms", "js")):
        return word[:-1]
    return word


@lru_cache(maxsize=4096)
def deletes_by_name(name: str) -> bool:
    """Tell whether the first verb in the name of a tool says that it deletes something."""
    verbs = (word for word in split_words(name[:512]) if _get_clear_action(word))
    return next(verbs, "") in get_words("other", "destructive")


def split_argument_name(name: str) -> tuple[str, ...]:
    """Return the words of an argument's name in lower case."""
    return tuple(word.lower() for word in _WORD.findall(name[:200]))


def can_be_text(schema: Any) -> bool:
    """Tell whether an argument accepts free text."""
    if not isinstance(schema, Mapping):
        return True
    return schema.get("type") not in ("boolean", "integer", "number") and "enum" not in schema


def _get_clear_action(word: str) -> str:
    return _get_action(word, "verbs")


def _get_vague_action(word: str) -> str:
    return _get_action(word, "vague")


def _find_first_action(get_action: Callable[[str], str], candidate_words: Iterable[str]) -> str:
    return next((action for word in candidate_words if (action := get_action(word))), "")


def _get_action(word: str, section: str) -> str:
    """Return the action of a verb in any form."""
    actions_by_verb = get_verb_actions(section)
    forms: Iterable[str] = (word, word.removesuffix("e"), word.removesuffix("ing"))
    return next((actions_by_verb[form] for form in forms if form in actions_by_verb), "")


def _get_arguments(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = payload.get("inputSchema")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return {}
    return {
        str(name): property_schema
        for name, property_schema in list(properties.items())[:MAX_ARGUMENTS]
    }


def _is_address(name: str, schema: Any) -> bool:
    parts = split_argument_name(name)
    name_endings = {parts[-1], "".join(parts[-2:])} if parts else set()
    if name_endings & get_words("arguments", "address") and can_be_text(schema):
        return True
    return isinstance(schema, Mapping) and schema.get("format") in ("uri", "iri", "url")


def _is_id(name: str) -> bool:
    parts = split_argument_name(name)
    if len(parts) < 2 or parts[-1] not in ("id", "ids"):
        return False
    return not {*parts} & get_words("things", "at_hand")


FILE = Path(__file__).with_name("label_words.toml")


@compute_once
def get_words(section: str, name: str) -> frozenset[str]:
    """Return one word list. Raises `KeyError` if it doesn't exist."""
    return _load_sections()[section][name]


@compute_once
def get_verb_actions(section: str) -> dict[str, str]:
    """Return the action (`read`, `change`, `send` …) of each verb in a section."""
    return {
        word: action
        for action, word_list in _load_sections()[section].items()
        for word in word_list
    }


@compute_once
def _load_sections() -> dict[str, dict[str, frozenset[str]]]:
    with FILE.open("rb") as file:
        data = tomllib.load(file)
    return {
        section: {name: frozenset(word_list.split()) for name, word_list in lists.items()}
        for section, lists in data.items()
    }


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
