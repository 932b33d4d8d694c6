"""Menus, panels and themes of the admin work without `unsafe-eval`."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect
from pytest_django.live_server_helper import LiveServer

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.writer.writer_thread import get_writer
from tests import admin_client, factories
from tests.browser import PHONE, open_context
from tests.end_to_end.accounts import create_member, sign_in

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True), pytest.mark.whole]


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def admin_page(
    acme: Organization, live_server: LiveServer, module_browser: Browser
) -> Iterator[Page]:
    """The browser of a platform administrator; errors and warnings in its console fail the test."""
    messages: list[str] = []

    def listen(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            messages.append(f"{message.location.get('url')} {message.text}")

    with open_context(module_browser, live_server.url) as page:
        page.on("console", listen)
        user = create_member(acme, Role.OWNER)
        user.is_superuser = True
        user.save()
        sign_in(page, user, acme, live_server.url)
        yield page
    get_writer().close()
    assert not messages


def test_no_page_needs_eval(admin_page: Page) -> None:
    for path in ("/admin/", "/admin/mcp-servers/", "/admin/budgets/add/"):
        response = admin_page.goto(path)
        assert response
        assert "script-src 'self';" in response.headers["content-security-policy"]
        assert admin_page.evaluate("Alpine.version") == "3.17.4"


def test_the_navigation_is_a_drawer_on_a_phone(admin_page: Page) -> None:
    admin_page.goto("/admin/")
    navigation = admin_page.locator("#nav-sidebar")
    opener = admin_page.get_by_role("link", name="Show the navigation")
    expect(navigation).to_be_visible()
    admin_page.set_viewport_size(PHONE)
    expect(navigation).to_be_hidden()
    opener.click()
    expect(navigation).to_be_visible()
    admin_page.keyboard.press("Escape")
    expect(navigation).to_be_hidden()
    expect(opener).to_be_focused()


def test_the_selected_theme_is_kept(admin_page: Page) -> None:
    admin_page.goto("/admin/")
    page = admin_page.locator("html")
    admin_page.locator(".bb-user > summary").click()
    for name, dark in (("dark", True), ("light", False)):
        button = admin_page.locator(f"""[x-on\\:click="switchTheme('{name}')"]""")
        button.click()
        expect(button).to_have_attribute("aria-pressed", "true")
        assert ("dark" in (page.get_attribute("class") or "").split()) == dark
    admin_page.locator("""[x-on\\:click="switchTheme('dark')"]""").first.click()
    admin_page.reload()
    assert "dark" in (page.get_attribute("class") or "").split()


def test_filters_open_and_close_and_actions_appear_for_a_selection(
    admin_page: Page, acme: Organization
) -> None:
    admin_client.create_web_server(acme)
    admin_page.goto("/admin/mcp-servers/")
    admin_page.locator("[x-on\\:click='filterOpen = true']").first.click()
    panel = admin_page.locator("#changelist-filter")
    expect(panel).to_be_visible()
    admin_page.keyboard.press("Escape")
    expect(panel).to_be_hidden()


def test_a_form_of_the_theme_posts_to_its_own_page(admin_page: Page) -> None:
    admin_page.goto("/admin/budgets/add/")
    form = admin_page.locator("form[x-bind\\:action]")
    expect(form).to_have_attribute("action", "/admin/budgets/add/")


def test_the_command_palette_opens_and_finds(admin_page: Page, acme: Organization) -> None:
    admin_client.create_web_server(acme, "weather-station")
    admin_page.goto("/admin/")
    admin_page.locator("[data-opens-palette]").click()
    admin_page.locator("#palette-sought").fill("weather")
    expect(admin_page.locator("[data-palette-found]")).to_contain_text("weather-station")
