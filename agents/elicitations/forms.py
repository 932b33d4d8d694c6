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

MOST_FIELDS = 50
MOST_OPTIONS = 200
LONGEST_MESSAGE = 4_096
LONGEST_NAME = 255
LONGEST_TEXT = 10_000
LONGEST_URL = 8_192
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


def read(params: Mapping[str, Any]) -> ElicitationParams:
    """Parse the params of `elicitation/create`; raises `InvalidInput`."""
    message = params.get("message")
    if not isinstance(message, str) or not message.strip() or len(message) > LONGEST_MESSAGE:
        raise _build_request_error("message", f"a text of at most {LONGEST_MESSAGE} characters")
    mode = params.get("mode", "form")
    if mode == "url":
        return _parse_url_request(message, params)
    if mode != "form":
        raise _build_request_error("mode", "`form` or `url`")
    schema = params.get("requestedSchema")
    fields = tuple(fields_of(schema))
    asks = [field.name for field in fields if _is_secret_field(field)]
    if SECRET_WORDS.search(message) and not asks and any(one.kind == "text" for one in fields):
        asks.append("message")
    flags = tuple(f"secret:{name}" for name in asks)
    return ElicitationParams(
        "form", message, fields, schema if isinstance(schema, dict) else {}, flags=flags
    )


def fields_of(schema: Any) -> Iterator[ElicitationField]:
    """Yield the fields of a form in order; raises `InvalidInput`."""
    shape = schema if isinstance(schema, dict) else {}
    properties, required = shape.get("properties"), shape.get("required", [])
    if shape.get("type") != "object" or not isinstance(properties, dict):
        raise _build_request_error("requestedSchema", "an object schema with properties")
    if len(properties) > MOST_FIELDS or not isinstance(required, list):
        raise _build_request_error("requestedSchema", f"a form of at most {MOST_FIELDS} fields")
    for name, declared in properties.items():
        if not name or len(name) > LONGEST_NAME or not isinstance(declared, dict):
            raise _build_request_error("requestedSchema", "flat fields with names")
        yield _field(name, declared, required=name in required)


