"""URI templates (RFC 6570): which URIs a server's template matches.

The MCP SDK parses and matches them (levels 1 to 3 and exploded paths, in linear time). Matches are
checked further here, as a pinned template must not match more than was reviewed: a variable is not
empty, stays within one path segment unless the caller allows more, and contains no encoded `/` or
`..`.
"""

import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from mcp.shared.uri_template import UriTemplate

MAX_URI_LENGTH = 4_096
# Values that are encoded more often are rejected.
MAX_DECODINGS = 4


def list_variables(template: str) -> tuple[str, ...]:
    """Return the names of a template's variables; () if the template is invalid."""
    parsed = _parse_template(template)
    return tuple(parsed.variable_names) if parsed else ()


def expand_template(template: str, values: Mapping[str, str]) -> str:
    """Return the URI for a template and `values`; missing variables are left out."""
    parsed = _parse_template(template)
    given_values = {name: values[name] for name in list_variables(template) if values.get(name)}
    return parsed.expand(given_values) if parsed else template


def matches_template(template: str, uri: str, *, across: bool = False) -> bool:
    """Return whether `template` matches `uri`; `across`: variables may span path segments.

    Also False for ambiguous templates such as `{a}{b}`.
    """
    if len(uri) > MAX_URI_LENGTH or not uri.startswith(template.partition("{")[0]):
        return False
    parsed = _parse_template(template)
    if parsed is None:
        return False
    values = parsed.match(uri, max_uri_length=MAX_URI_LENGTH)
    # Reject parts outside of variables, such as further query parameters: they were not declared.
    if values is None or unquote(parsed.expand(values)) != unquote(uri):
        return False
    optional = parsed.query_variable_names
    return all(
        _is_unambiguous(
            value if isinstance(value, str) else "/".join(value), across, name in optional
        )
        for name, value in values.items()
    )


def _is_unambiguous(value: str, across: bool, may_be_empty: bool) -> bool:
    """Return whether a variable's value has only one interpretation."""
    if not value:
        return may_be_empty
    decoded = _decode_value(value)
    if decoded is None or not decoded.isprintable() or "\ufffd" in decoded:
        return False
    # Normalize look-alikes of `/`, `.` and spaces, as a careless server might.
    normalized = unicodedata.normalize("NFKC", decoded)
    if not normalized.isprintable() or not normalized.strip() or "%" in normalized:
        return False
    segments = normalized.replace("\\", "/").split("/")
    if len(segments) > 1 and (not across or not segments[0]):
        return False
    return not _has_dot_segment(segments)


def _has_dot_segment(segments: Iterable[str]) -> bool:
    """Return whether a segment is `.` or `..`, or a variant such as `.. ` or `..;x`."""
    names = (segment.partition(";")[0].strip() for segment in segments)
    return any(name and not name.strip(". ") for name in names)


def _decode_value(value: str) -> str | None:
    """Return a value decoded repeatedly; None if the result is ambiguous."""
    for _ in range(MAX_DECODINGS):
        decoded = unquote(value)
        if decoded == value:
            # A remaining percent sign may be some other encoding.
            return None if "%" in value else value
        value = decoded
    return None


@lru_cache(maxsize=1024)
def _parse_template(template: str) -> "UriTemplate | None":
    # Imported here: the SDK takes over a second, and few processes ever match a template.
    from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate

    try:
        return UriTemplate.parse(template)
    except InvalidUriTemplate:
        return None
