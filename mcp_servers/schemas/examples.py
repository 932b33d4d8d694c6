"""Example values of schemas, with which forms begin. Pure."""

from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 6


def build_example(schema: Any) -> dict[str, Any]:
    """Return example arguments: defaults, or blank values of the right type."""
    if not isinstance(schema, Mapping) or not isinstance(schema.get("properties"), Mapping):
        return {}
    required = schema.get("required")
    required_names = required if isinstance(required, list) else []
    return {
        name: _build_blank_value(member, 0)
        for name, member in schema["properties"].items()
        if isinstance(member, Mapping) and (name in required_names or "default" in member)
    }


def _build_blank_value(schema: Mapping[str, Any], depth: int) -> Any:
    if "default" in schema:
        return schema["default"]
    if "const" in schema:
        return schema["const"]
    if isinstance(values := schema.get("enum"), list) and values:
        return values[0]
    kind = schema.get("type")
    if kind == "object" and depth < MAX_DEPTH:
        members = schema.get("properties")
        required_names = schema.get("required")
        return {
            name: _build_blank_value(member, depth + 1)
            for name, member in (members.items() if isinstance(members, Mapping) else ())
            if isinstance(member, Mapping)
            and isinstance(required_names, list)
            and name in required_names
        }
    items = schema.get("items")
    if kind == "array" and isinstance(items, Mapping) and "properties" in items:
        return [_build_blank_value({"type": "object", **items}, depth + 1)]
    blanks = {"array": [], "boolean": False, "integer": 0, "number": 0, "null": None, "object": {}}
    return blanks.get(kind, "") if isinstance(kind, str) else ""
