"""Values as people type them (defaults, choices), and as they are shown again: pure."""

import json
from collections.abc import Sequence
from typing import Any

from bonobot.lib.sayings import say
from mcp_servers.openapi.inputs import LISTS, refused
from mcp_servers.openapi.translating import shown


def typed(kind: str, text: str, *, many: bool = False, field: str = "") -> Any:
    """Return a value of a type; several are separated by commas, or a JSON list.

    Raises `Invalid` (`bad_value`).
    """
    several = many or kind in LISTS
    plain = kind.removesuffix("[]")
    text = text.strip()
    try:
        if several and text.startswith("["):
            found = json.loads(text)
        elif several:
            found = [_one(plain, part.strip()) for part in text.split(",") if part.strip()]
        else:
            found = _one(plain, text)
    except (ValueError, RecursionError):
        detail = say("`{text}` is none of the type `{kind}`.", text=shown(text), kind=kind)
        remedy = "Separate several by commas." if several else ""
        raise refused(field, detail, "bad_value", remedy) from None
    return found


def written(value: Any) -> str:
    """Return a value as it is typed; blank for none."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return _several(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _one(kind: str, text: str) -> Any:
    return text if kind == "string" else json.loads(text)


def _several(values: Sequence[Any]) -> str:
    texts = [written(one) for one in values]
    plain = all(
        text and text == text.strip() and "," not in text and text[0] != "[" for text in texts
    )
    return ", ".join(texts) if plain else json.dumps(list(values), ensure_ascii=False)
