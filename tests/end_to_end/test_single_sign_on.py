"""The whole way of a single sign-on in a real browser; each page judged by axe-core."""

import re

import pytest
from playwright.sync_api import expect
from pytest_django.live_server_helper import LiveServer

from bonobot.ledger.writer import writer
from bonobot.tenancy.models import Membership
from bonobot.tenancy.roles import Role
from tests.agents import casting
from tests.bonobot.tenancy.single import PASSWORD, running, trust
from tests.browser import open_page
from tests.end_to_end.test_people import look
from tests.end_to_end.test_screens import AXE

pytestmark = [pytest.mark.browser, pytest.mark.npm, pytest.mark.django_db(transaction=True)]


def test_somebody_signs_in_by_a_provider_and_another_links_it(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch, settings: object
) -> None:
    acme = casting.organization()
    casting.person(acme, Role.OWNER, "bert")
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    settings.BONOBOT_URL = live_server.url  # type: ignore[attr-defined]  # where it sends back to
    faults: list[str] = []
    with running() as url, open_page(live_server.url, loopback=True) as page:
        login = trust(acme, url, name="Acme ID", creates=True)
        page.add_init_script(path=AXE)
        page.goto("/admin/login/")
        faults += look(page)
        page.get_by_role("button", name="Sign in by Acme ID").click()
        expect(page).to_have_url(re.compile(f"^{url}/authorize"))
        page.get_by_label("Who").fill("anna@example.com")
        page.get_by_role("button", name="Let me in").click()
        expect(page).to_have_url(re.compile("/admin/agents/agent/$"))  # a member's first page
        assert Membership.objects.get(user__email="anna@example.com").role == Role.MEMBER
        page.goto("/admin/profile/")
        expect(page.get_by_text("anna@example.com").first).to_be_visible()
        faults += look(page)
        page.goto("/admin/profile/sessions/")
        faults += look(page)

        page.context.clear_cookies()
        page.goto(f"/admin/account/sso/{login.pk}/")
        faults += look(page)
        page.goto(f"/admin/account/sso/{acme.pk}/done/?code=x&state=y")
        faults += look(page)
        expect(page.get_by_text("sign_in_lost")).to_be_visible()
        page.goto("/admin/login/")
        page.locator("[name=username]").fill("bert")
        page.locator("[name=password]").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        page.goto("/admin/tenancy/provider/")
        faults += look(page)
        page.goto(f"/admin/tenancy/provider/{login.pk}/change/")
        faults += look(page)
        page.goto("/admin/profile/")
        page.get_by_role("link", name="Link it").click()
        page.locator("[name=password]").fill(PASSWORD)
        page.locator("form button").first.click()
        faults += look(page)
        page.get_by_role("button", name="Go on").click()
        expect(page).to_have_url(re.compile(f"^{url}/authorize"))
        page.get_by_label("Who").fill("bert@example.com")
        page.get_by_role("button", name="Let me in").click()
        expect(page.get_by_text("You can sign in by Acme ID now.")).to_be_visible()
        faults += look(page)
    writer().close()
    assert not faults, "\n".join(faults)
