"""How much memory the children of a stdio server take that many gateway sessions call at once.

    .venv/bin/python -m benchmarks.stdio_sessions COMMAND [ARGUMENT …]
    .venv/bin/python -m benchmarks.stdio_sessions node …/server-everything/dist/index.js stdio

Opens SESSIONS handshake sessions with the Python SDK, each with a token's own connection, calls
`echo` in all of them at the same time, and prints the number of answers, of child processes, and
the memory (RSS) of the children while all sessions are open. Uses a database and a web process of
its own. With ELICITATION=1, the clients can be asked, so concurrent calls don't share a child.
"""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.bench_gateway import PAGE, find_free_port, run_process

SESSIONS = int(os.environ.get("SESSIONS", "40"))
CALL_LIMIT_S = 120


def list_descendants(pid: int) -> list[int]:
    """Return the ids of a process's descendants."""
    results: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            results += [child, *list_descendants(child)]
    return results


def measure_megabytes(pids: list[int]) -> float:
    """Return the resident memory of processes in MB."""
    pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return sum(pages) * PAGE / 1e6


def find_server_processes(pid: int, command: list[str]) -> list[int]:
    """Return the descendants whose command line contains the server's last words."""
    fields = " ".join(command[1:]) or command[0]
    lines = {
        child: Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
        for child in list_descendants(pid)
    }
    return [child for child, line in lines.items() if fields in line]


async def call_concurrently(url: str, token: str, web: int, command: list[str]) -> str:
    """Call from all sessions at once; return a line of figures."""
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async def decline_request(context: Any, params: Any) -> Any:
        from mcp.types import ElicitResult

        return ElicitResult(action="decline")

    elicitation_callback = decline_request if os.environ.get("ELICITATION") else None
    opened, start, process = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event()
    latencies: list[float] = []
    failures: list[str] = []

    async def run_session(number: int) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=CALL_LIMIT_S) as http,
            Client(
                streamable_http_client(url, http_client=http),
                mode="legacy",
                elicitation_callback=elicitation_callback,
            ) as client,
        ):
            opened.release()
            await start.wait()
            started_at = time.perf_counter()
            result = await client.call_tool("echo", {"message": f"hello {number}"})
            if result.is_error:
                failures.append(str(result.content))
            else:
                latencies.append(time.perf_counter() - started_at)
            opened.release()
            await process.wait()

    async with asyncio.TaskGroup() as group:
        for number in range(SESSIONS):
            group.create_task(run_session(number))
        for _ in range(SESSIONS):
            await opened.acquire()
        start.set()
        for _ in range(SESSIONS):
            await opened.acquire()
        children = find_server_processes(web, command)
        megabytes = measure_megabytes(children)
        process.set()
    slowest = max(latencies, default=0.0)
    return (
        f"{SESSIONS} sessions: {len(latencies)} answered, {len(failures)} failed "
        f"{failures[:1]}, slowest {slowest:.1f} s, {len(children)} children, {megabytes:.0f} MB"
    )


def main() -> None:
    """Measure and print."""
    command = sys.argv[1:]
    folder = tempfile.mkdtemp(prefix="stdio-sessions-")
    os.environ |= {"BONOBOT_VAR": folder, "DJANGO_SETTINGS_MODULE": "bonobot.settings"}
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    from bonobot.accounts.models import Organization
    from bonobot.accounts.roles import Role
    from bonobot.accounts.tokens.services import create_token
    from bonobot.core import runtime
    from bonobot.ledger.writer.writer_thread import close_writer
    from mcp_servers.models import Server
    from mcp_servers.server_config import ServerSpec
    from mcp_servers.services import create_server
    from tests import factories

    where = factories.create_organization("acme")
    administrator = factories.build_administrator(where)
    config = {"command": command[0], "args": command[1:]}
    spec = ServerSpec(
        name="many",
        transport_type="stdio",
        endpoint_config=config,
        approval=Server.Approval.ALWAYS,
        sandbox=Server.SandboxMode.NONE,
    )
    factories.approve_server(where, create_server(administrator, spec))
    _, token = create_token(
        administrator, name="bench", role=Role.OWNER, calls_per_minute=1_000_000
    )
    assert Organization.objects.exists()
    runtime.close_runtime()
    close_writer()
    port = find_free_port()
    web = (sys.executable, "-m", "uvicorn", "bonobot.asgi:application", "--lifespan", "on")
    with run_process(*web, "--port", str(port), "--log-level", "warning", port=port) as process:
        url = f"http://127.0.0.1:{port}/mcp/servers/many"
        sys.stdout.write(asyncio.run(call_concurrently(url, token, process, command)) + "\n")


if __name__ == "__main__":
    main()
