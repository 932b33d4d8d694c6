"""Attack and benign samples of other people, from the folder that `TEST_CORPUS` names.

They are not ours to ship. Tests that need them are marked `corpus`; attacks in our own words stand
in the repository.
"""

import json
from pathlib import Path
from typing import Any

from tests import parts


def rows(name: str) -> list[dict[str, Any]]:
    """Return the items of one of the folder's files; none where there is no folder."""
    folder = parts.corpus()
    if not folder:
        return []
    read: list[dict[str, Any]] = json.loads((Path(folder) / name).read_text(encoding="utf-8"))[
        "items"
    ]
    return read
