"""Compare the times of a small organization with those of one a thousand times as large.

    DATABASE_URL=postgresql://…/small python -m benchmarks.grown_organization
    DATABASE_URL=postgresql://…/large python -m benchmarks.grown_organization --agents 10000 \\
        --servers 5000 --rows 10000000
    python -m benchmarks.bench_growth postgresql://…/small postgresql://…/large

Any number of databases can be named, one alone, too; each is migrated first, and can be measured as
often as one likes. Each page is opened three times by a signed-in administrator within the process
(`tests.large_organization`): how long the first took, and the faster of the others. A query that
takes longer than twenty seconds is given up. Calls are admitted and settled by the ledger's writer,
a hundred of them one after the other. `verify` reads the first 200,000 rows; its memory is the
process's peak. What `benchmarks.grown_upkeep` and `benchmarks.grown_gateway` measure comes last.
"""

import gc
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

TIMES = 3
CALLS = 100
VERIFIED = 200_000
LIMIT_MS = 20_000
MORE = (
    ("dashboard, 7 days", "/admin/?range=7d"),
    ("dashboard, 30 days", "/admin/?range=30d"),
    ("usage", "/admin/usage/"),
    ("audit, search of what isn't there", "/admin/audit-log/?q=nowhere-to-be-found"),
)


def measure() -> None:
    """Measure this process's database and print ms and what, line by line."""
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    from django.db import OperationalError, connection
    from django.test import Client

    from agents.models import Agent
    from benchmarks import grown_gateway, grown_upkeep
    from bonobot.accounts.models import Organization, User
    from mcp_servers.models import Server
    from tests.large_organization import LargeOrganization

    with connection.cursor() as cursor:
        cursor.execute(f"SET statement_timeout = {LIMIT_MS}")
    where = Organization.objects.get(slug="town")
    agent = Agent.objects.get(organization=where, slug="mayor")
    client = Client(headers={"host": "localhost"})
    client.force_login(User.objects.get(username="root-of-town"))
    town = LargeOrganization(where, agent, Server.objects.order_by("name")[0], client)
    gc.collect()
    gc.freeze()  # as a web process does when it has started
    for title, address in (*town.list_pages(), *MORE):
        try:
            _print_figures(title, *measure_times(partial(town.open, address)))
        except OperationalError:
            sys.stdout.write(f"given up\t{title}\n")
        except AssertionError as error:
            sys.stdout.write(f"{error}\t{title}\n")
    _print_figures(f"a call admitted and settled, of {CALLS}", measure_calls(where.pk))
    measure_verification(where.pk)
    for title, *seconds in (
        *grown_upkeep.measure_upkeep(where.pk),
        *grown_gateway.measure_gateway(town),
    ):
        _print_figures(title, *seconds)


def measure_times(what: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds of the first run, and of the fastest later one."""
    times = []
    for _ in range(TIMES):
        started_at = time.perf_counter()
        what()
        times.append(time.perf_counter() - started_at)
    return times[0], min(times[1:])


def measure_calls(organization_id: Any) -> float:
    from benchmarks.bench_ledger import Caller
    from bonobot.ledger.policy_generations import load_policy_generation
    from bonobot.ledger.writer.writer_thread import get_writer

    caller = Caller(organization_id)
    times = []
    for _ in range(CALLS):
        admission = caller.build_admission()
        object.__setattr__(admission, "generation", load_policy_generation(organization_id))
        started_at = time.perf_counter()
        get_writer().admit_call(admission).result(30)
        get_writer().settle_call(caller.build_settlement(admission)).result(30)
        times.append(time.perf_counter() - started_at)
    return sorted(times)[len(times) // 2]


def measure_verification(organization_id: Any) -> None:
    from bonobot.ledger.audit.verify_chain import advance_verification, load_tip, start_verification

    started_at = time.perf_counter()
    standing = advance_verification(
        start_verification(organization_id), load_tip(organization_id), rows=VERIFIED
    )
    elapsed = (time.perf_counter() - started_at) / standing.rows
    _print_figures("audit verify, 10,000 rows", elapsed * 10_000)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    sys.stdout.write(f"{peak}\tmemory of all this at its peak, MiB\n")


def _print_figures(title: str, *seconds: float) -> None:
    sys.stdout.write(f"{'; '.join(f'{item * 1000:,.0f}' for item in seconds)}\t{title}\n")
    sys.stdout.flush()


def main(urls: list[str]) -> None:
    """Measure each database in a separate process and print a table."""
    results: dict[str, dict[str, str]] = {}
    for url in urls:
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks.bench_growth"],
            env=os.environ | {"DATABASE_URL": url, "BENCH_GROWTH": "measure"},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if process.returncode:
            sys.exit(f"{url.rpartition('/')[2]} could not be measured.")
        for line in process.stdout.splitlines():
            value, _, title = line.partition("\t")
            results.setdefault(title, {})[url] = value
    load = os.getloadavg()[1]
    table = Table(box=MARKDOWN)
    for title in ("what", *(url.rpartition("/")[2] for url in urls)):
        table.add_column(title)
    for title, values in results.items():
        table.add_row(title, *(values.get(url, "") for url in urls))
    console = Console(width=120)
    console.print(table)
    console.print(f"Milliseconds, the first time; after that. Load of five minutes: {load:.1f}")


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bonobot.settings")
    measure() if os.environ.get("BENCH_GROWTH") == "measure" else main(sys.argv[1:])
