"""Parse and check operations that an administrator declares without a document (pure).

The result is the form that is stored (`endpoint_config.declared`), exported and shown.
`compose_document` builds an OpenAPI document from it, which is then handled like any other.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.secret_names import is_secret_name
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.openapi.operations import (
    HTTP_TOKEN,
    MAX_PARAMETER_NAME,
    MAX_POINTER_CHARACTERS,
    RESERVED_HEADERS,
)
from mcp_servers.openapi.schema_conversion import format_node

INPUT_LOCATIONS = ("path", "query", "header", "body")
SCALAR_TYPES = ("string", "integer", "number", "boolean")
LIST_TYPES = tuple(f"{kind}[]" for kind in SCALAR_TYPES)
INPUT_TYPES = (*SCALAR_TYPES, *LIST_TYPES, "object")
PARAMETER_FIELDS = ("name", "in", "type", "required", "description", "default", "enum")
MAX_INPUTS = 100
MAX_CHOICES = 200
MAX_TEXT_CHARACTERS = 1_000
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
METHODS_WITHOUT_BODY = ("GET",)
BODY_FORMATS = ("json", "form")
MAX_DECLARED_OPERATIONS = 100
MAX_DECLARED_BYTES = 128 * 1024
MAX_OPERATION_NAME = 64
MAX_PATH_CHARACTERS = 400
MAX_DESCRIPTION_CHARACTERS = 4_000
OPERATION_FIELDS = (
    "name",
    "description",
    "method",
    "path",
    "parameters",
    "body",
    "result",
    "labels",
)
DECLARED_FIELD = "endpoint_config.declared"
# Names that stay unchanged when the document is parsed: letters, digits, `-` and single `_`.
_OPERATION_NAME = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*")
_PATH_PARAMETER = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, kw_only=True)
class OperationInput:
    """An input of the request: its name, location, type and constraints."""

    name: str
    location: str
    type: str = "string"
    required: bool = False
    description: str = ""
    default: Any = None
    choices: tuple[Any, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the stored form, which `read_inputs` parses."""
        payload: dict[str, Any] = {"name": self.name, "in": self.location, "type": self.type}
        payload["required"] = self.required
        if self.description:
            payload["description"] = self.description
        if self.default is not None:
            payload["default"] = self.default
        if self.choices:
            payload["enum"] = list(self.choices)
        return payload

    def to_json_schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": self.type}
        item_schema = schema
        if self.type in LIST_TYPES:
            item_schema = {"type": self.type.removesuffix("[]")}
            schema = {"type": "array", "items": item_schema}
        if self.choices:
            item_schema["enum"] = list(self.choices)
        if self.default is not None:
            schema["default"] = self.default
        return schema | ({"description": self.description} if self.description else {})


def read_inputs(raw: Any, path_parameters: Sequence[str], field: str) -> tuple[OperationInput, ...]:
    """Return the inputs; undeclared path parameters become strings. Raises `InvalidInput`."""
    if raw is not None and not isinstance(raw, list):
        raise build_field_error(field, "`parameters` must be a list.", "bad_value")
    if len(raw or ()) > MAX_INPUTS:
        raise build_field_error(
            field,
            format_message("There are more than {most_inputs} parameters.", most_inputs=MAX_INPUTS),
            "too_many",
        )
    inputs = [
        _read_input(item, path_parameters, f"{field}[{i}]") for i, item in enumerate(raw or ())
    ]
    seen_inputs: set[tuple[str, str]] = set()
    for index, item in enumerate(inputs):
        if (item.name, item.location) in seen_inputs:
            raise build_field_error(
                f"{field}[{index}].name",
                format_message(
                    "`{name}` is declared twice in the {place}.",
                    name=format_node(item.name),
                    place=item.location,
                ),
                "duplicate_name",
                "Remove the duplicate.",
            )
        seen_inputs.add((item.name, item.location))
    missing = [
        OperationInput(name=name, location="path", required=True)
        for name in dict.fromkeys(path_parameters)
        if (name, "path") not in seen_inputs
    ]
    return (*missing, *inputs)


def build_field_error(field: str, detail: str, code: str, remedy: str = "") -> InvalidInput:
    return InvalidInput(detail, code=code, field=field, remedy=remedy)


