"""Pages of the documentation have their place, and each of their blocks is tried or marked."""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from tests.architecture.rules import PACKAGES
from tests.docs.pages import PAGES, blocks, instead
from tests.docs.run_blocks import forbidden, iterate_statements, names_in

ROOT = Path(__file__).resolve().parents[2]
CONTRIBUTOR_PAGES = (
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "architecture.md",
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
)
PRODUCT = ("agents", "bonobot", "mcp_servers")
# A file that a recipe creates.
CREATED_BY_RECIPES = {"templates/admin/agents/facts.html"}
FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|html|json|toml|svg|css|po|md|yaml))`")
NAME_IN_FILE = re.compile(
    r"`([\w.]+)` (?:in|of) `((?:[\w.-]+/)+[\w.-]+\.py)`|`([\w.]+)` \(`((?:[\w.-]+/)+[\w.-]+\.py)`\)"
)


def test_every_page_of_the_documentation_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:\n")[2]
    named = {line.strip(" -").rpartition(" ")[2] for line in navigation.splitlines()}
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert not pages - named, "give each its place under `nav` in mkdocs.yml"


def test_the_architecture_page_names_every_package_of_the_layers() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    missing = [name for name in PACKAGES if not re.search(rf"{re.escape(name)}\b", page)]
    assert not missing, "add them to the diagrams of the layers, then run `make diagrams`"


def test_the_table_of_the_path_of_a_call_has_every_step_and_existing_error_codes() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| (.*) \|(.*)\|$", page, re.MULTILINE)
    named = {name for row, _codes in rows for name in re.findall(r"`(\w+)`", row)}
    pipeline = (ROOT / "agents" / "calls" / "pipeline.py").read_text(encoding="utf-8")
    steps = set(re.findall(r"\bawait (\w+)\((?!\))", pipeline))
    missing = {name for name in steps if not name.startswith("_")} - named - {"record_refusal"}
    assert not missing, "add these steps to the table in docs/architecture.md"
    modules = [path for name in PRODUCT for path in (ROOT / name).rglob("*.py")]
    source = "".join(path.read_text(encoding="utf-8") for path in modules)
    codes = {code for _row, cell in rows for code in re.findall(r"`(\w+)`", cell)}
    unknown = {code for code in codes if f'"{code}"' not in source}
    assert not unknown, "correct the error codes in docs/architecture.md"


def test_blocks_that_arent_run_have_a_reason_and_valid_names() -> None:
    for block in chain.from_iterable(map(blocks, PAGES)):
        assert len(block.marks.get("not run", "a reason")) > 5, f"{block}: say why it isn't run"
        if "not run" in block.marks or instead(block):
            assert not list(names_in(block, ROOT)), str(block)
        else:
            list(iterate_statements(block))
            assert not forbidden(block), f"{block}: mark it (tests/docs/pages.py says how)"


@pytest.mark.parametrize("page", CONTRIBUTOR_PAGES, ids=lambda page: page.stem)
def test_files_and_names_in_pages_for_contributors_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = set(FILE.findall(text)) - CREATED_BY_RECIPES
    missing = {name for name in files if not list(_find_files(name))}
    for names in NAME_IN_FILE.findall(text):
        name, file = names[:2] if names[0] else names[2:]
        last = re.compile(rf"\b{name.rpartition('.')[2]}\b")
        if not any(last.search(path.read_text(encoding="utf-8")) for path in _find_files(file)):
            missing.add(f"{name} in {file}")
    assert not missing, f"correct these files or names in {page.name}"


def _find_files(name: str) -> Iterator[Path]:
    """Yield the file; a short path such as `admin.py` is relative to a package."""
    if (ROOT / name).exists():
        yield ROOT / name
    else:
        for package in PRODUCT:
            yield from (ROOT / package).rglob(name)
