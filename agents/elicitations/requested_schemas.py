"""Parse elicitation requests and check the content that people enter. No I/O.

Forms have flat values only; a URL is only shown, never fetched. Forms must not ask for secrets, so
fields that seem to are flagged (MCP 2026-07-28, elicitation).
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.secret_names import is_secret_name

Kind = Literal["text", "number", "integer", "boolean", "choice", "choices"]

MAX_FIELDS = 50
MAX_OPTIONS = 200
MAX_MESSAGE_LENGTH = 4_096
MAX_NAME_LENGTH = 255
MAX_TEXT_LENGTH = 10_000
MAX_URL_LENGTH = 8_192
SECRET_WORDS = re.compile(
    r"(?i)\b(pass ?words?|pass ?codes?|pass ?phrases?|secrets?|api[ -]?keys?|access[ -]?tokens?|"
    r"private keys?|credentials?|pin codes?|cvv|card numbers?)\b"
)
FORMATS = {
    "email": re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+"),
    "uri": re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+"),
    "date": re.compile(r"\d{4}-\d{2}-\d{2}"),
    "date-time": re.compile(
        r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?([Zz]|[+-]\d{2}:\d{2})?"
    ),
}


@dataclass(frozen=True)
class ElicitationField:
    """A form field; the bounds limit its length, its value or the number of selected options."""

    name: str
    kind: Kind
    title: str = ""
    description: str = ""
    required: bool = False
    default: Any = None
    options: tuple[tuple[str, str], ...] = ()
    least: float | None = None
    most: float | None = None
    format: str = ""


@dataclass(frozen=True)
class ElicitationParams:
    """The parsed params of an elicitation; `flags` are warnings for the person."""

    mode: Literal["form", "url"]
    message: str
    fields: tuple[ElicitationField, ...] = ()
    schema: Mapping[str, Any] | None = None
    url: str = ""
    elicitation_id: str = ""
    flags: tuple[str, ...] = ()


def parse_elicitation(params: Mapping[str, Any]) -> ElicitationParams:
    """Parse the params of `elicitation/create`; raises `InvalidInput`."""
    message = params.get("message")
    if not isinstance(message, str) or not message.strip() or len(message) > MAX_MESSAGE_LENGTH:
        raise _build_request_error(
            "message", f"a string of at most {MAX_MESSAGE_LENGTH} characters"
        )
    mode = params.get("mode", "form")
    if mode == "url":
        return _parse_url_request(message, params)
    if mode != "form":
        raise _build_request_error("mode", "`form` or `url`")
    schema = params.get("requestedSchema")
    fields = tuple(iterate_fields(schema))
    secret_fields = [field.name for field in fields if _is_secret_field(field)]
    if (
        SECRET_WORDS.search(message)
        and not secret_fields
        and any(form_field.kind == "text" for form_field in fields)
    ):
        secret_fields.append("message")
    flags = tuple(f"secret:{name}" for name in secret_fields)
    return ElicitationParams(
        "form", message, fields, schema if isinstance(schema, dict) else {}, flags=flags
    )


def iterate_fields(schema: Any) -> Iterator[ElicitationField]:
    """Yield the fields of a form in order; raises `InvalidInput`."""
    form_schema = schema if isinstance(schema, dict) else {}
    properties, required = form_schema.get("properties"), form_schema.get("required", [])
    if form_schema.get("type") != "object" or not isinstance(properties, dict):
        raise _build_request_error("requestedSchema", "an object schema with properties")
    if len(properties) > MAX_FIELDS or not isinstance(required, list):
        raise _build_request_error("requestedSchema", f"a form of at most {MAX_FIELDS} fields")
    for name, field_schema in properties.items():
        if not name or len(name) > MAX_NAME_LENGTH or not isinstance(field_schema, dict):
            raise _build_request_error("requestedSchema", "flat fields with names")
        yield _build_field(name, field_schema, required=name in required)


def clean_content(
    fields: tuple[ElicitationField, ...], content: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the entered content for the server; raises `InvalidInput` naming the field.

    The default of an omitted field counts as entered if it is valid; a blank value is none.
    """
    fields_by_name = {field.name: field for field in fields}
    if unknown_names := sorted(set(content) - set(fields_by_name)):
        raise _build_field_error(unknown_names[0], "wasn't requested", "Omit it.")
    cleaned = {}
    for name, field in fields_by_name.items():
        value = content[name] if name in content else _find_valid_default(field)
        if value in (None, "") or (value == [] and not field.required):
            if field.required:
                raise _build_field_error(name, "is missing", "Enter a value, or decline.")
            continue
        cleaned[name] = _clean_value(field, value)
    return cleaned


def _find_valid_default(field: ElicitationField) -> Any:
    """Return the field's default; None if there is none or it is invalid."""
    try:
        return None if field.default in (None, "", []) else _clean_value(field, field.default)
    except InvalidInput:
        return None


def _parse_url_request(message: str, params: Mapping[str, Any]) -> ElicitationParams:
    url, elicitation_id = params.get("url"), params.get("elicitationId", "")
    if (
        not isinstance(url, str)
        or len(url) > MAX_URL_LENGTH
        or re.search(r"[\s\x00-\x1f\x7f]", url)
    ):
        raise _build_request_error("url", "the URL of a web page")
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        raise _build_request_error("url", "the URL of a web page") from None
    if parts.scheme not in ("https", "http") or not host:
        raise _build_request_error("url", "an HTTPS URL")
    if not isinstance(elicitation_id, str) or len(elicitation_id) > MAX_NAME_LENGTH:
        raise _build_request_error("elicitationId", "a short string")
    flags = {
        "not_encrypted": parts.scheme != "https",
        "unusual_host": not host.isascii() or "xn--" in host,
        "sign_in_in_address": bool(parts.username or parts.password),
    }
    flagged = tuple(name for name, applies in flags.items() if applies)
    return ElicitationParams("url", message, url=url, elicitation_id=elicitation_id, flags=flagged)


