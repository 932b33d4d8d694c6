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

MOST_NODES = 2_000

# Keywords of JSON Schema 2020-12 by the type of their values; others are OpenAPI's own.
SCHEMA = (
    *("items", "contains", "not", "if", "then", "else", "additionalProperties", "propertyNames"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
BY_NAME = ("properties", "patternProperties", "dependentSchemas")
BOUNDS = (
    *("multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength"),
    *("minLength", "pattern", "maxItems", "minItems", "uniqueItems", "maxProperties"),
    *("minProperties", "required", "enum", "const", "format", "dependentRequired"),
    *("minContains", "maxContains"),
)
TOLD = ("title", "description", "default", "examples", "deprecated", "contentMediaType")
# The keyword of properties that a request, or a response, doesn't have.
HIDDEN = {"request": "readOnly", "answer": "writeOnly"}
_PLAIN = re.compile(r"[^A-Za-z0-9_.-]+")


class SchemaConverter:
    """Converts one schema with its definitions, up to a number of nodes.

    Output schemas omit constraints and allow null: APIs drift from their documents, and clients
    reject a result that doesn't match its schema.
    """

    def __init__(
        self, document: OpenApiDocument, *, of: str = "request", most: int = MOST_NODES
    ) -> None:
        self.definitions: dict[str, Any] = {}
        self._document = document
        self._hidden = HIDDEN[of]
        self._describing = of == "answer"
        self._names: dict[str, str] = {}
        self._waiting: list[tuple[str, Any, str]] = []
        self._left = self._most = most

    def whole(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a schema with all its definitions; raises `UnusableDocumentPart`."""
        while self._waiting:
            name, target, place = self._waiting.pop()
            self.definitions[name] = self.schema(target, place)
        return schema | ({"$defs": self.definitions} if self.definitions else {})

    def schema(self, node: Any, pointer: str) -> Any:
        """Return `node` as JSON Schema 2020-12; raises `UnusableDocumentPart`."""
        self._left -= 1
        if self._left < 0:
            raise UnusableDocumentPart(
                format_message("Its schemas have more than {most:,} parts.", most=self._most),
                pointer,
            )
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise UnusableDocumentPart("A schema is neither an object nor true or false.", pointer)
        if isinstance(node.get("$ref"), str):
            return self._reference(node, pointer)
        if "$dynamicRef" in node or "$recursiveRef" in node:
            raise UnusableDocumentPart(
                "It refers to schemas dynamically, which isn't read here.", pointer
            )
        return self._nullable(node, self._own(node, pointer))

    def root(self, node: Any, pointer: str) -> tuple[Any, str]:
        """Return a schema with its reference resolved, and its pointer."""
        return self._document.follow(node, pointer)

    def _reference(self, node: Mapping[str, Any], pointer: str) -> dict[str, Any]:
        target, place = self._document.follow(node, pointer)
        if place not in self._names:
            self._names[place] = name = self._name(place)
            self.definitions[name] = {}
            # Converted later, by `include_definitions`: references may form long chains and cycles.
            self._waiting.append((name, target, place))
        told = {"$ref": f"#/$defs/{self._names[place]}"}
        if isinstance(text := node.get("description"), str):
            told["description"] = text
        if self._document.minor == 0:
            return told  # OpenAPI 3.0 ignores siblings of a reference
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return (self._own(rest, pointer) | told) if rest else told

    def _name(self, place: str) -> str:
        bare = _PLAIN.sub("_", list(split_reference(f"#{place}"))[-1])[:64] or "part"
        name, number = bare, 2
        while name in self.definitions:
            name, number = f"{bare}_{number}", number + 1
        return name

    def _own(self, node: Mapping[str, Any], pointer: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.items():
            here = pointer + build_pointer(key)
            if key in SCHEMA:
                found[key] = self.schema(value, here)
            elif key in SCHEMAS and isinstance(value, list):
                found[key] = [
                    self.schema(one, f"{here}/{index}") for index, one in enumerate(value)
                ]
            elif key in BY_NAME and isinstance(value, dict):
                found[key] = {
                    name: self.schema(one, here + build_pointer(name))
                    for name, one in value.items()
                    if not self._is_hidden(key, one)
                }
            elif key == "type" or key in TOLD or key in BOUNDS:
                found[key] = value
            elif key == "example":
                found.setdefault("examples", [value])
        self._bounds(node, found)
        return found

    def _is_hidden(self, keyword: str, node: Any) -> bool:
        return keyword == "properties" and isinstance(node, dict) and node.get(self._hidden) is True

    def _bounds(self, node: Mapping[str, Any], found: dict[str, Any]) -> None:
        for exclusive, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            # OpenAPI 3.0: a boolean beside the bound.
            if found.get(exclusive) is True and plain in found:
                found[exclusive] = found.pop(plain)
            elif isinstance(found.get(exclusive), bool):
                found.pop(exclusive)
        properties, required = node.get("properties"), found.get("required")
        if isinstance(properties, dict) and isinstance(required, list):
            kept = [
                name for name in required if name in found["properties"] or name not in properties
            ]
            found["required"] = kept
        if self._describing:
            for keyword in (*BOUNDS, "default", "not", "if", "then", "else"):
                found.pop(keyword, None)
            if found.get("additionalProperties") is False:
                found.pop("additionalProperties")
            if "oneOf" in found:  # without constraints, several may match
                found.setdefault("anyOf", found.pop("oneOf"))

    def _nullable(self, node: Mapping[str, Any], found: dict[str, Any]) -> dict[str, Any]:
        if not (self._describing or (self._document.minor == 0 and node.get("nullable") is True)):
            return found
        kind = found.get("type")
        if isinstance(kind, str | list):
            kinds = [kind] if isinstance(kind, str) else kind
            found["type"] = list(dict.fromkeys([*kinds, "null"]))
            if isinstance(found.get("enum"), list) and None not in found["enum"]:
                found["enum"] = [*found["enum"], None]
            return found
        if set(found) & {"$ref", *SCHEMAS, "enum"}:
            return {"anyOf": [found, {"type": "null"}]}
        return found


def find_text(node: Any, *names: str) -> str:
    """Return the first of these fields that is a non-blank string, else ""."""
    values = (node.get(name) for name in names) if isinstance(node, dict) else ()
    return next((value for value in values if isinstance(value, str) and value.strip()), "")


def format_node(node: Any) -> str:
    """Return an unexpected value as a short, safe string."""
    return make_visible(str(node), 60)
