"""Build tools from OpenAPI operations, parameters and Bonobot's `x-` extensions (pure).

The plan of the request is stored in the tool's `_meta`, so that it is reviewed with the tool.

`x-bonobot-result` is a JSON pointer to the part of a response that is the result,
`x-bonobot-send-defaults` sends defaults for omitted arguments, `x-bonobot-labels` holds the flow
labels of an operation that an administrator declared. All of them are part of the plan.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from bonobot.core.i18n.messages import format_message
from mcp_servers.openapi.document import OpenApiDocument, UnusableDocumentPart, build_pointer
from mcp_servers.openapi.schema_conversion import SchemaConverter, find_text, format_node

MAX_PARAMETER_NAME = 64
PARAMETER_STYLES = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
# Headers that HTTP, the sign-in or OpenAPI sets: a parameter can't.
RESERVED_HEADERS = re.compile(
    r"(?i)accept|content-type|authorization|host|connection|content-length|transfer-encoding|"
    r"cookie|te|trailer|upgrade|expect|keep-alive|user-agent|accept-encoding|proxy-.*"
)
HTTP_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PATH_PARAMETER = re.compile(r"\{([^{}]*)\}")
_JSON_MEDIA_RANGE = re.compile(r"application/(?:json|[\w.+-]+\+json|\*)|\*/\*|text/json")
_TEXT_MEDIA_TYPE = re.compile(r"text/[\w.+-]+|application/(?:xml|[\w.+-]+\+xml|yaml|graphql)")
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
# The key in a tool's `_meta` for the plan of its request.
PLAN_META_KEY = "bonobot/operation"
RESULT_EXTENSION = "x-bonobot-result"
SEND_DEFAULTS_EXTENSION = "x-bonobot-send-defaults"
LABELS_EXTENSION = "x-bonobot-labels"
MAX_POINTER_CHARACTERS = 200
MAX_DEFAULTS_DEPTH = 16
MAX_LABELS = 10
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "query")
READ_METHODS = ("get", "head", "options", "query")
IDEMPOTENT_METHODS = (*READ_METHODS, "put", "delete")
MAX_NAME_CHARACTERS = 64
MAX_SUMMARY_CHARACTERS = 300
MAX_OUTPUT_SCHEMA_NODES = 400
MAX_OPERATIONS = 10_000
_JSON_MEDIA_TYPE = re.compile(r"application/(?:json|[\w.+-]+\+json)")
_Level = tuple[Any, str]
_MISSING = object()


@dataclass
class OperationArguments:
    """The arguments of a tool and their locations in the request."""

    properties: dict[str, Any] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    parameters: list[dict[str, Any]] = field(default_factory=list)
    body: dict[str, Any] | None = None

    def choose_name(self, name: str, location: str) -> str:
        """Return an unused argument name for a parameter: its own, sanitized, if that is free."""
        base_name = (
            re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_")[:MAX_PARAMETER_NAME] or location
        )
        candidate, number = base_name, 2
        if candidate in self.properties:
            candidate = f"{location}_{base_name}"[:MAX_PARAMETER_NAME]
        while candidate in self.properties:
            suffix = f"_{number}"
            candidate, number = base_name[: MAX_PARAMETER_NAME - len(suffix)] + suffix, number + 1
        return candidate


def collect_arguments(
    document: OpenApiDocument,
    converter: SchemaConverter,
    path: str,
    levels: list[tuple[Any, str]],
) -> OperationArguments:
    """Return an operation's arguments; `levels` are path item and operation with their pointers."""
    arguments = OperationArguments()
    parameters: dict[tuple[str, str], tuple[dict[str, Any], str]] = {}
    for node, pointer in levels:
        for parameter, parameter_pointer in _walk_parameters(document, node, pointer):
            name, location = parameter.get("name"), parameter.get("in")
            if not isinstance(name, str) or not name:
                raise UnusableDocumentPart("A parameter has no name.", parameter_pointer)
            if not isinstance(location, str) or location not in PARAMETER_STYLES:
                raise UnusableDocumentPart(
                    format_message(
                        "`{name}` has the unknown location `{where}`.",
                        name=format_node(name),
                        where=format_node(location),
                    ),
                    parameter_pointer,
                )
            parameters[name, location] = parameter, parameter_pointer
    for (name, location), (parameter, parameter_pointer) in parameters.items():
        if location == "header" and RESERVED_HEADERS.fullmatch(name):
            continue
        _add_parameter(converter, arguments, parameter, parameter_pointer)
    _check_path(path, {name for name, location in parameters if location == "path"}, levels[-1][1])
    operation, pointer = levels[-1]
    _add_body(
        document, converter, arguments, operation.get("requestBody"), f"{pointer}/requestBody"
    )
    return arguments


