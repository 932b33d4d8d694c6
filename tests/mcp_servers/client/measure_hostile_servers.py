"""Call every hostile server, one after the other, and measure the cost of each.

`python -m tests.mcp_servers.client.measure_hostile_servers [--table] [NAME …]` runs in its own
process, so that memory can be measured, and prints the measurements as JSON lines or as a table.
The hostile servers run in their own processes. A good server (the neighbor) is called
continuously; a control measures its latency before any hostile case.
"""

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

DEADLINE_S = 0.25
INTERVAL_S = 0.01
PAUSE_S = 0.03  # between two calls of the neighbor: more calls would be most of the work
CONTROL_S = 0.6


@dataclass
class Measurement:
    """The cost of one case; an empty `code` means that there was a result."""

    name: str
    code: str = ""
    text: str = ""
    notices: str = ""
    deadline_s: float = DEADLINE_S
    took_s: float = 0.0
    memory_mib: float = 0.0
    blocked_ms: float = 0.0
    blocked_cpu_ms: float = 0.0
    delayed_ms: float = 0.0
    neighbor_ms: float = 0.0
    neighbor_median_ms: float = 0.0
    neighbor_calls: int = 0


@dataclass
class LoopMonitor:
    """Measures how long the event loop is blocked, by a task that sleeps on it."""

    blocked_s: float = 0.0
    blocked_cpu_s: float = 0.0

    async def run(self) -> None:
        while True:
            before, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(INTERVAL_S)
            self.blocked_s = max(self.blocked_s, time.perf_counter() - before - INTERVAL_S)
            self.blocked_cpu_s = max(self.blocked_cpu_s, time.thread_time() - cpu)


@dataclass
class ThreadMonitor:
    """Measures in a thread how long the machine itself delays us."""

    delayed_s: float = 0.0
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        before = time.perf_counter()
        while not self.over.wait(INTERVAL_S):
            now = time.perf_counter()
            self.delayed_s = max(self.delayed_s, now - before - INTERVAL_S)
            before = now


@dataclass
class NeighborCalls:
    """Calls a good server continuously."""

    call: Callable[[], Awaitable[Any]]
    took_s: list[float] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            before = time.perf_counter()
            await self.call()
            self.took_s.append(time.perf_counter() - before)
            await asyncio.sleep(PAUSE_S)

    def compute_percentile_ms(self, share: float) -> float:
        """Return the duration that this share of the calls stayed below."""
        times = sorted(self.took_s)
        return round(times[int(len(times) * share)] * 1000, 1) if times else 0.0


def memory_mib(field_name: str) -> float:
    """Return a memory field of this process: `VmRSS`, or `VmHWM`, the peak since its last reset."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field_name}:"):
            return int(line.split()[1]) / 1024
    raise ValueError(field_name)


@contextmanager
def memory(measurement: Measurement) -> Any:
    gc.collect()
    before = memory_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # reset the peak
    yield
    measurement.memory_mib = round(memory_mib("VmHWM") - before, 1)


@asynccontextmanager
async def measure(
    measurement: Measurement, call: Callable[[], Awaitable[Any]]
) -> AsyncIterator[None]:
    """Measure memory, blocking of the loop and the neighbor's latency while the block runs."""
    loop_monitor, thread_monitor, neighbor = LoopMonitor(), ThreadMonitor(), NeighborCalls(call)
    thread = threading.Thread(target=thread_monitor.run, daemon=True)
    thread.start()
    tasks = [asyncio.ensure_future(work()) for work in (loop_monitor.run, neighbor.run)]
    with memory(measurement):
        await asyncio.sleep(2 * INTERVAL_S)
        yield
        await asyncio.sleep(2 * INTERVAL_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    thread_monitor.over.set()
    thread.join()
    measurement.delayed_ms = round(thread_monitor.delayed_s * 1000, 1)
    measurement.blocked_ms = round(loop_monitor.blocked_s * 1000, 1)
    measurement.blocked_cpu_ms = round(loop_monitor.blocked_cpu_s * 1000, 1)
    measurement.neighbor_ms = neighbor.compute_percentile_ms(0.95)
    measurement.neighbor_median_ms = neighbor.compute_percentile_ms(0.5)
    measurement.neighbor_calls = len(neighbor.took_s)


def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start the hostile server and return its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.hostile_server", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    return process, f"http://127.0.0.1:{process.stdout.readline().split()[1]}"


async def measure_blocking_case(call: Callable[[], Awaitable[Any]]) -> Measurement:
    """Return the measurement of a case that blocks the loop and allocates memory."""
    measurement = Measurement("proof")
    async with measure(measurement, call):
        block, until = bytearray(b"x" * 100 * 2**20), time.thread_time() + 0.4
        while time.thread_time() < until:
            block[0] ^= 1
    return measurement


async def run(names: list[str], report: Callable[[Measurement], None]) -> None:
    """Measure the control, then the cases whose names start with `names`, or all and a proof."""
    from mcp_servers.client.errors import UpstreamError
    from mcp_servers.client.pool import ConnectionPool
    from tests.mcp_servers.client.endpoints import http
    from tests.mcp_servers.client.hostile_cases import CASES, good_call, prepare

    (hostile_process, hostile_url), (good_process, good_url) = start(), start()
    connections = ConnectionPool(max_children=200)
    neighbor = http(f"{good_url}/good", era="modern", name="the neighbor", read_s=60)

    async def call() -> None:
        await good_call(connections, neighbor)

    try:
        await call()
        gc.collect()
        gc.freeze()  # `memory` then collects only garbage of the cases, not all modules
        control = Measurement("control")
        async with measure(control, call):
            await asyncio.sleep(CONTROL_S)
        report(control)
        cases = [each for each in CASES if not names or each.name.startswith(tuple(names))]
        for case in cases:
            measurement = Measurement(case.name, deadline_s=case.deadline_s)
            endpoint = await prepare(connections, case, hostile_url)
            async with measure(measurement, call):
                started_at = time.perf_counter()
                try:
                    outcome = await case.run(connections, endpoint, f"session:{uuid4()}")
                    measurement.notices = str(outcome or "")
                except UpstreamError as error:
                    measurement.code, measurement.text = error.code, str(error)
                measurement.took_s = round(time.perf_counter() - started_at, 3)
            report(measurement)
        if not names:
            report(await measure_blocking_case(call))
    finally:
        for process in (hostile_process, good_process):
            process.kill()
            process.wait()
        await connections.close()


def write_json(measurement: Measurement) -> None:
    sys.stdout.write(json.dumps(asdict(measurement)) + "\n")


def write_row(measurement: Measurement) -> None:
    """Write a table row: time, memory, blocking, the neighbor's latency, outcome."""
    text = " ".join((measurement.text or measurement.notices).split())
    sys.stdout.write(
        f"{measurement.name:<32} {measurement.took_s:>7.2f} s {measurement.memory_mib:>7.1f} MiB"
        f" {measurement.blocked_ms:>7.1f} ms ({measurement.blocked_cpu_ms:>6.1f} cpu)"
        f" {measurement.neighbor_ms:>7.1f} ms x {measurement.neighbor_calls:<4}"
        f" {measurement.code or 'ok':<20} {text[:110]}\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bonobot.settings")
    django.setup()
    arguments = sys.argv[1:]
    asyncio.run(
        run(
            [name for name in arguments if name != "--table"],
            write_row if "--table" in arguments else write_json,
        )
    )
