"""Convert OpenAPI schemas to JSON Schema 2020-12 (pure).

Referenced schemas are included under `$defs`, so that recursive schemas work and shared parts occur
once; `classify_schema` decides afterwards how the result is checked.
"""

import re
from collections.abc import Mapping
from typing import Any

from bonobot.core.i18n.messages import format_message
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.openapi.document import (
    OpenApiDocument,
    UnusableDocumentPart,
    build_pointer,
    split_reference,
)

MAX_NODES = 2_000

# Keywords of JSON Schema 2020-12 by the type of their values; others are OpenAPI's own.
SCHEMA_KEYWORDS = (
    *("items", "contains", "not", "if", "then", "else", "additionalProperties", "propertyNames"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
SCHEMA_LIST_KEYWORDS = ("allOf", "anyOf", "oneOf", "prefixItems")
SCHEMA_MAP_KEYWORDS = ("properties", "patternProperties", "dependentSchemas")
CONSTRAINT_KEYWORDS = (
    *("multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength"),
    *("minLength", "pattern", "maxItems", "minItems", "uniqueItems", "maxProperties"),
    *("minProperties", "required", "enum", "const", "format", "dependentRequired"),
    *("minContains", "maxContains"),
)
ANNOTATION_KEYWORDS = (
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "contentMediaType",
)
# The keyword of properties that a request, or a response, doesn't have.
HIDDEN_KEYWORDS = {"request": "readOnly", "answer": "writeOnly"}
_NOT_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]+")


class SchemaConverter:
    """Converts one schema with its definitions, up to a number of nodes.

    Output schemas omit constraints and allow null: APIs drift from their documents, and clients
    reject a result that doesn't match its schema.
    """

    def __init__(
        self, document: OpenApiDocument, *, purpose: str = "request", max_nodes: int = MAX_NODES
    ) -> None:
        self.definitions: dict[str, Any] = {}
        self._document = document
        self._hidden_keyword = HIDDEN_KEYWORDS[purpose]
        self._is_output = purpose == "answer"
        self._names_by_pointer: dict[str, str] = {}
        self._pending: list[tuple[str, Any, str]] = []
        self._remaining_nodes = self._max_nodes = max_nodes

    def include_definitions(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a schema with all its definitions; raises `UnusableDocumentPart`."""
        while self._pending:
            name, target, target_pointer = self._pending.pop()
            self.definitions[name] = self.convert_schema(target, target_pointer)
        return schema | ({"$defs": self.definitions} if self.definitions else {})

    def convert_schema(self, node: Any, pointer: str) -> Any:
        """Return `node` as JSON Schema 2020-12; raises `UnusableDocumentPart`."""
        self._remaining_nodes -= 1
        if self._remaining_nodes < 0:
            raise UnusableDocumentPart(
                format_message("Its schemas have more than {most:,} parts.", most=self._max_nodes),
                pointer,
            )
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise UnusableDocumentPart("A schema must be an object, true, or false.", pointer)
        if isinstance(node.get("$ref"), str):
            return self._convert_reference(node, pointer)
        if "$dynamicRef" in node or "$recursiveRef" in node:
            raise UnusableDocumentPart(
                "It uses dynamic schema references, which aren't supported.", pointer
            )
        return self._add_null_type(node, self._convert_keywords(node, pointer))

    def resolve_root(self, node: Any, pointer: str) -> tuple[Any, str]:
        return self._document.resolve_node(node, pointer)

    def _convert_reference(self, node: Mapping[str, Any], pointer: str) -> dict[str, Any]:
        target, target_pointer = self._document.resolve_node(node, pointer)
        if target_pointer not in self._names_by_pointer:
            self._names_by_pointer[target_pointer] = name = self._build_definition_name(
                target_pointer
            )
            self.definitions[name] = {}
            # Converted later, by `include_definitions`: references may form long chains and cycles.
            self._pending.append((name, target, target_pointer))
        converted = {"$ref": f"#/$defs/{self._names_by_pointer[target_pointer]}"}
        if isinstance(text := node.get("description"), str):
            converted["description"] = text
        if self._document.minor == 0:
            return converted  # OpenAPI 3.0 ignores siblings of a reference
        siblings = {key: value for key, value in node.items() if key != "$ref"}
        return (self._convert_keywords(siblings, pointer) | converted) if siblings else converted

    def _build_definition_name(self, pointer: str) -> str:
        base_name = (
            _NOT_NAME_CHARACTERS.sub("_", list(split_reference(f"#{pointer}"))[-1])[:64] or "part"
        )
        name, number = base_name, 2
        while name in self.definitions:
            name, number = f"{base_name}_{number}", number + 1
        return name

    def _convert_keywords(self, node: Mapping[str, Any], pointer: str) -> dict[str, Any]:
        converted: dict[str, Any] = {}
        for key, value in node.items():
            child_pointer = pointer + build_pointer(key)
            if key in SCHEMA_KEYWORDS:
                converted[key] = self.convert_schema(value, child_pointer)
            elif key in SCHEMA_LIST_KEYWORDS and isinstance(value, list):
                converted[key] = [
                    self.convert_schema(subschema, f"{child_pointer}/{index}")
                    for index, subschema in enumerate(value)
                ]
            elif key in SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
                converted[key] = {
                    name: self.convert_schema(subschema, child_pointer + build_pointer(name))
                    for name, subschema in value.items()
                    if not self._is_hidden(key, subschema)
                }
            elif key == "type" or key in ANNOTATION_KEYWORDS or key in CONSTRAINT_KEYWORDS:
                converted[key] = value
            elif key == "example":
                converted.setdefault("examples", [value])
        self._normalize_constraints(node, converted)
        return converted

    def _is_hidden(self, keyword: str, node: Any) -> bool:
        return (
            keyword == "properties"
            and isinstance(node, dict)
            and node.get(self._hidden_keyword) is True
        )

    def _normalize_constraints(self, node: Mapping[str, Any], converted: dict[str, Any]) -> None:
        for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            # OpenAPI 3.0: a boolean next to the bound.
            if converted.get(exclusive) is True and bound in converted:
                converted[exclusive] = converted.pop(bound)
            elif isinstance(converted.get(exclusive), bool):
                converted.pop(exclusive)
        properties, required = node.get("properties"), converted.get("required")
        if isinstance(properties, dict) and isinstance(required, list):
            required_names = [
                name
                for name in required
                if name in converted["properties"] or name not in properties
            ]
            converted["required"] = required_names
        if self._is_output:
            for keyword in (*CONSTRAINT_KEYWORDS, "default", "not", "if", "then", "else"):
                converted.pop(keyword, None)
            if converted.get("additionalProperties") is False:
                converted.pop("additionalProperties")
            if "oneOf" in converted:  # without constraints, several may match
                converted.setdefault("anyOf", converted.pop("oneOf"))

    def _add_null_type(self, node: Mapping[str, Any], converted: dict[str, Any]) -> dict[str, Any]:
        if not (self._is_output or (self._document.minor == 0 and node.get("nullable") is True)):
            return converted
        type_value = converted.get("type")
        if isinstance(type_value, str | list):
            types = [type_value] if isinstance(type_value, str) else type_value
            converted["type"] = list(dict.fromkeys([*types, "null"]))
            if isinstance(converted.get("enum"), list) and None not in converted["enum"]:
                converted["enum"] = [*converted["enum"], None]
            return converted
        if set(converted) & {"$ref", *SCHEMA_LIST_KEYWORDS, "enum"}:
            return {"anyOf": [converted, {"type": "null"}]}
        return converted


def find_text(node: Any, *names: str) -> str:
    """Return the first of these fields that is a non-blank string, else ""."""
    values = (node.get(name) for name in names) if isinstance(node, dict) else ()
    return next((value for value in values if isinstance(value, str) and value.strip()), "")


def format_node(node: Any) -> str:
    """Return an unexpected value as a short, safe string."""
    return make_visible(str(node), 60)
