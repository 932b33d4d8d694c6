"""A JSON parser with line numbers, duplicate keys and comments.

The standard parser reports neither lines nor duplicate keys and rejects comments. This one parses
JSON to nodes with lines; syntax errors raise `broken_json` with line, column and the line without
its strings, which may be secrets.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible

LONGEST_TEXT = 256 * 1024
DEEPEST = 64
_SHOWN_BEFORE, _SHOWN_AFTER = 80, 40  # characters to show around a syntax error

_BLANK = re.compile(r"[ \t\r\n\ufeff\u00a0]*")
_COMMENT = re.compile(r"//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/")
_NUMBER = re.compile(
    r"-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,4})?(?![\w.])"
)
_STANDARD = json.JSONDecoder()
_UNSTORABLE = re.compile("[\\x00\\ud800-\\udfff]")
_WORD = re.compile(r"[A-Za-z_$][\w$]*")
_MEMBER = re.compile(r'"(?:[^"\\\n]|\\.)*"\s*:')
_WORDS = {"true": True, "false": False, "null": None}
# Only these names are shown in errors: with wrong quotes, a secret may look like a name.
_USUAL_NAMES = frozenset(
    (
        *("mcpServers", "servers", "mcp_servers", "mcp", "inputs", "name", "type", "transport"),
        *("transport_type", "url", "serverUrl", "endpoint", "endpoint_config", "command", "args"),
        *("env", "cwd", "headers", "Authorization", "auth", "auth_config", "token", "key"),
        *("enabled", "disabled"),
    )
)
_PIECE = re.compile(
    r"""
    (?P<text>"(?:[^"\\]|\\.)*"?)
    | (?P<plain>[{}\[\]:,\s]+ | (?:true|false|null)\b)
    | (?P<other>[^"{}\[\]:,\s]+)
    """,
    re.VERBOSE,
)
_CURLY_QUOTES = frozenset("\u201c\u201d\u201e\u201f\u2018\u2019\u00ab\u00bb")


@dataclass(frozen=True, slots=True)
class SourceNode:
    """A value and its first line; objects keep their fields in order, including duplicates."""

    value: Any = field(repr=False)
    line: int
    members: tuple[tuple[str, int, "SourceNode"], ...] = ()
    items: tuple["SourceNode", ...] = ()

    def plain(self) -> Any:
        """Return the Python value; the last of duplicate fields wins."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, _, node in self.members}
        if isinstance(self.value, list):
            return [node.plain() for node in self.items]
        return self.value

    def get(self, key: str) -> "SourceNode | None":
        """Return the last field of that name, or None."""
        return next((node for name, _, node in reversed(self.members) if name == key), None)


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """The root node and which deviations from JSON were tolerated."""

    root: SourceNode
    comments: bool = False
    trailing_commas: bool = False
    bare_members: bool = False


def read(text: str) -> ParsedDocument:
    """Parse a text to nodes; fields without surrounding braces are read as an object.

    Raises `InvalidInput` with `nothing_to_import`, `too_large`, `too_deep` or `broken_json` (with
    `line` and `column`).
    """
    if len(text.encode("utf-8", "surrogatepass")) > LONGEST_TEXT:
        raise InvalidInput(
            format_message(
                "The text is larger than {longest_text} KiB.", longest_text=LONGEST_TEXT // 1024
            ),
            code="too_large",
            remedy="Import fewer servers at a time.",
        )
    return _JsonReader(text).read()


class _JsonReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line, self._counted = 1, 0
        self._comments = self._trailing_commas = False

    def read(self) -> ParsedDocument:
        if self._skip() == "":
            raise InvalidInput(
                "There is nothing to import.",
                code="nothing_to_import",
                remedy='Paste a configuration, such as {"name": {"url": "https://…"}}.',
            )
        bare = self._begins_with_a_member()
        root = self._object(1, closed=False) if bare else self._value(1)
        if self._skip() != "":
            raise self._broken("the text goes on after its end")
        return ParsedDocument(root, self._comments, self._trailing_commas, bare)

    def _begins_with_a_member(self) -> bool:
        """Return whether the text begins with `"name":`, an object copied without braces."""
        return _MEMBER.match(self._text, self._at) is not None

    def _value(self, depth: int) -> SourceNode:
        if depth > DEEPEST:
            raise InvalidInput(
                format_message("The text is nested deeper than {deepest}.", deepest=DEEPEST),
                code="too_deep",
                remedy="Import a configuration of servers; they are never nested that deep.",
                extra={"line": self._line_here()},
            )
        character, line = self._skip(), self._line_here()
        if character == "{":
            self._at += 1
            return self._object(depth, closed=True)
        if character == "[":
            self._at += 1
            return self._array(depth)
        if character == '"':
            return SourceNode(self._string(), line)
        if match := _NUMBER.match(self._text, self._at):
            self._at = match.end()
            number = match.group()
            return SourceNode(float(number) if re.search("[.eE]", number) else int(number), line)
        if (match := _WORD.match(self._text, self._at)) and match.group() in _WORDS:
            self._at = match.end()
            return SourceNode(_WORDS[match.group()], line)
        raise self._broken(format_message("a value was expected"))

    def _object(self, depth: int, *, closed: bool) -> SourceNode:
        line = self._line_here()
        members: list[tuple[str, int, SourceNode]] = []
        end = "}" if closed else ""
        while self._more(end, first=not members):
            if self._skip() != '"':
                raise self._broken(format_message("a name in double quotes was expected"))
            at = self._line_here()
            key = self._string()
            if self._skip() != ":":
                raise self._broken(format_message("`:` was expected after the name"))
            self._at += 1
            members.append((key, at, self._value(depth + 1)))
        return SourceNode({}, line, members=tuple(members))

    def _array(self, depth: int) -> SourceNode:
        line = self._line_here()
        items: list[SourceNode] = []
        while self._more("]", first=not items):
            items.append(self._value(depth + 1))
        return SourceNode([], line, items=tuple(items))

    def _more(self, end: str, *, first: bool) -> bool:
        """Skip a comma or the closing bracket; return whether another item follows."""
        if not first and self._skip() == ",":
            self._at += 1
            if self._skip() != end:
                return True
            self._trailing_commas = True
        elif not first and self._skip() != end:
            comma = format_message("`,` was expected")
            raise self._broken(
                format_message("`,` or `{end}` was expected", end=end) if end else comma
            )
        if self._skip() == end:
            self._at += len(end)
            return False
        return True

    def _string(self) -> str:
        try:
            text, self._at = _STANDARD.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            self._at = error.pos
            raise self._broken(
                "a text in double quotes is not closed, or has a wrong `\\`"
            ) from None
        if has_unstorable_characters(text):
            raise self._broken("a text holds a character that can't be stored")
        return str(text)

    def _skip(self) -> str:
        """Skip blanks and comments; return the next character, "" at the end."""
        while True:
            blank = _BLANK.match(self._text, self._at)
            self._at = blank.end() if blank else self._at
            comment = _COMMENT.match(self._text, self._at)
            if comment is None:
                return self._text[self._at : self._at + 1]
            self._comments = True
            self._at = comment.end()

    def _line_here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = max(self._at, self._counted)
        return self._line

    def _broken(self, expected: str) -> InvalidInput:
        line = self._text.count("\n", 0, self._at) + 1
        column = self._at - (self._text.rfind("\n", 0, self._at) + 1) + 1
        begin = max(self._at - column + 1, self._at - _SHOWN_BEFORE)
        after = self._text[self._at : self._at + _SHOWN_AFTER].partition("\n")[0]
        shown = redact_line(self._text[begin : self._at] + after)
        return InvalidInput(
            format_message(
                "The text is not valid JSON: {expected} at line {line}, column {column}: `{shown}`",
                expected=expected,
                line=line,
                column=column,
                shown=shown,
            ),
            code="broken_json",
            remedy=_suggest_remedy(self._text[self._at : self._at + 1]),
            extra={"line": line, "column": column},
        )


def has_unstorable_characters(text: str) -> bool:
    """Return whether a text has NUL or lone surrogates, which databases don't store."""
    return _UNSTORABLE.search(text) is not None


def redact_line(line: str) -> str:
    """Return a line with all strings except known names replaced by `…`; they may be secrets."""
    kept = "".join(_redact_piece(match) for match in _PIECE.finditer(line.strip()))
    return make_visible(kept)


def _redact_piece(match: re.Match[str]) -> str:
    if match.lastgroup == "plain":
        return match.group()
    if match.lastgroup == "other":
        return "…"
    named = match.group().strip('"') in _USUAL_NAMES
    return (
        match.group() if named and match.string[match.end() :].lstrip().startswith(":") else '"…"'
    )


def _suggest_remedy(character: str) -> str:
    if character == "":
        return format_message("The text ends too early: close every bracket and quote.")
    if character in _CURLY_QUOTES:
        return format_message('Replace the curly quotes by straight ones (").')
    if character == "'":
        return format_message("JSON knows double quotes only: replace ' by \".")
    return format_message("Mend that line, or copy the configuration again.")


def describe_tolerated_syntax(reading: ParsedDocument) -> Iterator[str]:
    """Yield a sentence for each tolerated deviation from JSON."""
    if reading.comments:
        yield format_message("Comments were left out.")
    if reading.trailing_commas:
        yield format_message("Commas before a closing bracket were ignored.")
    if reading.bare_members:
        yield format_message("The braces around the text were missing and were added.")
