"""Measure how much processor time a governed call takes compared with a call of the client alone.

    make bench            (this among others)
    .venv/bin/python -m benchmarks.bench_governed_call
    .venv/bin/python -m benchmarks.bench_governed_call instructions   (needs valgrind; minutes)

Rounds of bare and governed calls (`benchmarks.governed_call`) alternate in one warm process, with
1, 8, and 32 concurrent calls, on SQLite and on PostgreSQL with Redis. Processor time is that of all
threads of this process: it includes the server, which answers on the same loop, but not PostgreSQL.
The table has the median and the best round, because other load on the machine makes rounds slower,
and that load. Instructions don't depend on the load: callgrind counts them, except those of the
kernel, also for calls through the gateway.
"""

import gc
import os
import shutil
import subprocess
import sys
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.databases import measure_each_database

CONCURRENCY = (1, 8, 32)
CALLS = 64
ROUNDS = 15


def measure() -> None:
    """Measure with this process's database; print a line for each value."""
    _prepare_database()
    from benchmarks import governed_call, governed_call_stages
    from bonobot.core.runtime import get_runtime
    from bonobot.ledger.writer.writer_thread import close_writer

    with governed_call.prepare_calls() as item:

        def spent(
            which: governed_call.Call, at_once: int, calls: int = CALLS
        ) -> tuple[float, float]:
            gc.collect()
            gc.freeze()  # as in a web process, whose modules are never searched for garbage
            return get_runtime().call(
                governed_call.measure_calls, which, calls=calls, at_once=at_once
            )

        for at_once in CONCURRENCY:
            spent(item.governed, at_once)
            rounds = []
            for _ in range(ROUNDS):
                without, _wall = spent(item.bare, at_once)
                through, wall = spent(item.governed, at_once)
                rounds.append((through - without, without, through, wall))
            least = min(line[2] for line in rounds) - min(line[1] for line in rounds)
            figures = [median(column) for column in zip(*rounds, strict=True)]
            _print_figures("cost", at_once, *figures, least, os.getloadavg()[0])
        for at_once in CONCURRENCY[:2]:
            with governed_call_stages.time_stages() as watched:
                spent(item.governed, at_once, CALLS * ROUNDS // 3)
            for kind, title, figure in watched.lines(CALLS * ROUNDS // 3):
                if kind == "stage":
                    _print_figures(kind, at_once, title.replace(" ", "_"), figure)
            with governed_call_stages.count_operations() as watched:
                spent(item.governed, at_once, CALLS)
            for kind, title, figure in watched.lines(CALLS):
                if kind == "count":
                    _print_figures(kind, at_once, title.replace(" ", "_"), figure)
    close_writer()


def count_instructions() -> None:
    """Under callgrind: count the instructions of bare and governed calls; print a line for each."""
    _prepare_database()
    from benchmarks import governed_call
    from bonobot.core.runtime import get_runtime
    from bonobot.ledger.writer.writer_thread import close_writer

    def control_callgrind(*words: str) -> None:
        request = ["callgrind_control", *words, str(os.getpid())]
        subprocess.run(request, check=True, stdout=subprocess.DEVNULL)

    _stop_timers()
    with governed_call.prepare_calls() as item:
        for concurrency in CONCURRENCY[:2]:
            for which in (item.bare, item.governed, item.requested):
                get_runtime().call(
                    governed_call.measure_calls, which, calls=24, at_once=concurrency
                )
        gc.collect()
        gc.disable()
        control_callgrind("-i", "on")
        for concurrency in CONCURRENCY[:2]:
            calls = {"bare": item.bare, "governed": item.governed, "requested": item.requested}
            for name, which in calls.items():
                control_callgrind("-z")
                get_runtime().call(
                    governed_call.measure_calls, which, calls=CALLS, at_once=concurrency
                )
                control_callgrind("-d", f"{name} {concurrency}")
    close_writer()


def _stop_timers() -> None:
    """Disable timers: under valgrind, a call takes fifty times as long, and they would fire."""
    from agents.gateway import direct_requests
    from bonobot.core import runtime
    from bonobot.ledger.writer import queue

    never_s = 1e5
    sys.setswitchinterval(5)
    runtime.TICK_INTERVAL_S = direct_requests.WATCH_DELAY_S = never_s
    queue.CHECK_INTERVAL_S, queue.GATHER_S = never_s, 0.3


def _prepare_database() -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def _print_figures(*words: object) -> None:
    texts = [f"{field:.3f}" if isinstance(field, float) else str(field) for field in words]
    sys.stdout.write(" ".join(texts) + "\n")
    sys.stdout.flush()


def test_the_cost_of_a_governed_call() -> None:
    main()


def main() -> None:
    """Measure each available database and print the tables."""
    console = Console(width=100)
    costs = _build_table(
        "Processor ms per call",
        *("database", "at once", "bare", "governed", "added (median)", "added (best)"),
        *("wall ms", "load"),
    )
    stages = _build_table(
        "Stages on one thread each: own processor µs per call", "database", "stage"
    )
    counts = _build_table("Operations of a warm call", "database", "operation")
    for table in (stages, counts):
        for count in CONCURRENCY[:2]:
            table.add_column(f"at {count}", justify="right")
    for name, lines in measure_each_database(__file__, console):
        results: dict[str, dict[str, list[str]]] = {"stage": {}, "count": {}}
        for kind, concurrency, *fields in lines:
            if kind == "cost":
                added, bare, governed, wall, least, load = fields
                costs.add_row(name, concurrency, bare, governed, added, least, wall, load)
            else:
                title, figure = fields
                results[kind].setdefault(title.replace("_", " "), []).append(figure)
        for kind, table in (("stage", stages), ("count", counts)):
            for title, figures in results[kind].items():
                table.add_row(name, title, *figures)
    for table in (costs, stages, counts):
        console.print(table)


def _build_table(title: str, *titles: str) -> Table:
    table = Table(title=title)
    for number, column in enumerate(titles):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def print_instructions() -> None:
    """Run this module under callgrind on SQLite and print millions of instructions per call."""
    if not shutil.which("valgrind"):
        sys.exit("valgrind isn't installed: instructions can't be counted.")
    from benchmarks.callgrind import count_instructions_on_sqlite

    console = Console()
    titles = ("at once", "bare", "governed", "added", "requested")
    table = _build_table("Millions of instructions per call", *titles)
    results = count_instructions_on_sqlite(__file__, calls=CALLS)
    for concurrency in CONCURRENCY[:2]:
        bare, governed, requested = (
            results[f"{name} {concurrency}"] for name in ("bare", "governed", "requested")
        )
        figures = (bare, governed, governed - bare, requested)
        table.add_row(str(concurrency), *(f"{figure / 1e6:.2f}" for figure in figures))
    console.print(table)


if __name__ == "__main__":
    asked = {"measure": measure, "counting": count_instructions, "instructions": print_instructions}
    asked.get("".join(sys.argv[1:]), main)()