def check_content(
    fields: tuple[ElicitationField, ...], content: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the entered content for the server; raises `InvalidInput` naming the field."""
    known = {field.name: field for field in fields}
    if strange := sorted(set(content) - set(known)):
        raise _build_field_error(strange[0], "is not asked for", "Leave it out.")
    found = {}
    for name, field in known.items():
        value = content.get(name)
        if value in (None, "") or (value == [] and not field.required):
            if field.required:
                raise _build_field_error(name, "is missing", "Enter a value, or decline.")
            continue
        found[name] = _clean_value(field, value)
    return found


def _parse_url_request(message: str, params: Mapping[str, Any]) -> ElicitationParams:
    url, number = params.get("url"), params.get("elicitationId", "")
    if not isinstance(url, str) or len(url) > LONGEST_URL or re.search(r"[\s\x00-\x1f\x7f]", url):
        raise _build_request_error("url", "the address of a web page")
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        raise _build_request_error("url", "the address of a web page") from None
    if parts.scheme not in ("https", "http") or not host:
        raise _build_request_error("url", "an address that begins with https")
    if not isinstance(number, str) or len(number) > LONGEST_NAME:
        raise _build_request_error("elicitationId", "a short text")
    flags = {
        "not_encrypted": parts.scheme != "https",
        "unusual_host": not host.isascii() or "xn--" in host,
        "sign_in_in_address": bool(parts.username or parts.password),
    }
    flagged = tuple(name for name, is_so in flags.items() if is_so)
    return ElicitationParams("url", message, url=url, elicitation_id=number, flags=flagged)


def _field(name: str, declared: Mapping[str, Any], *, required: bool) -> ElicitationField:
    kind = declared.get("type")
    common: dict[str, Any] = {
        "name": name,
        "title": _truncate_text(declared.get("title")),
        "description": _truncate_text(declared.get("description")),
        "required": required,
        "default": declared.get("default"),
    }
    bounds: dict[str, Any]
    if kind == "array":
        items = declared.get("items")
        options = _parse_options(items if isinstance(items, dict) else {}, "anyOf")
        bounds = {"least": _bound(declared, "minItems"), "most": _bound(declared, "maxItems")}
        return ElicitationField(
            kind="choices", options=_check_options(name, options), **bounds, **common
        )
    if kind == "string" and (options := _parse_options(declared, "oneOf")):
        return ElicitationField(kind="choice", options=options, **common)
    if kind == "string":
        bounds = {"least": _bound(declared, "minLength"), "most": _bound(declared, "maxLength")}
        shape = declared.get("format")
        known = shape if isinstance(shape, str) and shape in FORMATS else ""
        return ElicitationField(kind="text", format=known, **bounds, **common)
    if kind in ("number", "integer"):
        bounds = {"least": _bound(declared, "minimum"), "most": _bound(declared, "maximum")}
        return ElicitationField(kind=kind, **bounds, **common)
    if kind == "boolean":
        return ElicitationField(kind="boolean", **common)
    raise _build_request_error(
        "requestedSchema", f"a text, number, truth value or choice for `{name[:60]}`"
    )


def _parse_options(declared: Mapping[str, Any], titled: str) -> tuple[tuple[str, str], ...]:
    values, titles = declared.get("enum"), declared.get("enumNames")
    if isinstance(values, list):
        names = titles if isinstance(titles, list) and len(titles) == len(values) else values
        found = list(zip(values, names, strict=True))
    else:
        said = declared.get(titled)
        whole = [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []
        found = [(one.get("const"), one.get("title", one.get("const"))) for one in whole]
    texts = [(value, _truncate_text(name)) for value, name in found if isinstance(value, str)]
    if len(texts) > MOST_OPTIONS:
        raise _build_request_error("requestedSchema", f"at most {MOST_OPTIONS} choices")
    return tuple(texts)


def _check_options(name: str, options: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    if not options:
        raise _build_request_error("requestedSchema", f"the choices of `{name[:60]}`")
    return options


def _clean_value(field: ElicitationField, value: Any) -> Any:
    if field.kind == "boolean" and isinstance(value, bool):
        return value
    if field.kind in ("number", "integer"):
        return _clean_number(field, value)
    chosen = dict(field.options)
    if field.kind == "choice" and isinstance(value, str) and value in chosen:
        return value
    if field.kind == "choices" and _is_option_list(value, chosen):
        return _check_bounds(field, len(value), list(dict.fromkeys(value)), "choices")
    if field.kind == "text" and isinstance(value, str) and len(value) <= LONGEST_TEXT:
        if field.format and not FORMATS[field.format].fullmatch(value):
            raise _build_field_error(
                field.name, format_message("is no {format}", format=field.format), "Correct it."
            )
        return _check_bounds(field, len(value), value, "characters")
    wanted = f"one of: {', '.join(chosen)[:300]}" if chosen else f"a {field.kind}"
    raise _build_field_error(
        field.name, format_message("is not {wanted}", wanted=wanted), "Correct it."
    )


def _is_option_list(value: Any, chosen: Collection[str]) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) and v in chosen for v in value)


def _clean_number(field: ElicitationField, value: Any) -> int | float:
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if not fits or (field.kind == "integer" and value != int(value)):
        raise _build_field_error(
            field.name, format_message("is no {field_kind}", field_kind=field.kind), "Correct it."
        )
    number: int | float = int(value) if field.kind == "integer" else value
    return _check_bounds(field, number, number, "")


def _check_bounds(field: ElicitationField, measured: float, value: Any, unit: str) -> Any:
    if field.least is not None and measured < field.least:
        raise _build_field_error(
            field.name, f"is below {field.least:g} {unit}".rstrip(), "Enter more."
        )
    if field.most is not None and measured > field.most:
        raise _build_field_error(
            field.name, f"is above {field.most:g} {unit}".rstrip(), "Enter less."
        )
    return value


def _is_secret_field(field: ElicitationField) -> bool:
    if field.kind != "text":
        return False
    return is_secret_name(field.name) or bool(
        SECRET_WORDS.search(f"{field.name} {field.title} {field.description}")
    )


def _bound(declared: Mapping[str, Any], name: str) -> float | None:
    value = declared.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _truncate_text(value: Any) -> str:
    return value[:LONGEST_MESSAGE] if isinstance(value, str) else ""


def _build_request_error(field: str, wanted: str) -> InvalidInput:
    return InvalidInput(
        format_message("`{field}` must be {wanted}.", field=field, wanted=wanted),
        code="bad_elicitation",
        field=field,
    )


def _build_field_error(name: str, what: str, remedy: str) -> InvalidInput:
    return InvalidInput(
        f"`{name}` {what}.", code="bad_answer", field=f"content.{name}", remedy=remedy
    )
