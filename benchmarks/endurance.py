"""Make many calls through `bonobot up`, and kill a web process in the middle.

    .venv/bin/python -m benchmarks.endurance [CALLS [CALLS_PER_SECOND [CONNECTIONS]]]

By default 300,000 calls at 200 a second through eight connections and two web processes, on SQLite
(`BENCH_DATABASE` sets another empty database). The server that is called, and this load generator,
are processes of their own. Every minute, a line shows the memory of each process: the resident size
(RSS), and the proportional size (PSS), which divides shared memory among its users. When half of
the calls are made, one web process gets SIGKILL. Connections that it had open fail and are opened
again; no other call may fail. At the end, each answer is compared with the audit log, whose chain
is verified, and the growth of each process is printed.
"""

import asyncio
import itertools
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench_gateway import Target, build_request, find_free_port, read_answer, run_process
from benchmarks.databases import build_environment

CALLS, CALLS_PER_SECOND, CONNECTIONS = 300_000, 200, 8
WEB_PROCESSES = 2
REPORT_S = 60.0
# Caches and arenas fill up first: growth is that of the rest of the calls.
WARM_SHARE = 0.2
# An abandoned call is closed by a scheduled task.
SETTLE_S = 5.0

LOST = (ConnectionError, asyncio.IncompleteReadError)


