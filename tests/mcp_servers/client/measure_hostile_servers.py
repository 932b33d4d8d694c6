"""Meet every hostile server, one after the other, and measure what each of them costs us.

`python -m tests.mcp_servers.client.measure_hostile_servers [--table] [NAME …]` does it in a process
of its own, so that memory means something, and prints the measurements as JSON lines, or as a
table. The hostile servers run in processes of their own; a neighbour on a good server is called all
the time, first for a while without any hostility, so that its pace has something to be compared
with.
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
BEAT_S = 0.01
PAUSE_S = 0.03  # of the neighbour between two calls: more of them would be most of the work
CONTROL_S = 0.6


@dataclass
class Measured:
    """What one case cost: `code` "" means that there was a result."""

    name: str
    code: str = ""
    text: str = ""
    notices: str = ""
    deadline_s: float = DEADLINE_S
    took_s: float = 0.0
    memory_mib: float = 0.0
    held_ms: float = 0.0
    held_cpu_ms: float = 0.0
    delayed_ms: float = 0.0
    neighbour_ms: float = 0.0
    neighbour_median_ms: float = 0.0
    neighbour_calls: int = 0


@dataclass
class Heart:
    """Beats on the loop, and tells how long it could not."""

    held_s: float = 0.0
    held_cpu_s: float = 0.0

    async def beat(self) -> None:
        while True:
            before, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(BEAT_S)
            self.held_s = max(self.held_s, time.perf_counter() - before - BEAT_S)
            self.held_cpu_s = max(self.held_cpu_s, time.thread_time() - cpu)


@dataclass
class Clockwork:
    """Beats in a thread beside the loop: how long the machine itself keeps us waiting."""

    delayed_s: float = 0.0
    over: threading.Event = field(default_factory=threading.Event)

    def beat(self) -> None:
        before = time.perf_counter()
        while not self.over.wait(BEAT_S):
            now = time.perf_counter()
            self.delayed_s = max(self.delayed_s, now - before - BEAT_S)
            before = now


@dataclass
class Neighbour:
    """Calls a good server, again and again."""

    call: Callable[[], Awaitable[Any]]
    took_s: list[float] = field(default_factory=list)

    async def work(self) -> None:
        while True:
            before = time.perf_counter()
            await self.call()
            self.took_s.append(time.perf_counter() - before)
            await asyncio.sleep(PAUSE_S)

    def slow_ms(self, share: float) -> float:
        """Return how long a call took that this share of them was quicker than."""
        times = sorted(self.took_s)
        return round(times[int(len(times) * share)] * 1000, 1) if times else 0.0


def memory_mib(what: str) -> float:
    """Return `VmRSS` or, since it was last forgotten, the highest `VmHWM` of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    raise ValueError(what)


@contextmanager
def memory(measured: Measured) -> Any:
    gc.collect()
    before = memory_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the highest
    yield
    measured.memory_mib = round(memory_mib("VmHWM") - before, 1)


@asynccontextmanager
async def watched(measured: Measured, call: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
    """Measure memory, holds of the loop and the neighbour's pace while the block runs."""
    heart, clockwork, neighbour = Heart(), Clockwork(), Neighbour(call)
    beating = threading.Thread(target=clockwork.beat, daemon=True)
    beating.start()
    watching = [asyncio.ensure_future(work()) for work in (heart.beat, neighbour.work)]
    with memory(measured):
        await asyncio.sleep(2 * BEAT_S)
        yield
        await asyncio.sleep(2 * BEAT_S)
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    clockwork.over.set()
    beating.join()
    measured.delayed_ms = round(clockwork.delayed_s * 1000, 1)
    measured.held_ms = round(heart.held_s * 1000, 1)
    measured.held_cpu_ms = round(heart.held_cpu_s * 1000, 1)
    measured.neighbour_ms = neighbour.slow_ms(0.95)
    measured.neighbour_median_ms = neighbour.slow_ms(0.5)
    measured.neighbour_calls = len(neighbour.took_s)


def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start the hostile server and return its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.hostile_server", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    return process, f"http://127.0.0.1:{process.stdout.readline().split()[1]}"


async def proof(call: Callable[[], Awaitable[Any]]) -> Measured:
    """Return what is measured of a case that holds the loop and takes memory."""
    measured = Measured("proof")
    async with watched(measured, call):
        block, until = bytearray(b"x" * 100 * 2**20), time.thread_time() + 0.4
        while time.thread_time() < until:
            block[0] ^= 1
    return measured


async def run(names: list[str], tell: Callable[[Measured], None]) -> None:
    """Meet the cases that `names` begin, or all, and the proof; the first told is the control."""
    from mcp_servers.client.errors import UpstreamError
    from mcp_servers.client.pool import ConnectionPool
    from tests.mcp_servers.client.endpoints import http
    from tests.mcp_servers.client.hostile_cases import CASES, good_call, prepare

    (bad, url), (good, good_url) = start(), start()
    connections = ConnectionPool(max_children=200)
    neighbour = http(f"{good_url}/good", era="modern", name="the neighbour", read_s=60)

    async def call() -> None:
        await good_call(connections, neighbour)

    try:
        await call()
        gc.collect()
        gc.freeze()  # `memory` looks through what the cases leave, not through all modules
        control = Measured("control")
        async with watched(control, call):
            await asyncio.sleep(CONTROL_S)
        tell(control)
        chosen = [one for one in CASES if not names or one.name.startswith(tuple(names))]
        for case in chosen:
            measured = Measured(case.name, deadline_s=case.deadline_s)
            endpoint = await prepare(connections, case, url)
            async with watched(measured, call):
                began = time.perf_counter()
                try:
                    outcome = await case.meet(connections, endpoint, f"session:{uuid4()}")
                    measured.notices = str(outcome or "")
                except UpstreamError as error:
                    measured.code, measured.text = error.code, str(error)
                measured.took_s = round(time.perf_counter() - began, 3)
            tell(measured)
        if not names:
            tell(await proof(call))
    finally:
        for process in (bad, good):
            process.kill()
            process.wait()
        await connections.close()


def as_json(measured: Measured) -> None:
    sys.stdout.write(json.dumps(asdict(measured)) + "\n")


def as_row(measured: Measured) -> None:
    """Write one row of the table: time, memory, hold, the neighbour's pace, outcome."""
    said = " ".join((measured.text or measured.notices).split())
    sys.stdout.write(
        f"{measured.name:<32} {measured.took_s:>7.2f} s {measured.memory_mib:>7.1f} MiB"
        f" {measured.held_ms:>7.1f} ms ({measured.held_cpu_ms:>6.1f} cpu)"
        f" {measured.neighbour_ms:>7.1f} ms x {measured.neighbour_calls:<4}"
        f" {measured.code or 'ok':<20} {said[:110]}\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bonobot.settings")
    django.setup()
    words = sys.argv[1:]
    asyncio.run(
        run([w for w in words if w != "--table"], as_row if "--table" in words else as_json)
    )
