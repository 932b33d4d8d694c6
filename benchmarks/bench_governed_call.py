"""What a governed call costs over a bare one of the same connection, in processor time.

    make bench            (this among others)
    .venv/bin/python -m benchmarks.bench_governed_call
    .venv/bin/python -m benchmarks.bench_governed_call instructions   (needs valgrind; minutes)

Rounds of bare and governed calls (`benchmarks.governed_call`) alternate in one warm process, at 1,
8 and 32 at once, on SQLite and on PostgreSQL with Redis. Processor time is that of this process,
all threads: PostgreSQL's own work isn't in it, the server's, which answers on the same loop, is in
both. The table gives the median round and the best, since whatever else runs on the machine makes
every round dearer; its load stands beside. Instructions don't depend on that: callgrind counts
them, but not what the kernel does. There, the call is also requested from the gateway.
"""

import gc
import os
import shutil
import subprocess
import sys
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.databases import on_each

CONCURRENCY = (1, 8, 32)
CALLS = 64
ROUNDS = 15


def measure() -> None:
    """Measure on this process's database; print a line for each figure."""
    _ready()
    from benchmarks import governed_call, governed_call_stages
    from bonobot.core.runtime import get_runtime
    from bonobot.ledger.writer.writer_thread import close_writer

    with governed_call.opened() as one:

        def spent(
            which: governed_call.One, at_once: int, calls: int = CALLS
        ) -> tuple[float, float]:
            gc.collect()
            return get_runtime().call(governed_call.spent, which, calls=calls, at_once=at_once)

        for at_once in CONCURRENCY:
            spent(one.governed, at_once)
            rounds = []
            for _ in range(ROUNDS):
                without, _wall = spent(one.bare, at_once)
                through, wall = spent(one.governed, at_once)
                rounds.append((through - without, without, through, wall))
            least = min(line[2] for line in rounds) - min(line[1] for line in rounds)
            figures = [median(column) for column in zip(*rounds, strict=True)]
            _say("cost", at_once, *figures, least, os.getloadavg()[0])
        for at_once in CONCURRENCY[:2]:
            with governed_call_stages.timed() as watched:
                spent(one.governed, at_once, CALLS * ROUNDS // 3)
            for kind, what, figure in watched.lines(CALLS * ROUNDS // 3):
                if kind == "stage":
                    _say(kind, at_once, what.replace(" ", "_"), figure)
            with governed_call_stages.counted() as watched:
                spent(one.governed, at_once, CALLS)
            for kind, what, figure in watched.lines(CALLS):
                if kind == "count":
                    _say(kind, at_once, what.replace(" ", "_"), figure)
    close_writer()


def count_instructions() -> None:
    """Under callgrind: count the instructions of bare and governed calls; print a line for each."""
    _ready()
    from benchmarks import governed_call
    from bonobot.core.runtime import get_runtime
    from bonobot.ledger.writer.writer_thread import close_writer

    def control(*words: str) -> None:
        asked = ["callgrind_control", *words, str(os.getpid())]
        subprocess.run(asked, check=True, stdout=subprocess.DEVNULL)

    _stop_timers()
    with governed_call.opened() as one:
        for at_once in CONCURRENCY[:2]:
            for which in (one.bare, one.governed, one.requested):
                get_runtime().call(governed_call.spent, which, calls=24, at_once=at_once)
        gc.collect()
        gc.disable()
        control("-i", "on")
        for at_once in CONCURRENCY[:2]:
            calls = {"bare": one.bare, "governed": one.governed, "requested": one.requested}
            for name, which in calls.items():
                control("-z")
                get_runtime().call(governed_call.spent, which, calls=CALLS, at_once=at_once)
                control("-d", f"{name} {at_once}")
    close_writer()


def _stop_timers() -> None:
    """Under valgrind a call takes fifty times as long: don't count what only slow calls do."""
    from agents.gateway import direct_requests
    from bonobot.core import runtime
    from bonobot.ledger.writer import queue

    never_s = 1e5
    sys.setswitchinterval(5)
    runtime.TICK_INTERVAL_S = direct_requests.WATCH_DELAY_S = never_s
    queue.CHECK_INTERVAL_S, queue.GATHER_S = never_s, 0.3


def _ready() -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def _say(*words: object) -> None:
    told = [f"{word:.3f}" if isinstance(word, float) else str(word) for word in words]
    sys.stdout.write(" ".join(told) + "\n")
    sys.stdout.flush()


def test_a_call_through_the_door() -> None:
    main()


def main() -> None:
    """Measure what there is and print the tables."""
    console = Console(width=100)
    costs = _table(
        "The door: processor ms per call",
        *("database", "at once", "bare", "governed", "added (median)", "added (best)"),
        *("wall ms", "load"),
    )
    stages = _table("Stages on one thread each: own processor µs per call", "database", "stage")
    counts = _table("What a warm call asks for", "database", "what")
    for table in (stages, counts):
        for count in CONCURRENCY[:2]:
            table.add_column(f"at {count}", justify="right")
    for name, lines in on_each(__file__, console):
        found: dict[str, dict[str, list[str]]] = {"stage": {}, "count": {}}
        for kind, at_once, *words in lines:
            if kind == "cost":
                added, bare, governed, wall, least, load = words
                costs.add_row(name, at_once, bare, governed, added, least, wall, load)
            else:
                what, figure = words
                found[kind].setdefault(what.replace("_", " "), []).append(figure)
        for kind, table in (("stage", stages), ("count", counts)):
            for what, figures in found[kind].items():
                table.add_row(name, what, *figures)
    for table in (costs, stages, counts):
        console.print(table)


def _table(title: str, *titles: str) -> Table:
    table = Table(title=title)
    for number, column in enumerate(titles):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def instructions() -> None:
    """Run this module under callgrind on SQLite and print millions of instructions per call."""
    if not shutil.which("valgrind"):
        sys.exit("valgrind isn't installed: instructions can't be counted.")
    from benchmarks.callgrind import counted_on_sqlite

    console = Console()
    titles = ("at once", "bare", "governed", "added", "requested")
    table = _table("Millions of instructions per call", *titles)
    found = counted_on_sqlite(__file__, calls=CALLS)
    for at_once in CONCURRENCY[:2]:
        bare, governed, requested = (
            found[f"{name} {at_once}"] for name in ("bare", "governed", "requested")
        )
        figures = (bare, governed, governed - bare, requested)
        table.add_row(str(at_once), *(f"{figure / 1e6:.2f}" for figure in figures))
    console.print(table)


if __name__ == "__main__":
    asked = {"measure": measure, "counting": count_instructions, "instructions": instructions}
    asked.get("".join(sys.argv[1:]), main)()
