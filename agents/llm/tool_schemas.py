"""Tool schemas as providers take them. Pure.

Where a wire takes JSON Schema, it goes out as the server wrote it. Google takes a subset, so the
schema is mapped: `required`, `enum`, `default` and `items` stay, references are written out, and
what has no word there goes. A mapped schema only tells the model what to write: the arguments that
come back are always checked against the original.
"""

from collections.abc import Mapping
from typing import Any

from agents.llm.interface import Kind

Schema = dict[str, Any]

# Google's words: https://ai.google.dev/gemini-api/docs/structured-output#json_schema_support
KEPT = (
    *("type", "description", "enum", "default", "format"),
    *("minimum", "maximum", "minLength", "maxLength", "pattern"),
    *("minItems", "maxItems", "required"),
)
FORMATS = frozenset({"date-time", "date", "time", "int32", "int64", "float", "double", "enum"})
# Written-out references can make a small schema endless; what is beyond is left open.
MOST_NODES = 2_000
DEEPEST = 24
UNIONS = ("anyOf", "oneOf", "allOf")


def convert_schema(kind: Kind, schema: Schema) -> Schema:
    """Return a tool's schema as the wire of a kind of endpoint takes it."""
    if kind in ("google", "vertex"):
        return simplify_schema(schema)
    if kind in ("anthropic", "bedrock"):
        return _as_object(schema)
    return schema


def simplify_schema(schema: Schema) -> Schema:
    """Return the schema without references, unions of its own level and rare words."""
    found = _flatten_union(_SchemaWriter(schema).node(schema))
    found.setdefault("type", "object")
    return found


def _as_object(schema: Schema) -> Schema:
    """Return the schema as it is, or with an object at its top where the wire insists on one."""
    if schema.get("type") == "object" and not any(word in schema for word in UNIONS):
        return schema
    return simplify_schema(schema)


def _flatten_union(schema: Schema) -> Schema:
    """Return a top level without a union: all the properties that any of its members has."""
    members = [one for one in schema.pop("anyOf", []) if isinstance(one, dict)]
    if members:
        known = [one.get("properties", {}) for one in members]
        properties = {name: value for one in known for name, value in one.items()}
        schema["properties"] = properties | schema.get("properties", {})
    return schema


class _SchemaWriter:
    """Writes one schema out, with a budget of nodes."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = MOST_NODES

    def node(self, schema: Any, depth: int = 0, inside: tuple[str, ...] = ()) -> Schema:
        """Return one node in simple words; `{}` (anything) where there is nothing to say.

        `inside` are the references that are being written out around it.
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
        """Return a node with its references and its `allOf` taken in; one in itself is left out."""
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
    """Return one schema that says what all parts say; of two words for one thing, the later."""
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
    """Return what a reference within the document points at."""
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
    """Write a list of types as a union, and the type of values that only an `enum` names."""
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
    """Say a format that the wire doesn't know in the description."""
    named = found.get("format")
    if isinstance(named, str) and named not in FORMATS:
        del found["format"]
        said = found.get("description")
        found["description"] = f"{said} (format: {named})" if said else f"Format: {named}"


def _get_list(schema: Schema, word: str) -> list[Any]:
    found = schema.get(word)
    return found if isinstance(found, list) else []
