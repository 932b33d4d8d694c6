"""What a document may say of its operations beyond OpenAPI, and what it does to a call: pure.

`x-bonobot-result` names the part of an answer that is the result (a JSON pointer),
`x-bonobot-send-defaults` has defaults sent where an argument is left out, `x-bonobot-labels` are
the flow labels of an operation that an administrator declared. All of it stands in the plan, and so
is approved with everything else.
"""

from collections.abc import Mapping
from typing import Any

# Where a tool's declaration says which request it stands for; approved with everything else.
PLAN = "bonobot/operation"

RESULT = "x-bonobot-result"
SEND_DEFAULTS = "x-bonobot-send-defaults"
LABELS = "x-bonobot-labels"
LONGEST_POINTER = 200
DEEPEST = 16
MOST_LABELS = 10

_MISSING = object()


def planned(operation: Mapping[str, Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an operation's plan has of these; `properties` are its arguments' schemas."""
    found: dict[str, Any] = {}
    pointer = operation.get(RESULT)
    if isinstance(pointer, str) and pointer.startswith("/") and len(pointer) <= LONGEST_POINTER:
        found["result"] = pointer
    defaults = _defaults(properties, 0) if operation.get(SEND_DEFAULTS) is True else None
    if defaults:
        found["defaults"] = defaults
    labels = operation.get(LABELS)
    if isinstance(labels, list) and len(labels) <= MOST_LABELS:
        found["labels"] = [one for one in labels if isinstance(one, str)]
    return found


def declared_labels(payload: Mapping[str, Any]) -> list[str] | None:
    """Return the labels that stand in a tool's plan; None where there are none."""
    meta = payload.get("_meta")
    plan = meta.get(PLAN) if isinstance(meta, Mapping) else None
    found = plan.get("labels") if isinstance(plan, Mapping) else None
    return found if isinstance(found, list) else None


def with_defaults(plan: Mapping[str, Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments with the plan's defaults in the place of those that are left out."""
    defaults = plan.get("defaults")
    return _laid_under(arguments, defaults) if isinstance(defaults, Mapping) else arguments


def picked(value: Any, pointer: str) -> tuple[Any, bool]:
    """Return the part of an answer that a pointer names, and whether it is there."""
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            found = value.get(key, _MISSING)
        elif isinstance(value, list) and key.isdecimal() and len(key) < 6:
            found = value[int(key)] if int(key) < len(value) else _MISSING
        else:
            found = _MISSING
        if found is _MISSING:
            return None, False
        value = found
    return value, True


def _defaults(properties: Any, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        if not isinstance(schema, Mapping):
            continue
        if "default" in schema:
            found[name] = schema["default"]
        elif depth < DEEPEST and (inner := _defaults(schema.get("properties"), depth + 1)):
            found[name] = inner
    return found


def _laid_under(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    whole = {**defaults, **given}
    for name, under in defaults.items():
        over = whole[name]
        if isinstance(under, Mapping) and isinstance(over, Mapping):
            whole[name] = _laid_under(over, under)
    return whole
