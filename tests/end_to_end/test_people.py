"""People in a real browser: invited, signed in with a passkey; each page judged by axe-core."""

import re

import pytest
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from bonobot.ledger.writer import writer
from bonobot.tenancy.invitations import invite
from bonobot.tenancy.models import Membership
from bonobot.tenancy.resets import link_of
from bonobot.tenancy.roles import Role
from tests.agents import casting
from tests.browser import open_page
from tests.end_to_end.test_screens import AXE, DESK, PHONE, SHAPES, WCAG, judged

pytestmark = [pytest.mark.browser, pytest.mark.npm, pytest.mark.django_db(transaction=True)]

PASSWORD = "a-long-one-for-tests"
AUTHENTICATOR = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}


def look(page: Page) -> list[str]:
    """Judge the page as it is, on a desk and on a phone."""
    where = page.url
    faults = [f"{where} {one}" for one in judged(page, "tag", WCAG)]
    page.set_viewport_size(PHONE)
    page.evaluate("document.documentElement.classList.add('dark')")
    faults += [f"{where} phone {one}" for one in judged(page, "rule", SHAPES)]
    width = page.evaluate("document.documentElement.scrollWidth")
    faults += [f"{where} is {width} pixels wide"] if width > PHONE["width"] else []
    page.evaluate("document.documentElement.classList.remove('dark')")
    page.set_viewport_size(DESK)
    return faults


def path_of(link: str) -> str:
    return "/admin/" + link.partition("/admin/")[2]


def sign_in(page: Page) -> None:
    page.goto("/admin/login/")
    page.locator("[name=username]").fill("anna")
    page.locator("[name=password]").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()


def test_somebody_is_invited_and_signs_in_with_a_passkey(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = casting.organization()
    posted = invite(casting.administrator(acme), "anna@example.com", Role.OWNER)
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    faults: list[str] = []
    with open_page(live_server.url) as page:
        page.add_init_script(path=AXE)
        devices = page.context.new_cdp_session(page)
        devices.send("WebAuthn.enable")
        devices.send("WebAuthn.addVirtualAuthenticator", {"options": AUTHENTICATOR})

        page.goto(path_of(posted.link))
        expect(page).to_have_url("/admin/account/join/")
        faults += look(page)
        page.locator("[name=username]").fill("anna")
        page.locator("[name=password]").fill(PASSWORD)
        page.locator("[name=again]").fill(PASSWORD)
        page.get_by_role("button", name="Make the account and join").click()
        expect(page).to_have_url("/admin/")
        user = Membership.objects.get(organization=acme).user

        page.goto("/admin/tenancy/membership/")
        faults += look(page)
        page.goto("/admin/account/second-factor/")
        faults += look(page)
        page.goto("/admin/account/second-factor/webauthn/add/")
        faults += look(page)
        page.locator("[name=password]").fill(PASSWORD)
        page.locator("form button").first.click()
        expect(page).to_have_url(re.compile("webauthn/add"))
        faults += look(page)
        page.locator("#mfa_webauthn_add").click()
        expect(page).to_have_url(re.compile("/recovery-codes/|/webauthn/$"))
        faults += look(page)
        for path in ("totp/activate/", "webauthn/", "recovery-codes/", "recovery-codes/generate/"):
            there = page.goto(f"/admin/account/second-factor/{path}")
            assert there is not None
            assert there.ok, path
            faults += look(page)

        page.context.clear_cookies()
        sign_in(page)
        expect(page).to_have_url(re.compile("second-factor/authenticate"))
        faults += look(page)
        page.locator("#mfa_webauthn_authenticate").click()
        expect(page).to_have_url("/admin/")

        page.context.clear_cookies()
        for path in ("/admin/account/password/", path_of(link_of(user)), path_of(posted.link)):
            page.goto(path)
            faults += look(page)
    writer().close()
    assert not faults, "\n".join(faults)
