"""JSON Schema rendered as table rows, and example arguments."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from bonobot.core.text.untrusted_text import make_visible

MAX_ROWS = 300
MAX_DEPTH = 6
_CONSTRAINTS = (
    ("minimum", "≥ {}"),
    ("maximum", "≤ {}"),
    ("exclusiveMinimum", "> {}"),
    ("exclusiveMaximum", "< {}"),
    ("pattern", _("matches {}")),
    ("format", "{}"),
    ("multipleOf", _("multiple of {}")),
)
_COUNT_CONSTRAINTS = (
    ("minLength", ngettext_lazy("at least {} character", "at least {} characters")),
    ("maxLength", ngettext_lazy("at most {} character", "at most {} characters")),
    ("minItems", ngettext_lazy("at least {} item", "at least {} items")),
    ("maxItems", ngettext_lazy("at most {} item", "at most {} items")),
    ("minProperties", ngettext_lazy("at least {} field", "at least {} fields")),
    ("maxProperties", ngettext_lazy("at most {} field", "at most {} fields")),
)


@dataclass(frozen=True)
class SchemaRow:
    """One property of a schema; texts are untrusted and have been made visible."""

    depth: int
    name: str
    type: str
    required: bool
    description: str
    bounds: tuple[str, ...] = ()


def build_schema_rows(schema: Any) -> list[SchemaRow]:
    """Return the properties of an object schema, nested ones below their parent, at most 300.

    Follows each local reference once per path. Properties of `allOf`, `anyOf` and `oneOf` are
    listed like the schema's own.
    """
    return list(islice(_iterate_rows(schema, schema, 0, frozenset()), MAX_ROWS))


def _iterate_rows(
    schema: Any, root: Any, depth: int, visited_refs: frozenset[str]
) -> Iterator[SchemaRow]:
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return
    if isinstance(ref := schema.get("$ref"), str):
        if ref in visited_refs:
            return
        visited_refs |= {ref}
        yield from _iterate_rows(_resolve_reference(root, ref), root, depth, visited_refs)
    properties = schema.get("properties")
    required = schema.get("required")
    required_names = set(map(str, required)) if isinstance(required, list) else set()
    for name, member in properties.items() if isinstance(properties, Mapping) else ():
        subschema = member if isinstance(member, Mapping) else {}
        resolved = _merge_reference(subschema, root)
        yield SchemaRow(
            depth=depth,
            name=make_visible(str(name), 200),
            type=_format_type(subschema, root),
            required=str(name) in required_names,
            description=make_visible(
                str(resolved.get("description") or resolved.get("title") or ""), 1_000
            ),
            bounds=tuple(_iterate_constraints(resolved)),
        )
        yield from _iterate_rows(subschema, root, depth + 1, visited_refs)
        yield from _iterate_rows(subschema.get("items"), root, depth + 1, visited_refs)
    for keyword in ("allOf", "anyOf", "oneOf"):
        parts = schema.get(keyword)
        for part in parts if isinstance(parts, list) else ():
            yield from _iterate_rows(part, root, depth, visited_refs)


def _resolve_reference(root: Any, ref: str) -> Any:
    """Return the target of a local reference, or None."""
    node = root
    for part in ref[2:].split("/") if ref.startswith("#/") else ():
        name = part.replace("~1", "/").replace("~0", "~")
        node = node.get(name) if isinstance(node, Mapping) else None
    return node if ref == "#" or ref.startswith("#/") else None


def _merge_reference(schema: Mapping[str, Any], root: Any) -> Mapping[str, Any]:
    """Return a schema merged with the target of its reference; its own keywords win."""
    ref = schema.get("$ref")
    target = _resolve_reference(root, ref) if isinstance(ref, str) else None
    return {**target, **schema} if isinstance(target, Mapping) else schema


def _format_type(schema: Mapping[str, Any], root: Any = None) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        return make_visible(" or ".join(map(str, kind)), 100)
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        return _t("list of {}").format(_format_type(schema["items"], root))
    if kind is not None:
        return make_visible(str(kind), 100)
    for keyword in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(keyword), list):
            return " or ".join(
                _format_type(choice, root) for choice in choices[:5] if isinstance(choice, Mapping)
            )
    if "$ref" in schema:
        return make_visible(str(schema["$ref"]).rpartition("/")[2], 100)
    return _t("one of a list") if "enum" in schema or "const" in schema else _t("any")


def _iterate_constraints(schema: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(values := schema.get("enum"), list):
        yield make_visible(_t("one of: {}").format(", ".join(map(_format_value, values[:30]))), 600)
    if "const" in schema:
        yield make_visible(_t("always {}").format(_format_value(schema["const"])), 200)
    if "default" in schema:
        yield make_visible(_t("default {}").format(_format_value(schema["default"])), 200)
    for keyword, text in _CONSTRAINTS:
        if isinstance(value := schema.get(keyword), str | int | float):
            yield make_visible(str(text).format(value), 200)
    for keyword, plural in _COUNT_CONSTRAINTS:
        count = schema.get(keyword)
        if isinstance(count, int | float) and float(count).is_integer():
            yield make_visible(plural.format(int(count)), 200)


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)[:100]
