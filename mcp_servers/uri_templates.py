"""URI templates (RFC 6570): which concrete URIs a server's template means, and no others.

The protocol's SDK parses and matches them (levels 1 to 3 and exploded paths, in linear time). What
it matched is looked at here, because a pinned template must not mean more than was read: a
variable is filled, stays within its own path segment unless the caller may go further, and hides
no `/` and no `..` in whatever encoding.
"""

import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from mcp.shared.uri_template import UriTemplate

LONGEST_URI = 4_096
# Encoded more often than this, nobody means well.
MOST_ENCODINGS = 4


def list_variables(template: str) -> tuple[str, ...]:
    """Return the names of a template's variables; none for what is no template."""
    parsed = _parse_template(template)
    return tuple(parsed.variable_names) if parsed else ()


def expand(template: str, values: Mapping[str, str]) -> str:
    """Return the URI that `values` make of a template; one that isn't given is left out."""
    parsed = _parse_template(template)
    known = {name: values[name] for name in list_variables(template) if values.get(name)}
    return parsed.expand(known) if parsed else template


def matches_template(template: str, uri: str, *, across: bool = False) -> bool:
    """Tell whether `template` means `uri`; `across` lets a variable span several path segments.

    False too for templates that can't be matched in one way only, such as `{a}{b}`.
    """
    if len(uri) > LONGEST_URI or not uri.startswith(template.partition("{")[0]):
        return False
    parsed = _parse_template(template)
    if parsed is None:
        return False
    values = parsed.match(uri, max_uri_length=LONGEST_URI)
    # What the variables don't account for, such as further members of a query, was not declared.
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
    """Tell whether a variable's value can only be read as what it looks like."""
    if not value:
        return may_be_empty
    decoded = _decode_value(value)
    if decoded is None or not decoded.isprintable() or "\ufffd" in decoded:
        return False
    # Look-alikes of `/` and `.`, and spaces of every width, as a careless server might read them.
    plain = unicodedata.normalize("NFKC", decoded)
    if not plain.isprintable() or not plain.strip() or "%" in plain:
        return False
    segments = plain.replace("\\", "/").split("/")
    if len(segments) > 1 and (not across or not segments[0]):
        return False
    return not _has_dot_segment(segments)


def _has_dot_segment(segments: Iterable[str]) -> bool:
    """Tell whether a segment is `.` or `..`, also as `.. ` or `..;x`, which some read so."""
    names = (segment.partition(";")[0].strip() for segment in segments)
    return any(name and not name.strip(". ") for name in names)


def _decode_value(value: str) -> str | None:
    """Return a value as the last of several decoders would read it; None where that is unclear."""
    for _ in range(MOST_ENCODINGS):
        further = unquote(value)
        if further == value:
            # A percent sign that is left may be an encoding of somebody else's.
            return None if "%" in value else value
        value = further
    return None


@lru_cache(maxsize=1024)
def _parse_template(template: str) -> "UriTemplate | None":
    # Imported here: the SDK takes over a second, and few processes ever match a template.
    from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate

    try:
        return UriTemplate.parse(template)
    except InvalidUriTemplate:
        return None
