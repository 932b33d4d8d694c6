"""How big a JSON value is: counted without recursion, and no further than the bound needs."""

from dataclasses import dataclass
from math import isfinite
from typing import Any


@dataclass(frozen=True, slots=True)
class Size:
    """`values` of every kind, `nodes` (objects, arrays, booleans), `characters` of text, depth.

    `unreadable` tells that a text is no Unicode or a number not finite. Counting stops beyond
    `most` values, so the numbers are lower bounds then.
    """

    values: int
    nodes: int
    characters: int
    depth: int
    unreadable: bool = False


def measure(value: Any, *, most: int, deepest: int) -> Size:
    """Return the size of a JSON value, at most a little beyond `most` values or `deepest`."""
    values = nodes = characters = depth = 0
    unreadable = False
    waiting: list[tuple[Any, int]] = [(value, 1)]
    while waiting and values <= most and depth <= deepest:
        item, level = waiting.pop()
        values += 1
        depth = max(depth, level)
        if isinstance(item, str):
            characters += len(item)
            unreadable = unreadable or _unreadable(item)
        elif isinstance(item, dict):
            nodes += 1
            characters += sum(map(len, item))
            unreadable = unreadable or any(map(_unreadable, item))
            waiting.extend((inner, level + 1) for inner in item.values())
        elif isinstance(item, list | tuple):
            nodes += 1
            waiting.extend((inner, level + 1) for inner in item)
        elif isinstance(item, bool):
            nodes += 1
        elif isinstance(item, float):
            unreadable = unreadable or not isfinite(item)
        elif isinstance(item, int):
            characters += item.bit_length() // 3
    return Size(values, nodes, characters, depth, unreadable)


def _unreadable(text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
