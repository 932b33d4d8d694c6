"""Canonical and compact JSON, digests, and the text of UUIDs."""

import hashlib
import json
from collections.abc import Callable, Iterable
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any
from uuid import UUID

import orjson

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput

try:
    from _json import make_encoder
except ImportError:  # Python without the C encoder: `json` does the same, slower
    make_encoder = None  # type: ignore[assignment,misc]

DEL = 0x7F


@lru_cache(maxsize=4096)
def _format_number(number: int) -> str:
    return str(UUID(int=number))


def format_uuid(value: UUID) -> str:
    """Return what `str` returns. A call writes its own UUID and its organization's several times.

    Numbers are looked up faster than UUIDs, which Python hashes and compares with its own code.
    """
    return _format_number(value.int)


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
_encode_any_number = _build_encoder(allow_nan=True)
# Returns ASCII JSON without spaces; raises ValueError for NaN and infinity, TypeError if not JSON.
to_compact_json = _build_encoder(allow_nan=False, sort_keys=False)


# With these, objects and lists, the types that orjson writes as `json` does. It writes floats
# differently, NaN as null, and also accepts some types that JSON doesn't have.
_PLAIN_TYPES = frozenset({str, int, bool, type(None)})


def to_canonical_json(value: Any) -> str:
    """Return ASCII JSON with sorted keys and no spaces; raises ValueError if not JSON."""
    try:
        return _encode_plain(value) or _encode_strict(value)
    except TypeError as error:
        raise ValueError(f"Not a JSON value: {error}.") from error
    except RecursionError as error:
        raise ValueError("The JSON value is nested too deeply.") from error


def to_sorted_json(value: Any) -> str:
    """Return the same as `to_canonical_json`, but allow NaN and infinity."""
    return _encode_plain(value) or _encode_any_number(value)


def _encode_plain(value: Any) -> str | None:
    """Return the canonical JSON of an object or list by orjson; None if it may be different.

    It takes two fifths of the time for the entries of a call, most to look at the types. Only
    ASCII is the same: `json` escapes other characters, and DEL.
    """
    try:
        encoded = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # nested too deeply, or not JSON
        return None
    is_container = type(value) is dict or type(value) is list
    if not is_container or not encoded.isascii() or DEL in encoded:
        return None
    items = [value]
    for item in items:  # also those that are added meanwhile
        kind = type(item)
        if kind is str:
            continue
        if kind is dict:
            items += item.values()
        elif kind is list:
            items += item
        elif kind not in _PLAIN_TYPES:
            return None
    return encoded.decode("ascii")


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
