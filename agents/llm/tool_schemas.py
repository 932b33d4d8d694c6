"""Convert tool schemas for providers. Pure.

APIs that take JSON Schema get the schema unchanged. Google takes a subset, so references are
expanded and unsupported keywords removed. A converted schema is only for the model: arguments are
always validated against the original.
"""

from collections.abc import Mapping
from typing import Any

from agents.llm.interface import Kind

Schema = dict[str, Any]

# Google's keywords: https://ai.google.dev/gemini-api/docs/structured-output#json_schema_support
KEPT = (
    *("type", "description", "enum", "default", "format"),
    *("minimum", "maximum", "minLength", "maxLength", "pattern"),
    *("minItems", "maxItems", "required"),
)
FORMATS = frozenset({"date-time", "date", "time", "int32", "int64", "float", "double", "enum"})
# Expanded references can make a small schema huge; beyond this, anything is allowed.
MOST_NODES = 2_000
DEEPEST = 24
UNIONS = ("anyOf", "oneOf", "allOf")


def convert_schema(kind: Kind, schema: Schema) -> Schema:
    """Return a tool's schema for a kind of endpoint."""
    if kind in ("google", "vertex"):
        return simplify_schema(schema)
    if kind in ("anthropic", "bedrock"):
        return _as_object(schema)
    return schema


def simplify_schema(schema: Schema) -> Schema:
    """Return the schema without references, top-level unions and unsupported keywords."""
    found = _flatten_union(_SchemaWriter(schema).node(schema))
    found.setdefault("type", "object")
    return found


def _as_object(schema: Schema) -> Schema:
    """Return the schema, simplified unless it is an object without top-level unions."""
    if schema.get("type") == "object" and not any(word in schema for word in UNIONS):
        return schema
    return simplify_schema(schema)


def _flatten_union(schema: Schema) -> Schema:
    """Return the schema without its top-level union, with the properties of all members."""
    members = [one for one in schema.pop("anyOf", []) if isinstance(one, dict)]
    if members:
        known = [one.get("properties", {}) for one in members]
        properties = {name: value for one in known for name, value in one.items()}
        schema["properties"] = properties | schema.get("properties", {})
    return schema


class _SchemaWriter:
    """Writes one simplified schema, with a limited number of nodes."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = MOST_NODES

    def node(self, schema: Any, depth: int = 0, inside: tuple[str, ...] = ()) -> Schema:
        """Return one simplified node; `{}` allows anything.

        `open_references` are the references being expanded around it.
        """
        self._left -= 1
        if not isinstance(schema, dict) or depth > DEEPEST or self._left < 0:
            return {}
        schema, inside = self._merged(schema, inside)
        found = {word: schema[word] for word in KEPT if word in schema}
        if "const" in schema:
            found["enum"] = [schema["const"]]
        _put_type(found)
        _put_format(found)

        def deeper(one: Any) -> Schema:
            return self.node(one, depth + 1, inside)

        if isinstance(known := schema.get("properties"), dict):
            told = {name: one for name, one in known.items() if one is not False}
            found["properties"] = {name: deeper(one) for name, one in told.items()}
        if isinstance(items := schema.get("items"), dict):
            found["items"] = deeper(items)
        elif first := _get_list(schema, "prefixItems"):
            found["items"] = {"anyOf": [deeper(one) for one in first]}
        if isinstance(more := schema.get("additionalProperties"), dict):
            found["additionalProperties"] = deeper(more)
        if union := [*_get_list(schema, "anyOf"), *_get_list(schema, "oneOf")]:
            found["anyOf"] = [*found.pop("anyOf", []), *(deeper(one) for one in union)]
        return found

    def _merged(self, schema: Schema, inside: tuple[str, ...]) -> tuple[Schema, tuple[str, ...]]:
        """Return a node with its reference and `allOf` merged; recursive references are dropped."""
        for _ in range(DEEPEST):
            reference = schema.get("$ref")
            members = _get_list(schema, "allOf")
            rest = {name: one for name, one in schema.items() if name not in ("$ref", "allOf")}
            if isinstance(reference, str):
                known = reference in inside
                target = None if known else _find_referenced_schema(self._root, reference)
                inside = (*inside, reference)
                members = [target or {}, *members]
            if not members:
                return rest, inside
            schema = _merge_schemas([*members, rest])
        return {}, inside


def _merge_schemas(parts: list[Any]) -> Schema:
    """Merge schemas; for conflicting keywords, the last one wins."""
    found: Schema = {}
    for part in parts:
        if not isinstance(part, dict):
            continue
        for word, value in part.items():
            before = found.get(word)
            if word == "properties" and isinstance(before, dict) and isinstance(value, dict):
                found[word] = before | value
            elif word in ("required", "allOf") and isinstance(before, list):
                found[word] = [*before, *(one for one in value if one not in before)]
            else:
                found[word] = value
    return found


def _find_referenced_schema(root: Schema, reference: str) -> Schema | None:
    """Return the schema that a reference within the document points to."""
    if not reference.startswith("#"):
        return None
    found: Any = root
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found if isinstance(found, dict) else None


def _put_type(found: Schema) -> None:
    """Replace a list of types by a union, and add the type of a string `enum`."""
    kinds = found.get("type")
    if isinstance(kinds, list):
        del found["type"]
        if len(kinds) == 1:
            found["type"] = kinds[0]
        else:
            found["anyOf"] = [{"type": one} for one in kinds if isinstance(one, str)]
    elif kinds is None and _is_text_list(found.get("enum")):
        found["type"] = "string"


def _is_text_list(values: Any) -> bool:
    return bool(values) and isinstance(values, list) and all(isinstance(v, str) for v in values)


def _put_format(found: Schema) -> None:
    """Move an unsupported format into the description."""
    named = found.get("format")
    if isinstance(named, str) and named not in FORMATS:
        del found["format"]
        said = found.get("description")
        found["description"] = f"{said} (format: {named})" if said else f"Format: {named}"


def _get_list(schema: Schema, word: str) -> list[Any]:
    found = schema.get(word)
    return found if isinstance(found, list) else []
