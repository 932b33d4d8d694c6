"""Measure the time and the number of queries of the pages of a large organization.

    make bench            (this among others)
    .venv/bin/python -m benchmarks.bench_lists

5,000 servers with 100,000 definitions, an agent with 1,900 tools and 100,000 calls in the audit.
Each page is asked for three times by a signed-in administrator within the process; the middle one
counts, with the database's time and the rendering, without the network. Processor time is that of
this process: all of it with SQLite, without the database's own work with PostgreSQL.
"""

import statistics
import sys
import time

from rich.console import Console
from rich.table import Table

from benchmarks.databases import measure_each_database

SERVERS = 5_000
EACH = 20
CALLS = 100_000
TIMES = 3


def measure() -> None:
    """Fill this process's database; print for each page its queries, ms and title."""
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from tests import large_organization

    started_at = time.perf_counter()
    town = large_organization.create_large_organization(servers=SERVERS, each=EACH, calls=CALLS)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
    elapsed = time.perf_counter() - started_at
    sys.stdout.write(f"0 {elapsed * 1000:.0f} 0 (filling the database)\n")
    for title, address in town.list_pages():
        times = []
        for _ in range(TIMES):
            with CaptureQueriesContext(connection) as queries:
                started_at, processor_time = time.perf_counter(), time.process_time()
                town.open(address)
                times.append(
                    (time.perf_counter() - started_at, time.process_time() - processor_time)
                )
        elapsed, processor_time = (
            statistics.median(each) * 1000 for each in zip(*times, strict=True)
        )
        sys.stdout.write(f"{len(queries)} {elapsed:.0f} {processor_time:.0f} {title}\n")


def test_the_pages_of_a_large_organization() -> None:
    main()


def main() -> None:
    """Measure each available database and print a table."""
    table = Table(title=f"Pages: {SERVERS:,} servers, {SERVERS * EACH:,} definitions")
    for title in ("database", "page", "queries", "ms", "processor ms"):
        table.add_column(title, justify="left" if title in ("database", "page") else "right")
    console = Console()
    for name, lines in measure_each_database(__file__, console):
        for queries, elapsed, processor_time, *fields in lines:
            table.add_row(name, " ".join(fields), queries, elapsed, processor_time)
    console.print(table)


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["measure"] else main()
