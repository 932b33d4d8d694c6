"""Pages of the documentation have their place, and each of their blocks is tried or marked."""

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, blocks, instead
from tests.docs.run_blocks import forbidden, iterate_statements, names_in

ROOT = Path(__file__).resolve().parents[2]


def test_every_page_of_the_documentation_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:\n")[2]
    named = {line.strip(" -").rpartition(" ")[2] for line in navigation.splitlines()}
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert not pages - named, "give each its place under `nav` in mkdocs.yml"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_that_arent_run_have_a_reason_and_valid_names(page: Path) -> None:
    for block in blocks(page):
        assert len(block.marks.get("not run", "a reason")) > 5, f"{block}: say why it isn't run"
        if "not run" in block.marks or instead(block):
            assert not list(names_in(block, ROOT)), str(block)
        else:
            list(iterate_statements(block))
            assert not forbidden(block), f"{block}: mark it (tests/docs/pages.py says how)"
