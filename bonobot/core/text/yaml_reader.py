"""A bounded YAML 1.2 parser that returns the nodes of `json_reader`.

It uses the parser's events and constructs no objects: no tags, and `no` or `on` stay text. Aliases
(a few lines can expand to gigabytes) are read only if the caller sets a budget.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.json_reader import (
    MAX_DEPTH,
    MAX_TEXT_BYTES,
    ParsedDocument,
    SourceNode,
    has_unstorable_characters,
)

_BLANK = re.compile(r"(?:[ \t\r\n\ufeff]|\#[^\n]*(?:\n|\Z))*")
_BEGINS_YAML = re.compile(r"---(?:\s|\Z)|%YAML|- |[A-Za-z_][^\s:{}\[\],\"]*\s*:(?:\s|\Z)")
_INTEGER = re.compile(r"[-+]?[0-9]{1,300}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?")
_LITERALS = {"true": True, "false": False, "null": None, "~": None, "": None}
_TEXT_TAG = "tag:yaml.org,2002:str"
MERGE_KEY = "<<"
CHARACTERS_PER_VALUE = 64  # characters of text that count as one value


def is_yaml(text: str) -> bool:
    """Return whether a text is YAML; false if it begins like JSON."""
    blank = _BLANK.match(text)
    offset = blank.end() if blank else 0
    return _BEGINS_YAML.match(text, offset) is not None


def read_yaml(text: str) -> ParsedDocument:
    """Parse a text with one document.

    Raises `InvalidInput`: `broken_yaml`, `too_large`, `too_deep`, `unsupported_yaml`.
    """
    documents = read_yaml_documents(text)
    if len(documents) != 1:
        raise InvalidInput(
            format_message(
                "The text contains {count} YAML documents.",
                count=len(documents),
            ),
            code="unsupported_yaml",
            remedy="Import one document at a time. Split the text at `---`.",
        )
    return ParsedDocument(documents[0])


def read_yaml_documents(
    text: str,
    *,
    max_bytes: int = MAX_TEXT_BYTES,
    loader: Any = yaml.SafeLoader,
    alias_budget: int = 0,
) -> tuple[SourceNode, ...]:
    """Parse every document of a text; raises `InvalidInput` like `read_yaml`.

    `loader` provides the parser. `alias_budget` is how much aliases may add, in values of at most
    64 characters; 0 refuses aliases and merge keys (`<<`).
    """
    if len(text.encode("utf-8", "surrogatepass")) > max_bytes:
        raise InvalidInput(
            format_message("The text is larger than {limit} KiB.", limit=max_bytes // 1024),
            code="too_large",
            remedy="Split it into several files.",
        )
    builder = _NodeBuilder(alias_budget)
    try:
        for event in yaml.parse(text.lstrip("\ufeff"), Loader=loader):
            builder.handle_event(event)
    except yaml.MarkedYAMLError as error:
        raise _build_syntax_error(error.problem_mark, error.problem or "it can't be read") from None
    except yaml.YAMLError:
        # A character that YAML doesn't allow; the library's own message would quote the text.
        raise _build_syntax_error(None, "it contains a character that YAML doesn't allow") from None
    return tuple(builder.documents)


@dataclass(slots=True)
class _OpenCollection:
    """A mapping or sequence that isn't closed yet, and the key of the next value."""

    line: int
    is_mapping: bool
    fields: list[tuple[str, int, SourceNode]] = field(default_factory=list)
    items: list[SourceNode] = field(default_factory=list)
    key: tuple[str, int] | None = None
    anchor: str = ""
    weight: int = 1
    depth: int = 1

    def build_node(self) -> SourceNode:
        if self.is_mapping:
            return SourceNode({}, self.line, fields=tuple(self.fields))
        return SourceNode([], self.line, items=tuple(self.items))

    def merge(self, node: SourceNode, line: int) -> None:
        """Merge the fields of a mapping or of several; own and earlier ones take precedence."""
        mappings = node.items if isinstance(node.value, list) else (node,)
        for mapping in mappings:
            if not isinstance(mapping.value, dict):
                raise _build_unsupported_error(
                    line, "a merge key (`<<`) whose value isn't a mapping"
                )
            # The last of duplicate fields wins, so inherited ones go first.
            self.fields[:0] = mapping.fields


@dataclass(frozen=True, slots=True)
class _AnchorTarget:
    """The value of an anchor with its weight and depth."""

    node: SourceNode
    weight: int
    depth: int


