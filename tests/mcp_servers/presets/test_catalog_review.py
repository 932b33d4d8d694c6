"""The review of the presets: each one that starts a program has its line."""

import re

import pytest

from mcp_servers.presets.catalog import CatalogEntry, load_catalog
from tests.parts import ROOT

PROGRAMS = [entry for entry in load_catalog() if entry.transport_type == "stdio"]
LINES = {
    found[1]: line
    for line in (ROOT / "docs" / "preset-review.md").read_text(encoding="utf-8").splitlines()
    if (found := re.match(r"\| `([a-z0-9-]+)` \|", line))
}


@pytest.mark.parametrize("entry", PROGRAMS, ids=lambda entry: entry.slug)
def test_a_preset_that_starts_a_program_is_reviewed(entry: CatalogEntry) -> None:
    cells = [cell.strip() for cell in LINES[entry.slug].strip("|").split("|")]
    assert len(cells) == 4
    assert all(cells)
    assert (cells[1] == "none") == (not entry.parameters)


def test_only_presets_that_start_programs_are_reviewed() -> None:
    assert LINES.keys() == {entry.slug for entry in PROGRAMS}


@pytest.mark.parametrize("entry", PROGRAMS, ids=lambda entry: entry.slug)
def test_a_parameter_value_cant_become_an_option(entry: CatalogEntry) -> None:
    """A value that is an argument of its own can't begin with a hyphen."""
    alone = {arg[2:-1] for arg in entry.endpoint_config["args"] if re.fullmatch(r"\$\{\w+\}", arg)}
    for parameter in entry.parameters:
        if parameter["name"] in alone:
            assert re.fullmatch(parameter["pattern"], "-x") is None, parameter["name"]
            assert re.fullmatch(parameter["pattern"], "--exec=sh") is None, parameter["name"]
