"""The documentation names pages of the admin as the navigation does."""

import re
from collections.abc import Iterator

import pytest

from agents.admin.navigation import SETTINGS_AREA, SIDEBAR, Groups, NavigationEntry
from tests.parts import ROOT

PAGE_PATH = re.compile(r"\*([A-Z][\w -]+(?: → [^*→]+)+)\*")
PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]


def list_entries(groups: Groups) -> dict[str, NavigationEntry]:
    return {str(entry.title): entry for _title, entries in groups for entry in entries}


def find_wrong_names(text: str) -> Iterator[str]:
    """Yield each path of a page, such as *Settings → Tokens*, that the navigation doesn't have."""
    for match in PAGE_PATH.finditer(text):
        first, second, *_others = match[1].split(" → ")
        is_right = second in settings if first == "Settings" else first in sidebar
        if not is_right:
            yield match[0]


sidebar, settings = list_entries(SIDEBAR), list_entries(SETTINGS_AREA)


@pytest.mark.parametrize(
    "text", ["*Governance → Rules*", "*Settings → Policies*", "*Tokens → Create token*"]
)
def test_a_page_that_the_navigation_doesnt_have_is_found(text: str) -> None:
    assert [*find_wrong_names(f"See {text}.")] == [text]


def test_the_documentation_names_pages_as_the_navigation_does() -> None:
    wrong = {str(page): [*find_wrong_names(page.read_text("utf-8"))] for page in PAGES}
    assert {page: names for page, names in wrong.items() if names} == {}
