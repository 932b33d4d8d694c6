"""The arguments of a call in one line."""

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

from bonobot.core.text.untrusted_text import make_visible

MAX_VALUE_LENGTH = 60


def summarize_arguments(arguments: Any, limit: int) -> str:
    """Return names and values of arguments, at most `limit` characters; empty without an object."""
    if not isinstance(arguments, Mapping):
        return ""
    pairs = (f"{name} {_shorten_value(value)}" for name, value in islice(arguments.items(), limit))
    return make_visible(", ".join(pairs).replace("\n", " "), limit)


def _shorten_value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}…"
