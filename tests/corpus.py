"""Third-party attack and benign samples, from the folder that `TEST_CORPUS` names.

Their licenses don't allow us to ship them. Tests that need them are marked `corpus`; the attacks in
the repository are our own.
"""

import json
from pathlib import Path
from typing import Any

from tests import parts


def read_samples(name: str) -> list[dict[str, Any]]:
    """Return the items of one of the folder's files; none if the folder isn't set."""
    folder = parts.find_corpus()
    if not folder:
        return []
    items: list[dict[str, Any]] = json.loads((Path(folder) / name).read_text(encoding="utf-8"))[
        "items"
    ]
    return items
