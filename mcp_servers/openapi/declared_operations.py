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
from mcp_servers.openapi.operations import LONGEST_POINTER, MAX_PARAMETER_NAME, OURS, TOKEN
from mcp_servers.openapi.schema_conversion import format_node

PLACES = ("path", "query", "header", "body")
SCALARS = ("string", "integer", "number", "boolean")
LISTS = tuple(f"{kind}[]" for kind in SCALARS)
TYPES = (*SCALARS, *LISTS, "object")
PARAMETER_FIELDS = ("name", "in", "type", "required", "description", "default", "enum")
MOST_INPUTS = 100
MOST_CHOICES = 200
LONGEST_TEXT = 1_000


@dataclass(frozen=True, kw_only=True)
class OperationInput:
    """An input of the request: its name, location, type and constraints."""

    name: str
    place: str
    type: str = "string"
    required: bool = False
    description: str = ""
    default: Any = None
    choices: tuple[Any, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the stored form, which `read_inputs` parses."""
        found: dict[str, Any] = {"name": self.name, "in": self.place, "type": self.type}
        found["required"] = self.required
        if self.description:
            found["description"] = self.description
        if self.default is not None:
            found["default"] = self.default
        if self.choices:
            found["enum"] = list(self.choices)
        return found

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the input."""
        found: dict[str, Any] = {"type": self.type}
        bounded = found
        if self.type in LISTS:
            bounded = {"type": self.type.removesuffix("[]")}
            found = {"type": "array", "items": bounded}
        if self.choices:
            bounded["enum"] = list(self.choices)
        if self.default is not None:
            found["default"] = self.default
        return found | ({"description": self.description} if self.description else {})


def read_inputs(raw: Any, in_path: Sequence[str], field: str) -> tuple[OperationInput, ...]:
    """Return the inputs; undeclared path parameters become strings. Raises `InvalidInput`."""
    if raw is not None and not isinstance(raw, list):
        raise build_field_error(field, "`parameters` must be a list.", "bad_value")
    if len(raw or ()) > MOST_INPUTS:
        raise build_field_error(
            field,
            format_message(
                "There are more than {most_inputs} parameters.", most_inputs=MOST_INPUTS
            ),
            "too_many",
        )
    found = [_read(one, in_path, f"{field}[{i}]") for i, one in enumerate(raw or ())]
    seen: set[tuple[str, str]] = set()
    for index, one in enumerate(found):
        if (one.name, one.place) in seen:
            raise build_field_error(
                f"{field}[{index}].name",
                format_message(
                    "`{name}` is in the {place} twice.", name=format_node(one.name), place=one.place
                ),
                "duplicate_name",
                "Keep one of them.",
            )
        seen.add((one.name, one.place))
    missing = [
        OperationInput(name=name, place="path", required=True)
        for name in dict.fromkeys(in_path)
        if (name, "path") not in seen
    ]
    return (*missing, *found)


def build_field_error(field: str, detail: str, code: str, remedy: str = "") -> InvalidInput:
    """Return the problem for an invalid field."""
    return InvalidInput(detail, code=code, field=field, remedy=remedy)


def _read(raw: Any, in_path: Sequence[str], field: str) -> OperationInput:
    if not isinstance(raw, Mapping):
        raise build_field_error(field, "A parameter must be an object.", "bad_value")
    if strange := sorted(set(map(str, raw)) - set(PARAMETER_FIELDS)):
        raise build_field_error(
            f"{field}.{strange[0][:64]}",
            format_message(
                "A parameter has no member `{strange}`.", strange=format_node(strange[0])
            ),
            "unknown_field",
            format_message("Members: {members}.", members=", ".join(PARAMETER_FIELDS)),
        )
    name = raw["name"].strip() if isinstance(raw.get("name"), str) else ""
    place = raw.get("in") or ("path" if name in in_path else "query")
    kind = raw.get("type") or "string"
    for member, said, known in (("in", place, PLACES), ("type", kind, TYPES)):
        if said not in known:
            code = "unknown_type" if member == "type" else "unknown_place"
            detail = format_message(
                "There is no `{said}` for `{member}`.", said=format_node(said), member=member
            )
            raise build_field_error(
                f"{field}.{member}",
                detail,
                code,
                format_message("Use one of: {known}.", known=", ".join(known)),
            )
    _check_input_name(name, place, in_path, f"{field}.name")
    required = raw.get("required", False)
    if not isinstance(required, bool):
        raise build_field_error(
            f"{field}.required", "`required` must be true or false.", "bad_value"
        )
    found = OperationInput(
        name=name,
        place=place,
        type=kind,
        required=required or place == "path",
        description=_parse_input_description(raw.get("description"), f"{field}.description"),
        default=raw.get("default"),
        choices=_choices(raw.get("enum"), kind, f"{field}.enum"),
    )
    _default_holds(found, f"{field}.default")
    return found


def _parse_input_description(said: Any, field: str) -> str:
    text = "" if said is None else said
    if not isinstance(text, str) or len(text) > LONGEST_TEXT:
        detail = format_message(
            "A parameter's description is a text of at most {longest_text:,} characters.",
            longest_text=LONGEST_TEXT,
        )
        raise build_field_error(field, detail, "bad_value", "Say it in fewer words.")
    return text.strip()


def _check_input_name(name: str, place: str, in_path: Sequence[str], field: str) -> None:
    if not name:
        raise build_field_error(
            field, "A parameter has no name.", "missing_value", "Write its name."
        )
    if len(name) > MAX_PARAMETER_NAME or not name.isprintable():
        raise build_field_error(
            field,
            format_message("`{name}` can't be the name of a parameter.", name=format_node(name)),
            "bad_name",
            format_message(
                "At most {longest_name} characters that can be seen.",
                longest_name=MAX_PARAMETER_NAME,
            ),
        )
    if place == "path" and name not in in_path:
        raise build_field_error(
            field,
            format_message("The path doesn't name `{{{name}}}`.", name=format_node(name)),
            "not_in_path",
            "Write it into the path in braces, or choose another place for it.",
        )
    if place == "header" and (OURS.fullmatch(name) or not TOKEN.fullmatch(name)):
        raise build_field_error(
            field,
            format_message("`{name}` can't be a header that is declared.", name=format_node(name)),
            "reserved_header",
            "Credentials belong into the sign-in; what HTTP itself sets can't be chosen.",
        )


def _choices(raw: Any, kind: str, field: str) -> tuple[Any, ...]:
    if raw in (None, []):
        return ()
    if not isinstance(raw, list) or len(raw) > MOST_CHOICES or kind in ("object", "boolean"):
        raise build_field_error(
            field,
            format_message(
                "`enum` must be a list of at most {most_choices} texts or numbers.",
                most_choices=MOST_CHOICES,
            ),
            "bad_choice",
            "Leave it out where anything may be given.",
        )
    for one in raw:
        if not _is_valid_value(one, kind.removesuffix("[]")):
            raise build_field_error(
                field,
                format_message(
                    "`{one}` is none of the type `{kind}`.", one=format_node(one), kind=kind
                ),
                "bad_choice",
                "Correct it.",
            )
    return tuple(dict.fromkeys(raw))


def _default_holds(one: OperationInput, field: str) -> None:
    if one.default is None:
        return
    name = format_node(one.name)
    if one.required:
        raise build_field_error(
            field,
            format_message(
                "`{name}` always has to be given, so that its default is never used.", name=name
            ),
            "default_unused",
            "Make it optional, or leave the default out.",
        )
    given = one.default if one.type in LISTS else [one.default]
    plain = one.type.removesuffix("[]")
    if not isinstance(given, list) or not all(_is_valid_value(value, plain) for value in given):
        raise build_field_error(
            field,
            format_message(
                "The default of `{name}` isn't of the type `{kind}`.", name=name, kind=one.type
            ),
            "bad_default",
            "Correct it, or leave it out.",
        )
    if one.choices and not all(value in one.choices for value in given):
        raise build_field_error(
            field,
            format_message("The default of `{name}` is none of its choices.", name=name),
            "bad_default",
            "Choose one of them.",
        )
    if plain == "string" and is_secret_name(one.name):
        raise build_field_error(
            field,
            format_message(
                "The default of `{name}` looks like a secret; defaults are open.", name=name
            ),
            "secret_in_default",
            "Use the sign-in (or a header of the server), whose value is sealed.",
        )


def _is_valid_value(value: Any, kind: str) -> bool:
    """Tell whether a value has a type; strings are limited in length, numbers are finite."""
    if kind == "string":
        return isinstance(value, str) and len(value) <= LONGEST_TEXT
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "object":
        return isinstance(value, Mapping) and len(str(value)) <= LONGEST_TEXT
    number = isinstance(value, int | float) and not isinstance(value, bool)
    whole = number and (isinstance(value, int) or math.isfinite(value))
    return whole and (kind == "number" or isinstance(value, int))


METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
WITHOUT_BODY = ("GET",)
BODIES = ("json", "form")
MOST_DECLARED = 100
LARGEST = 128 * 1024
MAX_OPERATION_NAME = 64
LONGEST_PATH = 400
LONGEST_DESCRIPTION = 4_000
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
FIELD = "endpoint_config.declared"
# Names that stay unchanged when the document is parsed: letters, digits, `-` and single `_`.
_NAME = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*")
_TEMPLATE = re.compile(r"\{([^{}]*)\}")


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

    def of(self, place: str) -> tuple[OperationInput, ...]:
        """Return the inputs of one location of the request."""
        return tuple(one for one in self.inputs if one.place == place)

    def as_dict(self) -> dict[str, Any]:
        """Return the stored form, which `read_operation` parses."""
        found: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "method": self.method,
            "path": self.path,
            "parameters": [one.as_dict() for one in self.inputs],
        }
        if self.of("body"):
            found["body"] = self.body
        if self.result:
            found["result"] = self.result
        return found | ({} if self.labels is None else {"labels": list(self.labels)})