def _walk_parameters(
    document: OpenApiDocument, node: Any, pointer: str
) -> Iterator[tuple[dict[str, Any], str]]:
    items = node.get("parameters", [])
    if not isinstance(items, list):
        raise UnusableDocumentPart("`parameters` isn't a list.", pointer)
    for index, item in enumerate(items):
        parameter, parameter_pointer = document.resolve_node(item, f"{pointer}/parameters/{index}")
        if not isinstance(parameter, dict):
            raise UnusableDocumentPart("A parameter isn't an object.", parameter_pointer)
        yield parameter, parameter_pointer


def _add_parameter(
    converter: SchemaConverter,
    arguments: OperationArguments,
    parameter: Mapping[str, Any],
    pointer: str,
) -> None:
    name, location = parameter["name"], parameter["in"]
    if location in ("header", "cookie") and not HTTP_TOKEN.fullmatch(name):
        raise UnusableDocumentPart(
            format_message(
                "`{name}` isn't a valid {where} name.", name=format_node(name), where=location
            ),
            pointer,
        )
    argument = arguments.choose_name(name, location)
    placement: dict[str, Any] = {"argument": argument, "name": name, "in": location}
    content = parameter.get("content")
    if isinstance(content, dict) and content:
        media_type, media_object = next(iter(content.items()))
        if not _JSON_MEDIA_RANGE.fullmatch(media_type.partition(";")[0].strip().lower()):
            raise UnusableDocumentPart(
                format_message(
                    "`{name}` uses the content type `{media}`, which isn't supported.",
                    name=format_node(name),
                    media=format_node(media_type),
                ),
                pointer,
            )
        schema = media_object.get("schema", {}) if isinstance(media_object, dict) else {}
        placement["json"] = True
    else:
        schema = parameter.get("schema", {})
        placement |= _parse_style(parameter, location, pointer)
    arguments.properties[argument] = _add_description(
        converter.convert_schema(schema, f"{pointer}/schema"), find_text(parameter, "description")
    )
    if parameter.get("required") is True or location == "path":
        arguments.required.append(argument)
    arguments.parameters.append(placement)


def _parse_style(parameter: Mapping[str, Any], location: str, pointer: str) -> dict[str, Any]:
    style = parameter.get("style", PARAMETER_STYLES[location][0])
    if style not in PARAMETER_STYLES[location]:
        raise UnusableDocumentPart(
            format_message(
                "The style `{style}` isn't supported in a {where}.",
                style=format_node(style),
                where=location,
            ),
            pointer,
        )
    explode = parameter.get("explode", style in ("form", "deepObject"))
    return {"style": style, "explode": explode is True}


def _check_path(path: str, declared_names: set[str], pointer: str) -> None:
    """Raise if the path is unsafe or its parameters differ from the declared ones."""
    path_names = _PATH_PARAMETER.findall(path)
    literal_path = _PATH_PARAMETER.sub("x", path)
    if not path.startswith("/") or re.search(r"[{}?#\\\x00-\x20\x7f]", literal_path):
        raise UnusableDocumentPart(
            "Its path must start with `/` and contain no query, spaces, or `\\`.", pointer
        )
    if any(unquote(part) in (".", "..") for part in literal_path.split("/")):
        raise UnusableDocumentPart("Its path contains `.` or `..` segments.", pointer)
    if missing := [name for name in path_names if name not in declared_names]:
        raise UnusableDocumentPart(
            format_message(
                "Its path contains `{missing}`, which isn't declared as a parameter.",
                missing=format_node(missing[0]),
            ),
            pointer,
        )
    if extra := declared_names - set(path_names):
        raise UnusableDocumentPart(
            format_message(
                "Its path doesn't contain the parameter `{extra}`.", extra=format_node(min(extra))
            ),
            pointer,
        )


