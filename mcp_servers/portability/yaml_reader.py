"""Read YAML into the same nodes as JSON: with lines, bounded, and with the plain types of YAML 1.2.

Built from the parser's events, so nothing is ever constructed: no tags, no aliases (a few lines of
them make gigabytes), and `no` or `on` stay the texts that their writer meant.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from bonobot.lib.problems import Invalid
from mcp_servers.portability.reader import DEEPEST, LONGEST_TEXT, Node, Reading, unstorable

_BLANK = re.compile(r"(?:[ \t\r\n\ufeff]|\#[^\n]*(?:\n|\Z))*")
_BEGINS_YAML = re.compile(r"---(?:\s|\Z)|%YAML|- |[A-Za-z_][^\s:{}\[\],\"]*\s*:(?:\s|\Z)")
_INTEGER = re.compile(r"[-+]?[0-9]{1,300}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_TEXT_TAG = "tag:yaml.org,2002:str"


def is_yaml(text: str) -> bool:
    """Tell whether a text is written as YAML; what begins like JSON is read as JSON."""
    blank = _BLANK.match(text)
    at = blank.end() if blank else 0
    return _BEGINS_YAML.match(text, at) is not None


def read_yaml(text: str) -> Reading:
    """Return the one document of a text.

    Raises `Invalid`: `broken_yaml`, `too_large`, `too_deep`, `unsupported_yaml`.
    """
    documents = read_documents(text)
    if len(documents) != 1:
        raise Invalid(
            f"The text holds {len(documents)} YAML documents.",
            code="unsupported_yaml",
            remedy="Import one document at a time: cut the text at its `---`.",
        )
    return Reading(documents[0])


def read_documents(
    text: str, *, longest: int = LONGEST_TEXT, loader: Any = yaml.SafeLoader
) -> tuple[Node, ...]:
    """Return every document of a text; raises `Invalid` as `read_yaml` does.

    `longest` is in bytes; `loader` is whose parser reads.
    """
    if len(text.encode("utf-8", "surrogatepass")) > longest:
        raise Invalid(
            f"The text is larger than {longest // 1024} KiB.",
            code="too_large",
            remedy="Split it into several files.",
        )
    building = _Building()
    try:
        for event in yaml.parse(text.lstrip("\ufeff"), Loader=loader):
            building.take(event)
    except yaml.MarkedYAMLError as error:
        raise _broken(error.problem_mark, error.problem or "it can't be read") from None
    except yaml.YAMLError:
        # A character that no YAML may hold; the library's own words would quote the text.
        raise _broken(None, "it holds a character that YAML doesn't allow") from None
    return tuple(building.documents)


@dataclass(slots=True)
class _Frame:
    """A mapping or sequence that isn't closed yet, and the key whose value comes next."""

    line: int
    is_mapping: bool
    members: list[tuple[str, int, Node]] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)
    key: tuple[str, int] | None = None

    def node(self) -> Node:
        if self.is_mapping:
            return Node({}, self.line, members=tuple(self.members))
        return Node([], self.line, items=tuple(self.items))


class _Building:
    """The nodes under construction."""

    def __init__(self) -> None:
        self.documents: list[Node] = []
        self._open: list[_Frame] = []

    def take(self, event: Any) -> None:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _unsupported(line, "anchors and aliases (`&`, `*`)")
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._begin(event, line)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._put(self._open.pop().node())
        elif isinstance(event, yaml.ScalarEvent):
            self._scalar(event, line)

    def _begin(self, event: Any, line: int) -> None:
        if event.tag:
            raise _unsupported(line, "tags (`!`)")
        if self._waits_for_key():
            raise _unsupported(line, "keys that are no text")
        if len(self._open) >= DEEPEST:
            raise Invalid(
                f"The text is nested deeper than {DEEPEST}.",
                code="too_deep",
                remedy="A configuration of servers is never nested that deep.",
                extra={"line": line},
            )
        self._open.append(_Frame(line, isinstance(event, yaml.MappingStartEvent)))

    def _scalar(self, event: Any, line: int) -> None:
        if event.tag not in (None, "!", _TEXT_TAG):
            raise _unsupported(line, "tags (`!`)")
        if unstorable(event.value):
            raise _broken(event.start_mark, "a text holds a character that can't be stored")
        if self._waits_for_key():
            self._open[-1].key = (event.value, line)
            return
        plain = event.style in (None, "") and event.tag is None
        self._put(Node(_typed(event.value) if plain else event.value, line))

    def _waits_for_key(self) -> bool:
        return bool(self._open) and self._open[-1].is_mapping and self._open[-1].key is None

    def _put(self, node: Node) -> None:
        if not self._open:
            self.documents.append(node)
            return
        frame = self._open[-1]
        if frame.key is None:
            frame.items.append(node)
            return
        frame.members.append((*frame.key, node))
        frame.key = None


def stays_text(text: str) -> bool:
    """Tell whether a text without quotes would be read as a text again."""
    return isinstance(_typed(text), str)


def _typed(text: str) -> Any:
    """Return a plain scalar by YAML 1.2's core rules; dates and `yes` stay texts."""
    lowered = text.lower()
    if lowered in _WORDS and text in (lowered, lowered.upper(), lowered.capitalize()):
        return _WORDS[lowered]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _broken(mark: Any, why: str) -> Invalid:
    where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    # The library quotes single characters at most; longer words are its own grammar's.
    return Invalid(
        f"The text is not valid YAML: {why}{where}.",
        code="broken_yaml",
        remedy="Mend that line; indent with spaces, and quote texts with `:` or `#` in them.",
        extra={"line": mark.line + 1, "column": mark.column + 1} if mark else {},
    )


def _unsupported(line: int, what: str) -> Invalid:
    return Invalid(
        f"Line {line} uses {what}, which are not read here.",
        code="unsupported_yaml",
        remedy="Write the value out.",
        extra={"line": line},
    )
