"""Convert schemas of tools and outputs for providers. Pure.

APIs that take JSON Schema get the schema unchanged. Google takes a subset, so references are
expanded and unsupported keywords removed. A converted schema is only for the model: arguments are
always validated against the original.
"""

from collections.abc import Mapping
from typing import Any

from agents.llm.provider_kinds import PROVIDER_KINDS

Schema = dict[str, Any]

# Google's keywords: https://ai.google.dev/gemini-api/docs/structured-output#json_schema_support
KEPT_KEYWORDS = (
    *("type", "description", "enum", "default", "format"),
    *("minimum", "maximum", "minLength", "maxLength", "pattern"),
    *("minItems", "maxItems", "required"),
)
SUPPORTED_FORMATS = frozenset(
    {"date-time", "date", "time", "int32", "int64", "float", "double", "enum"}
)
# Expanded references can make a small schema huge; beyond this, anything is allowed.
MAX_NODES = 2_000
MAX_DEPTH = 24
LIMIT_KEYWORDS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "pattern", "minItems", "maxItems"),
    *("minProperties", "maxProperties"),
)
UNION_KEYWORDS = ("anyOf", "oneOf", "allOf")


def convert_schema(kind: str, schema: Schema) -> Schema:
    accepted = PROVIDER_KINDS[kind].json_schema
    if accepted == "simplified":
        return simplify_schema(schema)
    return _ensure_object(schema) if accepted == "object" else schema


def convert_output_schema(kind: str, schema: Schema) -> Schema:
    """Return an output schema as a provider's API accepts it; the answer is checked in any case."""
    accepted = PROVIDER_KINDS[kind].json_schema
    if accepted == "full":
        return schema
    simplified_schema = simplify_schema(schema)
    closed_schema: Schema = _close_objects(simplified_schema)
    return closed_schema if accepted == "object" else simplified_schema


