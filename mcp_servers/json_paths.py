"""JSON paths as people and models read them: `$.inputSchema.properties['a b'][0]`."""

import re
from collections.abc import Iterable

from bonobot.lib.untrusted import visible

_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")
_LONGEST_KEY = 64


def step(key: str | int) -> str:
    """Return one step of a path; what hides in a key is shown, what is long is cut."""
    if isinstance(key, int):
        return f"[{key}]"
    if len(key) <= _LONGEST_KEY and _PLAIN_KEY.fullmatch(key):
        return f".{key}"
    shown = visible(key, _LONGEST_KEY).replace("\\", "\\\\").replace("'", "\\'")
    return f"['{shown}']"


def json_path(keys: Iterable[str | int]) -> str:
    """Return the path from the root, `$`, through `keys`."""
    return "$" + "".join(map(step, keys))
