"""Open stdio servers again and again, each of which leaves processes behind, and count what stays.

`make bench` opens a thousand, of them a hundred by workers that are killed; the tests open fewer.
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

TINY = Path(__file__).parents[2] / "servers" / "minimal_server.sh"
AT_ONCE = 8
PER_WORKER = 10
GONE_WITHIN_S = 5.0

WORKER = """
import asyncio, sys
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.process_leaks import opened

async def main():
    connections = ConnectionPool()
    for number in range(int(sys.argv[2])):
        await opened(connections, sys.argv[1], f"session:{number}")
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@dataclass(frozen=True)
class Left:
    """What stayed after all was closed; `zombies` and `descriptors` are those more than before."""

    opened: int
    killed_workers: int
    seen: int
    processes: int
    zombies: int
    descriptors: int


async def opened(connections: ConnectionPool, token: str, holder: str) -> None:
    """Open one server, and have it leave processes behind."""
    endpoint = ServerEndpoint(
        server_id=UUID(int=1),
        name="tiny",
        organization_id=UUID(int=1),
        transport="stdio",
        command="sh",
        args=(str(TINY), token),
        era="modern",
    )
    params = {"name": "leave", "arguments": {}}
    await connections.send_request(endpoint, "tools/call", params, holder=holder, timeout_s=60)


async def open_many(times: int, workers: int) -> Left:
    """Open servers `times` times here, and in `workers` processes that are killed with theirs."""
    token = f"bonobot-leak-{uuid4().hex}"
    connections = ConnectionPool()
    await opened(connections, token, "session:first")
    seen = len(processes(token))
    await connections.release("session:first")
    ended = zombies()
    before = descriptors()
    turns = iter(range(times))

    async def one_after_the_other() -> None:
        for turn in turns:
            await opened(connections, token, f"session:{turn}")
            await connections.release(f"session:{turn}")

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one_after_the_other())
    async for _ in killed(token, workers):
        seen = max(seen, len(processes(token)))
    await connections.close()
    await settled(token, ended)
    left = Left(
        opened=1 + times + workers * PER_WORKER,
        killed_workers=workers,
        seen=seen,
        processes=len(processes(token)),
        zombies=zombies() - ended,
        descriptors=descriptors() - before,
    )
    for pid in processes(token):
        os.kill(pid, signal.SIGKILL)
    return left


async def killed(token: str, workers: int) -> AsyncIterator[None]:
    """Run workers one after the other, each killed when it has its children."""
    for _ in range(workers):
        command = [sys.executable, "-c", WORKER, token, str(PER_WORKER)]
        worker = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert worker.stdout is not None
        assert await worker.stdout.readline() == b"ready\n"
        yield
        worker.kill()
        await worker.wait()


async def settled(token: str, ended: int = 0) -> None:
    """Wait until nothing is left, five seconds at most."""
    for _ in range(int(GONE_WITHIN_S / 0.05)):
        if not processes(token) and zombies() <= ended:
            return
        await asyncio.sleep(0.05)


def processes(token: str) -> list[int]:
    """Return the living processes whose command line holds `token`."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if token.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def zombies() -> int:
    """Count the children of this process that ended and were not waited for."""
    count = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            count += state == "Z" and int(parent) == os.getpid()
    return count


def descriptors() -> int:
    """Count what this process holds open."""
    return len(list(Path("/proc/self/fd").iterdir()))
