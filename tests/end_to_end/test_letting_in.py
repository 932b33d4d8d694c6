"""Programs that were told an address and nothing else: a person lets them in, in a real browser."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from bonobot.ledger.models import AuditRow
from bonobot.tenancy.models import Membership, Token, User
from bonobot.tenancy.roles import Role
from mcp_servers.configuration import ServerSpec
from mcp_servers.models import OAuthGrant
from mcp_servers.registration import add
from tests.agents import casting
from tests.browser import open_page
from tests.everything import everything
from tests.parts import CLIENTS, NODE
from tests.processes import Web
from tests.published import Published, publish

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.browser]

LONGEST_S = 60
NODE_22 = NODE / "node_modules" / "node" / "bin" / "node"


@pytest.fixture
def published(tmp_path: Path) -> Iterator[Published]:
    """An agent with a server's tools, and olga, an operator, who may use it."""
    with everything(tmp_path) as url:
        made = publish(url)
        olga = User.objects.create_user("olga", password="pw-for-tests")
        Membership.objects.create(organization=made.where, user=olga, role=Role.OPERATOR)
        yield made


@pytest.fixture
def browser(
    published: Published, start_web: Callable[..., Web], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Page]:
    """Her browser; nobody is signed in."""
    web = start_web(BONOBOT_OAUTH="on")
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    with open_page(web.url, loopback=True) as page:
        page.goto("/healthz")
        yield page


@contextmanager
def running(*command: str | Path) -> "Iterator[subprocess.Popen[str]]":
    with subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            yield program
        finally:
            program.kill()


def opened(page: Page, program: "subprocess.Popen[str]") -> None:
    """Open what the program shows, and sign in."""
    assert program.stdout is not None
    assert program.stderr is not None
    url = program.stdout.readline().strip()
    assert url, program.stderr.read()
    page.goto(url)
    sign_in(page)


def sign_in(page: Page) -> None:
    page.get_by_label("Username").fill("olga")
    page.get_by_label("Password").fill("pw-for-tests")
    page.get_by_role("button", name="Log in").click()


def origin(page: Page) -> str:
    return page.url.removesuffix("/healthz")


def let_in(published: Published, browser: Page, *client: str | Path) -> None:
    """Have a program that knows nothing but an address be let in by olga, and renew its token."""
    address = f"{origin(browser)}/mcp/agents/{published.agent.slug}"
    with running(*client, address) as program:
        opened(browser, program)
        expect(browser.get_by_text("a program on this computer")).to_be_visible()
        browser.get_by_role("button", name="Let it in").click()
        browser.wait_for_url("http://127.0.0.1:*/callback*")
        out, err = program.communicate(timeout=LONGEST_S)
    assert program.returncode == 0, err
    told = json.loads(out)
    assert (told["tools"], told["renewed"], told["scope"]) == ([39, 39], True, "mcp:tools")
    grant = Token.objects.get(user__isnull=False)
    assert (grant.role, grant.agent_ids, grant.resource) == (
        Role.MEMBER,
        [str(published.agent.pk)],
        address,
    )
    assert AuditRow.objects.filter(action="grant_given", actor_label="olga").count() == 1


def test_the_python_sdk_is_let_in_and_renews_its_token(published: Published, browser: Page) -> None:
    let_in(published, browser, sys.executable, CLIENTS / "let_in.py")


@pytest.mark.npm
def test_the_typescript_sdk_is_let_in_and_renews_its_token(
    published: Published, browser: Page
) -> None:
    let_in(published, browser, NODE_22, NODE / "clients" / "let_in.mjs")


def test_another_bonobot_signs_in_as_to_any_server(
    published: Published, browser: Page, start_web: Callable[..., Web]
) -> None:
    """Its person is the same one here: both are on one database, at two addresses."""
    other = start_web(BONOBOT_OAUTH="off")
    spec = ServerSpec(
        name="bonobot",
        transport_type="http",
        endpoint_config={"url": f"{origin(browser)}/mcp/agents/{published.agent.slug}"},
        auth_config={"type": "oauth2", "grant": "authorization_code"},
        allow_private=True,
    )
    server = add(casting.administrator(published.where), spec)
    browser.goto(f"{other.url}/oauth/start/{server.pk}")
    sign_in(browser)
    browser.get_by_role("button", name="Continue").click()
    if browser.get_by_label("Username").is_visible():
        sign_in(browser)
    expect(browser.get_by_role("heading")).to_have_text("Let “Bonobot” in?")
    browser.get_by_role("button", name="Let it in").click()
    browser.wait_for_url(f"{other.url}/**")
    found = OAuthGrant.objects.get(server=server)
    assert found.alive()
    grant = Token.objects.get(user__isnull=False)
    assert grant.client == "Bonobot"
    assert grant.digest
