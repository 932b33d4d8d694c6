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
    level: list[Any] = [value]
    while level and values <= most and depth <= deepest:
        depth += 1
        inner: list[Any] = []
        values += len(level)
        for item in level[: most + 1]:
            if isinstance(item, str):
                characters += len(item)
                unreadable = unreadable or not (item.isascii() or _readable(item))
            elif isinstance(item, dict):
                nodes += 1
                names = "".join(item)
                characters += len(names)
                unreadable = unreadable or not (names.isascii() or _readable(names))
                inner += item.values()
            elif isinstance(item, list | tuple):
                nodes += 1
                inner += item
            elif isinstance(item, float):
                unreadable = unreadable or not isfinite(item)
            elif item is True or item is False:
                nodes += 1
            elif isinstance(item, int):
                characters += item.bit_length() // 3
        level = inner
    return Size(values, nodes, characters, depth, unreadable)


def _readable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