def read_declared(raw: Any, base_url: str, field: str = FIELD) -> tuple[DeclaredOperation, ...]:
    """Return the operations of a list; raises `InvalidInput` naming the field."""
    if not isinstance(raw, list):
        raise build_field_error(field, "`declared` must be a list of operations.", "bad_value")
    if not raw:
        raise build_field_error(
            field, "No operation is declared.", "nothing_declared", "Declare at least one."
        )
    if len(raw) > MOST_DECLARED:
        raise build_field_error(
            field,
            format_message(
                "{count:,} operations are more than can be declared at "
                "one server ({most_declared}).",
                count=len(raw),
                most_declared=MOST_DECLARED,
            ),
            "too_many",
            "Spread them over several servers.",
        )
    found = tuple(read_one(one, base_url, f"{field}[{i}]") for i, one in enumerate(raw))
    _check_unique(found, field)
    if len(json.dumps([one.as_dict() for one in found])) > LARGEST:
        raise build_field_error(
            field,
            format_message(
                "The operations are larger than {largest} KiB.", largest=LARGEST // 1024
            ),
            "too_large",
            "Write shorter descriptions, or spread them over several servers.",
        )
    return found


def read_one(raw: Any, base_url: str, field: str = "") -> DeclaredOperation:
    """Return one operation; raises `InvalidInput`."""
    if not isinstance(raw, Mapping):
        raise build_field_error(field, "An operation must be an object.", "bad_value")
    check_known_fields(raw, OPERATION_FIELDS, field)
    where = _build_field_namer(field)
    method = raw.get("method") or "GET"
    if not isinstance(method, str) or method.upper() not in METHODS:
        raise build_field_error(
            where("method"),
            format_message("There is no method `{method}`.", method=format_node(method)),
            "unknown_method",
            format_message("Use one of: {methods}.", methods=", ".join(METHODS)),
        )
    path = _parse_path(raw.get("path"), base_url, where("path"))
    found = DeclaredOperation(
        name=_parse_operation_name(raw.get("name"), where("name")),
        description=_parse_operation_description(raw.get("description"), where("description")),
        method=method.upper(),
        path=path,
        inputs=read_inputs(raw.get("parameters"), _TEMPLATE.findall(path), where("parameters")),
        result=_parse_result_pointer(raw.get("result"), where("result")),
        labels=_parse_labels(raw.get("labels"), where("labels")),
    )
    return _with_body(found, raw.get("body"), where)


