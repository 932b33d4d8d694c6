import pytest
from playwright.sync_api import Page, expect

from bonobot.tenancy.models import User

pytestmark = [pytest.mark.browser, pytest.mark.worker]


def test_a_browser_signs_in_without_asking_another_host(page: Page) -> None:
    User.objects.create_superuser("anna", password="quite-a-secret")
    page.goto("/")
    page.get_by_label("Username").fill("anna")
    page.get_by_label("Password").fill("quite-a-secret")
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url("/admin/")
    expect(page.locator("body")).to_contain_text("anna")


def test_a_wrong_password_is_told(page: Page) -> None:
    page.goto("/admin/login/")
    page.get_by_label("Username").fill("anna")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("body")).to_contain_text("Please enter the correct username")
