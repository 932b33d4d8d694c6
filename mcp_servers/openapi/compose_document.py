"""Compose an OpenAPI document from declared operations (pure)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bonobot.core.i18n.messages import format_message
from mcp_servers.openapi.declared_operations import (
    FIELD,
    DeclaredOperation,
    OperationInput,
    build_field_error,
)
from mcp_servers.openapi.document import OpenApiDocument
from mcp_servers.openapi.operations import (
    FORM,
    LABELS,
    PLAN,
    RESULT,
    SEND_DEFAULTS,
    OpenApiOperation,
    list_operations,
)
from mcp_servers.openapi.requests import PreparedRequest, prepare

VERSION = "3.1.0"
TITLE = "Operations declared by hand"
MEDIA = {"json": "application/json", "form": FORM}


def compose(declared: Sequence[DeclaredOperation], base_url: str, field: str = FIELD) -> str:
    """Return the document of operations as JSON text; deterministic.

    Raises `InvalidInput` (`operation_refused`) for an operation that can't be a tool.
    """
    document = _build_document(declared, base_url, field)
    found = {one.key: one for one in _read(document)}
    for index, each in enumerate(declared):
        if (one := found[each.key]).refused:
            raise _build_refusal(one, f"{field}[{index}]")
    return json.dumps(document, ensure_ascii=False, indent=1)


def build_tool(declared: DeclaredOperation, base_url: str, field: str = "") -> Mapping[str, Any]:
    """Return the tool for an operation; raises `InvalidInput`."""
    [one] = _read(_build_document([declared], base_url, field))
    if one.refused or one.tool is None:
        raise _build_refusal(one, field)
    return one.tool


def build_example_request(tool: Mapping[str, Any], base_url: str) -> PreparedRequest:
    """Return the request for a call with example arguments, without the sign-in."""
    return prepare(tool["_meta"][PLAN], base_url, _build_example_object(tool["inputSchema"]))


def _read(document: Mapping[str, Any]) -> list[OpenApiOperation]:
    return list(list_operations(OpenApiDocument(document, VERSION, int(VERSION.split(".")[1]))))


def _build_refusal(one: OpenApiOperation, field: str) -> Exception:
    detail = format_message(
        "`{one_key}` can't be a tool: {refused}", one_key=one.key, refused=one.refused
    )
    where = f"{field}.path" if field else "path"
    return build_field_error(where, detail, "operation_refused", "Correct the operation.")


def _build_document(
    declared: Sequence[DeclaredOperation], base_url: str, field: str
) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for index, one in enumerate(declared):
        spot = f"{field}[{index}]" if field else ""
        paths.setdefault(one.path, {})[one.method.lower()] = _build_operation(one, spot)
    return {
        "openapi": VERSION,
        "info": {"title": TITLE, "version": "1"},
        "servers": [{"url": base_url}],
        "paths": paths,
    }


def _build_operation(one: DeclaredOperation, field: str) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": one.name, "description": one.description}
    if asked := [_build_parameter(each) for each in one.inputs if each.place != "body"]:
        found["parameters"] = asked
    if fields := one.of("body"):
        nested = one.body == "json"
        schema = _build_body_schema(
            _build_field_tree(fields, field) if nested else {each.name: each for each in fields}
        )
        required = "required" in schema
        content = {MEDIA[one.body]: {"schema": schema}}
        found["requestBody"] = {"required": required, "content": content}
    found["responses"] = {"2XX": {"description": "The answer"}}
    found[SEND_DEFAULTS] = True
    if one.result:
        found[RESULT] = one.result
    if one.labels is not None:
        found[LABELS] = list(one.labels)
    return found


def _build_parameter(one: OperationInput) -> dict[str, Any]:
    schema = one.schema()
    description = schema.pop("description", "")
    found = {"name": one.name, "in": one.place, "required": one.required, "schema": schema}
    return found | ({"description": description} if description else {})


def _build_field_tree(fields: Sequence[OperationInput], field: str) -> dict[str, Any]:
    """Return the fields of a JSON body as a tree; `customer.email` is in `customer`."""
    root: dict[str, Any] = {}
    for one in fields:
        *way, last = one.name.split(".")
        here = root
        for step in way:
            here = here.setdefault(step, {})
            if isinstance(here, OperationInput):
                break
        if not last or not all(way) or isinstance(here, OperationInput) or last in here:
            raise build_field_error(
                f"{field}.parameters" if field else "parameters",
                format_message(
                    "The field `{name}` clashes with another one, or has an empty part.",
                    name=one.name,
                ),
                "field_clash",
                "A field is a value or has fields within it, such as customer.email.",
            )
        here[last] = one
    return root


def _build_body_schema(fields: Mapping[str, Any]) -> dict[str, Any]:
    properties = {
        name: one.schema() if isinstance(one, OperationInput) else _build_body_schema(one)
        for name, one in fields.items()
    }
    required = [name for name, one in fields.items() if _is_required(one)]
    found: dict[str, Any] = {"type": "object", "properties": properties}
    return found | ({"required": required} if required else {}) | {"additionalProperties": False}


def _is_required(one: Any) -> bool:
    return one.required if isinstance(one, OperationInput) else any(map(_is_required, one.values()))


def _build_example_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    return dict(_list_example_values(schema.get("properties", {})))


def _list_example_values(properties: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, schema in properties.items():
        yield name, _value(name, schema)


def _value(name: str, schema: Mapping[str, Any]) -> Any:
    """Return an example value: the default, the first choice, or a placeholder."""
    if "default" in schema:
        return schema["default"]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "array":
        return [_value(name, schema.get("items", {}))]
    if kind == "object":
        return _build_example_object(schema)
    return {"integer": 1, "number": 1.5, "boolean": True}.get(str(kind), name.upper())
