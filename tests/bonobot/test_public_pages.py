"""Public pages in a real browser, under the content security policy."""

import pytest
from playwright.sync_api import Page, expect

from bonobot.accounts.roles import Role
from tests import factories

pytestmark = [pytest.mark.browser, pytest.mark.worker]


def test_a_person_signs_in_with_the_right_password(module_page: Page) -> None:
    page = module_page
    factories.create_member(factories.create_organization(), Role.OWNER, "anna")
    page.goto("/")
    page.get_by_label("Username").fill("anna")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("body")).to_contain_text("Check the username and password")
    page.get_by_label("Password").fill("pw-for-tests")
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url("/admin/")
    expect(page.locator("body")).to_contain_text("anna")


def test_the_api_pages_show_the_operations(module_page: Page) -> None:
    errors: list[str] = []
    module_page.on(
        "console", lambda line: errors.append(line.text) if line.type == "error" else None
    )
    module_page.goto("/api/docs")
    module_page.locator("[data-tag=agents] button").first.click(timeout=30_000)
    module_page.get_by_text("Attach a server to an agent").first.click()
    expect(module_page.get_by_text("Roles: owner, operator.").first).to_be_visible()
    assert not errors
