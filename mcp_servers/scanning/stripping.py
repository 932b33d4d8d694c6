"""Strip what hides from a result that goes on to another program, and leave the rest intact (T20).

Other agents get a server's JSON as it is: their own frames and rules are theirs. Only characters
that nobody can see have no business in it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bonobot.lib.untrusted import visible
from mcp_servers.json_paths import step
from mcp_servers.scanning.results import clean_result

MOST_PLACES: Final = 50
# Base64 is no text.
_BINARY: Final = {"image": "data", "audio": "data"}


@dataclass(frozen=True, slots=True)
class Stripped:
    """A JSON value without what hid in it.

    `removed` counts characters by rule; `places` are the JSON paths of the first fifty strings that
    were changed, with the rules (a key's own text: `… (key)`).
    """

    value: Any
    removed: dict[str, int]
    places: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def changed(self) -> bool:
        """Tell whether anything was removed."""
        return bool(self.removed)


def strip(value: Any) -> Stripped:
    """Return a JSON value without hidden characters in any string of it, keys included.

    The value itself comes back where nothing hides; else a copy, as deep as need be. Binary parts
    (`data` of images and audio, `blob`) are left as they are, and so are a list's order and an
    object's. Linear in its size: keep what is larger than 16 KiB off the loop (`scans.stripped`).
    """
    removed: Counter[str] = Counter()
    places: list[tuple[str, tuple[str, ...]]] = []
    root: list[Any] = [value]
    waiting: list[tuple[Any, Any, str]] = [(root, 0, "$")]
    while waiting:
        holder, key, path = waiting.pop()
        held = holder[key]
        if isinstance(held, str):
            cleaned = _cleaned(held, path, removed, places)
            if cleaned is not held:
                holder[key] = cleaned
        elif isinstance(held, Mapping):
            own = holder[key] = dict(_renamed(held, path, removed, places))
            waiting.extend((own, name, f"{path}{step(name)}") for name in reversed(_texts(own)))
        elif isinstance(held, list | tuple):
            own_list = holder[key] = list(held)
            waiting.extend((own_list, i, f"{path}[{i}]") for i in reversed(range(len(own_list))))
    return Stripped(root[0] if removed else value, dict(removed), tuple(places))


def _texts(holder: Mapping[str, Any]) -> list[str]:
    """Return the members that hold text or more of it."""
    binary = _BINARY.get(str(holder.get("type")), "")
    return [name for name in holder if name not in ("blob", binary)]


def _renamed(
    held: Mapping[Any, Any],
    path: str,
    removed: Counter[str],
    places: list[tuple[str, tuple[str, ...]]],
) -> Iterator[tuple[str, Any]]:
    """Yield members under names without what hides; one that another has already shows it."""
    names = {str(name) for name in held}
    for name, member in held.items():
        text = str(name)
        cleaned = _cleaned(text, f"{path}{step(text)} (key)", removed, places)
        if cleaned != text and cleaned in names:
            cleaned = visible(text)
        names.add(cleaned)
        yield cleaned, member


def _cleaned(
    text: str,
    path: str,
    removed: Counter[str],
    places: list[tuple[str, tuple[str, ...]]],
) -> str:
    cleaned = clean_result(text)
    if not cleaned.removed:
        return text
    removed.update(cleaned.removed)
    if len(places) < MOST_PLACES:
        places.append((path, tuple(sorted(cleaned.removed))))
    return cleaned.text
