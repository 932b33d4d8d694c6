"""Writes `docs/surfaces.md` from `docs/making/surface_table`: `python -m docs.making.surfaces`."""

from pathlib import Path

from docs.making.surface_table import AREAS
from docs.making.surface_table.types import Deed

PAGE = Path(__file__).resolve().parents[1] / "surfaces.md"
INTRODUCTION = """\
# Surfaces

What can be done, and by which name: in the admin, over [REST](api.md) and on the command line.
Every deed has all three, or says why not; a test compares this table with what there really is.
The roles that may are told by [roles](roles.md), and with each operation in the document.
This page is written by `python -m docs.making.surfaces` from `docs/making/surface_table`,
where rows are added.
"""


def page() -> str:
    """Return the page's text."""
    parts = [INTRODUCTION]
    for area in AREAS:
        parts.append(f"\n## {area.title}\n")
        parts.append("| deed | admin | REST | command line |\n|---|---|---|---|")
        parts += [_line(deed) for deed in area.deeds]
    return "\n".join(parts) + "\n"


def _line(deed: Deed) -> str:
    cells = [", ".join(f"`{name}`" for name in names) or "–" for names in deed.names.values()]
    what = f"{deed.what}. *{deed.why}*" if deed.why else deed.what
    return f"| {what} | {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