def check_known_fields(raw: Mapping[str, Any], known: tuple[str, ...], field: str) -> None:
    """Raise `InvalidInput` for an unknown field."""
    if strange := sorted(set(map(str, raw)) - set(known)):
        raise build_field_error(
            _build_field_namer(field)(strange[0][:64]),
            format_message("There is no member `{strange}` here.", strange=format_node(strange[0])),
            "unknown_field",
            format_message("Members: {known}.", known=", ".join(known)),
        )


def _with_body(found: DeclaredOperation, kind: Any, where: Any) -> DeclaredOperation:
    if kind not in (None, "", *BODIES):
        raise build_field_error(
            where("body"),
            format_message("There is no body `{kind}`.", kind=format_node(kind)),
            "unknown_body",
            format_message("Use one of: {bodies}.", bodies=", ".join(BODIES)),
        )
    if found.of("body") and found.method in WITHOUT_BODY:
        raise build_field_error(
            where("method"),
            format_message(
                "{method} is sent without a body, and fields of one are declared.",
                method=found.method,
            ),
            "body_not_sent",
            "Put them into the query, or choose another method.",
        )
    return replace(found, body=kind or "json")


def _check_unique(found: tuple[DeclaredOperation, ...], field: str) -> None:
    """Raise `InvalidInput` if two operations share a name, or method and path."""
    names: set[str] = set()
    keys: set[str] = set()
    for index, one in enumerate(found):
        spot = f"{field}[{index}]"
        if one.name.lower() in names:
            raise build_field_error(
                f"{spot}.name",
                format_message("There is an operation `{name}` already.", name=one.name),
                "duplicate_name",
                "Choose another name; upper and lower case count as the same.",
            )
        if one.key in keys:
            raise build_field_error(
                f"{spot}.path",
                format_message("`{one_key}` is declared twice.", one_key=one.key),
                "duplicate_operation",
                "Keep one of them: method and path tell operations apart.",
            )
        names.add(one.name.lower())
        keys.add(one.key)


