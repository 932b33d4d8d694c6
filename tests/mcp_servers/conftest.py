"""Fixtures of servers that tell changes: on the runtime's loop, registered and discovered."""

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
from tests.mcp_servers.raw_list_changed_server import Serving


@pytest.fixture
def acme(transactional_db: None) -> Organization:
    """An organization whose rows every thread sees."""
    return factories.create_organization()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing that waits for its turn wait for longer than a moment."""
    monkeypatch.setattr(refresh_definitions, "INTERVAL", timedelta(seconds=0.05))
    monkeypatch.setattr(refresh_definitions, "PAUSE_FACTOR", 0)
    monkeypatch.setattr(change_notifications, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(change_notifications, "MAX_PAUSE_S", 0.1)


async def _stop_reading() -> None:
    await get_refresher().close()


@pytest.fixture
def serve(acme: Organization) -> Iterator[Callable[..., tuple[Serving, Server]]]:
    """Return a function that runs a raw server, registers, discovers and approves it."""
    made = []

    def begin(listen, name="raw"):
        one = get_runtime().call(Serving(listen).begin)
        server = factories.create_http_server(acme, one.http.url, name)
        made.append((one, server))
        return one, factories.approve_server(acme, server)

    yield begin
    get_runtime().call(_stop_reading)
    for one, server in made:
        get_runtime().call(get_connection_pool().forget_server, server.pk)
        get_runtime().call(one.stop)
