"""The Python that runs this, by each name that it has in its own folder."""

import sys
from pathlib import Path


def names() -> tuple[str, ...]:
    """Return the paths of the running interpreter: as it was started, then its other names.

    An environment has it as `python`, `python3` and `python3.x`; which of them a program was
    started with says nothing about which of them a person writes.
    """
    here = Path(sys.executable)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    others = (here.with_name(name) for name in ("python", "python3", version))
    same = (one for one in others if one.resolve() == here.resolve())
    return tuple(dict.fromkeys((str(here), *map(str, same))))
