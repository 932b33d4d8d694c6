"""Templates, styles, and scripts: no line is too long to read beside another file."""

from pathlib import Path

import pytest

from tests.parts import ROOT

LONGEST_LINE = 120
MAX_SCRIPT_LINES = 300
# Folders of our own files; `vendor` has those of other projects, as they were published.
FOLDERS = {
    "*.html": ("templates",),
    "*.css": ("bonobot/static", "docs/stylesheets"),
    "*.js": ("bonobot/static",),
}


def find_files(pattern: str) -> list[Path]:
    found = [path for folder in FOLDERS[pattern] for path in (ROOT / folder).rglob(pattern)]
    return [path for path in found if "vendor" not in path.parts]


@pytest.mark.parametrize("pattern", FOLDERS)
def test_no_line_is_longer_than_120_columns(pattern: str) -> None:
    files = find_files(pattern)
    assert files
    too_long = [
        f"{path.relative_to(ROOT)}:{number}: {len(line)} columns"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > LONGEST_LINE
    ]
    assert too_long == [], "break these lines (CONTRIBUTING.md, Templates, styles, and scripts)"


def test_no_script_is_too_long() -> None:
    lengths = {path.name: len(path.read_bytes().splitlines()) for path in find_files("*.js")}
    too_long = {name: lines for name, lines in lengths.items() if lines > MAX_SCRIPT_LINES}
    assert too_long == {}, "split these scripts by what they are for (CONTRIBUTING.md)"
