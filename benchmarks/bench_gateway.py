"""What the gateway costs: an upstream called directly, through a bare relay, through Bonobot.

    make bench            (this among others)
    .venv/bin/python -m benchmarks.bench_gateway

Everything is on in Bonobot: policy with a condition, pinned definition, checked arguments, rates,
budget, flow labels, durable audit, result scan. One process each, and two web processes that share
a port; rounds of all of them alternate in one run, at 1, 8 and 32 connections, no two calls with
the same arguments, modern era. The table gives calls a second, milliseconds at the median and at
the 99th of a hundred, processor milliseconds a call (of the processes that are measured, from
/proc), and their memory. The load generator and the upstream run on the same machine.
"""

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.databases import ROOT, on_each
from benchmarks.upstream_server import modern_request

CONNECTIONS = (1, 8, 32)
CALLS = int(os.environ.get("BENCH_CALLS", "200"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
START_S = 60.0


@dataclass
class Target:
    """What is called: its processes, its address, and what was measured of it."""

    name: str
    pids: tuple[int, ...]
    port: int
    path: str
    tool: str
    token: str = ""
    times: dict[int, list[float]] = field(default_factory=dict)
    rates: dict[int, list[float]] = field(default_factory=dict)
    spent: dict[int, list[float]] = field(default_factory=dict)

    @property
    def processor_s(self) -> float:
        """Seconds of processor time of all processes so far."""
        ticks = 0
        for pid in self.pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / TICKS

    @property
    def megabytes(self) -> float:
        """Memory that all processes hold."""
        pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids)
        return sum(pages) * PAGE / 1e6


def measure() -> None:
    """Measure on this process's database; print a line for each figure."""
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    from benchmarks.governed_call import NEVER, furnished
    from bonobot.accounts.roles import Role
    from bonobot.accounts.tokens.services import create_token
    from bonobot.core import runtime
    from bonobot.ledger.writer.writer_thread import close_writer
    from bonobot.processes.programs import build_web_process

    ports = [_free_port() for _ in range(4)]
    url = f"http://127.0.0.1:{ports[0]}/mcp"
    peers = (sys.executable, "-m", "benchmarks.gateway_peers")
    web = build_web_process("127.0.0.1", ports[2]).command  # as `bonobot web` starts it
    two = build_web_process("127.0.0.1", ports[3], reuse_port=True).command  # as `up --web 2` does
    with _running(*peers, "upstream", str(ports[0]), port=ports[0]) as upstream:
        boss, agent, _ = furnished(url)
        _, token = create_token(boss, name="bench", role=Role.OPERATOR, calls_per_minute=NEVER)
        runtime.close_runtime()
        close_writer()
        with (
            _running(*peers, "relay", str(ports[1]), url, port=ports[1]) as relay,
            _running(*web, "--log-level", "warning", port=ports[2]) as bonobot,
            _running(*two, "--log-level", "warning", port=ports[3]) as first,
            _running(*two, "--log-level", "warning", port=ports[3]) as second,
        ):
            path, tool = f"/mcp/agents/{agent.slug}", "mcp_web_echo"
            targets = [
                Target("direct", (upstream,), ports[0], "/mcp", "echo"),
                Target("bare relay", (relay,), ports[1], "/mcp", "echo"),
                Target("Bonobot", (bonobot,), ports[2], path, tool, token),
                Target("Bonobot × 2", (first, second), ports[3], path, tool, token),
            ]
            asyncio.run(_rounds(targets))
            for target in targets:
                for at_once in CONNECTIONS:
                    _say(target, at_once)


async def _rounds(targets: list[Target]) -> None:
    numbers = itertools.count()
    for target in targets:  # warm
        await _round(target, 8, numbers, 64, keep=False)
    for at_once in CONNECTIONS:
        for _ in range(ROUNDS):
            for target in targets:
                await _round(target, at_once, numbers, CALLS)


async def _round(
    target: Target, at_once: int, numbers: Iterator[int], calls: int, *, keep: bool = True
) -> None:
    left, times = iter(range(calls)), []

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        for _ in left:
            request = _request(target, next(numbers))
            began = time.perf_counter()
            writer.write(request)
            body = await _answer(reader)
            times.append(time.perf_counter() - began)
            if "It is warm" not in body["result"]["content"][0]["text"]:
                raise SystemExit(f"{target.name} answered {body}")
        writer.close()

    spent, began = target.processor_s, time.perf_counter()
    await asyncio.gather(*[connection() for _ in range(at_once)])
    took = time.perf_counter() - began
    if keep:
        target.rates.setdefault(at_once, []).append(calls / took)
        target.spent.setdefault(at_once, []).append((target.processor_s - spent) / calls * 1000)
        target.times.setdefault(at_once, []).extend(times)


def _request(target: Target, number: int) -> bytes:
    headers, body = modern_request(target.tool, number, target.token)
    headers["Host"] = f"127.0.0.1:{target.port}"
    lines = [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"POST {target.path} HTTP/1.1", *lines, "", ""]).encode() + body


async def _answer(reader: asyncio.StreamReader) -> Any:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    if not head.startswith("http/1.1 200"):
        raise SystemExit(head)
    length = next(line for line in head.split("\r\n") if line.startswith("content-length:"))
    return json.loads(await reader.readexactly(int(length.partition(":")[2])))


def _say(target: Target, at_once: int) -> None:
    times = sorted(target.times[at_once])
    p99 = quantiles(times, n=100)[98]
    figures = (
        median(target.rates[at_once]),
        median(times) * 1000,
        p99 * 1000,
        median(target.spent[at_once]),
        target.megabytes,
    )
    words = [target.name.replace(" ", "_"), str(at_once), *(f"{one:.2f}" for one in figures)]
    sys.stdout.write(" ".join([*words, f"{os.getloadavg()[0]:.1f}"]) + "\n")
    sys.stdout.flush()


@contextmanager
def _running(*words: str, port: int) -> Iterator[int]:
    """Run a process until it listens; yield its id, and end it afterwards."""
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + START_S
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"{' '.join(words)} doesn't listen")
                time.sleep(0.1)
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _listens(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return _connects(port)


def _connects(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_calls_through_the_gateway() -> None:
    main()


def main() -> None:
    """Measure what there is and print the table."""
    console = Console(width=110)
    table = Table(title="Calls through the gateway")
    titles = ("database", "through", "connections", "calls/s", "p50 ms", "p99 ms")
    for title in (*titles, "processor ms", "MB", "load"):
        table.add_column(title, justify="left" if title in titles[:2] else "right")
    for name, lines in on_each(__file__, console):
        for through, *figures in sorted(lines, key=lambda line: int(line[1])):
            table.add_row(name, through.replace("_", " "), *figures)
    console.print(table)


if __name__ == "__main__":
    measure() if "measure" in sys.argv[1:] else main()
