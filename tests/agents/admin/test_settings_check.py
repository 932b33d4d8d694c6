"""The settings check as an admin page: for platform administrators, in their language."""

import pytest
from django.core.checks import Warning as CheckWarning
from playwright.sync_api import Page, expect
from pytest_django import DjangoAssertNumQueries

from agents.admin import settings_check
from agents.doctor_checks import START_SCHEDULER, SettingsFinding
from bonobot.accounts.models import User
from bonobot.accounts.roles import Role
from bonobot.core.i18n.messages import format_message
from tests import admin_client, factories

pytestmark = pytest.mark.django_db
FRAGMENT = {"headers": {"Bonobot-Fragment": "1"}}


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at three things."""
    results = (
        SettingsFinding("python", "ok", "CPython 3.13"),
        SettingsFinding(
            "beat",
            "failed",
            format_message("no sweep in {uptime_s} s", uptime_s=40),
            START_SCHEDULER,
        ),
        SettingsFinding(
            "npx", "warning", "<b>away</b>", format_message("Install {package}.", package="Node.js")
        ),
    )
    monkeypatch.setattr(settings_check, "run_settings_checks", lambda: iter(results))


def get_checks(person: admin_client.AdminClient) -> str:
    return admin_client.check_page(
        person.client.get(admin_client.build_url("settings_check"), **FRAGMENT)
    )


def test_problems_have_a_remedy_and_passed_checks_are_counted(findings: None) -> None:
    text = admin_client.get_text(
        get_checks(admin_client.sign_in(factories.create_organization(), None))
    )
    assert "failed Scheduler no sweep in 40 s Start a scheduler with bonobot up" in text
    assert "warning npx <b>away</b> Install Node.js." in text
    assert "1 check passed" in text


def test_deployment_settings_are_listed_with_their_codes(
    findings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    administrator = admin_client.sign_in(factories.create_organization(), None)
    monkeypatch.setattr(
        settings_check,
        "run_checks",
        lambda **_: [CheckWarning("Open.", hint="Shut it.", id="bonobot.W1")],
    )
    assert "Open. Shut it. bonobot.W1" in admin_client.get_text(get_checks(administrator))
    monkeypatch.setattr(settings_check, "run_checks", lambda **_: [])
    assert "Settings are ready for production." in admin_client.get_text(get_checks(administrator))


def test_the_checks_are_shown_in_the_readers_language(findings: None) -> None:
    administrator = admin_client.sign_in(factories.create_organization(), None)
    User.objects.update(language="de")
    text = admin_client.get_text(get_checks(administrator))
    assert "fehlgeschlagen Scheduler kein Sweep in 40 s" in text
    assert "Starte einen Scheduler" in text


def test_the_page_loads_without_waiting_for_the_checks(
    monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    monkeypatch.setattr(
        settings_check, "run_settings_checks", lambda: pytest.fail("the checks ran")
    )
    administrator = admin_client.sign_in(factories.create_organization(), None)
    with django_assert_max_num_queries(15):
        page = administrator.get("settings_check")
    assert f'data-asked="{admin_client.build_url("settings_check")}"' in page


def test_without_javascript_a_link_runs_the_checks(findings: None) -> None:
    administrator = admin_client.sign_in(factories.create_organization(), None)
    [query] = admin_client.find_links(administrator.get("settings_check"), "?look")
    assert "no sweep in 40 s" in admin_client.get_text(
        administrator.open(admin_client.build_url("settings_check") + query)
    )


@pytest.mark.parametrize("role", [Role.OWNER, Role.AUDITOR])
def test_the_page_is_only_for_platform_administrators(findings: None, role: Role) -> None:
    person = admin_client.sign_in(factories.create_organization(), role)
    assert (
        person.client.get(admin_client.build_url("settings_check"), **FRAGMENT).status_code == 403
    )
    assert not admin_client.find_links(
        person.get("settings"), admin_client.build_url("settings_check")
    )


@pytest.mark.browser
def test_a_browser_shows_the_checks_of_this_host(transactional_db: None, page: Page) -> None:
    factories.create_organization()
    User.objects.create_superuser("root", password="pw-for-tests")
    page.goto("/admin/")
    page.get_by_label("Username").fill("root")
    page.get_by_label("Password").fill("pw-for-tests")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="Settings", exact=True).click()
    page.locator("main").get_by_role("link", name="Settings check").first.click()
    expect(page.get_by_text("no worker responds")).to_be_visible(timeout=30_000)
    page.get_by_text("checks passed").click()
    expect(page.get_by_role("cell", name="Database", exact=True)).to_be_visible()
