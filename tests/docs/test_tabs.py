"""Tabs that the documentation names are those of the admin."""

import re
from importlib import import_module
from pathlib import Path

import pytest
from django.contrib.admin import site

from bonobot.accounts.admin_base.tabbed_admin import TabbedAdmin

DOCS = Path(__file__).parents[2] / "docs"
NAMES = r"(?:\*[^*\n]+\*(?:, and |, | and | or )?)+"
TABS = re.compile(rf"\btabs? ({NAMES})|({NAMES}) tabs?\b")
# Tabs of lists, and of the pages that add servers.
OTHER_TABS = {"Access requests", "OpenAPI", "HTTP operations"}


def list_tabs() -> set[str]:
    """Return the titles of tabs, and of their pages; the first page of a tab has its title."""
    import_module("bonobot.urls")
    tabs = set(OTHER_TABS)
    for model_admin in site._registry.values():
        if not isinstance(model_admin, TabbedAdmin):
            continue
        grouped = [group.slugs for group in model_admin.tab_groups]
        tabs.update(str(group.title) for group in model_admin.tab_groups)
        first_pages = {slugs[0] for slugs in grouped}
        tabs.update(
            str(page.title)
            for slug, page in model_admin.pages.items()
            if page.title and slug not in first_pages
        )
    return tabs


@pytest.mark.parametrize(
    "path", sorted(DOCS.rglob("*.md")), ids=lambda path: str(path.relative_to(DOCS))
)
def test_each_tab_that_the_documentation_names_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\n", " ")
    named = {
        name
        for match in TABS.finditer(text)
        for name in re.findall(r"\*([^*]+)\*", match[1] or match[2])
    }
    assert not named - list_tabs(), "no screen has these tabs"
