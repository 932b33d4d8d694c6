"""Measure the memory of idle gateway sessions.

    .venv/bin/python -m benchmarks.bench_idle_sessions [SESSIONS]

Opens 1,000 sessions of handshake clients of one web process (SQLite): each initializes, lists the
tools and makes a call. With `--streams`, each also keeps its event stream (GET) open. Prints the
web process's memory before and with them, resident (RSS) and proportional (PSS). Fifty sessions are
opened and ended first.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from benchmarks.bench_gateway import Target, find_free_port, run_process
from benchmarks.databases import build_environment
from benchmarks.endurance import prepare_target, print_line, read_memory
from bonobot.processes.programs import build_web_process

SESSIONS, WARM_SESSIONS = 1_000, 50
AT_ONCE = 8
VERSION = "2025-06-18"
CLIENT = {"name": "bench", "version": "1"}


class ClientSession:
    """A session of a handshake client, with one connection for each request."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._session_id = ""
        self._stream: asyncio.StreamWriter | None = None

    async def open(self, *, with_stream: bool) -> None:
        """Initialize, list the tools, make a call, and open the event stream if wanted."""
        parameters = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": CLIENT}
        await self._send({"id": 1, "method": "initialize", "params": parameters})
        await self._send({"method": "notifications/initialized"})
        await self._send({"id": 2, "method": "tools/list"})
        call = {"name": self._target.tool, "arguments": {"text": "Ulm", "limit": 1}}
        await self._send({"id": 3, "method": "tools/call", "params": call})
        if with_stream:
            reader, self._stream = await self._request("GET", b"")
            await reader.readuntil(b"\r\n\r\n")

    async def close(self) -> None:
        """End the session."""
        if self._stream is not None:
            self._stream.close()
        reader, writer = await self._request("DELETE", b"")
        await reader.read()
        writer.close()

    async def _send(self, message: Mapping[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        reader, writer = await self._request("POST", body)
        response = await reader.read()
        writer.close()
        head = response.partition(b"\r\n\r\n")[0].decode()
        if not head.startswith(("HTTP/1.1 200", "HTTP/1.1 202")):
            sys.exit(response.decode())
        for line in head.split("\r\n"):
            name, _, value = line.partition(": ")
            if name.lower() == "mcp-session-id":
                self._session_id = value

    async def _request(
        self, method: str, body: bytes
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target.port)
        headers = {
            "Host": f"127.0.0.1:{self._target.port}",
            "Authorization": f"Bearer {self._target.token}",
            "Accept": "application/json, text/event-stream"
            if method == "POST"
            else "text/event-stream",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "keep-alive" if method == "GET" else "close",
        }
        if self._session_id:
            headers |= {"Mcp-Session-Id": self._session_id, "MCP-Protocol-Version": VERSION}
        lines = [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join([f"{method} {self._target.path} HTTP/1.1", *lines, "", ""])
        writer.write(head.encode() + body)
        return reader, writer


async def open_sessions(target: Target, count: int, *, with_stream: bool) -> list[ClientSession]:
    """Open sessions, a few at once, and return them."""
    sessions = [ClientSession(target) for _ in range(count)]
    remaining = iter(sessions)

    async def open_remaining() -> None:
        for session in remaining:
            await session.open(with_stream=with_stream)

    await asyncio.gather(*[open_remaining() for _ in range(AT_ONCE)])
    return sessions


async def measure(target: Target, pid: int, count: int, *, with_stream: bool) -> None:
    """Print the memory of the web process before and with the sessions."""
    for session in await open_sessions(target, WARM_SESSIONS, with_stream=with_stream):
        await session.close()
    before = read_memory(pid)
    await open_sessions(target, count, with_stream=with_stream)
    after = read_memory(pid)
    for name, first, last in zip(("RSS", "PSS"), before, after, strict=True):
        print_line(
            f"{count:,} sessions: {name} {first:.1f} MB before, {last:.1f} MB with them, "
            f"{last - first:+.1f} MB"
        )


def main() -> None:
    """Measure with the options of the command line."""
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    count = numbers[0] if numbers else SESSIONS
    with tempfile.TemporaryDirectory(prefix="bonobot-bench-") as folder:
        os.environ |= build_environment(f"sqlite:///{folder}/bench.sqlite3", folder)
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        upstream, port = find_free_port(), find_free_port()
        peers = (sys.executable, "-m", "benchmarks.gateway_peers", "upstream", str(upstream))
        web = build_web_process("127.0.0.1", port).command
        with run_process(*peers, port=upstream):
            target = prepare_target(upstream, port)
            with run_process(*web, "--log-level", "warning", port=port) as pid:
                with_stream = "--streams" in sys.argv
                asyncio.run(measure(target, pid, count, with_stream=with_stream))


if __name__ == "__main__":
    main()
