"""One text for one JSON value, so that digests and signatures can be compared."""

import hashlib
import json
from typing import Any

_ENCODER = json.JSONEncoder(
    ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":")
)


def canonical(value: Any) -> str:
    """Return ASCII JSON, keys sorted, no spaces; raise ValueError for what JSON can't say."""
    try:
        return _ENCODER.encode(value)
    except TypeError as error:
        raise ValueError(f"Not a JSON value: {error}.") from error
    except RecursionError as error:
        raise ValueError("The JSON value is nested too deeply.") from error


def digest(text: str) -> str:
    """Return the SHA-256 of a text in lower-case hexadecimal."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
