"""People in a real browser: invited, and signed in with a passkey or a provider.

Each page is checked with axe-core.
"""

import re

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from bonobot.accounts.invitations import create_invitation
from bonobot.accounts.models import Membership
from bonobot.accounts.password_reset import build_reset_link, build_review_link
from bonobot.accounts.roles import Role
from bonobot.ledger.writer.writer_thread import get_writer
from tests import factories
from tests.axe import AXE, SHAPES, WCAG, run_axe
from tests.bonobot.accounts.sso.provider_process import PASSWORD as PASSWORD_OF_MEMBERS
from tests.bonobot.accounts.sso.provider_process import create_provider, run_provider
from tests.browser import DESKTOP, PHONE, open_context

pytestmark = [
    pytest.mark.browser,
    pytest.mark.npm,
    pytest.mark.django_db(transaction=True),
    pytest.mark.whole,
]

PASSWORD = "a-long-one-for-tests"
AUTHENTICATOR = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}


def check_page(page: Page) -> list[str]:
    """Check the current page on a desktop and on a phone."""
    url = page.url
    faults = [f"{url} {fault}" for fault in run_axe(page, "tag", WCAG)]
    page.set_viewport_size(PHONE)
    page.evaluate("document.documentElement.classList.add('dark')")
    faults += [f"{url} phone {fault}" for fault in run_axe(page, "rule", SHAPES)]
    width = page.evaluate("document.documentElement.scrollWidth")
    faults += [f"{url} is {width} pixels wide"] if width > PHONE["width"] else []
    page.evaluate("document.documentElement.classList.remove('dark')")
    page.set_viewport_size(DESKTOP)
    return faults


def get_path(link: str) -> str:
    return "/admin/" + link.partition("/admin/")[2]


def sign_in(page: Page) -> None:
    page.goto("/admin/login/")
    page.locator("[name=username]").fill("anna")
    page.locator("[name=password]").fill(PASSWORD)
    page.locator("#login-form button[type=submit]").click()


def test_a_person_is_invited_and_signs_in_with_a_passkey(
    live_server: LiveServer, module_browser: Browser
) -> None:
    acme = factories.create_organization()
    invitation = create_invitation(
        factories.build_administrator(acme), "anna@example.com", Role.OWNER
    )
    faults: list[str] = []
    with open_context(module_browser, live_server.url) as page:
        page.add_init_script(path=AXE)
        devices = page.context.new_cdp_session(page)
        devices.send("WebAuthn.enable")
        devices.send("WebAuthn.addVirtualAuthenticator", {"options": AUTHENTICATOR})

        page.goto(get_path(invitation.link))
        expect(page).to_have_url("/admin/account/join/")
        faults += check_page(page)
        page.locator("[name=username]").fill("anna")
        page.locator("[name=password]").fill(PASSWORD)
        page.locator("[name=again]").fill(PASSWORD)
        page.get_by_role("button", name="Create account and join").click()
        expect(page).to_have_url("/admin/")
        user = Membership.objects.get(organization=acme).user

        page.goto("/admin/members/")
        faults += check_page(page)
        page.goto("/admin/account/second-factor/")
        faults += check_page(page)
        page.goto("/admin/account/second-factor/webauthn/add/")
        faults += check_page(page)
        page.locator("[name=password]").fill(PASSWORD)
        page.locator("form button").first.click()
        expect(page).to_have_url(re.compile("webauthn/add"))
        faults += check_page(page)
        page.locator("#mfa_webauthn_add").click()
        expect(page).to_have_url(re.compile("/recovery-codes/|/webauthn/$"))
        faults += check_page(page)
        for path in ("totp/activate/", "webauthn/", "recovery-codes/", "recovery-codes/generate/"):
            response = page.goto(f"/admin/account/second-factor/{path}")
            assert response is not None
            assert response.ok, path
            faults += check_page(page)

        page.context.clear_cookies()
        sign_in(page)
        expect(page).to_have_url(re.compile("second-factor/authenticate"))
        faults += check_page(page)
        page.locator("#mfa_webauthn_authenticate").click()
        expect(page).to_have_url("/admin/")

        page.context.clear_cookies()
        for path in (
            "/admin/account/password/",
            get_path(build_reset_link(user)),
            get_path(build_review_link(user)),
            get_path(invitation.link),
        ):
            page.goto(path)
            faults += check_page(page)
    get_writer().close()
    assert not faults, "\n".join(faults)


def test_a_person_signs_in_by_a_provider_and_another_links_it(
    live_server: LiveServer, module_browser: Browser, settings: object
) -> None:
    acme = factories.create_organization()
    factories.create_member(acme, Role.OWNER, "bert")
    settings.BONOBOT_URL = live_server.url  # type: ignore[attr-defined]  # the host of the callback
    faults: list[str] = []
    with (
        run_provider() as url,
        open_context(module_browser, live_server.url, loopback=True) as page,
    ):
        login = create_provider(acme, url, name="Acme ID", creates=True)
        page.add_init_script(path=AXE)
        page.goto("/admin/login/")
        faults += check_page(page)
        page.get_by_role("button", name="Sign in with Acme ID").click()
        expect(page).to_have_url(re.compile(f"^{url}/authorize"))
        page.get_by_label("Who").fill("anna@example.com")
        page.get_by_role("button", name="Let me in").click()
        expect(page).to_have_url(re.compile("/admin/agents/$"))  # the start page of members
        assert Membership.objects.get(user__email="anna@example.com").role == Role.MEMBER
        page.goto("/admin/profile/")
        expect(page.get_by_role("main").get_by_text("anna@example.com").first).to_be_visible()
        faults += check_page(page)
        page.goto("/admin/profile/sessions/")
        faults += check_page(page)

        page.context.clear_cookies()
        page.goto(f"/admin/account/sso/{login.pk}/")
        faults += check_page(page)
        page.goto(f"/admin/account/sso/{acme.pk}/done/?code=x&state=y")
        faults += check_page(page)
        expect(page.get_by_text("sign_in_expired")).to_be_visible()
        page.goto("/admin/login/")
        page.locator("[name=username]").fill("bert")
        page.locator("[name=password]").fill(PASSWORD_OF_MEMBERS)
        page.locator("#login-form button[type=submit]").click()
        page.goto("/admin/identity-providers/")
        faults += check_page(page)
        page.goto(f"/admin/identity-providers/{login.pk}/change/")
        faults += check_page(page)
        page.goto("/admin/profile/")
        page.get_by_role("link", name="Link account").click()
        page.locator("[name=password]").fill(PASSWORD_OF_MEMBERS)
        page.locator("form button").first.click()
        faults += check_page(page)
        page.get_by_role("button", name="Continue").click()
        expect(page).to_have_url(re.compile(f"^{url}/authorize"))
        page.get_by_label("Who").fill("bert@example.com")
        page.get_by_role("button", name="Let me in").click()
        expect(page.get_by_text("You can now sign in with Acme ID.")).to_be_visible()
        faults += check_page(page)
    get_writer().close()
    assert not faults, "\n".join(faults)
