"""One text for one JSON value, so that digests and signatures can be compared."""

import hashlib
import json
from collections.abc import Callable, Iterable
from json.encoder import encode_basestring_ascii
from typing import Any

try:
    from _json import make_encoder
except ImportError:  # a Python without it: `json` does the same, only slower
    make_encoder = None  # type: ignore[assignment,misc]


def _encoder(*, allow_nan: bool) -> Callable[[Any], str]:
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


_strict = _encoder(allow_nan=False)
_lenient = _encoder(allow_nan=True)


def canonical(value: Any) -> str:
    """Return ASCII JSON, keys sorted, no spaces; raise ValueError for what JSON can't say."""
    try:
        return _strict(value)
    except TypeError as error:
        raise ValueError(f"Not a JSON value: {error}.") from error
    except RecursionError as error:
        raise ValueError("The JSON value is nested too deeply.") from error


def sorted_text(value: Any) -> str:
    """Return the same of a value that may hold numbers which JSON has no word for (NaN)."""
    return _lenient(value)


def digest(text: str) -> str:
    """Return the SHA-256 of a text in lower-case hexadecimal."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