def _add_body(
    document: OpenApiDocument,
    converter: SchemaConverter,
    arguments: OperationArguments,
    node: Any,
    pointer: str,
) -> None:
    if node is None:
        return
    body, body_pointer = document.resolve_node(node, pointer)
    content = body.get("content") if isinstance(body, dict) else None
    if not isinstance(content, dict) or not content:
        raise UnusableDocumentPart("Its body has no content.", body_pointer)
    selected = _choose_media_type(content)
    is_required = body.get("required") is True
    if selected is None:
        if is_required:
            media_types = ", ".join(
                f"`{format_node(media_type)}`" for media_type in list(content)[:3]
            )
            raise UnusableDocumentPart(
                format_message(
                    "Its body accepts only {listed}, which isn't supported.", listed=media_types
                ),
                body_pointer,
            )
        return
    media_type, body_format = selected
    media_object = content[media_type] if isinstance(content[media_type], dict) else {}
    schema_pointer = body_pointer + build_pointer("content", media_type, "schema")
    schema = media_object.get("schema", {"type": "string"} if body_format == "text" else {})
    if body_format == MULTIPART:
        _check_no_files(document, schema, schema_pointer)
    argument = arguments.choose_name("body", "request")
    arguments.properties[argument] = _add_description(
        converter.convert_schema(schema, schema_pointer), find_text(body, "description")
    )
    if is_required:
        arguments.required.append(argument)
    content_type = "application/json" if "*" in media_type else media_type
    arguments.body = {"argument": argument, "type": content_type, "as": body_format}


