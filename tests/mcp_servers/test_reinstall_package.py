"""Packages of registered servers are installed before their first discovery, and reported."""

from collections.abc import Iterator

import pytest

from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.discovery import run_discovery
from mcp_servers.health.check_servers import SYSTEM
from mcp_servers.models import Outage, Server
from mcp_servers.reinstall_package import find_server_installation, reinstall_package
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories, rest
from tests.servers.npm_registry import NAME, Registry, open_registry
from tests.wait import eventually

pytestmark = [pytest.mark.npm, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def registry() -> Iterator[Registry]:
    with open_registry() as npm_registry:
        yield npm_registry


@pytest.fixture
def administrator(settings, tmp_path):
    settings.BONOBOT_VAR = tmp_path / "var"
    return factories.build_administrator(factories.create_organization())


@pytest.fixture
def server(administrator, registry, tmp_path) -> Iterator[Server]:
    """Create a server that npx fetches from the registry; a sandbox would have no loopback."""
    env = {"NPM_CONFIG_REGISTRY": registry.url, "NPM_CONFIG_CACHE": str(tmp_path / "cache")}
    spec = ServerSpec(
        name="hello",
        transport_type="stdio",
        endpoint_config={"command": "npx", "args": ["-y", f"{NAME}@1.0.0"], "env": env},
        env_exceptions=dict.fromkeys(env, "the registry of a test"),
        sandbox="none",
    )
    hello_server = create_server(administrator, spec)
    yield hello_server
    get_runtime().call(get_connection_pool().forget_server, hello_server.pk)


def test_a_package_is_installed_before_the_first_discovery_and_shown_on_the_page(
    administrator, server
):
    assert find_server_installation(server) == {"state": "needed", "detail": ""}
    result = get_runtime().call(run_discovery, server.pk, actor=SYSTEM, install_wait_s=120)
    assert result.tools == ("hello",)
    data = rest.as_administrator().get(f"mcp-servers/{server.pk}").json
    assert data["installation"] == {"state": "installed", "detail": ""}


def test_a_server_whose_installation_outlasted_its_start_is_discovered_automatically(
    settings, administrator, registry, server
):
    settings.BONOBOT_START_S = 1
    registry.sends.clear()
    client = rest.as_administrator()
    result = client.post(f"mcp-servers/{server.pk}/test").json
    assert (result["status"], result["code"]) == ("error", "server_installing")
    data = client.get(f"mcp-servers/{server.pk}").json
    assert (data["installation"]["state"], data["status"]) == ("installing", "connecting")
    assert not Outage.objects.exists()
    settings.BONOBOT_START_S = 10
    registry.sends.set()

    def is_connected() -> bool:
        server.refresh_from_db()
        return server.status == Server.Status.CONNECTED

    eventually(is_connected, within=60, what="the discovery after the installation")


def test_a_server_whose_installation_fails_after_its_start_is_failed(settings, registry, server):
    settings.BONOBOT_START_S = 1
    registry.sends.clear()
    client = rest.as_administrator()
    assert client.post(f"mcp-servers/{server.pk}/test").json["code"] == "server_installing"
    registry.is_broken = True
    registry.sends.set()

    def has_failed() -> bool:
        server.refresh_from_db()
        return server.status_code == "installation_failed"

    eventually(has_failed, within=60, what="the failure of the installation")
    assert server.status == Server.Status.ERROR


def test_a_reinstallation_is_recorded_with_its_actor(administrator, server):
    get_runtime().call(run_discovery, server.pk, actor=SYSTEM, install_wait_s=120)
    installation = get_runtime().call(reinstall_package, administrator, server)
    assert installation is not None
    assert installation.state == "installed"
    assert AuditRow.objects.get(action="server_installed").actor_id == administrator.actor.id


def test_a_server_with_another_launcher_has_no_package(administrator):
    other = factories.create_stdio_server(factories.Organization.objects.get())
    assert find_server_installation(other) is None
    assert get_runtime().call(reinstall_package, administrator, other) is None
