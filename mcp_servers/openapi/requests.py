"""Build an operation's HTTP request from a tool's arguments (pure).

Parameter styles are those of OpenAPI 3 (RFC 6570 and more). No argument can escape the base URL or
the path segments of the operation, or add a header; arguments that would are rejected.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from bonobot.core.i18n.messages import format_message
from mcp_servers.openapi.operations import FORM, MULTIPART, apply_defaults
from mcp_servers.schemas import InvalidArguments

MAX_URL_CHARACTERS = 8_000
MAX_DECODINGS = 3  # times that intermediaries may decode a path
SEPARATORS = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}
_PATH_PARAMETER = re.compile(r"\{([^{}]*)\}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class PreparedRequest:
    """A request to send; `headers` come from the arguments and the body."""

    method: str
    url: str
    headers: tuple[Pair, ...] = ()
    cookies: tuple[Pair, ...] = ()
    body: bytes | None = field(default=None, repr=False)


def prepare_request(
    plan: Mapping[str, Any],
    base_url: str,
    arguments: Mapping[str, Any],
    *,
    query: Iterable[Pair] = (),
) -> PreparedRequest:
    """Return the request of an operation; raises `InvalidArguments`.

    `query` is the sign-in's: arguments can't set parameters with these names.
    """
    sign_in_query = tuple(query)
    arguments = apply_defaults(plan, arguments)
    reserved_names = {quote(name, safe="") for name, _ in sign_in_query}
    query_parts: list[str] = []
    path_values: dict[str, tuple[Mapping[str, Any], Any]] = {}
    headers: list[Pair] = []
    cookies: list[Pair] = []
    for parameter in plan["parameters"]:
        value = arguments.get(parameter["argument"])
        if parameter["in"] == "path":
            path_values[parameter["name"]] = parameter, value
        elif value is None:
            continue
        elif parameter["in"] == "query":
            query_parts += [
                f"{n}={v}" for n, v in _encode_query(parameter, value) if n not in reserved_names
            ]
        elif parameter["in"] == "header":
            headers.append((parameter["name"], _format_header(parameter, value)))
        else:
            cookies += _encode_query(parameter, value)
    query_parts += [
        f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sign_in_query
    ]
    # The base URL may have a query: the path goes before it.
    base, _, base_query = base_url.partition("?")
    query_string = "&".join(filter(None, [base_query, *query_parts]))
    url = (
        base.rstrip("/")
        + _build_path(plan["path"], path_values)
        + (f"?{query_string}" if query_string else "")
    )
    if len(url) > MAX_URL_CHARACTERS:
        raise _build_argument_error(
            "$", "The arguments result in a URL that is too long.", "Send shorter arguments."
        )
    body, content_type = _build_body(plan.get("body"), arguments)
    if content_type:
        headers.append(("Content-Type", content_type))
    return PreparedRequest(
        method=plan["method"], url=url, headers=tuple(headers), cookies=tuple(cookies), body=body
    )


def _build_path(template: str, values: Mapping[str, tuple[Mapping[str, Any], Any]]) -> str:
    segments = []
    for segment in template.split("/"):
        names = _PATH_PARAMETER.findall(segment)
        encoded_values = [_encode_path_value(*values[name]) for name in names]
        literals = [
            quote(text, safe="%:@!$&'()*+,;=~") for text in _PATH_PARAMETER.split(segment)[::2]
        ]
        encoded_segment = literals[0] + "".join(
            value + text for value, text in zip(encoded_values, literals[1:], strict=True)
        )
        if names and not _is_safe_segment(encoded_segment):
            argument = values[names[0]][0]["argument"]
            detail = format_message(
                "`{argument}` would change the request path.", argument=argument
            )
            raise _build_argument_error(f"$.{argument}", detail, "Use a value without `..`.")
        segments.append(encoded_segment)
    return "/".join(segments)


def _is_safe_segment(segment: str) -> bool:
    """Tell whether a segment is not empty and has no `..`, however often it is decoded."""
    if not segment:
        return False
    for _ in range(1 + MAX_DECODINGS):
        for part in re.split(r"[/\\]", segment):
            # Some servers strip `;…` from a segment.
            if part.partition(";")[0].strip() in (".", ".."):
                return False
        segment = unquote(segment, errors="replace")
        if _CONTROL.search(segment):
            return False
    return True


def _encode_path_value(parameter: Mapping[str, Any], value: Any) -> str:
    argument, name = parameter["argument"], quote(parameter["name"], safe="")
    if value is None or value in ("", [], {}):
        raise _build_argument_error(
            f"$.{argument}",
            format_message("`{argument}` is empty.", argument=argument),
            "Provide a value.",
        )
    if parameter.get("json"):
        return _quote_text(_dump_json(value))
    style, explode = parameter["style"], parameter["explode"]
    prefix = {"simple": "", "label": ".", "matrix": ";"}[style]
    separator = {"simple": ",", "label": ".", "matrix": ";"}[style] if explode else ","
    if isinstance(value, dict):
        if explode:
            return prefix + separator.join(
                f"{_quote_text(k)}={_quote_text(_format_text(v))}" for k, v in value.items()
            )
        joined_values = ",".join(
            f"{_quote_text(k)},{_quote_text(_format_text(v))}" for k, v in value.items()
        )
        return f";{name}={joined_values}" if style == "matrix" else prefix + joined_values
    items = value if isinstance(value, list) else [value]
    encoded_items = [_quote_text(_format_text(item)) for item in items]
    if not all(encoded_items):
        raise _build_argument_error(
            f"$.{argument}",
            format_message("`{argument}` contains an empty item.", argument=argument),
            "Provide a value.",
        )
    if style == "matrix":
        if explode:
            return "".join(f";{name}={item}" for item in encoded_items)
        return f";{name}=" + ",".join(encoded_items)
    return prefix + separator.join(encoded_items)


def _encode_query(parameter: Mapping[str, Any], value: Any) -> Iterator[Pair]:
    """Yield the encoded (name, value) pairs of a query or cookie parameter."""
    name = _quote_text(parameter["name"])
    if parameter.get("json"):
        yield name, _quote_text(_dump_json(value))
    elif parameter["style"] == "deepObject":
        yield from _encode_deep_object(name, value)
    elif isinstance(value, dict):
        pairs = [
            (_quote_text(key), _quote_text(_format_text(field_value)))
            for key, field_value in value.items()
        ]
        if parameter["explode"]:
            yield from pairs
        else:
            separator = SEPARATORS[parameter["style"]]
            yield name, separator.join(part for pair in pairs for part in pair)
    elif isinstance(value, list):
        items = [_quote_text(_format_text(item)) for item in value]
        if parameter["explode"]:
            yield from ((name, item) for item in items)
        else:
            yield name, SEPARATORS[parameter["style"]].join(items)
    else:
        yield name, _quote_text(_format_text(value))


def _encode_deep_object(name: str, value: Any) -> Iterator[Pair]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _encode_deep_object(f"{name}%5B{_quote_text(key)}%5D", child)
    elif isinstance(value, list):
        for child in value:
            yield from _encode_deep_object(name, child)
    elif value is not None:
        yield name, _quote_text(_format_text(value))


def _format_header(parameter: Mapping[str, Any], value: Any) -> str:
    if parameter.get("json"):
        text = _dump_json(value)
    elif isinstance(value, dict):
        separator = "=" if parameter["explode"] else ","
        text = ",".join(
            f"{key}{separator}{_format_text(field_value)}" for key, field_value in value.items()
        )
    elif isinstance(value, list):
        text = ",".join(map(_format_text, value))
    else:
        text = _format_text(value)
    if _CONTROL.search(text) or not text.isascii():
        argument = parameter["argument"]
        detail = format_message(
            "`{argument}` is sent as a header, which must be a single line of ASCII text.",
            argument=argument,
        )
        raise _build_argument_error(
            f"$.{argument}", detail, "Use only ASCII characters, without line breaks."
        )
    return text.strip()


def _build_body(
    body_plan: Mapping[str, Any] | None, arguments: Mapping[str, Any]
) -> tuple[bytes | None, str]:
    if body_plan is None or body_plan["argument"] not in arguments:
        return None, ""
    value, content_type = arguments[body_plan["argument"]], body_plan["type"]
    if body_plan["as"] == "json":
        return _dump_json(value).encode(), content_type
    if body_plan["as"] == "text":
        text = value if isinstance(value, str) else _dump_json(value)
        return text.encode(), f"{content_type.partition(';')[0]}; charset=utf-8"
    if not isinstance(value, dict):
        argument_path = f"$.{body_plan['argument']}"
        raise _build_argument_error(
            argument_path,
            format_message(
                "`{argument}` is a form and must be an object.", argument=body_plan["argument"]
            ),
            "Send an object with the form's fields.",
        )
    fields = [
        (name, inner)
        for name, field_value in value.items()
        for inner in (field_value if isinstance(field_value, list) else [field_value])
        if inner is not None
    ]
    if body_plan["as"] == FORM:
        form = "&".join(
            f"{_quote_text(name)}={_quote_text(_format_text(inner))}" for name, inner in fields
        )
        return form.encode(), FORM
    return _encode_multipart(fields)


def _encode_multipart(fields: list[tuple[str, Any]]) -> tuple[bytes, str]:
    payload = _dump_json(fields).encode()
    boundary = hashlib.sha256(payload).hexdigest()
    while boundary.encode() in payload:
        boundary = hashlib.sha256(boundary.encode()).hexdigest()
    parts = []
    for name, value in fields:
        quoted_name = quote(name, safe=" !#$&'()*+,-./:;<=>?@[]^_`{|}~", errors="replace")
        header = f'--{boundary}\r\nContent-Disposition: form-data; name="{quoted_name}"\r\n'
        if isinstance(value, dict | list):
            header += "Content-Type: application/json\r\n"
        parts.append(f"{header}\r\n{_format_text(value)}\r\n")
    parts.append(f"--{boundary}--\r\n")
    return "".join(parts).encode(), f"{MULTIPART}; boundary={boundary}"


def _format_text(value: Any) -> str:
    """Return a value as plain text; objects and arrays as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return str(int(value))  # JSON Schema accepts 5.0 as the integer 5
    return "" if value is None else _dump_json(value)


def _dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _quote_text(text: str) -> str:
    return quote(text, safe="", errors="replace")


def _build_argument_error(argument_path: str, detail: str, remedy: str) -> InvalidArguments:
    return InvalidArguments(detail, field=argument_path, remedy=remedy)
