"""The pages about the API, in a real browser: they work under our policy and ask no other host."""

import pytest
from playwright.sync_api import expect

from tests.browser import open_page
from tests.processes import Web


@pytest.mark.browser
def test_the_operations_are_shown_without_another_host(live_web: Web):
    with open_page(live_web.url) as page:
        refused: list[str] = []
        page.on("console", lambda line: refused.append(line.text) if line.type == "error" else None)
        page.goto("/api/docs")
        page.locator("[data-tag=agents] button").first.click(timeout=30_000)
        page.get_by_text("Give an agent a server").first.click()
        expect(page.get_by_text("Roles: owner, operator.").first).to_be_visible()
        assert not refused