def _choose_media_type(content: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the media type to send and its encoding; None if none is supported."""
    bare_types = {
        media_type: media_type.partition(";")[0].strip().lower() for media_type in content
    }
    for body_format, pattern in (
        ("json", _JSON_MEDIA_RANGE),
        (FORM, re.compile(re.escape(FORM))),
        (MULTIPART, re.compile(re.escape(MULTIPART))),
        ("text", _TEXT_MEDIA_TYPE),
    ):
        for media_type, bare_type in bare_types.items():
            if pattern.fullmatch(bare_type) and media_type.isascii() and media_type.isprintable():
                return media_type, body_format
    return None


def _check_no_files(document: OpenApiDocument, schema: Any, pointer: str) -> None:
    """Raise for a form that requires a file."""
    form, form_pointer = document.resolve_node(schema, pointer)
    properties = form.get("properties") if isinstance(form, dict) else None
    required = form.get("required") if isinstance(form, dict) else None
    for name in required if isinstance(required, list) else ():
        part = properties.get(name) if isinstance(properties, dict) else None
        part, part_pointer = document.resolve_node(
            part, form_pointer + build_pointer("properties", str(name))
        )
        if isinstance(part, dict) and (
            part.get("format") == "binary" or "contentMediaType" in part
        ):
            raise UnusableDocumentPart(
                format_message(
                    "Its body requires the file `{name}`, but only text can be sent.",
                    name=format_node(name),
                ),
                part_pointer,
            )


def _add_description(schema: Any, description: str) -> Any:
    if isinstance(schema, dict) and description:
        return schema | {"description": description}
    return schema


def build_plan_extensions(
    operation: Mapping[str, Any], properties: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the `x-` parts of an operation's plan; `properties` are its arguments' schemas."""
    extensions: dict[str, Any] = {}
    pointer = operation.get(RESULT_EXTENSION)
    if (
        isinstance(pointer, str)
        and pointer.startswith("/")
        and len(pointer) <= MAX_POINTER_CHARACTERS
    ):
        extensions["result"] = pointer
    defaults = (
        _collect_defaults(properties, 0) if operation.get(SEND_DEFAULTS_EXTENSION) is True else None
    )
    if defaults:
        extensions["defaults"] = defaults
    labels = operation.get(LABELS_EXTENSION)
    if isinstance(labels, list) and len(labels) <= MAX_LABELS:
        extensions["labels"] = [label for label in labels if isinstance(label, str)]
    return extensions


def find_declared_labels(payload: Mapping[str, Any]) -> list[str] | None:
    """Return the labels in a tool's plan; None if it has none."""
    meta = payload.get("_meta")
    plan = meta.get(PLAN_META_KEY) if isinstance(meta, Mapping) else None
    labels = plan.get("labels") if isinstance(plan, Mapping) else None
    return labels if isinstance(labels, list) else None


def apply_defaults(plan: Mapping[str, Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    defaults = plan.get("defaults")
    return _merge_defaults(arguments, defaults) if isinstance(defaults, Mapping) else arguments


def resolve_pointer(value: Any, pointer: str) -> tuple[Any, bool]:
    """Return the value that a JSON pointer refers to, and whether it exists."""
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            child = value.get(key, _MISSING)
        elif isinstance(value, list) and key.isdecimal() and len(key) < 6:
            child = value[int(key)] if int(key) < len(value) else _MISSING
        else:
            child = _MISSING
        if child is _MISSING:
            return None, False
        value = child
    return value, True


def _collect_defaults(properties: Any, depth: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        if not isinstance(schema, Mapping):
            continue
        if "default" in schema:
            defaults[name] = schema["default"]
        elif depth < MAX_DEFAULTS_DEPTH and (
            nested_defaults := _collect_defaults(schema.get("properties"), depth + 1)
        ):
            defaults[name] = nested_defaults
    return defaults


def _merge_defaults(arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    merged_arguments = {**defaults, **arguments}
    for name, default in defaults.items():
        argument = merged_arguments[name]
        if isinstance(default, Mapping) and isinstance(argument, Mapping):
            merged_arguments[name] = _merge_defaults(argument, default)
    return merged_arguments


@dataclass(frozen=True, kw_only=True)
class OpenApiOperation:
    """One operation, identified by `key` (`GET /pets`).

    `refusal_reason` says why it can't be a tool; `refusal_pointer` where in the document.
    """

    key: str
    name: str
    method: str
    path: str
    pointer: str
    operation_id: str = ""
    summary: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    deprecated: bool = False
    refusal_reason: str = ""
    refusal_pointer: str = ""
    tool: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def is_read_only(self) -> bool:
        """Tell whether the method is read-only."""
        return self.method in READ_METHODS

    def as_dict(self) -> dict[str, Any]:
        """Return the summary that a person selects operations from."""
        return {
            "key": self.key,
            "name": self.name,
            "operation_id": self.operation_id,
            "method": self.method.upper(),
            "path": self.path,
            "summary": (self.summary or self.description.partition("\n")[0])[
                :MAX_SUMMARY_CHARACTERS
            ],
            "tags": list(self.tags),
            "writes": not self.is_read_only,
            "deprecated": self.deprecated,
            "refused": self.refusal_reason,
            "pointer": self.refusal_pointer or self.pointer,
        }


def iterate_operations(document: OpenApiDocument) -> Iterator[OpenApiOperation]:
    """Yield every operation of a document, in document order."""
    entries = list(_walk_paths(document))[:MAX_OPERATIONS]
    names = _build_names([(key, node) for key, _, _, node, _ in entries])
    for key, path, method, node, levels in entries:
        yield _build_operation(document, key, names[key], path, method, node, levels)


def _walk_paths(document: OpenApiDocument) -> Iterator[tuple[str, str, str, Any, list[_Level]]]:
    for path, item in document.root.get("paths", {}).items():
        pointer = build_pointer("paths", path)
        if path.startswith("x-"):
            continue
        try:
            item, pointer = document.resolve_node(item, pointer)
        except UnusableDocumentPart as error:
            yield f"ANY {path}", path, "any", error, [({}, pointer)]
            continue
        if not isinstance(item, dict):
            continue
        for method in METHODS:
            if method in item:
                method_pointer = pointer + build_pointer(method)
                key = f"{method.upper()} {path}"
                yield (
                    key,
                    path,
                    method,
                    item[method],
                    [(item, pointer), (item[method], method_pointer)],
                )


def _build_operation(
    document: OpenApiDocument,
    key: str,
    name: str,
    path: str,
    method: str,
    node: Any,
    levels: list[_Level],
) -> OpenApiOperation:
    fields: dict[str, Any] = {"key": key, "name": name, "method": method, "path": path}
    fields["pointer"] = levels[-1][1]
    if isinstance(node, UnusableDocumentPart):
        return OpenApiOperation(**fields, refusal_reason=str(node), refusal_pointer=node.pointer)
    if not isinstance(node, dict):
        return OpenApiOperation(**fields, refusal_reason="The operation is not an object.")
    tags = node.get("tags")
    fields |= {
        "operation_id": find_text(node, "operationId"),
        "summary": find_text(node, "summary"),
        "description": find_text(node, "description"),
        "tags": tuple(tag for tag in tags if isinstance(tag, str))
        if isinstance(tags, list)
        else (),
        "deprecated": node.get("deprecated") is True,
    }
    try:
        _check_servers(document, levels)
        tool = _build_tool(document, key, name, path, method, levels)
        return OpenApiOperation(**fields, tool=tool)
    except UnusableDocumentPart as error:
        return OpenApiOperation(**fields, refusal_reason=str(error), refusal_pointer=error.pointer)


def _check_servers(document: OpenApiDocument, levels: list[_Level]) -> None:
    """Raise for an operation with its own servers: a credential is for one server only."""
    for node, pointer in levels:
        if isinstance(node, dict) and node.get("servers", document.root.get("servers")) != (
            document.root.get("servers")
        ):
            raise UnusableDocumentPart(
                "It defines its own servers. Add it as a separate server.", pointer
            )


def _build_tool(
    document: OpenApiDocument, key: str, name: str, path: str, method: str, levels: list[_Level]
) -> dict[str, Any]:
    operation, pointer = levels[-1]
    converter = SchemaConverter(document)
    arguments = collect_arguments(document, converter, path, levels)
    schema: dict[str, Any] = {"type": "object", "properties": arguments.properties}
    if arguments.required:
        schema["required"] = arguments.required
    schema["additionalProperties"] = False
    plan: dict[str, Any] = {"key": key, "method": method.upper(), "path": path}
    plan["parameters"] = arguments.parameters
    if arguments.body:
        plan["body"] = arguments.body
    plan |= build_plan_extensions(operation, arguments.properties)
    summary, description = find_text(operation, "summary"), find_text(operation, "description")
    tool: dict[str, Any] = {
        "name": name,
        "description": "\n\n".join(dict.fromkeys(filter(None, (summary, description)))) or key,
        "inputSchema": converter.include_definitions(schema),
        "annotations": _build_annotations(method, summary),
        "_meta": {PLAN_META_KEY: plan},
    }
    if output_schema := _build_output_schema(document, operation, pointer):
        tool["outputSchema"] = output_schema
    return tool


def _build_annotations(method: str, title: str) -> dict[str, Any]:
    hints: dict[str, Any] = {"readOnlyHint": method in READ_METHODS}
    if method not in READ_METHODS:
        hints |= {
            "destructiveHint": method != "post",
            "idempotentHint": method in IDEMPOTENT_METHODS,
        }
    return hints | {"openWorldHint": True} | ({"title": title} if title else {})


def _build_output_schema(
    document: OpenApiDocument, operation: Mapping[str, Any], pointer: str
) -> dict[str, Any] | None:
    """Return the schema of the successful JSON response; None if it is missing or unusable."""
    try:
        schema, schema_pointer = _find_success_schema(document, operation, f"{pointer}/responses")
        if schema is None:
            return None
        converter = SchemaConverter(document, purpose="answer", max_nodes=MAX_OUTPUT_SCHEMA_NODES)
        root, schema_pointer = converter.resolve_root(schema, schema_pointer)
        if isinstance(root, dict) and root.get("type") == "object":
            output_schema = converter.convert_schema(root, schema_pointer)
            return converter.include_definitions(output_schema | {"type": "object"})
        result_schema = converter.convert_schema(schema, schema_pointer)
        return converter.include_definitions(
            {"type": "object", "properties": {"result": result_schema}}
        )
    except UnusableDocumentPart:
        return None


def _find_success_schema(
    document: OpenApiDocument, operation: Mapping[str, Any], pointer: str
) -> tuple[Any, str]:
    responses = operation.get("responses")
    if not isinstance(responses, dict):
        return None, pointer
    for status in sorted(responses):
        if not str(status).startswith("2"):
            continue
        response, response_pointer = document.resolve_node(
            responses[status], pointer + build_pointer(str(status))
        )
        content = response.get("content") if isinstance(response, dict) else None
        for media_type, media_object in content.items() if isinstance(content, dict) else ():
            if _JSON_MEDIA_TYPE.fullmatch(
                media_type.partition(";")[0].strip().lower()
            ) and isinstance(media_object, dict):
                return media_object.get("schema"), response_pointer + build_pointer(
                    "content", media_type, "schema"
                )
    return None, pointer


def _build_names(operations: list[tuple[str, Any]]) -> dict[str, str]:
    """Return a unique, plain name for each key, independent of the order."""
    plain_names = {key: _build_plain_name(key, node) for key, node in operations}
    name_counts = Counter(name.lower() for name in plain_names.values())
    return {
        key: name
        if name_counts[name.lower()] == 1 and len(name) <= MAX_NAME_CHARACTERS
        else _add_name_suffix(name, key)
        for key, name in plain_names.items()
    }


def _build_plain_name(key: str, node: Any) -> str:
    operation_id = find_text(node, "operationId") or key.lower()
    return re.sub(r"[^A-Za-z0-9-]+", "_", operation_id).strip("_") or "operation"


def _add_name_suffix(name: str, key: str) -> str:
    suffix = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:8]
    return f"{name[: MAX_NAME_CHARACTERS - len(suffix) - 1]}_{suffix}"