def _parse_operation_name(said: Any, field: str) -> str:
    name = said.strip() if isinstance(said, str) else ""
    if not name:
        raise build_field_error(
            field, "The operation has no name.", "missing_value", "Such as `get_order`: the tool's."
        )
    if len(name) > MAX_OPERATION_NAME or not _NAME.fullmatch(name):
        raise build_field_error(
            field,
            format_message("`{name}` can't be a tool's name.", name=format_node(name)),
            "bad_name",
            format_message(
                "Use letters, digits, `-` and single `_` in between, at most {longest_name}.",
                longest_name=MAX_OPERATION_NAME,
            ),
        )
    return name


def _parse_operation_description(said: Any, field: str) -> str:
    text = said.strip() if isinstance(said, str) else ""
    if not text:
        raise build_field_error(
            field,
            "The operation has no description.",
            "missing_value",
            "Say what it does and when to use it: a model chooses by that.",
        )
    if len(text) > LONGEST_DESCRIPTION:
        raise build_field_error(
            field,
            format_message(
                "The description is longer than {longest_description:,} characters.",
                longest_description=LONGEST_DESCRIPTION,
            ),
            "too_large",
            "Say it in fewer words.",
        )
    return text


def _parse_path(said: Any, base_url: str, field: str) -> str:
    """Return the path below the base URL; a full URL below it is accepted, too."""
    text = said.strip() if isinstance(said, str) else ""
    if not text:
        raise build_field_error(
            field, "The operation has no path.", "missing_value", "Such as /orders/{id}."
        )
    if re.match(r"(?:[A-Za-z{][^/?#]*:)?//", text) or "://" in text.partition("/")[0]:
        text = _strip_base_url(text, base_url, field)
    if "?" in text or "#" in text:
        raise build_field_error(
            field,
            "A path ends before `?` and `#`.",
            "bad_path",
            "Declare what stands behind `?` as parameters in the query.",
        )
    path = text if text.startswith("/") else f"/{text}"
    if len(path) > LONGEST_PATH or not path.isprintable():
        raise build_field_error(
            field,
            "The path is too long, or has characters that can't be seen.",
            "bad_path",
            format_message(
                "At most {longest_path} characters, such as /orders/{{id}}.",
                longest_path=LONGEST_PATH,
            ),
        )
    return path