def _close_objects(schema: Any) -> Any:
    """Return a simplified schema without further properties and limits, which the APIs reject."""
    if isinstance(schema, list):
        return [_close_objects(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed_schema = {
        keyword: _close_objects(value) if keyword in ("items", "anyOf") else value
        for keyword, value in schema.items()
        if keyword not in LIMIT_KEYWORDS
    }
    if isinstance(properties := schema.get("properties"), dict):
        closed_schema["properties"] = {
            name: _close_objects(child) for name, child in properties.items()
        }
    if schema.get("type") == "object":
        closed_schema.setdefault("additionalProperties", False)
    return closed_schema


def simplify_schema(schema: Schema) -> Schema:
    """Return the schema without references, top-level unions and unsupported keywords."""
    simplified = _flatten_union(_SchemaWriter(schema).write_node(schema))
    simplified.setdefault("type", "object")
    return simplified


def _ensure_object(schema: Schema) -> Schema:
    """Return the schema, simplified unless it is an object without top-level unions."""
    if schema.get("type") == "object" and not any(keyword in schema for keyword in UNION_KEYWORDS):
        return schema
    return simplify_schema(schema)


def _flatten_union(schema: Schema) -> Schema:
    """Return the schema without its top-level union, with the properties of all members."""
    members = [member for member in schema.pop("anyOf", []) if isinstance(member, dict)]
    if members:
        member_properties = [member.get("properties", {}) for member in members]
        properties = {
            name: property_schema
            for member in member_properties
            for name, property_schema in member.items()
        }
        schema["properties"] = properties | schema.get("properties", {})
    return schema


class _SchemaWriter:
    """Writes one simplified schema, with a limited number of nodes."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._remaining_nodes = MAX_NODES

    def write_node(
        self, schema: Any, depth: int = 0, open_references: tuple[str, ...] = ()
    ) -> Schema:
        """Return one simplified node; `{}` allows anything.

        `open_references` are the references being expanded around it.
        """
        self._remaining_nodes -= 1
        if not isinstance(schema, dict) or depth > MAX_DEPTH or self._remaining_nodes < 0:
            return {}
        schema, open_references = self._merge_references(schema, open_references)
        converted_schema = {
            keyword: schema[keyword] for keyword in KEPT_KEYWORDS if keyword in schema
        }
        if "const" in schema:
            converted_schema["enum"] = [schema["const"]]
        _convert_type(converted_schema)
        _convert_format(converted_schema)

        def write_child(child: Any) -> Schema:
            return self.write_node(child, depth + 1, open_references)

        if isinstance(properties := schema.get("properties"), dict):
            allowed_properties = {
                name: child for name, child in properties.items() if child is not False
            }
            converted_schema["properties"] = {
                name: write_child(child) for name, child in allowed_properties.items()
            }
        if isinstance(items := schema.get("items"), dict):
            converted_schema["items"] = write_child(items)
        elif prefix_items := _get_list(schema, "prefixItems"):
            converted_schema["items"] = {"anyOf": [write_child(child) for child in prefix_items]}
        if isinstance(additional := schema.get("additionalProperties"), dict):
            converted_schema["additionalProperties"] = write_child(additional)
        if alternatives := [*_get_list(schema, "anyOf"), *_get_list(schema, "oneOf")]:
            converted_schema["anyOf"] = [
                *converted_schema.pop("anyOf", []),
                *(write_child(child) for child in alternatives),
            ]
        return converted_schema

    def _merge_references(
        self, schema: Schema, open_references: tuple[str, ...]
    ) -> tuple[Schema, tuple[str, ...]]:
        """Return a node with its reference and `allOf` merged; recursive references are dropped."""
        for _ in range(MAX_DEPTH):
            reference = schema.get("$ref")
            members = _get_list(schema, "allOf")
            other_keywords = {
                name: value for name, value in schema.items() if name not in ("$ref", "allOf")
            }
            if isinstance(reference, str):
                is_recursive = reference in open_references
                target = None if is_recursive else _find_referenced_schema(self._root, reference)
                open_references = (*open_references, reference)
                members = [target or {}, *members]
            if not members:
                return other_keywords, open_references
            schema = _merge_schemas([*members, other_keywords])
        return {}, open_references


def _merge_schemas(parts: list[Any]) -> Schema:
    """Merge schemas; for conflicting keywords, the last one wins."""
    merged_schema: Schema = {}
    for part in parts:
        if not isinstance(part, dict):
            continue
        for keyword, value in part.items():
            previous = merged_schema.get(keyword)
            if keyword == "properties" and isinstance(previous, dict) and isinstance(value, dict):
                merged_schema[keyword] = previous | value
            elif keyword in ("required", "allOf") and isinstance(previous, list):
                merged_schema[keyword] = [
                    *previous,
                    *(item for item in value if item not in previous),
                ]
            else:
                merged_schema[keyword] = value
    return merged_schema


def _find_referenced_schema(root: Schema, reference: str) -> Schema | None:
    """Return the schema that a reference within the document points to."""
    if not reference.startswith("#"):
        return None
    node: Any = root
    for token in reference[1:].split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, Mapping) or name not in node:
            return None
        node = node[name]
    return node if isinstance(node, dict) else None


def _convert_type(schema: Schema) -> None:
    """Replace a list of types by a union, and add the type of a string `enum`."""
    types = schema.get("type")
    if isinstance(types, list):
        del schema["type"]
        if len(types) == 1:
            schema["type"] = types[0]
        else:
            schema["anyOf"] = [
                {"type": type_name} for type_name in types if isinstance(type_name, str)
            ]
    elif types is None and _is_text_list(schema.get("enum")):
        schema["type"] = "string"


def _is_text_list(values: Any) -> bool:
    return bool(values) and isinstance(values, list) and all(isinstance(v, str) for v in values)


def _convert_format(schema: Schema) -> None:
    """Move an unsupported format into the description."""
    format_name = schema.get("format")
    if isinstance(format_name, str) and format_name not in SUPPORTED_FORMATS:
        del schema["format"]
        description = schema.get("description")
        schema["description"] = (
            f"{description} (format: {format_name})" if description else f"Format: {format_name}"
        )


def _get_list(schema: Schema, keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []
