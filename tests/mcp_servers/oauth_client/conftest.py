"""A protected server, reset for each test, and registered servers that use it."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.core.runtime import get_runtime
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.servers.oauth_protected_server import CLIENT_ID, CLIENT_SECRET

PROTECTED = Path(__file__).parents[2] / "servers" / "oauth_protected_server.py"
CREDENTIALS = {"type": "oauth2", "client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}
LOGIN = {"type": "oauth2", "grant": "authorization_code"}


@dataclass(frozen=True)
class ProtectedServer:
    """Controls the protected server."""

    origin: str

    @property
    def url(self) -> str:
        """Return the URL of its MCP endpoint."""
        return f"{self.origin}/mcp"

    def seen(self) -> dict[str, Any]:
        """Return the requests it has seen."""
        return httpx.get(f"{self.origin}/control").json()

    def set(self, **settings: Any) -> None:
        """Change its behavior."""
        httpx.post(f"{self.origin}/control", json=settings).raise_for_status()

    @property
    def token_requests(self) -> list[dict[str, str]]:
        """Return every token request."""
        return self.seen()["token_requests"]


@pytest.fixture(scope="session")
def protected_origin() -> Iterator[str]:
    """Run the protected server for all tests, and return its origin."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.servers.oauth_protected_server"],
        cwd=PROTECTED.parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        port = process.stdout.readline().split()[1]
        yield f"http://127.0.0.1:{port}"
        process.terminate()


@pytest.fixture
def protected(protected_origin: str) -> ProtectedServer:
    """Reset the protected server."""
    httpx.delete(f"{protected_origin}/control").raise_for_status()
    return ProtectedServer(protected_origin)


@pytest.fixture
def organization(transactional_db: None) -> Organization:
    return factories.create_organization()


@pytest.fixture
def administrator(organization: Organization) -> Principal:
    return factories.build_administrator(organization)


@pytest.fixture
def register(
    administrator: Principal, protected: ProtectedServer
) -> Iterator[Callable[..., Server]]:
    """Return a function that registers the protected server with a sign-in."""
    servers: list[Server] = []

    def register_server(auth: dict[str, Any] | None = None, **more: Any) -> Server:
        server = create_server(
            administrator,
            ServerSpec(
                name=f"protected{len(servers) or ''}",
                transport_type="http",
                endpoint_config={"url": protected.url},
                auth_config=CREDENTIALS if auth is None else auth,
                **{"allow_private": True, **more},
            ),
        )
        servers.append(server)
        return server

    yield register_server
    for server in servers:
        get_runtime().call(get_connection_pool().forget_server, server.pk)


def call_tool(server: Server, endpoint: Any = None) -> str:
    """Call the server's tool; returns the digest of the token that arrived."""
    result = get_runtime().call(
        get_connection_pool().send_request,
        endpoint or build_endpoint(Server.objects.get(pk=server.pk)),
        "tools/call",
        {"name": "whoami", "arguments": {}},
        holder=f"server:{server.pk}:test",
    )
    return str(result["content"][0]["text"])