def _strip_base_url(text: str, base_url: str, field: str) -> str:
    bare = base_url.partition("?")[0].rstrip("/")
    host = text.partition("//")[2].partition("/")[0]
    if "{" in host or "{" in text.partition("//")[0]:
        raise build_field_error(
            field,
            "A parameter can't say which host is asked.",
            "host_is_parameter",
            "Write the host; APIs at several hosts are servers of their own.",
        )
    if text != bare and not text.startswith((f"{bare}/", f"{bare}?", f"{bare}#")):
        raise build_field_error(
            field,
            format_message(
                "The operation is at another address than its server ({bare}).", bare=bare
            ),
            "other_address",
            "Add it as a server by itself: a credential is for one place only.",
        )
    return text[len(bare) :] or "/"


def _parse_result_pointer(said: Any, field: str) -> str:
    """Return a JSON pointer; `data.items` is accepted for `/data/items`."""
    if said in (None, ""):
        return ""
    text = said.strip() if isinstance(said, str) else ""
    if text and not text.startswith("/"):
        text = "/" + text.replace(".", "/")
    if len(text) < 2 or len(text) > LONGEST_POINTER or not text.isprintable() or "//" in text:
        raise build_field_error(
            field,
            format_message("`{said}` names no part of an answer.", said=format_node(said)),
            "bad_result",
            "Write the members on the way to it: data.items (or /data/items).",
        )
    return text


def _parse_labels(said: Any, field: str) -> tuple[str, ...] | None:
    if said is None:
        return None
    if not isinstance(said, list):
        raise build_field_error(field, "`labels` must be a list.", "bad_value")
    found = {str(one).replace("-", "_") for one in said}
    if unknown := sorted(found - {*FlowLabel}):
        raise build_field_error(
            field,
            format_message("There is no label `{unknown}`.", unknown=format_node(unknown[0])),
            "unknown_label",
            format_message("The labels are {label}.", label=", ".join(FlowLabel)),
        )
    return tuple(label.value for label in FlowLabel if label in found)


def _build_field_namer(field: str) -> Any:
    return lambda name: f"{field}.{name}" if field else name


def parse_value(kind: str, text: str, *, many: bool = False, field: str = "") -> Any:
    """Return a value of a type; lists are comma-separated or JSON.

    Raises `InvalidInput` (`bad_value`).
    """
    several = many or kind in LISTS
    plain = kind.removesuffix("[]")
    text = text.strip()
    try:
        if several and text.startswith("["):
            found = json.loads(text)
        elif several:
            found = [_parse_single(plain, part.strip()) for part in text.split(",") if part.strip()]
        else:
            found = _parse_single(plain, text)
    except (ValueError, RecursionError):
        detail = format_message(
            "`{text}` is none of the type `{kind}`.", text=format_node(text), kind=kind
        )
        remedy = "Separate several by commas." if several else ""
        raise build_field_error(field, detail, "bad_value", remedy) from None
    return found


def format_value(value: Any) -> str:
    """Return a value as `parse_value` accepts it; "" for None."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return _format_list(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parse_single(kind: str, text: str) -> Any:
    return text if kind == "string" else json.loads(text)


def _format_list(values: Sequence[Any]) -> str:
    texts = [format_value(one) for one in values]
    plain = all(
        text and text == text.strip() and "," not in text and text[0] != "[" for text in texts
    )
    return ", ".join(texts) if plain else json.dumps(list(values), ensure_ascii=False)