def _read_input(raw: Any, path_parameters: Sequence[str], field: str) -> OperationInput:
    if not isinstance(raw, Mapping):
        raise build_field_error(field, "A parameter must be an object.", "bad_value")
    if unknown_fields := sorted(set(map(str, raw)) - set(PARAMETER_FIELDS)):
        raise build_field_error(
            f"{field}.{unknown_fields[0][:64]}",
            format_message(
                "Unknown parameter field `{name}`.", name=format_node(unknown_fields[0])
            ),
            "unknown_field",
            format_message("Supported fields: {fields}.", fields=", ".join(PARAMETER_FIELDS)),
        )
    name = raw["name"].strip() if isinstance(raw.get("name"), str) else ""
    location = raw.get("in") or ("path" if name in path_parameters else "query")
    input_type = raw.get("type") or "string"
    for field_name, value, allowed_values in (
        ("in", location, INPUT_LOCATIONS),
        ("type", input_type, INPUT_TYPES),
    ):
        if value not in allowed_values:
            code = "unknown_type" if field_name == "type" else "unknown_place"
            detail = format_message(
                "`{value}` isn't a valid value for `{field}`.",
                value=format_node(value),
                field=field_name,
            )
            raise build_field_error(
                f"{field}.{field_name}",
                detail,
                code,
                format_message("Use one of: {values}.", values=", ".join(allowed_values)),
            )
    _check_input_name(name, location, path_parameters, f"{field}.name")
    required = raw.get("required", False)
    if not isinstance(required, bool):
        raise build_field_error(
            f"{field}.required", "`required` must be true or false.", "bad_value"
        )
    operation_input = OperationInput(
        name=name,
        location=location,
        type=input_type,
        required=required or location == "path",
        description=_parse_input_description(raw.get("description"), f"{field}.description"),
        default=raw.get("default"),
        choices=_parse_choices(raw.get("enum"), input_type, f"{field}.enum"),
    )
    _check_default(operation_input, f"{field}.default")
    return operation_input


def _parse_input_description(raw: Any, field: str) -> str:
    text = "" if raw is None else raw
    if not isinstance(text, str) or len(text) > MAX_TEXT_CHARACTERS:
        detail = format_message(
            "A parameter's description must be a string of at most {longest_text:,} characters.",
            longest_text=MAX_TEXT_CHARACTERS,
        )
        raise build_field_error(field, detail, "bad_value", "Use a shorter description.")
    return text.strip()


def _check_input_name(name: str, location: str, path_parameters: Sequence[str], field: str) -> None:
    if not name:
        raise build_field_error(field, "A parameter has no name.", "missing_value", "Enter a name.")
    if len(name) > MAX_PARAMETER_NAME or not name.isprintable():
        raise build_field_error(
            field,
            format_message("`{name}` isn't a valid parameter name.", name=format_node(name)),
            "bad_name",
            format_message(
                "Use at most {longest_name} printable characters.",
                longest_name=MAX_PARAMETER_NAME,
            ),
        )
    if location == "path" and name not in path_parameters:
        raise build_field_error(
            field,
            format_message("The path doesn't contain `{{{name}}}`.", name=format_node(name)),
            "not_in_path",
            "Add it to the path in braces, or choose another location for it.",
        )
    if location == "header" and (
        RESERVED_HEADERS.fullmatch(name) or not HTTP_TOKEN.fullmatch(name)
    ):
        raise build_field_error(
            field,
            format_message("`{name}` can't be declared as a header.", name=format_node(name)),
            "reserved_header",
            "Credentials belong in the authentication settings. Headers set by HTTP itself "
            "can't be declared.",
        )


def _parse_choices(raw: Any, input_type: str, field: str) -> tuple[Any, ...]:
    if raw in (None, []):
        return ()
    if not isinstance(raw, list) or len(raw) > MAX_CHOICES or input_type in ("object", "boolean"):
        raise build_field_error(
            field,
            format_message(
                "`enum` must be a list of at most {limit} strings or numbers.",
                limit=MAX_CHOICES,
            ),
            "bad_choice",
            "Omit it to allow any value.",
        )
    for choice in raw:
        if not _is_valid_value(choice, input_type.removesuffix("[]")):
            raise build_field_error(
                field,
                format_message(
                    "`{text}` isn't of type `{kind}`.",
                    text=format_node(choice),
                    kind=input_type,
                ),
                "bad_choice",
                "Enter a valid value.",
            )
    return tuple(dict.fromkeys(raw))


