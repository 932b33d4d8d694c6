"""The server `tests/servers/resource_updates_server.py`, as a process over HTTP."""

import itertools
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from agents.models import Agent
from agents.services import attach_server
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.models import Server
from mcp_servers.oauth_client import access_tokens
from mcp_servers.oauth_client.access_tokens import OAuthEndpoint, build_person_endpoint
from mcp_servers.oauth_client.token_requests import OAuthTokens
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories

SCRIPT = Path(__file__).parent / "servers" / "resource_updates_server.py"
PERSONAL = {"type": "oauth2", "grant": "authorization_code", "per": "user"}
PAPER, WEATHER, SECRET = "news://paper", "news://weather", "news://secret"


@contextmanager
def run_news_server(*modes: str) -> Iterator[str]:
    """Run the server and yield its URL; modes: `handshake` (that era only), `people` (logins)."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), "http", *modes],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().split()[1]}/mcp"
        finally:
            server.kill()  # which waits for no stream to end


@pytest.fixture(scope="module")
def edition_url() -> Iterator[Callable[..., str]]:
    """Return a function that returns the URL of a new edition, on a server that a module shares.

    Its parameters are those of `run_news_server`: there is one process per combination.
    """
    urls: dict[tuple[str, ...], str] = {}
    numbers = itertools.count(1)
    with ExitStack() as servers:

        def print_new(*modes: str) -> str:
            if modes not in urls:
                urls[modes] = servers.enter_context(run_news_server(*modes))
            return f"{urls[modes]}?edition={next(numbers)}"

        yield print_new


def create_news_server(
    organization: Organization,
    agent: Agent,
    url: str,
    name: str = "news",
    readers: Collection[Principal] = (),
) -> Server:
    """Register the server and attach it to an agent; each of its `readers` has their own login."""
    administrator = factories.build_administrator(organization)
    spec = ServerSpec(
        name=name,
        transport_type="http",
        endpoint_config={"url": url},
        allow_private=True,
        approval=Server.Approval.ALWAYS,
        auth_config=PERSONAL if readers else None,
    )
    server = create_server(administrator, spec)
    for reader in readers:
        store_login(server, reader)
    server = factories.approve_server(organization, server)
    attach_server(administrator, agent, server, allowed_resources=["*"], allowed_prompts=["*"])
    return server


def store_login(server: Server, principal: Principal, account: str = "") -> None:
    """Store a user's login at the server, as if they had signed in with a browser."""
    endpoint = build_person_endpoint(build_endpoint(server), UUID(principal.id))
    assert isinstance(endpoint, OAuthEndpoint)
    token = OAuthTokens(
        access=f"token-of-{account or principal.label}", refresh="", expires_at=None, scope=""
    )
    access_tokens.store_tokens(access_tokens.get_or_create_grant(endpoint.account), None, token)
