"""Make many calls through `bonobot up`, and kill a web process in the middle.

    .venv/bin/python -m benchmarks.endurance [MINUTES [CONNECTIONS [CALLS_PER_SECOND]]]

By default calls for 30 minutes at 80% of the most that this machine makes, which is measured first,
through eight connections and two web processes, on SQLite (`BENCH_DATABASE` sets another empty
database). The server that is called, and this load generator, are processes of their own. A call is
sent at its time, or as soon as a connection is free. When half of the calls are made, one web
process gets SIGKILL. Connections that it had open fail and are opened again; no other call may
fail.

Every minute is a row of a table: its calls per second, p50 and p99, and the memory of each process:
the resident size (RSS), and the proportional size (PSS), which divides shared memory among its
users. `connections` are those of each web process. At the end, each answer is compared with the
audit log, whose chain is verified, and the growth of each process is printed.
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

MINUTES, CONNECTIONS = 30, 8
# Of the measured maximum; and how long it is measured, after as long a time to warm up.
LOAD_SHARE = 0.8
MEASURE_S = 15.0
WEB_PROCESSES = 2
REPORT_S = 60.0
# Caches and arenas fill up first: growth is that of the rest of the calls.
WARM_SHARE = 0.2
# An abandoned call is closed by a scheduled task.
SETTLE_S = 5.0

# States in /proc/net/tcp.
ESTABLISHED, LISTENING = "01", "0A"

LOST = (ConnectionError, asyncio.IncompleteReadError)


class EnduranceRun:
    """The calls of a run, and the memory of its processes."""

    def __init__(self, target: Target, supervisor: int) -> None:
        self.target, self.supervisor = target, supervisor
        self.calls, self.rate = 0, 0.0
        self.answered = self.lost = 0
        self._reported_at, self._reported_calls = 0.0, 0
        self.times: list[float] = []
        # By process: how many calls were answered, and its MB (RSS, PSS).
        self.memory: dict[str, list[tuple[int, float, float]]] = {}
        self._numbers = itertools.count(1)
        self._killed = False

    async def measure_maximum(self, connections: int) -> float:
        """Return the calls per second that are answered when each connection calls at once."""
        for _ in range(2):  # the first one warms
            answered, until = self.answered, time.monotonic() + MEASURE_S
            await asyncio.gather(*[self._call_until(until) for _ in range(connections)])
        self.times.clear()
        return (self.answered - answered) / MEASURE_S

    async def _call_until(self, until: float) -> None:
        connection = ClientConnection(self.target)
        while time.monotonic() < until:
            await self._call(connection, next(self._numbers))

    async def make_calls(self, connections: int, rate: float, minutes: float) -> None:
        """Make calls at a rate per second, and report every minute."""
        self.rate, self.calls = rate, round(rate * minutes * 60)
        first_number = next(self._numbers)
        reporter = asyncio.create_task(self._report_regularly())
        self._started_at = self._reported_at = time.monotonic()
        self._reported_calls = self.answered
        workers = [self._make_due_calls(first_number) for _ in range(connections)]
        await asyncio.gather(*workers)
        reporter.cancel()
        self.report_minute()

    async def _make_due_calls(self, first_number: int) -> None:
        connection = ClientConnection(self.target)
        while (index := (number := next(self._numbers)) - first_number) <= self.calls:
            await asyncio.sleep(self._started_at + index / self.rate - time.monotonic())
            if index == self.calls // 2:
                self._kill_web_process()
            await self._call(connection, number)

    async def _call(self, connection: "ClientConnection", number: int) -> None:
        sent_at = time.monotonic()
        try:
            await connection.call(number)
        except LOST:
            self.lost += 1
        else:
            self.answered += 1
            self.times.append(time.monotonic() - sent_at)

    def _kill_web_process(self) -> None:
        pid = min(pid for pid, name in self._list_processes() if name.startswith("bonobot web"))
        os.kill(pid, signal.SIGKILL)
        print_line(f"killed {pid} after {self.answered:,} calls")

    async def _report_regularly(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            self.report_minute()

    def report_minute(self) -> None:
        """Print a row for the time since the last one, and remember the memory of each process."""
        times, self.times = sorted(self.times), []
        now, count = time.monotonic(), self.answered - self._reported_calls
        rate = count / (now - self._reported_at)
        self._reported_at, self._reported_calls = now, self.answered
        figures = []
        for pid, name in self._list_processes():
            rss, pss = read_memory(pid)
            self.memory.setdefault(f"{name} {pid}", []).append((self.answered, rss, pss))
            connections = f", {count_connections(pid)} connections" * name.startswith("bonobot web")
            figures.append(f"{name} {pid}: {rss:.0f}, {pss:.0f}{connections}")
        p50, p99 = (times[len(times) * share // 100] * 1000 if times else 0 for share in (50, 99))
        cells = (
            f"{(now - self._started_at) / 60:.1f} min",
            f"{self.answered:,} calls",
            f"{self.lost} lost",
            f"{rate:.0f} calls/s",
            f"p50 {p50:.1f} ms",
            f"p99 {p99:.1f} ms",
            f"load {os.getloadavg()[0]:.1f}",
            *figures,
        )
        print_line(f"| {' | '.join(cells)} |")

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


class ClientConnection:
    """A connection that is opened again after it was lost, or closed by the web process."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, number: int) -> None:
        """Make a call; raises the errors in `LOST`."""
        streams, self._streams = self._streams, None
        reader, writer = streams or await asyncio.open_connection("127.0.0.1", self._target.port)
        writer.write(build_request(self._target, number))
        _body, is_last = await read_answer(reader)
        if is_last:
            writer.close()
        else:
            self._streams = reader, writer


def count_connections(pid: int) -> int:
    """Return how many clients are connected to the port that a process listens on."""
    links = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    own_rows = [(row[1], row[3]) for row in rows if row[9] in inodes]
    listening = {address for address, state in own_rows if state == LISTENING}
    return sum(address in listening for address, state in own_rows if state == ESTABLISHED)


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
    minutes, connections, rate = [*numbers, *(MINUTES, CONNECTIONS, 0)[len(numbers) :]]
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
                run = EnduranceRun(target, supervisor)
                if not rate:
                    maximum = asyncio.run(run.measure_maximum(connections))
                    rate = round(maximum * LOAD_SHARE)
                    print_line(f"{maximum:.0f} calls/s at most, so {rate} are made")
                asyncio.run(run.make_calls(connections, rate, minutes))
                time.sleep(SETTLE_S)
            check_audit_log(run)
        run.report_growth()


if __name__ == "__main__":
    main()
