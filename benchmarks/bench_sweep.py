"""Measure the discovery of 300 HTTP servers, and one that hangs, by one worker.

    make bench            (this among others)
    .venv/bin/python -m pytest -n0 -s -q benchmarks/bench_sweep.py

Once with the task's own code on this process's loop, and once in a Celery worker's process, beside
which nothing of ours runs but the servers that are asked. Every server answers each request after
50 ms. With `DATABASE_URL` and `REDIS_URL` it is measured on PostgreSQL and Redis, whose own
processor time isn't counted; else on SQLite and the filesystem broker.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import connection

from bonobot.core.runtime import get_runtime
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.models import Server
from mcp_servers.tasks import check_due_servers
from tests import factories, processes
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp, RecordedRequest
from tests.wait import eventually

SERVERS = 300
ANSWER_S = 0.05
BAR_S = 30.0

pytestmark = pytest.mark.django_db(transaction=True)


async def answer_slowly(asked: RecordedRequest) -> AsyncIterator[bytes]:
    """Answer after 50 ms, or never at `/hang`."""
    await asyncio.sleep(3_600 if asked.path == "/hang" else ANSWER_S)
    tools = [{"name": "one", "inputSchema": {"type": "object"}}]
    results = raw_http_server.discovery(asked)
    complete = (
        results
        if asked.method == "server/discover"
        else raw_http_server.result(asked, {"tools": tools})
    )
    yield complete.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)


@contextmanager
def register_servers() -> Iterator[Server]:
    """Register servers that run on this process's loop; yield the one that hangs."""
    acme = factories.create_organization()
    listening = RawHttp(answer_slowly).listening()
    server = get_runtime().call(listening.__aenter__)
    url = f"http://127.0.0.1:{server.port}"
    for number in range(SERVERS):
        factories.create_http_server(acme, f"{url}/s{number}", name=f"s{number}")
    yield factories.create_http_server(acme, f"{url}/hang", name="hang")
    get_runtime().close()
    get_writer().close()


def wait_for_discoveries(where: str, hanging: Server, processor_s: Callable[[], float]) -> None:
    """Wait until all but one are connected; print the time."""
    started_at, processor_time = time.perf_counter(), processor_s()
    connected = Server.objects.filter(status=Server.Status.CONNECTED)
    eventually(lambda: connected.count() == SERVERS, within=10 * BAR_S, what="300 discoveries")
    took_s, processor_time = time.perf_counter() - started_at, processor_s() - processor_time
    hanging.refresh_from_db()
    sys.stdout.write(
        f"\n{SERVERS} servers discovered in one sweep {where}, {connection.vendor}: {took_s:.1f} s"
        f" (bar {BAR_S:.0f} s), {processor_time:.1f} s of its processor time;"
        f" the one that hangs is {hanging.status}\n"
    )
    assert hanging.status == Server.Status.CONNECTING


def test_a_sweep_of_three_hundred_servers() -> None:
    with register_servers() as hanging:
        check_due_servers()
        wait_for_discoveries("in this process", hanging, time.process_time)


def test_a_sweep_of_three_hundred_servers_by_a_worker(tmp_path: Path) -> None:
    with register_servers() as hanging:
        worker = processes.start_worker(tmp_path, "worker")
        try:
            check_due_servers.delay()
            wait_for_discoveries("by a worker", hanging, lambda: measure_processor_s(worker.pid))
        finally:
            worker.kill()


def measure_processor_s(pid: int) -> float:
    """Return the processor time of a process and its children that ended, in seconds (Linux)."""
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(map(int, after_name[11:15])) / os.sysconf("SC_CLK_TCK")
