"""Whether a value may stand in a slot, and how it is written there."""

import math
from typing import Any

from agents.llm.offline.slots import UNSET, Slot

YES_OR_NO = {
    "true": True, "yes": True, "on": True, "1": True,
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip


def fitting(slot: Slot, value: Any) -> Any:
    """Return a value as the slot takes it, or UNSET when it doesn't fit."""
    text = str(value).strip()
    if slot.choices and not slot.described:
        same = (choice for choice in slot.choices if str(choice).lower() == text.lower())
        return next(same, UNSET)
    match slot.kind:
        case "number":
            return as_number(text, slot.whole)
        case "boolean":
            return YES_OR_NO.get(text.lower(), UNSET)
        case "array":
            return _as_list(slot, value)
        case "object":
            return value if isinstance(value, dict) else UNSET
        case _:
            return text or UNSET


def as_number(text: str, whole: bool) -> Any:
    """Return a number that is written out, or UNSET; `whole` allows no fraction."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return UNSET
    if not math.isfinite(value):
        return UNSET
    if value.is_integer() and (whole or "." not in text):
        return int(value)
    return UNSET if whole else value


def may_stand_for(kind: str, wanted: str) -> bool:
    """Tell whether something of a kind can be given where another is asked for."""
    return kind == wanted or (wanted == "datetime" and kind == "date")


def _as_list(slot: Slot, value: Any) -> Any:
    if isinstance(value, list):
        return value
    parts = [part.strip() for part in str(value).split(",")]
    fit = [fitting(slot.item, part) if slot.item else part for part in parts]
    return [part for part in fit if part is not UNSET] or UNSET
