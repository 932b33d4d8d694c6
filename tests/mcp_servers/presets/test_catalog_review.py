"""Each preset that starts a program has a line in the review document."""

import re

import pytest

from mcp_servers.presets.catalog import CatalogEntry, load_catalog
from tests.parts import ROOT

STDIO_ENTRIES = [entry for entry in load_catalog() if entry.transport_type == "stdio"]
LINES = {
    match[1]: line
    for line in (ROOT / "docs" / "preset-review.md").read_text(encoding="utf-8").splitlines()
    if (match := re.match(r"\| `([a-z0-9-]+)` \|", line))
}


@pytest.mark.parametrize("entry", STDIO_ENTRIES, ids=lambda entry: entry.slug)
def test_a_preset_that_starts_a_program_is_reviewed(entry: CatalogEntry) -> None:
    assert entry.slug in LINES, "add a row for it to docs/preset-review.md"
    cells = [cell.strip() for cell in LINES[entry.slug].strip("|").split("|")]
    assert len(cells) == 4, "its row in docs/preset-review.md needs four cells"
    assert all(cells), "fill in the empty cells of its row in docs/preset-review.md"
    assert (cells[1] == "none") == (not entry.parameters), (
        "the parameters in its row in docs/preset-review.md are `none` if it has none"
    )


def test_only_presets_that_start_programs_are_reviewed() -> None:
    extra_slugs = LINES.keys() - {entry.slug for entry in STDIO_ENTRIES}
    assert not extra_slugs, "remove their rows from docs/preset-review.md"


@pytest.mark.parametrize("entry", STDIO_ENTRIES, ids=lambda entry: entry.slug)
def test_a_parameter_value_cant_become_an_option(entry: CatalogEntry) -> None:
    """A value that is a separate argument can't begin with a hyphen."""
    names = {arg[2:-1] for arg in entry.endpoint_config["args"] if re.fullmatch(r"\$\{\w+\}", arg)}
    for parameter in entry.parameters:
        if parameter["name"] in names:
            for option in ("-x", "--exec=sh"):
                assert not re.fullmatch(parameter.get("pattern", ".*"), option), (
                    f"give {parameter['name']} a `pattern` that rejects {option}"
                )
