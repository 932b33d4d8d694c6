"""Measure how many calls per second the ledger admits and settles, and the cost of each.

    make bench            (this among others)
    .venv/bin/python -m benchmarks.bench_ledger

Each call is admitted (row opened, two budgets reserved, two rates charged) and settled (row closed,
budgets settled) through the process's one writer, by 1, 8 and 32 tasks of one loop, on SQLite and,
where it answers, on PostgreSQL (`BENCH_POSTGRES`, by default the local one). Databases are made for
the run and removed. Processor time is that of this process: PostgreSQL's own work isn't in it.
"""

import asyncio
import sys
import time
from uuid import UUID, uuid4

from rich.console import Console
from rich.table import Table

from benchmarks.databases import measure_each_database
from bonobot.ledger.types import (
    Actor,
    Admission,
    BudgetReservation,
    Opening,
    RateCharge,
    Settlement,
)
from bonobot.ledger.writer.writer_thread import close_writer, get_writer

CONCURRENCY = (1, 8, 32)
RUN_S = 3.0
WARM_S = 0.5
NEVER = 10**9  # a limit that isn't reached


class Caller:
    """A session of an agent; all of its calls update the same budgets and rate limits."""

    def __init__(self, organization_id: UUID) -> None:
        self.organization_id = organization_id
        self.agent_id, self.server_id, self.session_id = uuid4(), uuid4(), uuid4()
        cell = f"{organization_id}:agent:{self.agent_id}"
        self.budgets = [f"budget:{cell}:{unit}" for unit in ("calls", "microusd")]
        self.rates = [f"rate:{cell}", f"rate:{organization_id}:token"]

    def build_admission(self) -> Admission:
        """Return the admission of a call with two budgets and two rate limits."""
        opening = Opening(
            call_id=uuid4(),
            organization_id=self.organization_id,
            action="agent_tool_call",
            event_type="call",
            resource_type="mcp_tool",
            resource_id="mcp_time_get_current_time",
            actor=Actor("session", str(self.session_id), "assistant"),
            decision="allow",
            rule="policy:agent",
            details={"arguments": {"timezone": "Asia/Tokyo", "note": "x" * 200}, "via": "session"},
            agent_id=self.agent_id,
            agent_name="assistant",
            server_id=self.server_id,
            server_name="time",
            tool_name="get_current_time",
            session_id=self.session_id,
        )
        reserves = tuple(BudgetReservation(key, NEVER, 1000) for key in self.budgets)
        charges = tuple(RateCharge(key, NEVER, NEVER) for key in self.rates)
        return Admission(opening, reserves, charges, generation=0)

    def build_settlement(self, admission: Admission) -> Settlement:
        """Return the settlement of that call."""
        return Settlement(
            call_id=admission.opening.call_id,
            organization_id=self.organization_id,
            outcome="ok",
            duration_ms=12,
            details={"execution_time_ms": 12, "output": "0" * 64},
            actuals=tuple((key, 1000, 900) for key in self.budgets),
        )


async def make_calls(organization_id: UUID, *, concurrency: int, seconds: float) -> list[float]:
    """Make calls for some seconds; return how long each waited for the ledger, in ms."""
    caller = Caller(organization_id)
    waits: list[float] = []

    async def work(until: float) -> None:
        while time.monotonic() < until:
            admission = caller.build_admission()
            started_at = time.perf_counter()
            await get_writer().admit_call_async(admission)
            await get_writer().settle_call_async(caller.build_settlement(admission))
            waits.append((time.perf_counter() - started_at) * 1000)

    until = time.monotonic() + seconds
    await asyncio.gather(*[work(until) for _ in range(concurrency)])
    return waits


def measure() -> None:
    """Measure this process's database and print a line for each concurrency."""
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", "ledger", verbosity=0)
    from tests.ledger_chain import verify_whole_chain  # its models need the settings

    organization_id = uuid4()
    for concurrency in CONCURRENCY:
        asyncio.run(make_calls(organization_id, concurrency=concurrency, seconds=WARM_S))
        started_at, processor_time = time.perf_counter(), time.process_time()
        waits = sorted(
            asyncio.run(make_calls(organization_id, concurrency=concurrency, seconds=RUN_S))
        )
        processor_time, elapsed = (
            time.process_time() - processor_time,
            time.perf_counter() - started_at,
        )
        figures = (
            len(waits) / elapsed,
            waits[len(waits) // 2],
            waits[len(waits) * 99 // 100],
            processor_time / len(waits) * 1000,
        )
        sys.stdout.write(" ".join([str(concurrency), *[f"{item:.3f}" for item in figures]]) + "\n")
    close_writer()
    started_at = time.perf_counter()
    report = verify_whole_chain(organization_id)
    elapsed = time.perf_counter() - started_at
    sys.stdout.write(f"verify {report.ok} {report.rows} {elapsed:.3f}\n")


def test_the_ledger_admits_and_settles_calls() -> None:
    main()


def main() -> None:
    """Measure each available database and print a table."""
    table = Table(title="Ledger: admission and settlement of a call")
    for title in ("database", "at once", "calls/s", "p50 ms", "p99 ms", "processor ms/call"):
        table.add_column(title, justify="left" if title == "database" else "right")
    console = Console()
    for name, lines in measure_each_database(__file__, console):
        for first, *figures in lines:
            if first == "verify":
                sound, rows, seconds = figures
                console.print(f"{name}: verify of {rows} rows in {seconds} s, sound: {sound}")
                continue
            rate, p50, p99, cpu = (float(item) for item in figures)
            table.add_row(name, first, f"{rate:,.0f}", f"{p50:.2f}", f"{p99:.2f}", f"{cpu:.3f}")
    console.print(table)


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["measure"] else main()
