import pytest
from playwright.sync_api import Page, expect

from bonobot.tenancy.roles import Role
from tests.agents import casting

pytestmark = [pytest.mark.browser, pytest.mark.worker]


def test_a_browser_signs_in_without_asking_another_host(page: Page) -> None:
    casting.person(casting.organization(), Role.OWNER, "anna")
    page.goto("/")
    page.get_by_label("Username").fill("anna")
    page.get_by_label("Password").fill("pw-for-tests")
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url("/admin/")
    expect(page.locator("body")).to_contain_text("anna")


def test_a_wrong_password_is_told(page: Page) -> None:
    page.goto("/admin/login/")
    page.get_by_label("Username").fill("anna")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("body")).to_contain_text("Please enter the correct username")
