"""Canonical and compact JSON, digests, and the text of UUIDs."""

import hashlib
import json
from collections.abc import Callable, Iterable
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any
from uuid import UUID

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput

try:
    from _json import make_encoder
except ImportError:  # Python without the C encoder: `json` does the same, slower
    make_encoder = None  # type: ignore[assignment,misc]

# Returns what `str` returns. A call writes its own UUID and that of its organization several times.
format_uuid: Callable[[UUID], str] = lru_cache(maxsize=4096)(str)


def _build_encoder(*, allow_nan: bool, sort_keys: bool = True) -> Callable[[Any], str]:
    """Return a function that encodes values as ASCII JSON without spaces.

    `JSONEncoder.encode` creates an encoder per value, which takes longer than encoding most values.
    """
    encoder = json.JSONEncoder(
        ensure_ascii=True,
        check_circular=False,
        allow_nan=allow_nan,
        sort_keys=sort_keys,
        separators=(",", ":"),
    )
    if make_encoder is None:
        return encoder.encode
    encode_chunks: Callable[[Any, int], Iterable[str]] = make_encoder(
        None, encoder.default, encode_basestring_ascii, None, ":", ",", sort_keys, False, allow_nan
    )
    return lambda value: "".join(encode_chunks(value, 0))


_encode_strict = _build_encoder(allow_nan=False)
# Returns the same as `to_canonical_json`, but allows NaN and infinity.
to_sorted_json = _build_encoder(allow_nan=True)
# Returns ASCII JSON without spaces; raises ValueError for NaN and infinity, TypeError if not JSON.
to_compact_json = _build_encoder(allow_nan=False, sort_keys=False)


def to_canonical_json(value: Any) -> str:
    """Return ASCII JSON with sorted keys and no spaces; raises ValueError if not JSON."""
    try:
        return _encode_strict(value)
    except TypeError as error:
        raise ValueError(f"Not a JSON value: {error}.") from error
    except RecursionError as error:
        raise ValueError("The JSON value is nested too deeply.") from error


def compute_digest(text: str) -> str:
    """Return the SHA-256 of a text in lowercase hexadecimal."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def is_same_value(left: Any, right: Any) -> bool:
    """Return whether two JSON values are equal, where 100 equals 100.0.

    JSON has only one number type (RFC 8259, section 6). False if a value isn't JSON.
    """
    try:
        return to_canonical_json(_normalize_numbers(left)) == to_canonical_json(
            _normalize_numbers(right)
        )
    except ValueError:
        return False


def _normalize_numbers(value: Any) -> Any:
    """Return a value with integral floats converted to integers."""
    if isinstance(value, dict):
        return {key: _normalize_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_normalize_numbers(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def compute_json_digest(payload: Any) -> str:
    """Return the SHA-256 of a JSON payload, regardless of the order of keys.

    Raises `InvalidInput` (`definition_unreadable`) if it isn't JSON, such as NaN.
    """
    try:
        return compute_digest(to_canonical_json(payload))
    except ValueError as error:
        raise InvalidInput(
            format_message("The definition can't be serialized as JSON: {error}", error=error),
            code="definition_unreadable",
            remedy="The server must declare it in plain JSON, without NaN or Infinity.",
        ) from error
