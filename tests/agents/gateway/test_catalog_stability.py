"""The capabilities of one client never change the catalog of all clients."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from agents.models import Agent
from agents.services import attach_server
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from mcp_servers import refresh_definitions
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.health.check_servers import check_server
from mcp_servers.models import Launcher, Server
from mcp_servers.refresh_definitions import get_refresher
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.agents.gateway.conftest import GatewayClient
from tests.mcp_servers.raw_list_changed_server import discoveries
from tests.npm_servers import serve_everything
from tests.wait import eventually

pytestmark = [pytest.mark.npm, pytest.mark.django_db(transaction=True)]

AGENT = "/mcp/agents/helper"
# A call that changes the list of resources, so that the server's catalog is refreshed.
CHANGE = {
    "name": "mcp_everything_gzip_file_as_resource",
    "arguments": {"name": "x.gz", "data": "data:text/plain;base64,aGVsbG8="},
}
CAPABILITY_TOOLS = (
    *("trigger-sampling-request", "trigger-elicitation-request", "trigger-url-elicitation"),
    "get-roots-list",
)


@pytest.fixture(autouse=True)
def refresh_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refresh changed catalogs at once."""
    monkeypatch.setattr(refresh_definitions, "INTERVAL", timedelta(seconds=0.05))


@pytest.fixture
def everything_url(node_server: Callable[[str], str], free_port: int) -> Iterator[str]:
    """Run server-everything, whose tools depend on what its client declares, over HTTP."""
    with serve_everything(node_server, free_port) as url:
        yield url


@pytest.fixture
def register(acme: Organization, helper: Agent) -> Iterator[Callable[..., Server]]:
    """A function that registers server-everything, which may request everything."""
    administrator, servers = factories.build_administrator(acme), []

    def create(**fields) -> Server:
        spec = ServerSpec(
            name="everything",
            approval=Server.Approval.ALWAYS,
            elicitation=True,
            roots=True,
            sampling=Server.Sampling.ALLOW,
            **fields,
        )
        server = factories.approve_server(acme, create_server(administrator, spec))
        attach_server(administrator, helper, server, allowed_resources=["*"], allowed_prompts=["*"])
        servers.append(server)
        return server

    yield create
    for server in servers:
        get_runtime().call(get_connection_pool().forget_server, server.pk)


def list_present_tools(server: Server) -> set[str]:
    return set(server.definitions.tools().filter(present=True).values_list("name", flat=True))


def wait_for_refresh(server: Server) -> None:
    """Wait until the change that the server reports on each connection has been read."""
    eventually(lambda: discoveries(server) > 1)
    eventually(lambda: server.pk not in get_refresher()._requests)


@pytest.fixture(params=["http", "stdio"])
def server(
    request: pytest.FixtureRequest,
    register: Callable[..., Server],
    node_server: Callable[[str], str],
) -> Server:
    """Server-everything, with the tools that only capable clients get."""
    if request.param == "http":
        url = request.getfixturevalue("everything_url")
        server = register(transport_type="http", endpoint_config={"url": url}, allow_private=True)
    else:
        program = node_server("mcp-server-everything")
        Launcher.objects.create(command=program)
        server = register(transport_type="stdio", endpoint_config={"command": program})
    assert {*CAPABILITY_TOOLS} <= list_present_tools(server)
    return server


@pytest.mark.parametrize("era", ["modern", "handshake"])
def test_the_catalog_stays_complete_when_a_client_without_capabilities_calls(
    era: str, server: Server, gateway_client: GatewayClient
) -> None:
    declared = list_present_tools(server)
    reply = (
        gateway_client.modern(AGENT, "tools/call", CHANGE)
        if era == "modern"
        else gateway_client.handshake(AGENT).ask("tools/call", CHANGE)
    )
    assert reply.result["content"][0]["type"] == "resource_link"
    wait_for_refresh(server)
    assert list_present_tools(server) == declared


@pytest.mark.parametrize("server", ["stdio"], indirect=True)
def test_the_catalog_stays_complete_when_the_health_of_a_server_is_checked(server: Server) -> None:
    declared = list_present_tools(server)
    get_runtime().call(check_server, server.pk)
    wait_for_refresh(server)
    assert list_present_tools(server) == declared
