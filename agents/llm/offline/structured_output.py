"""Build a value for a simple output schema, without a language model."""

import json
from collections.abc import Mapping
from typing import Any

from agents.llm.interface import ModelError
from mcp_servers.schemas import InvalidArguments, SubprocessNeeded, is_valid_for_schema

MAX_DEPTH = 8
MAX_ITEMS = 8
_SIMPLE_VALUES: Mapping[str, Any] = {"boolean": False, "null": None}


class _UnsupportedSchema(ValueError):
    """The schema isn't simple enough."""


def render_output(schema: Mapping[str, Any], text: str) -> str:
    """Return JSON that matches the schema, with `text` as its strings.

    Raises `ModelError` if the schema isn't simple enough.
    """
    try:
        value = _build_value(schema, text, 0)
        if is_valid_for_schema(dict(schema), value):
            return json.dumps(value, ensure_ascii=False)
    except (_UnsupportedSchema, InvalidArguments, SubprocessNeeded):
        pass
    raise ModelError(
        "The offline model can't produce a value for this output schema.",
        code="model_no_answer",
        remedy="Simplify the output schema, or choose another model.",
        retryable=False,
    )


def _build_value(schema: Any, text: str, depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        raise _UnsupportedSchema
    given_values = [schema[keyword] for keyword in ("const", "default") if keyword in schema]
    if choices := [*given_values, *schema.get("enum", ())]:
        return choices[0]
    kind = schema.get("type", "string")
    if kind in _SIMPLE_VALUES:
        return _SIMPLE_VALUES[kind]
    if kind == "string":
        shortened = text[: schema.get("maxLength", len(text))]
        return shortened.ljust(min(schema.get("minLength", 0), 1_000), ".")
    if kind in ("integer", "number"):
        return _build_number(schema)
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _build_value(child, text, depth + 1) for name, child in properties.items()}
    count = schema.get("minItems", 0)
    if kind != "array" or count > MAX_ITEMS:
        raise _UnsupportedSchema
    return [_build_value(schema.get("items", {}), text, depth + 1) for _ in range(count)]


def _build_number(schema: Mapping[str, Any]) -> float:
    least, most = schema.get("minimum", 0), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        least = max(least, schema["exclusiveMinimum"] + 1)
    number: float = least if most is None or least <= most else most
    return number
