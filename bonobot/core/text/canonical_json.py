"""One text for one JSON value; digest; digest of a JSON payload."""

import hashlib
import json
from collections.abc import Callable, Iterable
from json.encoder import encode_basestring_ascii
from typing import Any

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput

try:
    from _json import make_encoder
except ImportError:  # a Python without it: `json` does the same, only slower
    make_encoder = None  # type: ignore[assignment,misc]


def _build_encoder(*, allow_nan: bool) -> Callable[[Any], str]:
    """Return what writes ASCII JSON, keys sorted, no spaces.

    `JSONEncoder.encode` makes an encoder anew for each value, which takes longer than most values.
    """
    plain = json.JSONEncoder(
        ensure_ascii=True,
        check_circular=False,
        allow_nan=allow_nan,
        sort_keys=True,
        separators=(",", ":"),
    )
    if make_encoder is None:
        return plain.encode
    chunks: Callable[[Any, int], Iterable[str]] = make_encoder(
        None, plain.default, encode_basestring_ascii, None, ":", ",", True, False, allow_nan
    )
    return lambda value: "".join(chunks(value, 0))


_strict = _build_encoder(allow_nan=False)
_lenient = _build_encoder(allow_nan=True)


def to_canonical_json(value: Any) -> str:
    """Return ASCII JSON, keys sorted, no spaces; raise ValueError for what JSON can't say."""
    try:
        return _strict(value)
    except TypeError as error:
        raise ValueError(f"Not a JSON value: {error}.") from error
    except RecursionError as error:
        raise ValueError("The JSON value is nested too deeply.") from error


def to_sorted_json(value: Any) -> str:
    """Return the same of a value that may hold numbers which JSON has no word for (NaN)."""
    return _lenient(value)


def compute_digest(text: str) -> str:
    """Return the SHA-256 of a text in lower-case hexadecimal."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def same_value(one: Any, other: Any) -> bool:
    """Tell whether two JSON values differ in nothing but how numbers are written: 100 and 100.0.

    JSON has one kind of numbers (RFC 8259, section 6); what is no JSON value is like nothing.
    """
    try:
        return to_canonical_json(_whole(one)) == to_canonical_json(_whole(other))
    except ValueError:
        return False


def _whole(value: Any) -> Any:
    """Return a value with whole numbers as integers; a boolean is none."""
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def compute_json_digest(payload: Any) -> str:
    """Return SHA-256 over every field of a payload; only the order of keys makes no difference.

    Raises `Invalid` (`definition_unreadable`) for what is no JSON value, such as NaN.
    """
    try:
        return compute_digest(to_canonical_json(payload))
    except ValueError as error:
        raise InvalidInput(
            format_message("The definition can't be written as JSON: {error}", error=error),
            code="definition_unreadable",
            remedy="The server has to declare it in plain JSON, without NaN or Infinity.",
        ) from error