def _check_default(operation_input: OperationInput, field: str) -> None:
    if operation_input.default is None:
        return
    name = format_node(operation_input.name)
    if operation_input.required:
        raise build_field_error(
            field,
            format_message("`{name}` is required, so its default is never used.", name=name),
            "default_unused",
            "Make it optional, or omit the default.",
        )
    values = (
        operation_input.default if operation_input.type in LIST_TYPES else [operation_input.default]
    )
    item_type = operation_input.type.removesuffix("[]")
    if not isinstance(values, list) or not all(
        _is_valid_value(value, item_type) for value in values
    ):
        raise build_field_error(
            field,
            format_message(
                "The default of `{name}` isn't of type `{kind}`.",
                name=name,
                kind=operation_input.type,
            ),
            "bad_default",
            "Correct it, or omit it.",
        )
    if operation_input.choices and not all(value in operation_input.choices for value in values):
        raise build_field_error(
            field,
            format_message("The default of `{name}` isn't one of its choices.", name=name),
            "bad_default",
            "Use one of the choices.",
        )
    if item_type == "string" and is_secret_name(operation_input.name):
        raise build_field_error(
            field,
            format_message(
                "The default of `{name}` looks like a secret, but defaults are visible in "
                "plain text.",
                name=name,
            ),
            "secret_in_default",
            "Use the authentication settings or a server header. Their values are encrypted.",
        )


def _is_valid_value(value: Any, value_type: str) -> bool:
    """Tell whether a value has a type; strings are limited in length, numbers are finite."""
    if value_type == "string":
        return isinstance(value, str) and len(value) <= MAX_TEXT_CHARACTERS
    if value_type == "boolean":
        return isinstance(value, bool)
    if value_type == "object":
        return isinstance(value, Mapping) and len(str(value)) <= MAX_TEXT_CHARACTERS
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_finite_number = is_number and (isinstance(value, int) or math.isfinite(value))
    return is_finite_number and (value_type == "number" or isinstance(value, int))


