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

MAX_TEXT_BYTES = 256 * 1024
MAX_DEPTH = 64
_SHOWN_BEFORE, _SHOWN_AFTER = 80, 40  # characters to show around a syntax error

_BLANK = re.compile(r"[ \t\r\n\ufeff\u00a0]*")
_COMMENT = re.compile(r"//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/")
_NUMBER = re.compile(
    r"-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,4})?(?![\w.])"
)
_DECODER = json.JSONDecoder()
_UNSTORABLE = re.compile("[\\x00\\ud800-\\udfff]")
_WORD = re.compile(r"[A-Za-z_$][\w$]*")
_FIELD = re.compile(r'"(?:[^"\\\n]|\\.)*"\s*:')
_LITERALS = {"true": True, "false": False, "null": None}
# Only these names are shown in errors: with wrong quotes, a secret may look like a name.
_KNOWN_NAMES = frozenset(
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
    fields: tuple[tuple[str, int, "SourceNode"], ...] = ()
    items: tuple["SourceNode", ...] = ()

    def to_python(self) -> Any:
        """Return the Python value; the last of duplicate fields wins."""
        if isinstance(self.value, dict):
            return {key: node.to_python() for key, _, node in self.fields}
        if isinstance(self.value, list):
            return [node.to_python() for node in self.items]
        return self.value

    def get(self, key: str) -> "SourceNode | None":
        """Return the last field of that name, or None."""
        return next((node for name, _, node in reversed(self.fields) if name == key), None)


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """The root node and which deviations from JSON were tolerated."""

    root: SourceNode
    has_comments: bool = False
    has_trailing_commas: bool = False
    has_bare_fields: bool = False


def read_json(text: str) -> ParsedDocument:
    """Parse a text to nodes; fields without surrounding braces are read as an object.

    Raises `InvalidInput` with `nothing_to_import`, `too_large`, `too_deep` or `broken_json` (with
    `line` and `column`).
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
        raise InvalidInput(
            format_message("The text is larger than {limit} KiB.", limit=MAX_TEXT_BYTES // 1024),
            code="too_large",
            remedy="Import fewer servers at a time.",
        )
    return _JsonReader(text).read_document()


class _JsonReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._offset = 0
        self._line, self._counted_offset = 1, 0
        self._has_comments = self._has_trailing_commas = False

    def read_document(self) -> ParsedDocument:
        if self._skip_blanks() == "":
            raise InvalidInput(
                "There is nothing to import.",
                code="nothing_to_import",
                remedy='Paste a configuration, such as {"name": {"url": "https://…"}}.',
            )
        is_bare = self._is_bare_object()
        root = self._parse_object(1, has_braces=False) if is_bare else self._parse_value(1)
        if self._skip_blanks() != "":
            raise self._build_syntax_error("unexpected content after the end of the value")
        return ParsedDocument(root, self._has_comments, self._has_trailing_commas, is_bare)

    def _is_bare_object(self) -> bool:
        """Return whether the text begins with `"name":`, an object copied without braces."""
        return _FIELD.match(self._text, self._offset) is not None

    def _parse_value(self, depth: int) -> SourceNode:
        if depth > MAX_DEPTH:
            raise InvalidInput(
                format_message(
                    "The text is nested more than {deepest} levels deep.", deepest=MAX_DEPTH
                ),
                code="too_deep",
                remedy="Import a server configuration. Server configurations are never nested "
                "that deep.",
                extra={"line": self._count_lines()},
            )
        character, line = self._skip_blanks(), self._count_lines()
        if character == "{":
            self._offset += 1
            return self._parse_object(depth, has_braces=True)
        if character == "[":
            self._offset += 1
            return self._parse_array(depth)
        if character == '"':
            return SourceNode(self._parse_string(), line)
        if match := _NUMBER.match(self._text, self._offset):
            self._offset = match.end()
            number = match.group()
            return SourceNode(float(number) if re.search("[.eE]", number) else int(number), line)
        if (match := _WORD.match(self._text, self._offset)) and match.group() in _LITERALS:
            self._offset = match.end()
            return SourceNode(_LITERALS[match.group()], line)
        raise self._build_syntax_error(format_message("expected a value"))

    def _parse_object(self, depth: int, *, has_braces: bool) -> SourceNode:
        line = self._count_lines()
        fields: list[tuple[str, int, SourceNode]] = []
        end = "}" if has_braces else ""
        while self._has_next(end, is_first=not fields):
            if self._skip_blanks() != '"':
                raise self._build_syntax_error(format_message("expected a name in double quotes"))
            key_line = self._count_lines()
            key = self._parse_string()
            if self._skip_blanks() != ":":
                raise self._build_syntax_error(format_message("expected `:` after the name"))
            self._offset += 1
            fields.append((key, key_line, self._parse_value(depth + 1)))
        return SourceNode({}, line, fields=tuple(fields))

    def _parse_array(self, depth: int) -> SourceNode:
        line = self._count_lines()
        items: list[SourceNode] = []
        while self._has_next("]", is_first=not items):
            items.append(self._parse_value(depth + 1))
        return SourceNode([], line, items=tuple(items))

    def _has_next(self, end: str, *, is_first: bool) -> bool:
        """Skip a comma or the closing bracket; return whether another item follows."""
        if not is_first and self._skip_blanks() == ",":
            self._offset += 1
            if self._skip_blanks() != end:
                return True
            self._has_trailing_commas = True
        elif not is_first and self._skip_blanks() != end:
            message = format_message("expected `,`")
            raise self._build_syntax_error(
                format_message("expected `,` or `{end}`", end=end) if end else message
            )
        if self._skip_blanks() == end:
            self._offset += len(end)
            return False
        return True

    def _parse_string(self) -> str:
        try:
            text, self._offset = _DECODER.raw_decode(self._text, self._offset)
        except json.JSONDecodeError as error:
            self._offset = error.pos
            raise self._build_syntax_error(
                "a string isn't closed or contains an invalid escape sequence"
            ) from None
        if has_unstorable_characters(text):
            raise self._build_syntax_error("a string contains a character that can't be stored")
        return str(text)

    def _skip_blanks(self) -> str:
        """Skip blanks and comments; return the next character, "" at the end."""
        while True:
            blank = _BLANK.match(self._text, self._offset)
            self._offset = blank.end() if blank else self._offset
            comment = _COMMENT.match(self._text, self._offset)
            if comment is None:
                return self._text[self._offset : self._offset + 1]
            self._has_comments = True
            self._offset = comment.end()

    def _count_lines(self) -> int:
        self._line += self._text.count("\n", self._counted_offset, self._offset)
        self._counted_offset = max(self._offset, self._counted_offset)
        return self._line

    def _build_syntax_error(self, expected: str) -> InvalidInput:
        line = self._text.count("\n", 0, self._offset) + 1
        column = self._offset - (self._text.rfind("\n", 0, self._offset) + 1) + 1
        start = max(self._offset - column + 1, self._offset - _SHOWN_BEFORE)
        after = self._text[self._offset : self._offset + _SHOWN_AFTER].partition("\n")[0]
        excerpt = redact_line(self._text[start : self._offset] + after)
        return InvalidInput(
            format_message(
                "The text isn't valid JSON: {expected} at line {line}, column {column}: `{shown}`",
                expected=expected,
                line=line,
                column=column,
                shown=excerpt,
            ),
            code="broken_json",
            remedy=_suggest_remedy(self._text[self._offset : self._offset + 1]),
            extra={"line": line, "column": column},
        )


def parse_json_object(content: bytes) -> dict[str, Any]:
    """Return the object of a response, strictly parsed; empty if it isn't one."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def describe_json_error(error: Exception) -> str:
    """Return where a text isn't valid JSON, from an error of the standard parser."""
    if isinstance(error, json.JSONDecodeError):
        return format_message(
            "check line {line}, column {column}", line=error.lineno, column=error.colno
        )
    return format_message("it has too many levels or digits")


def has_unstorable_characters(text: str) -> bool:
    """Return whether a text has NUL or lone surrogates, which databases don't store."""
    return _UNSTORABLE.search(text) is not None


def redact_line(line: str) -> str:
    """Return a line with all strings except known names replaced by `…`; they may be secrets."""
    redacted = "".join(_redact_piece(match) for match in _PIECE.finditer(line.strip()))
    return make_visible(redacted)


def _redact_piece(match: re.Match[str]) -> str:
    if match.lastgroup == "plain":
        return match.group()
    if match.lastgroup == "other":
        return "…"
    is_known_name = match.group().strip('"') in _KNOWN_NAMES
    return (
        match.group()
        if is_known_name and match.string[match.end() :].lstrip().startswith(":")
        else '"…"'
    )


def _suggest_remedy(character: str) -> str:
    if character == "":
        return format_message("The text ends too early. Close every bracket and quote.")
    if character in _CURLY_QUOTES:
        return format_message('Replace the curly quotes with straight quotes (").')
    if character == "'":
        return format_message("JSON supports only double quotes. Replace ' with \".")
    return format_message("Fix that line, or copy the configuration again.")


def describe_tolerated_syntax(document: ParsedDocument) -> Iterator[str]:
    """Yield a sentence for each tolerated deviation from JSON."""
    if document.has_comments:
        yield format_message("Comments were ignored.")
    if document.has_trailing_commas:
        yield format_message("Commas before a closing bracket were ignored.")
    if document.has_bare_fields:
        yield format_message("The outer braces were missing and were added.")