class EnduranceRun:
    """The calls of a run, and the memory of its processes."""

    def __init__(self, target: Target, supervisor: int, calls: int, rate: float) -> None:
        self.target, self.supervisor = target, supervisor
        self.calls, self.rate = calls, rate
        self.answered = self.lost = 0
        self.times: list[float] = []
        # By process: how many calls were answered, and its MB (RSS, PSS).
        self.memory: dict[str, list[tuple[int, float, float]]] = {}
        self._numbers = itertools.count(1)
        self._killed = False

    async def make_calls(self, connections: int) -> None:
        """Make all calls, and report every minute."""
        reporter = asyncio.create_task(self._report_regularly())
        self._started_at = time.monotonic()
        await asyncio.gather(*[self._use_connection() for _ in range(connections)])
        reporter.cancel()
        self.report_memory()

    async def _use_connection(self) -> None:
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while (number := next(self._numbers)) <= self.calls:
            await asyncio.sleep(self._started_at + number / self.rate - time.monotonic())
            if number == self.calls // 2:
                self._kill_web_process()
            try:
                if streams is None:
                    streams = await asyncio.open_connection("127.0.0.1", self.target.port)
                sent_at = time.perf_counter()
                streams[1].write(build_request(self.target, number))
                await read_answer(streams[0])
            except LOST:
                self.lost, streams = self.lost + 1, None
            else:
                self.answered += 1
                self.times.append(time.perf_counter() - sent_at)

    def _kill_web_process(self) -> None:
        pid = min(pid for pid, name in self._list_processes() if name.startswith("bonobot web"))
        os.kill(pid, signal.SIGKILL)
        print_line(f"killed {pid} after {self.answered:,} calls")

    async def _report_regularly(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            self.report_memory()

    def report_memory(self) -> None:
        """Print a line, and remember the memory of each process."""
        times, self.times = sorted(self.times), []
        latencies = [f"{times[len(times) * share // 100] * 1000:.1f}" for share in (50, 99)]
        figures = []
        for pid, name in self._list_processes():
            rss, pss = read_memory(pid)
            self.memory.setdefault(f"{name} {pid}", []).append((self.answered, rss, pss))
            figures.append(f"{name} {pid}: {rss:.1f} {pss:.1f}")
        minutes = (time.monotonic() - self._started_at) / 60
        print_line(
            f"{minutes:.1f} min, {self.answered:,} calls, {self.lost} lost, "
            f"p50 and p99 {' '.join(latencies)} ms, load {os.getloadavg()[0]:.1f}, "
            f"RSS and PSS in MB: {'; '.join(figures)}"
        )

    def report_growth(self) -> None:
        """Print how much each process grew for 100,000 calls, without the first ones."""
        for name, samples in self.memory.items():
            first_call = samples[0][0] + WARM_SHARE * (samples[-1][0] - samples[0][0])
            first, last = next(item for item in samples if item[0] >= first_call), samples[-1]
            calls = last[0] - first[0]
            if calls:
                rss, pss = ((last[n] - first[n]) / calls * 100_000 for n in (1, 2))
                print_line(
                    f"{name}: RSS {rss:+.2f} MB, PSS {pss:+.2f} MB for 100,000 calls "
                    f"(from call {first[0]:,} to {last[0]:,})"
                )

    def _list_processes(self) -> Iterator[tuple[int, str]]:
        """Yield the supervisor and its children: their IDs and titles."""
        children = Path(f"/proc/{self.supervisor}/task/{self.supervisor}/children").read_text()
        yield self.supervisor, "bonobot up"
        for pid in map(int, children.split()):
            title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            yield pid, " ".join(title.split()[:2])


def read_memory(pid: int) -> tuple[float, float]:
    """Return the resident and the proportional size of a process in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {
        name: int(size.split()[0]) for name, _, size in (line.partition(":") for line in lines)
    }
    return sizes["Rss"] / 1000, sizes["Pss"] / 1000


def check_audit_log(run: EnduranceRun) -> None:
    """Compare the answers with the audit log; exit if a call is missing."""
    from bonobot.ledger.models import AuditRow
    from tests.ledger_chain import verify_whole_chain

    rows = AuditRow.objects.filter(tool_name="echo")
    outcomes = Counter(rows.values_list("outcome", flat=True).iterator())
    report = verify_whole_chain(rows.values_list("organization_id", flat=True)[0])
    print_line(f"answered {run.answered:,}, lost {run.lost}; audit log: {dict(outcomes)}")
    print_line(f"the chain of {report.rows:,} rows is {'intact' if report.ok else 'broken'}")
    # A killed call may have succeeded without its client knowing.
    if not run.answered <= outcomes["ok"] <= run.answered + run.lost or not report.ok:
        sys.exit("The audit log and the answers differ.")
    if sum(outcomes.values()) > run.answered + run.lost:
        sys.exit("The audit log has calls that weren't made.")


def print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def prepare_target(upstream: int, port: int) -> Target:
    """Create an agent that may call the server, and return its endpoint."""
    from benchmarks.governed_call import NEVER, create_benchmark_agent
    from bonobot.accounts.roles import Role
    from bonobot.accounts.tokens.services import create_token
    from bonobot.core import runtime
    from bonobot.ledger.writer.writer_thread import close_writer

    administrator, agent, _ = create_benchmark_agent(f"http://127.0.0.1:{upstream}/mcp")
    _, token = create_token(administrator, name="bench", role=Role.OPERATOR, calls_per_minute=NEVER)
    runtime.close_runtime()
    close_writer()
    path = f"/mcp/agents/{agent.slug}"
    return Target("Bonobot", (), port, path, "mcp_web_echo", token)


def main() -> None:
    """Run with the numbers of the command line."""
    numbers = [int(word) for word in sys.argv[1:]]
    calls, rate, connections = [
        *numbers,
        *(CALLS, CALLS_PER_SECOND, CONNECTIONS)[len(numbers) :],
    ]
    with tempfile.TemporaryDirectory(prefix="bonobot-bench-") as folder:
        url = os.environ.get("BENCH_DATABASE", f"sqlite:///{folder}/bench.sqlite3")
        os.environ |= build_environment(url, folder)
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        upstream, port = find_free_port(), find_free_port()
        peers = (sys.executable, "-m", "benchmarks.gateway_peers", "upstream", str(upstream))
        up = (sys.executable, "-m", "bonobot", "up", "--no-demo", "--web", str(WEB_PROCESSES))
        with run_process(*peers, port=upstream):
            target = prepare_target(upstream, port)
            with run_process(*up, "--port", str(port), port=port) as supervisor:
                run = EnduranceRun(target, supervisor, calls, rate)
                asyncio.run(run.make_calls(connections))
                time.sleep(SETTLE_S)
            check_audit_log(run)
        run.report_growth()


if __name__ == "__main__":
    main()