class _NodeBuilder:
    """Builds nodes from parser events."""

    def __init__(self, alias_budget: int) -> None:
        self.documents: list[SourceNode] = []
        self._open: list[_OpenCollection] = []
        self._allows_aliases = bool(alias_budget)
        self._alias_budget = alias_budget
        self._anchors: dict[str, _AnchorTarget] = {}

    def handle_event(self, event: Any) -> None:
        line = event.start_mark.line + 1
        if not self._allows_aliases and getattr(event, "anchor", None):
            raise _build_unsupported_error(line, "anchors and aliases (`&`, `*`)")
        if isinstance(event, yaml.AliasEvent):
            self._add_alias(event.anchor or "", line)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._anchors.clear()
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._open_collection(event, line)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            frame = self._open.pop()
            self._add_value(
                _AnchorTarget(frame.build_node(), frame.weight, frame.depth), frame.anchor
            )
        elif isinstance(event, yaml.ScalarEvent):
            self._add_scalar(event, line)

    def _open_collection(self, event: Any, line: int) -> None:
        if event.tag:
            raise _build_unsupported_error(line, "tags (`!`)")
        if self._needs_key():
            raise _build_unsupported_error(line, "keys that aren't strings")
        if len(self._open) >= MAX_DEPTH:
            raise InvalidInput(
                format_message(
                    "The text is nested more than {deepest} levels deep.", deepest=MAX_DEPTH
                ),
                code="too_deep",
                remedy="Server configurations are never nested that deep.",
                extra={"line": line},
            )
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        self._open.append(_OpenCollection(line, is_mapping, anchor=event.anchor or ""))

    def _add_alias(self, name: str, line: int) -> None:
        """Add the value of an alias; its anchor must be complete."""
        target = self._anchors.get(name)
        if target is None or self._needs_key():
            raise _build_unsupported_error(line, "an alias (`*`) without a preceding anchor")
        self._alias_budget -= target.weight
        if self._alias_budget < 0 or len(self._open) + target.depth > MAX_DEPTH:
            raise InvalidInput(
                format_message(
                    "The text is too large after the aliases (`*`) in line {line} are expanded.",
                    line=line,
                ),
                code="too_large",
                remedy="Write the values out, or omit what the servers don't need.",
                extra={"line": line},
            )
        self._add_value(target)

    def _add_scalar(self, event: Any, line: int) -> None:
        if event.tag not in (None, "!", _TEXT_TAG):
            raise _build_unsupported_error(line, "tags (`!`)")
        if has_unstorable_characters(event.value):
            raise _build_syntax_error(
                event.start_mark, "a string contains a character that can't be stored"
            )
        if self._needs_key():
            self._open[-1].key = (event.value, line)
            return
        is_plain = event.style in (None, "") and event.tag is None
        node = SourceNode(_parse_scalar(event.value) if is_plain else event.value, line)
        self._add_value(
            _AnchorTarget(node, 1 + len(event.value) // CHARACTERS_PER_VALUE, 0), event.anchor or ""
        )

    def _needs_key(self) -> bool:
        return bool(self._open) and self._open[-1].is_mapping and self._open[-1].key is None

    def _add_value(self, value: _AnchorTarget, anchor: str = "") -> None:
        if anchor:
            self._anchors[anchor] = value
        if not self._open:
            self.documents.append(value.node)
            return
        frame = self._open[-1]
        frame.weight += value.weight
        frame.depth = max(frame.depth, value.depth + 1)
        if frame.key is None:
            frame.items.append(value.node)
            return
        if self._allows_aliases and frame.key[0] == MERGE_KEY:
            frame.merge(value.node, frame.key[1])
        else:
            frame.fields.append((*frame.key, value.node))
        frame.key = None


def can_omit_quotes(text: str) -> bool:
    """Return whether an unquoted text is parsed as text."""
    return isinstance(_parse_scalar(text), str)


def _parse_scalar(text: str) -> Any:
    """Parse a plain scalar by YAML 1.2's core schema; dates and `yes` stay text."""
    lowered = text.lower()
    if lowered in _LITERALS and text in (lowered, lowered.upper(), lowered.capitalize()):
        return _LITERALS[lowered]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _build_syntax_error(mark: Any, reason: str) -> InvalidInput:
    location = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    # The library's message quotes at most single characters of the text.
    return InvalidInput(
        format_message("The text isn't valid YAML: {why}{where}.", why=reason, where=location),
        code="broken_yaml",
        remedy="Fix that line. Indent with spaces, and quote strings that contain `:` or `#`.",
        extra={"line": mark.line + 1, "column": mark.column + 1} if mark else {},
    )


def _build_unsupported_error(line: int, feature: str) -> InvalidInput:
    return InvalidInput(
        format_message("Line {line} contains unsupported YAML: {what}.", line=line, what=feature),
        code="unsupported_yaml",
        remedy="Write the value out.",
        extra={"line": line},
    )
