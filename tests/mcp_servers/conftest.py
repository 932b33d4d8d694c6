"""Fixtures of servers that tell changes: on the runtime's loop, registered and discovered."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from bonobot.lib.runtime import runtime
from bonobot.tenancy.models import Organization
from mcp_servers import reopening, staleness
from mcp_servers.connections.pool import connections
from mcp_servers.models import Server
from mcp_servers.rereading import rereader
from tests.agents import casting
from tests.mcp_servers.serving import Serving


@pytest.fixture
def acme(transactional_db: None) -> Organization:
    """An organization whose rows every thread sees."""
    return casting.organization()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing that waits for its turn wait for longer than a moment."""
    monkeypatch.setattr(staleness, "INTERVAL", timedelta(seconds=0.05))
    monkeypatch.setattr(staleness, "SHARE", 0)
    monkeypatch.setattr(reopening, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(reopening, "LONGEST_PAUSE_S", 0.1)


async def _stop_reading() -> None:
    await rereader().close()


@pytest.fixture
def serve(acme: Organization) -> Iterator[Callable[..., tuple[Serving, Server]]]:
    """Return a function that runs a raw server, registers, discovers and approves it."""
    made = []

    def begin(listen, name="raw"):
        one = runtime().call(Serving(listen).begin)
        server = casting.http_server(acme, one.http.url, name)
        made.append((one, server))
        return one, casting.ready(acme, server)

    yield begin
    runtime().call(_stop_reading)
    for one, server in made:
        runtime().call(connections().forget, server.pk)
        runtime().call(one.stop)
