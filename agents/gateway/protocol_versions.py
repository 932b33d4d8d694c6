"""Translate what servers say for clients of the other era, mostly for the handshake era.

Those clients refuse a whole list for one schema, or a whole result for one field, that their era
doesn't know.
"""

import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

# Result fields of the modern era.
MODERN_FIELDS = ("resultType", "ttlMs", "cacheScope")


def translate_declaration(declaration: dict[str, Any]) -> dict[str, Any]:
    """Return a declaration whose schemas describe objects, as the handshake era requires."""
    translated = dict(declaration)
    output_schema, input_schema = declaration.get("outputSchema"), declaration.get("inputSchema")
    if "outputSchema" in declaration and not (
        isinstance(output_schema, Mapping) and output_schema.get("type") == "object"
    ):
        del translated["outputSchema"]
    if isinstance(input_schema, Mapping) and "type" not in input_schema:
        translated["inputSchema"] = {"type": "object", **input_schema}
    return translated


def translate_execution(declaration: dict[str, Any]) -> dict[str, Any]:
    """Return a declaration without `execution.taskSupport`: the gateway creates tasks itself.

    Clients refuse to make an ordinary call of a tool that requires a task.
    """
    execution = declaration.get("execution")
    if not isinstance(execution, Mapping) or "taskSupport" not in execution:
        return dict(declaration)
    other_fields = {name: value for name, value in execution.items() if name != "taskSupport"}
    fields = {name: value for name, value in declaration.items() if name != "execution"}
    return fields | ({"execution": other_fields} if other_fields else {})


def translate_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result without fields and values of the modern era."""
    fields = {name: value for name, value in result.items() if name not in MODERN_FIELDS}
    structured = fields.get("structuredContent", {})
    if not isinstance(structured, Mapping):
        del fields["structuredContent"]
        # The value itself stays readable.
        fields["content"] = fields.get("content") or [
            {"type": "text", "text": json.dumps(structured, ensure_ascii=False)}
        ]
    return fields


def translate_input_request(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a modern server's request: a URL elicitation needs an id."""
    needs_id = method == "elicitation/create" and params.get("mode") == "url"
    return {"elicitationId": str(uuid4()), **params} if needs_id else dict(params)
