"""Fixtures of registered servers that send change notifications, on the runtime's loop."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from mcp_servers import refresh_definitions
from mcp_servers.client import change_notifications
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server
from mcp_servers.refresh_definitions import get_refresher
from tests import factories
from tests.mcp_servers.raw_list_changed_server import ListChangedServer


@pytest.fixture
def acme(transactional_db: None) -> Organization:
    """An organization whose rows every thread sees."""
    return factories.create_organization()


@pytest.fixture
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the delays of refreshes and reopened streams."""
    monkeypatch.setattr(refresh_definitions, "INTERVAL", timedelta(seconds=0.05))
    monkeypatch.setattr(refresh_definitions, "PAUSE_FACTOR", 0)
    monkeypatch.setattr(change_notifications, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(change_notifications, "MAX_PAUSE_S", 0.1)


async def _stop_reading() -> None:
    await get_refresher().close()


@pytest.fixture
def serve(acme: Organization) -> Iterator[Callable[..., tuple[ListChangedServer, Server]]]:
    """Return a function that runs a raw server, registers, discovers and approves it."""
    started = []

    def start(listen, name="raw"):
        raw_server = get_runtime().call(ListChangedServer(listen).start)
        server = factories.create_http_server(acme, raw_server.http.url, name)
        started.append((raw_server, server))
        return raw_server, factories.approve_server(acme, server)

    yield start
    get_runtime().call(_stop_reading)
    for raw_server, server in started:
        get_runtime().call(get_connection_pool().forget_server, server.pk)
        get_runtime().call(raw_server.stop)
