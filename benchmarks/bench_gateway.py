"""Measure the cost of the gateway: calls to a server directly, through a relay, and through it.

    make bench            (this among others)
    .venv/bin/python -m benchmarks.bench_gateway

All checks of Bonobot are on: a policy with a condition, a pinned definition, argument validation,
rate limits, a budget, flow labels, the durable audit log, and the scan of results. Each target is
one process, and the last one two web processes that share a port. Rounds of all targets alternate
in one run, with 1, 8, and 32 connections; each call has other arguments (modern era). The table has
calls per second, p50 and p99 in milliseconds, processor time per call in milliseconds (of the
measured processes, from /proc), and their memory. The load generator and the server run on the same
machine.
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

from benchmarks.databases import ROOT, measure_each_database
from benchmarks.upstream_server import modern_request

CONNECTIONS = (1, 8, 32)
CALLS = int(os.environ.get("BENCH_CALLS", "200"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
START_S = 60.0


@dataclass
class Target:
    """A called endpoint: its processes, its address, and its measurements."""

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
        """The memory of all processes."""
        pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids)
        return sum(pages) * PAGE / 1e6


def measure() -> None:
    """Measure on this process's database; print a line for each figure."""
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    from benchmarks.governed_call import NEVER, create_benchmark_agent
    from bonobot.accounts.roles import Role
    from bonobot.accounts.tokens.services import create_token
    from bonobot.core import runtime
    from bonobot.ledger.writer.writer_thread import close_writer
    from bonobot.processes.programs import build_web_process

    ports = [find_free_port() for _ in range(4)]
    url = f"http://127.0.0.1:{ports[0]}/mcp"
    peers = (sys.executable, "-m", "benchmarks.gateway_peers")
    web = build_web_process("127.0.0.1", ports[2]).command  # as `bonobot web` starts it
    two = build_web_process("127.0.0.1", ports[3], reuse_port=True).command  # as `up --web 2` does
    with run_process(*peers, "upstream", str(ports[0]), port=ports[0]) as upstream:
        administrator, agent, _ = create_benchmark_agent(url)
        _, token = create_token(
            administrator, name="bench", role=Role.OPERATOR, calls_per_minute=NEVER
        )
        runtime.close_runtime()
        close_writer()
        with (
            run_process(*peers, "relay", str(ports[1]), url, port=ports[1]) as relay,
            run_process(*web, "--log-level", "warning", port=ports[2]) as bonobot,
            run_process(*two, "--log-level", "warning", port=ports[3]) as first,
            run_process(*two, "--log-level", "warning", port=ports[3]) as second,
        ):
            path, tool = f"/mcp/agents/{agent.slug}", "mcp_web_echo"
            targets = [
                Target("direct", (upstream,), ports[0], "/mcp", "echo"),
                Target("bare relay", (relay,), ports[1], "/mcp", "echo"),
                Target("Bonobot", (bonobot,), ports[2], path, tool, token),
                Target("Bonobot × 2", (first, second), ports[3], path, tool, token),
            ]
            asyncio.run(run_rounds(targets))
            for target in targets:
                for concurrency in CONNECTIONS:
                    print_figures(target, concurrency)


async def run_rounds(targets: list[Target]) -> None:
    numbers = itertools.count()
    for target in targets:  # warm
        await run_round(target, 8, numbers, 64, keep=False)
    for concurrency in CONNECTIONS:
        for _ in range(ROUNDS):
            for target in targets:
                await run_round(target, concurrency, numbers, CALLS)


async def run_round(
    target: Target, at_once: int, numbers: Iterator[int], calls: int, *, keep: bool = True
) -> None:
    remaining, times = iter(range(calls)), []

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        for _ in remaining:
            request = build_request(target, next(numbers))
            started_at = time.perf_counter()
            writer.write(request)
            body, is_last = await read_answer(reader)
            times.append(time.perf_counter() - started_at)
            if is_last:
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
            if "It is warm" not in body["result"]["content"][0]["text"]:
                raise SystemExit(f"{target.name} answered {body}")
        writer.close()

    processor_time, started_at = target.processor_s, time.perf_counter()
    await asyncio.gather(*[connection() for _ in range(at_once)])
    elapsed = time.perf_counter() - started_at
    if keep:
        target.rates.setdefault(at_once, []).append(calls / elapsed)
        target.spent.setdefault(at_once, []).append(
            (target.processor_s - processor_time) / calls * 1000
        )
        target.times.setdefault(at_once, []).extend(times)


def build_request(target: Target, number: int) -> bytes:
    headers, body = modern_request(target.tool, number, target.token)
    headers["Host"] = f"127.0.0.1:{target.port}"
    lines = [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"POST {target.path} HTTP/1.1", *lines, "", ""]).encode() + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[Any, bool]:
    """Return the JSON of a response, and whether it is the last one of its connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    if not head.startswith("http/1.1 200"):
        raise SystemExit(head)
    length = next(line for line in head.split("\r\n") if line.startswith("content-length:"))
    body = json.loads(await reader.readexactly(int(length.partition(":")[2])))
    return body, "\r\nconnection: close\r\n" in head


def print_figures(target: Target, at_once: int) -> None:
    times = sorted(target.times[at_once])
    p99 = quantiles(times, n=100)[98]
    figures = (
        median(target.rates[at_once]),
        median(times) * 1000,
        p99 * 1000,
        median(target.spent[at_once]),
        target.megabytes,
    )
    fields = [target.name.replace(" ", "_"), str(at_once), *(f"{item:.2f}" for item in figures)]
    sys.stdout.write(" ".join([*fields, f"{os.getloadavg()[0]:.1f}"]) + "\n")
    sys.stdout.flush()


@contextmanager
def run_process(*words: str, port: int) -> Iterator[int]:
    """Start a process and wait until it listens; yield its ID, and end it afterwards."""
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + START_S
            while not is_listening(port):
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


def is_listening(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return accepts_connection(port)


def accepts_connection(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_calls_through_the_gateway() -> None:
    main()


def main() -> None:
    """Measure each available database and print a table."""
    console = Console(width=110)
    table = Table(title="Calls through the gateway")
    titles = ("database", "through", "connections", "calls/s", "p50 ms", "p99 ms")
    for title in (*titles, "processor ms", "MB", "load"):
        table.add_column(title, justify="left" if title in titles[:2] else "right")
    for name, lines in measure_each_database(__file__, console):
        for through, *figures in sorted(lines, key=lambda line: int(line[1])):
            table.add_row(name, through.replace("_", " "), *figures)
    console.print(table)


if __name__ == "__main__":
    measure() if "measure" in sys.argv[1:] else main()