def _build_field(name: str, schema: Mapping[str, Any], *, required: bool) -> ElicitationField:
    kind = schema.get("type")
    common: dict[str, Any] = {
        "name": name,
        "title": _truncate_text(schema.get("title")),
        "description": _truncate_text(schema.get("description")),
        "required": required,
        "default": schema.get("default"),
    }
    bounds: dict[str, Any]
    if kind == "array":
        items = schema.get("items")
        options = _parse_options(items if isinstance(items, dict) else {}, "anyOf")
        bounds = {"least": _get_bound(schema, "minItems"), "most": _get_bound(schema, "maxItems")}
        return ElicitationField(
            kind="choices", options=_check_options(name, options), **bounds, **common
        )
    if kind == "string" and (options := _parse_options(schema, "oneOf")):
        return ElicitationField(kind="choice", options=options, **common)
    if kind == "string":
        bounds = {"least": _get_bound(schema, "minLength"), "most": _get_bound(schema, "maxLength")}
        format_name = schema.get("format")
        known_format = (
            format_name if isinstance(format_name, str) and format_name in FORMATS else ""
        )
        return ElicitationField(kind="text", format=known_format, **bounds, **common)
    if kind in ("number", "integer"):
        bounds = {"least": _get_bound(schema, "minimum"), "most": _get_bound(schema, "maximum")}
        return ElicitationField(kind=kind, **bounds, **common)
    if kind == "boolean":
        return ElicitationField(kind="boolean", **common)
    raise _build_request_error(
        "requestedSchema",
        f"a form whose field `{name[:60]}` is a string, number, boolean, or choice",
    )


def _parse_options(schema: Mapping[str, Any], titled_key: str) -> tuple[tuple[str, str], ...]:
    values, titles = schema.get("enum"), schema.get("enumNames")
    if isinstance(values, list):
        names = titles if isinstance(titles, list) and len(titles) == len(values) else values
        pairs = list(zip(values, names, strict=True))
    else:
        titled_options = schema.get(titled_key)
        option_schemas = (
            [option_schema for option_schema in titled_options if isinstance(option_schema, dict)]
            if isinstance(titled_options, list)
            else []
        )
        pairs = [
            (option_schema.get("const"), option_schema.get("title", option_schema.get("const")))
            for option_schema in option_schemas
        ]
    options = [(value, _truncate_text(name)) for value, name in pairs if isinstance(value, str)]
    if len(options) > MAX_OPTIONS:
        raise _build_request_error("requestedSchema", f"at most {MAX_OPTIONS} choices")
    return tuple(options)


def _check_options(name: str, options: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    if not options:
        raise _build_request_error("requestedSchema", f"the choices of `{name[:60]}`")
    return options


def _clean_value(field: ElicitationField, value: Any) -> Any:
    if field.kind == "boolean" and isinstance(value, bool):
        return value
    if field.kind in ("number", "integer"):
        return _clean_number(field, value)
    options = dict(field.options)
    if field.kind == "choice" and isinstance(value, str) and value in options:
        return value
    if field.kind == "choices" and _is_option_list(value, options):
        return _check_bounds(field, len(value), list(dict.fromkeys(value)), "choices")
    if field.kind == "text" and isinstance(value, str) and len(value) <= MAX_TEXT_LENGTH:
        if field.format and not FORMATS[field.format].fullmatch(value):
            raise _build_field_error(
                field.name,
                format_message("isn't a valid {format}", format=field.format),
                "Enter a valid value.",
            )
        return _check_bounds(field, len(value), value, "characters")
    expected = f"one of: {', '.join(options)[:300]}" if options else f"a {field.kind}"
    raise _build_field_error(
        field.name, format_message("isn't {expected}", expected=expected), "Enter a valid value."
    )


def _is_option_list(value: Any, options: Collection[str]) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, str) and item in options for item in value
    )


def _clean_number(field: ElicitationField, value: Any) -> int | float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (field.kind == "integer" and value != int(value)):
        raise _build_field_error(
            field.name,
            format_message("isn't a valid {type}", type=field.kind),
            "Enter a valid value.",
        )
    number: int | float = int(value) if field.kind == "integer" else value
    return _check_bounds(field, number, number, "")


def _check_bounds(field: ElicitationField, measured: float, value: Any, unit: str) -> Any:
    if field.least is not None and measured < field.least:
        raise _build_field_error(
            field.name, f"is below {field.least:g} {unit}".rstrip(), "Enter a larger value."
        )
    if field.most is not None and measured > field.most:
        raise _build_field_error(
            field.name, f"is above {field.most:g} {unit}".rstrip(), "Enter a smaller value."
        )
    return value


def _is_secret_field(field: ElicitationField) -> bool:
    if field.kind != "text":
        return False
    return is_secret_name(field.name) or bool(
        SECRET_WORDS.search(f"{field.name} {field.title} {field.description}")
    )


def _get_bound(schema: Mapping[str, Any], name: str) -> float | None:
    value = schema.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _truncate_text(value: Any) -> str:
    return value[:MAX_MESSAGE_LENGTH] if isinstance(value, str) else ""


def _build_request_error(field: str, expected: str) -> InvalidInput:
    return InvalidInput(
        format_message("`{field}` must be {expected}.", field=field, expected=expected),
        code="bad_elicitation",
        field=field,
    )


def _build_field_error(name: str, problem: str, remedy: str) -> InvalidInput:
    return InvalidInput(
        f"`{name}` {problem}.", code="bad_answer", field=f"content.{name}", remedy=remedy
    )