@dataclass(frozen=True, kw_only=True)
class DeclaredOperation:
    """An operation as declared by an administrator; `labels` are None where they are inferred."""

    name: str
    description: str
    method: str
    path: str
    inputs: tuple[OperationInput, ...] = ()
    body: str = "json"
    result: str = ""
    labels: tuple[str, ...] | None = None

    @property
    def key(self) -> str:
        """Return the operation's identity within its API, such as `GET /pets`."""
        return f"{self.method} {self.path}"

    @property
    def body_inputs(self) -> tuple[OperationInput, ...]:
        return tuple(
            operation_input for operation_input in self.inputs if operation_input.location == "body"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the stored form, which `read_operation` parses."""
        payload: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "method": self.method,
            "path": self.path,
            "parameters": [operation_input.as_dict() for operation_input in self.inputs],
        }
        if self.body_inputs:
            payload["body"] = self.body
        if self.result:
            payload["result"] = self.result
        return payload | ({} if self.labels is None else {"labels": list(self.labels)})


def read_declared_operations(raw: Any, base_url: str) -> tuple[DeclaredOperation, ...]:
    """Return the operations of a list; raises `InvalidInput` naming the field."""
    field = DECLARED_FIELD
    if not isinstance(raw, list):
        raise build_field_error(field, "`declared` must be a list of operations.", "bad_value")
    if not raw:
        raise build_field_error(
            field, "No operation is declared.", "nothing_declared", "Declare at least one."
        )
    if len(raw) > MAX_DECLARED_OPERATIONS:
        raise build_field_error(
            field,
            format_message(
                "{count:,} operations exceed the limit of {most_declared} declared "
                "operations per server.",
                count=len(raw),
                most_declared=MAX_DECLARED_OPERATIONS,
            ),
            "too_many",
            "Distribute them across several servers.",
        )
    operations = tuple(
        read_operation(item, base_url, f"{field}[{i}]") for i, item in enumerate(raw)
    )
    _check_unique(operations, field)
    if len(json.dumps([item.as_dict() for item in operations])) > MAX_DECLARED_BYTES:
        raise build_field_error(
            field,
            format_message(
                "The operations are larger than {largest} KiB.", largest=MAX_DECLARED_BYTES // 1024
            ),
            "too_large",
            "Shorten the descriptions, or distribute the operations across several servers.",
        )
    return operations


def read_operation(raw: Any, base_url: str, field: str = "") -> DeclaredOperation:
    """Return one operation; raises `InvalidInput`."""
    if not isinstance(raw, Mapping):
        raise build_field_error(field, "An operation must be an object.", "bad_value")
    _check_known_fields(raw, field)
    name_field = _build_field_namer(field)
    method = raw.get("method") or "GET"
    if not isinstance(method, str) or method.upper() not in METHODS:
        raise build_field_error(
            name_field("method"),
            format_message("Unknown method `{method}`.", method=format_node(method)),
            "unknown_method",
            format_message("Use one of: {values}.", values=", ".join(METHODS)),
        )
    path = _parse_path(raw.get("path"), base_url, name_field("path"))
    operation = DeclaredOperation(
        name=_parse_operation_name(raw.get("name"), name_field("name")),
        description=_parse_operation_description(raw.get("description"), name_field("description")),
        method=method.upper(),
        path=path,
        inputs=read_inputs(
            raw.get("parameters"), _PATH_PARAMETER.findall(path), name_field("parameters")
        ),
        result=_parse_result_pointer(raw.get("result"), name_field("result")),
        labels=_parse_labels(raw.get("labels"), name_field("labels")),
    )
    return _set_body_format(operation, raw.get("body"), name_field)


def _check_known_fields(raw: Mapping[str, Any], field: str) -> None:
    """Raise `InvalidInput` for a field that isn't in `OPERATION_FIELDS`."""
    if unknown_fields := sorted(set(map(str, raw)) - set(OPERATION_FIELDS)):
        raise build_field_error(
            _build_field_namer(field)(unknown_fields[0][:64]),
            format_message("Unknown field `{name}`.", name=format_node(unknown_fields[0])),
            "unknown_field",
            format_message("Supported fields: {fields}.", fields=", ".join(OPERATION_FIELDS)),
        )


def _set_body_format(
    operation: DeclaredOperation, body_format: Any, name_field: Any
) -> DeclaredOperation:
    if body_format not in (None, "", *BODY_FORMATS):
        raise build_field_error(
            name_field("body"),
            format_message("Unknown body type `{kind}`.", kind=format_node(body_format)),
            "unknown_body",
            format_message("Use one of: {values}.", values=", ".join(BODY_FORMATS)),
        )
    if operation.body_inputs and operation.method in METHODS_WITHOUT_BODY:
        raise build_field_error(
            name_field("method"),
            format_message(
                "{method} requests have no body, but body fields are declared.",
                method=operation.method,
            ),
            "body_not_sent",
            "Move them to the query, or choose another method.",
        )
    return replace(operation, body=body_format or "json")


def _check_unique(operations: tuple[DeclaredOperation, ...], field: str) -> None:
    """Raise `InvalidInput` if two operations share a name, or method and path."""
    names: set[str] = set()
    keys: set[str] = set()
    for index, operation in enumerate(operations):
        operation_field = f"{field}[{index}]"
        if operation.name.lower() in names:
            raise build_field_error(
                f"{operation_field}.name",
                format_message("An operation named `{name}` already exists.", name=operation.name),
                "duplicate_name",
                "Choose another name. Names that differ only in case count as the same.",
            )
        if operation.key in keys:
            raise build_field_error(
                f"{operation_field}.path",
                format_message("`{key}` is declared twice.", key=operation.key),
                "duplicate_operation",
                "Keep only one of them. Method and path identify an operation.",
            )
        names.add(operation.name.lower())
        keys.add(operation.key)


def _parse_operation_name(raw: Any, field: str) -> str:
    name = raw.strip() if isinstance(raw, str) else ""
    if not name:
        raise build_field_error(
            field,
            "The operation has no name.",
            "missing_value",
            "Enter a tool name, such as `get_order`.",
        )
    if len(name) > MAX_OPERATION_NAME or not _OPERATION_NAME.fullmatch(name):
        raise build_field_error(
            field,
            format_message("`{name}` isn't a valid tool name.", name=format_node(name)),
            "bad_name",
            format_message(
                "Use letters, digits, `-`, and single `_` between them, at most "
                "{longest_name} characters.",
                longest_name=MAX_OPERATION_NAME,
            ),
        )
    return name


def _parse_operation_description(raw: Any, field: str) -> str:
    text = raw.strip() if isinstance(raw, str) else ""
    if not text:
        raise build_field_error(
            field,
            "The operation has no description.",
            "missing_value",
            "Describe what it does and when to use it. Models select tools by their description.",
        )
    if len(text) > MAX_DESCRIPTION_CHARACTERS:
        raise build_field_error(
            field,
            format_message(
                "The description is longer than {longest_description:,} characters.",
                longest_description=MAX_DESCRIPTION_CHARACTERS,
            ),
            "too_large",
            "Use a shorter description.",
        )
    return text


def _parse_path(raw: Any, base_url: str, field: str) -> str:
    """Return the path below the base URL; a full URL below it is accepted, too."""
    text = raw.strip() if isinstance(raw, str) else ""
    if not text:
        raise build_field_error(
            field,
            "The operation has no path.",
            "missing_value",
            "Enter a path, such as /orders/{id}.",
        )
    if re.match(r"(?:[A-Za-z{][^/?#]*:)?//", text) or "://" in text.partition("/")[0]:
        text = _strip_base_url(text, base_url, field)
    if "?" in text or "#" in text:
        raise build_field_error(
            field,
            "A path can't contain `?` or `#`.",
            "bad_path",
            "Declare the part after `?` as query parameters.",
        )
    path = text if text.startswith("/") else f"/{text}"
    if len(path) > MAX_PATH_CHARACTERS or not path.isprintable():
        raise build_field_error(
            field,
            "The path is too long or contains non-printable characters.",
            "bad_path",
            format_message(
                "Use at most {longest_path} characters, for example /orders/{{id}}.",
                longest_path=MAX_PATH_CHARACTERS,
            ),
        )
    return path


def _strip_base_url(text: str, base_url: str, field: str) -> str:
    base = base_url.partition("?")[0].rstrip("/")
    host = text.partition("//")[2].partition("/")[0]
    if "{" in host or "{" in text.partition("//")[0]:
        raise build_field_error(
            field,
            "The host can't be a parameter.",
            "host_is_parameter",
            "Enter a fixed host. Add APIs on different hosts as separate servers.",
        )
    if text != base and not text.startswith((f"{base}/", f"{base}?", f"{base}#")):
        raise build_field_error(
            field,
            format_message(
                "The operation's URL is outside its server's URL ({server_url}).", server_url=base
            ),
            "other_address",
            "Add it as a separate server. Credentials apply to one server only.",
        )
    return text[len(base) :] or "/"


def _parse_result_pointer(raw: Any, field: str) -> str:
    """Return a JSON pointer; `data.items` is accepted for `/data/items`."""
    if raw in (None, ""):
        return ""
    text = raw.strip() if isinstance(raw, str) else ""
    if text and not text.startswith("/"):
        text = "/" + text.replace(".", "/")
    if (
        len(text) < 2
        or len(text) > MAX_POINTER_CHARACTERS
        or not text.isprintable()
        or "//" in text
    ):
        raise build_field_error(
            field,
            format_message("`{path}` isn't a valid path into the response.", path=format_node(raw)),
            "bad_result",
            "Enter the path to it, such as data.items or /data/items.",
        )
    return text


def _parse_labels(raw: Any, field: str) -> tuple[str, ...] | None:
    if raw is None:
        return None
    if not isinstance(raw, list):
        raise build_field_error(field, "`labels` must be a list.", "bad_value")
    names = {str(item).replace("-", "_") for item in raw}
    if unknown := sorted(names - {*FlowLabel}):
        raise build_field_error(
            field,
            format_message("Unknown label `{unknown}`.", unknown=format_node(unknown[0])),
            "unknown_label",
            format_message("Use one of: {values}.", values=", ".join(FlowLabel)),
        )
    return tuple(label.value for label in FlowLabel if label in names)


def _build_field_namer(field: str) -> Any:
    return lambda name: f"{field}.{name}" if field else name


def parse_value(value_type: str, text: str, *, as_list: bool = False, field: str = "") -> Any:
    """Return a value of a type; lists are comma-separated or JSON.

    Raises `InvalidInput` (`bad_value`).
    """
    is_list = as_list or value_type in LIST_TYPES
    item_type = value_type.removesuffix("[]")
    text = text.strip()
    try:
        if is_list and text.startswith("["):
            value = json.loads(text)
        elif is_list:
            value = [
                _parse_single(item_type, part.strip()) for part in text.split(",") if part.strip()
            ]
        else:
            value = _parse_single(item_type, text)
    except (ValueError, RecursionError):
        detail = format_message(
            "`{text}` isn't of type `{kind}`.", text=format_node(text), kind=value_type
        )
        remedy = "Separate multiple values with commas." if is_list else ""
        raise build_field_error(field, detail, "bad_value", remedy) from None
    return value


def format_value(value: Any) -> str:
    """Return a value as `parse_value` accepts it; "" for None."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return _format_list(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parse_single(value_type: str, text: str) -> Any:
    return text if value_type == "string" else json.loads(text)


def _format_list(values: Sequence[Any]) -> str:
    texts = [format_value(value) for value in values]
    can_join = all(
        text and text == text.strip() and "," not in text and text[0] != "[" for text in texts
    )
    return ", ".join(texts) if can_join else json.dumps(list(values), ensure_ascii=False)
