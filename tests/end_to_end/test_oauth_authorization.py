"""OAuth clients that know only a URL: a person authorizes them in a real browser."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from bonobot.accounts.models import Membership, Token, User
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from mcp_servers.models import OAuthGrant
from mcp_servers.oauth_client.access_tokens import can_authenticate
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.approved_server import ApprovedServer, create_approved_server
from tests.browser import open_context
from tests.conformance_server import serve_everything
from tests.parts import CLIENTS, NODE
from tests.processes import Process, Web, start_web

pytestmark = [pytest.mark.browser, pytest.mark.whole]

TIMEOUT_S = 60
NODE_22 = NODE / "node_modules" / "node" / "bin" / "node"


@dataclass(frozen=True)
class Visit:
    """An operator with access to an agent with the tools of a server, and their browser."""

    published: ApprovedServer
    operator: str
    page: Page
    origin: str

    @property
    def address(self) -> str:
        """The endpoint of the agent."""
        return f"{self.origin}/mcp/agents/{self.published.agent.slug}"

    def grant(self) -> Token:
        """Return the only grant of the organization."""
        token: Token = Token.objects.get(
            user__isnull=False, organization_id=self.published.organization.pk
        )
        return token


@pytest.fixture(scope="module")
def open_web(
    module_rows: None, tmp_path_factory: pytest.TempPathFactory, module_running: list[Process]
) -> Callable[[str], Web]:
    """Return a function that starts a web process, with BONOBOT_OAUTH `on` or `off`."""

    def start(oauth: str) -> Web:
        folder, name = tmp_path_factory.mktemp("web"), f"web-oauth-{oauth}"
        web = start_web(folder, name, extra={"BONOBOT_OAUTH": oauth})
        module_running.append(web)
        return web

    return start


@pytest.fixture(scope="module")
def oauth_web(open_web: Callable[[str], Web]) -> Web:
    """Start a web process that accepts OAuth clients."""
    return open_web("on")


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_everything(tmp_path_factory.mktemp("everything")) as url:
        yield url


@pytest.fixture
def visit(
    upstream: str, oauth_web: Web, module_browser: Browser, request: pytest.FixtureRequest
) -> Iterator[Visit]:
    """Open a page that isn't signed in, with an organization for the test."""
    name = f"olga-{request.node.name.replace('_', '-')}"[:50]
    published = create_approved_server(upstream, factories.create_organization(name))
    olga = User.objects.create_user(name, password="pw-for-tests")
    Membership.objects.create(organization=published.organization, user=olga, role=Role.OPERATOR)
    with open_context(module_browser, oauth_web.url, loopback=True) as page:
        page.goto("/healthz")
        yield Visit(published, name, page, oauth_web.url)


@contextmanager
def start_client(*command: str | Path) -> "Iterator[subprocess.Popen[str]]":
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


def open_printed_url(visit: Visit, program: "subprocess.Popen[str]") -> None:
    """Open the URL that the client prints, and sign in."""
    assert program.stdout is not None
    assert program.stderr is not None
    url = program.stdout.readline().strip()
    assert url, program.stderr.read()
    visit.page.goto(url)
    sign_in(visit)


def sign_in(visit: Visit) -> None:
    visit.page.get_by_label("Username").fill(visit.operator)
    visit.page.get_by_label("Password").fill("pw-for-tests")
    visit.page.get_by_role("button", name="Sign in").click()


def authorize_client(visit: Visit, *client: str | Path) -> None:
    """Authorize a client that knows only a URL, which then refreshes its token."""
    with start_client(*client, visit.address) as program:
        open_printed_url(visit, program)
        expect(visit.page.get_by_text("an application on this computer")).to_be_visible()
        visit.page.get_by_role("button", name="Authorize").click()
        visit.page.wait_for_url("http://127.0.0.1:*/callback*")
        out, err = program.communicate(timeout=TIMEOUT_S)
    assert program.returncode == 0, err
    output = json.loads(out)
    assert (output["tools"], output["renewed"], output["scope"]) == ([39, 39], True, "mcp:tools")
    grant = visit.grant()
    assert (grant.role, grant.agent_ids, grant.resource) == (
        Role.MEMBER,
        [str(visit.published.agent.pk)],
        visit.address,
    )
    entries = AuditRow.objects.filter(action="client_access_granted", actor_label=visit.operator)
    assert entries.count() == 1


def test_the_python_sdk_is_authorized_and_refreshes_its_token(visit: Visit) -> None:
    authorize_client(visit, sys.executable, CLIENTS / "oauth_client.py")


@pytest.mark.npm
def test_the_typescript_sdk_is_authorized_and_refreshes_its_token(visit: Visit) -> None:
    authorize_client(visit, NODE_22, NODE / "clients" / "oauth_client.mjs")


def test_another_bonobot_signs_in_as_to_any_server(
    visit: Visit, open_web: Callable[[str], Web]
) -> None:
    """Both run on one database with different origins, so the person is the same."""
    other, page = open_web("off"), visit.page
    spec = ServerSpec(
        name="bonobot",
        transport_type="http",
        endpoint_config={"url": visit.address},
        auth_config={"type": "oauth2", "grant": "authorization_code"},
        allow_private=True,
    )
    server = create_server(factories.build_administrator(visit.published.organization), spec)
    page.goto(f"{other.url}/oauth/start/{server.pk}")
    sign_in(visit)
    page.get_by_role("button", name="Continue").click()
    if page.get_by_label("Username").is_visible():
        sign_in(visit)
    expect(page.get_by_role("heading")).to_have_text("Authorize “Bonobot”?")
    page.get_by_role("button", name="Authorize").click()
    page.wait_for_url(f"{other.url}/**")
    oauth_grant = OAuthGrant.objects.get(server=server)
    assert can_authenticate(oauth_grant)
    grant = visit.grant()
    assert grant.client == "Bonobot"
    assert grant.digest
