"""Compose an OpenAPI document from declared operations (pure)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bonobot.core.i18n.messages import format_message
from mcp_servers.openapi.declared_operations import (
    DECLARED_FIELD,
    DeclaredOperation,
    OperationInput,
    build_field_error,
)
from mcp_servers.openapi.document import OpenApiDocument
from mcp_servers.openapi.operations import (
    FORM,
    LABELS_EXTENSION,
    PLAN_META_KEY,
    RESULT_EXTENSION,
    SEND_DEFAULTS_EXTENSION,
    OpenApiOperation,
    iterate_operations,
)
from mcp_servers.openapi.requests import PreparedRequest, prepare_request

OPENAPI_VERSION = "3.1.0"
TITLE = "Operations declared by hand"
MEDIA_TYPES = {"json": "application/json", "form": FORM}


def compose_document(declared: Sequence[DeclaredOperation], base_url: str) -> str:
    """Return the document of operations as JSON text; deterministic.

    Raises `InvalidInput` (`operation_rejected`) for an operation that can't be a tool.
    """
    document = _build_document(declared, base_url, DECLARED_FIELD)
    operations = {operation.key: operation for operation in _read_operations(document)}
    for index, declaration in enumerate(declared):
        if (operation := operations[declaration.key]).refusal_reason:
            raise _build_refusal_error(operation, f"{DECLARED_FIELD}[{index}]")
    return json.dumps(document, ensure_ascii=False, indent=1)


def build_tool(declaration: DeclaredOperation, base_url: str, field: str = "") -> Mapping[str, Any]:
    """Return the tool for an operation; raises `InvalidInput`."""
    [operation] = _read_operations(_build_document([declaration], base_url, field))
    if operation.refusal_reason or operation.tool is None:
        raise _build_refusal_error(operation, field)
    return operation.tool


def build_example_request(tool: Mapping[str, Any], base_url: str) -> PreparedRequest:
    """Return the request for a call with example arguments, without the sign-in."""
    return prepare_request(
        tool["_meta"][PLAN_META_KEY], base_url, _build_example_object(tool["inputSchema"])
    )


def _read_operations(document: Mapping[str, Any]) -> list[OpenApiOperation]:
    return list(
        iterate_operations(
            OpenApiDocument(document, OPENAPI_VERSION, int(OPENAPI_VERSION.split(".")[1]))
        )
    )


def _build_refusal_error(operation: OpenApiOperation, field: str) -> Exception:
    detail = format_message(
        "`{key}` can't be a tool: {refused}",
        key=operation.key,
        refused=operation.refusal_reason,
    )
    path_field = f"{field}.path" if field else "path"
    return build_field_error(path_field, detail, "operation_rejected", "Correct the operation.")


def _build_document(
    declared: Sequence[DeclaredOperation], base_url: str, field: str
) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for index, declaration in enumerate(declared):
        operation_field = f"{field}[{index}]" if field else ""
        paths.setdefault(declaration.path, {})[declaration.method.lower()] = _build_operation(
            declaration, operation_field
        )
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": TITLE, "version": "1"},
        "servers": [{"url": base_url}],
        "paths": paths,
    }


def _build_operation(declaration: DeclaredOperation, field: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": declaration.name,
        "description": declaration.description,
    }
    if parameters := [
        _build_parameter(operation_input)
        for operation_input in declaration.inputs
        if operation_input.location != "body"
    ]:
        operation["parameters"] = parameters
    if fields := declaration.body_inputs:
        is_json = declaration.body == "json"
        schema = _build_body_schema(
            _build_field_tree(fields, field)
            if is_json
            else {operation_input.name: operation_input for operation_input in fields}
        )
        required = "required" in schema
        content = {MEDIA_TYPES[declaration.body]: {"schema": schema}}
        operation["requestBody"] = {"required": required, "content": content}
    operation["responses"] = {"2XX": {"description": "The answer"}}
    operation[SEND_DEFAULTS_EXTENSION] = True
    if declaration.result:
        operation[RESULT_EXTENSION] = declaration.result
    if declaration.labels is not None:
        operation[LABELS_EXTENSION] = list(declaration.labels)
    return operation


def _build_parameter(operation_input: OperationInput) -> dict[str, Any]:
    schema = operation_input.to_json_schema()
    description = schema.pop("description", "")
    parameter = {
        "name": operation_input.name,
        "in": operation_input.location,
        "required": operation_input.required,
        "schema": schema,
    }
    return parameter | ({"description": description} if description else {})


def _build_field_tree(fields: Sequence[OperationInput], field: str) -> dict[str, Any]:
    """Return the fields of a JSON body as a tree; `customer.email` is in `customer`."""
    root: dict[str, Any] = {}
    for operation_input in fields:
        *parents, leaf = operation_input.name.split(".")
        node = root
        for parent in parents:
            node = node.setdefault(parent, {})
            if isinstance(node, OperationInput):
                break
        if not leaf or not all(parents) or isinstance(node, OperationInput) or leaf in node:
            raise build_field_error(
                f"{field}.parameters" if field else "parameters",
                format_message(
                    "The field `{name}` conflicts with another field, or part of its name "
                    "is empty.",
                    name=operation_input.name,
                ),
                "field_clash",
                "A field either holds a value or contains other fields, such as customer.email.",
            )
        node[leaf] = operation_input
    return root


def _build_body_schema(fields: Mapping[str, Any]) -> dict[str, Any]:
    properties = {
        name: node.to_json_schema()
        if isinstance(node, OperationInput)
        else _build_body_schema(node)
        for name, node in fields.items()
    }
    required = [name for name, node in fields.items() if _is_required(node)]
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema | ({"required": required} if required else {}) | {"additionalProperties": False}


def _is_required(node: Any) -> bool:
    return (
        node.required if isinstance(node, OperationInput) else any(map(_is_required, node.values()))
    )


def _build_example_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    return dict(_iterate_example_values(schema.get("properties", {})))


def _iterate_example_values(properties: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, schema in properties.items():
        yield name, _build_example_value(name, schema)


def _build_example_value(name: str, schema: Mapping[str, Any]) -> Any:
    """Return an example value: the default, the first choice, or a placeholder."""
    if "default" in schema:
        return schema["default"]
    if schema.get("enum"):
        return schema["enum"][0]
    schema_type = schema.get("type")
    if schema_type == "array":
        return [_build_example_value(name, schema.get("items", {}))]
    if schema_type == "object":
        return _build_example_object(schema)
    return {"integer": 1, "number": 1.5, "boolean": True}.get(str(schema_type), name.upper())
