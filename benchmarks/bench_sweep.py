"""`make bench`: 300 registered HTTP servers and one that hangs, in one sweep of one worker.

It runs the task's own code on the process's loop; every server answers each request after 50 ms.
"""

import asyncio
import sys
import time

import pytest

from bonobot.ledger.writer import writer
from bonobot.lib.runtime import runtime
from mcp_servers.models import Server
from mcp_servers.tasks import check_due
from tests.agents import casting
from tests.eventually import eventually
from tests.servers import raw_http
from tests.servers.raw_http import Asked, RawHttp

SERVERS = 300
ANSWER_S = 0.05
BAR_S = 30.0

pytestmark = pytest.mark.django_db(transaction=True)


async def slowly(asked: Asked) -> raw_http.AsyncIterator[bytes]:
    """Answer after 50 ms, or never at `/hang`."""
    await asyncio.sleep(3_600 if asked.path == "/hang" else ANSWER_S)
    tools = [{"name": "one", "inputSchema": {"type": "object"}}]
    found = raw_http.discovery(asked)
    whole = found if asked.method == "server/discover" else raw_http.result(asked, {"tools": tools})
    yield whole.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)


def test_a_sweep_of_three_hundred_servers() -> None:
    acme = casting.organization()
    listening = RawHttp(slowly).listening()
    server = runtime().call(listening.__aenter__)
    url = f"http://127.0.0.1:{server.port}"
    for number in range(SERVERS):
        casting.http_server(acme, f"{url}/s{number}", name=f"s{number}")
    hanging = casting.http_server(acme, f"{url}/hang", name="hang")
    began = time.perf_counter()
    check_due()
    connected = Server.objects.filter(status=Server.Status.CONNECTED)
    eventually(lambda: connected.count() == SERVERS, within=10 * BAR_S, what="300 discoveries")
    took_s = time.perf_counter() - began
    hanging.refresh_from_db()
    sys.stdout.write(
        f"\n{SERVERS} servers discovered in one sweep: {took_s:.1f} s (bar {BAR_S:.0f} s);"
        f" the one that hangs is {hanging.status}\n"
    )
    assert hanging.status == Server.Status.CONNECTING
    runtime().close()
    writer().close()
