"""Passkeys of Chromium's virtual authenticator: a copy of one, and a copy of an assertion."""

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

import pytest
from allauth.mfa.models import Authenticator
from playwright.sync_api import Browser, Page, Request, expect
from pytest_django.live_server_helper import LiveServer

from bonobot.accounts.roles import Role
from bonobot.ledger.writer.writer_thread import get_writer
from tests import factories
from tests.browser import open_context
from tests.end_to_end.test_people import AUTHENTICATOR
from tests.own_cache import clear_cache

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True), pytest.mark.whole]

PASSWORD = "pw-for-tests"
FACTORS = "/admin/account/second-factor"
SIGNED_IN, WAITING = "/admin/", re.compile("second-factor/authenticate")


class Device:
    """A browser's virtual authenticator."""

    def __init__(self, page: Page, *passkeys: Mapping[str, Any]) -> None:
        self.page = page
        self._session = page.context.new_cdp_session(page)
        self._session.send("WebAuthn.enable")
        options = {"options": AUTHENTICATOR}
        answer = self._session.send("WebAuthn.addVirtualAuthenticator", options)
        self._id = {"authenticatorId": answer["authenticatorId"]}
        for passkey in passkeys:
            self._session.send("WebAuthn.addCredential", {**self._id, "credential": dict(passkey)})

    def copy_passkey(self) -> dict[str, Any]:
        """Return the passkey with its private key, as malware on the device reads it."""
        (passkey,) = self._session.send("WebAuthn.getCredentials", self._id)["credentials"]
        return dict(passkey)

    def sign_in(self) -> str:
        """Sign in with the password and the passkey; return the posted assertion."""
        posted: list[str] = []

        def record(request: Request) -> None:
            if request.method == "POST" and WAITING.search(request.url):
                posted.append(parse_qs(request.post_data or "")["credential"][0])

        enter_password(self.page)
        self.page.on("request", record)
        self.page.locator("#mfa_webauthn_authenticate").click()
        self.page.wait_for_url(lambda _url: bool(posted))
        self.page.remove_listener("request", record)
        return posted[0]


def enter_password(page: Page) -> None:
    """Enter the password in a browser without a session."""
    clear_cache()
    page.context.clear_cookies()
    page.goto("/admin/login/")
    page.locator("[name=username]").fill("anna")
    page.locator("[name=password]").fill(PASSWORD)
    page.locator("#login-form button[type=submit]").click()


def add_passkey(page: Page) -> None:
    page.goto(f"{FACTORS}/webauthn/add/")
    page.locator("[name=password]").fill(PASSWORD)
    page.locator("form button").first.click()
    page.locator("#mfa_webauthn_add").click()
    expect(page).to_have_url(re.compile("/recovery-codes/|/webauthn/$"))


def test_recovery_codes_are_copied_and_a_passkey_that_the_browser_refuses_is_reported(
    live_server: LiveServer, module_browser: Browser
) -> None:
    factories.create_member(factories.create_organization(), Role.OWNER, "anna")
    with open_context(module_browser, live_server.url) as page:
        enter_password(page)
        Device(page)
        add_passkey(page)
        expect(page).to_have_url(re.compile("/recovery-codes/$"))
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy codes").click()
        expect(page.locator("#announcement")).to_have_text("Copied")
        codes = page.evaluate("navigator.clipboard.readText()")
        assert re.fullmatch(r"(\d{8}\n){10}", codes)

        page.goto(f"{FACTORS}/webauthn/add/")
        error = page.get_by_role("alert").filter(has_text="The passkey request failed")
        expect(error).to_have_count(0)
        page.locator("#mfa_webauthn_add").click()  # the device has one already
        expect(error).to_be_visible()
    get_writer().close()


def post_assertion(page: Page, assertion: str) -> int:
    """Post an assertion from another browser, as the page's own script does; return the status."""
    with page.expect_response(WAITING) as response:
        page.locator("input[name=credential]").evaluate(
            "(input, value) => { input.value = value; input.form.submit(); }", assertion
        )
    assert response.value.request.method == "POST"
    return response.value.status


def change_origin(assertion: str) -> str:
    """Return an assertion whose client data name another origin; its signature is outdated."""
    credential = json.loads(assertion)
    encoded = credential["response"]["clientDataJSON"]
    data = json.loads(urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    changed_data = json.dumps(data | {"origin": "https://evil.example"}).encode()
    credential["response"]["clientDataJSON"] = urlsafe_b64encode(changed_data).decode().rstrip("=")
    return json.dumps(credential)


def test_copies_of_a_passkey_and_of_its_assertions_are_refused(
    live_server: LiveServer, module_browser: Browser
) -> None:
    factories.create_member(factories.create_organization(), Role.OWNER, "anna")
    with open_context(module_browser, live_server.url) as page:
        enter_password(page)
        device = Device(page)
        add_passkey(page)
        copied_passkey = device.copy_passkey()
        assertion = device.sign_in()
        expect(page).to_have_url(SIGNED_IN)
        device.sign_in()
        expect(page).to_have_url(SIGNED_IN)
        count = Authenticator.objects.get(type="webauthn").data["sign_count"]

        with open_context(module_browser, live_server.url) as other_page:
            for copied_assertion in (assertion, change_origin(assertion), "{}"):
                enter_password(other_page)
                expect(other_page).to_have_url(WAITING)
                assert post_assertion(other_page, copied_assertion) == 200  # 302: signed in
                expect(other_page).to_have_url(WAITING)
                other_page.goto("/admin/")
                expect(other_page).not_to_have_url(SIGNED_IN)
            copy = Device(other_page, copied_passkey)
            assert copied_passkey["signCount"] < count
            copy.sign_in()
            expect(other_page).to_have_url(WAITING)
            other_page.goto("/admin/")
            expect(other_page).not_to_have_url(SIGNED_IN)

        assert Authenticator.objects.get(type="webauthn").data["sign_count"] == count
        device.sign_in()  # the owner's device still works
        expect(page).to_have_url(SIGNED_IN)
    get_writer().close()
