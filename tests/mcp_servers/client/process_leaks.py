"""Opens stdio servers that leave processes behind, and counts what remains.

`make bench` opens a thousand, a hundred of them in workers that are killed; the tests open fewer.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import ConnectionPool

SERVER_SCRIPT = Path(__file__).parents[2] / "servers" / "minimal_server.sh"
CONCURRENCY = 8
PER_WORKER = 10
END_TIMEOUT_S = 5.0

WORKER = """
import asyncio, sys
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.process_leaks import open_server

async def main():
    connections = ConnectionPool()
    for number in range(int(sys.argv[2])):
        await open_server(connections, sys.argv[1], f"session:{number}")
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@dataclass(frozen=True)
class LeakReport:
    """What remains after closing; `zombies` and `descriptors` count additional ones only."""

    opened: int
    killed_workers: int
    seen: int
    processes: int
    zombies: int
    descriptors: int


async def open_server(connections: ConnectionPool, token: str, holder: str) -> None:
    """Open one server and let it leave processes behind."""
    endpoint = ServerEndpoint(
        server_id=UUID(int=1),
        name="tiny",
        organization_id=UUID(int=1),
        transport="stdio",
        command="sh",
        args=(str(SERVER_SCRIPT), token),
        era="modern",
    )
    params = {"name": "leave", "arguments": {}}
    await connections.send_request(endpoint, "tools/call", params, holder=holder, timeout_s=60)


async def open_many(times: int, workers: int) -> LeakReport:
    """Open `times` servers here, and more in `workers` processes that are killed."""
    token = f"bonobot-leak-{uuid4().hex}"
    connections = ConnectionPool()
    await open_server(connections, token, "session:first")
    peak = len(list_processes(token))
    await connections.release("session:first")
    zombies_before = count_zombies()
    descriptors_before = count_descriptors()
    numbers = iter(range(times))

    async def open_and_release() -> None:
        for number in numbers:
            await open_server(connections, token, f"session:{number}")
            await connections.release(f"session:{number}")

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(open_and_release())
    async for _ in run_killed_workers(token, workers):
        peak = max(peak, len(list_processes(token)))
    await connections.close()
    await wait_until_ended(token, zombies_before)
    report = LeakReport(
        opened=1 + times + workers * PER_WORKER,
        killed_workers=workers,
        seen=peak,
        processes=len(list_processes(token)),
        zombies=count_zombies() - zombies_before,
        descriptors=count_descriptors() - descriptors_before,
    )
    for pid in list_processes(token):
        os.kill(pid, signal.SIGKILL)
    return report


async def run_killed_workers(token: str, workers: int) -> AsyncIterator[None]:
    """Run workers one after the other, and kill each once it has its children."""
    for _ in range(workers):
        command = [sys.executable, "-c", WORKER, token, str(PER_WORKER)]
        worker = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert worker.stdout is not None
        assert await worker.stdout.readline() == b"ready\n"
        yield
        worker.kill()
        await worker.wait()


async def wait_until_ended(token: str, zombies_before: int = 0) -> None:
    """Wait until nothing remains, at most five seconds."""
    for _ in range(int(END_TIMEOUT_S / 0.05)):
        if not list_processes(token) and count_zombies() <= zombies_before:
            return
        await asyncio.sleep(0.05)


def list_processes(token: str) -> list[int]:
    """Return the running processes whose command line contains `token`."""
    pids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if token.encode() in (folder / "cmdline").read_bytes():
                    pids.append(int(folder.name))
            except OSError:
                continue
    return pids


def count_zombies() -> int:
    """Count the children of this process that ended and weren't waited for."""
    count = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            count += state == "Z" and int(parent) == os.getpid()
    return count


def count_descriptors() -> int:
    """Count the open file descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))
