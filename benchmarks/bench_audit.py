"""Measure how long `audit verify` takes for 10,000 rows, and check that it detects each change.

    make bench            (this among others)
    .venv/bin/python -m benchmarks.bench_audit

The rows are calls, admitted and settled by the process's own writer, on SQLite and, where it
answers, on PostgreSQL. Each change is made in a transaction that is taken back.
"""

import asyncio
import sys
import time
from typing import Any
from uuid import UUID, uuid4

from rich.console import Console
from rich.table import Table

from benchmarks.bench_ledger import Caller
from benchmarks.databases import measure_each_database
from bonobot.ledger.writer.writer_thread import close_writer, get_writer

ROWS = 10_000
AT_ONCE = 128


async def write_rows(organization_id: UUID) -> None:
    """Write the rows."""
    caller, remaining = Caller(organization_id), iter(range(ROWS))

    async def work() -> None:
        for _ in remaining:
            admission = caller.build_admission()
            await get_writer().admit_call_async(admission)
            await get_writer().settle_call_async(caller.build_settlement(admission))

    await asyncio.gather(*[work() for _ in range(AT_ONCE)])


def detects_change(name: str, organization_id: UUID) -> bool:
    """Change rows, verify them, and roll back; return whether the change was detected."""
    from django.db import connection, transaction

    from bonobot.ledger.models import AuditRow
    from tests.ledger_chain import verify_whole_chain

    rows = AuditRow.objects.filter(organization_id=organization_id).order_by("seq")
    item, two = rows[ROWS // 2], rows[ROWS // 2 + 1]
    key = item.pk.hex if connection.vendor == "sqlite" else item.pk
    statements: dict[str, tuple[str, list[Any]]] = {
        "flip": ("UPDATE ledger_auditrow SET opened = %s WHERE id = %s", [item.opened + " ", key]),
        "column": ("UPDATE ledger_auditrow SET outcome = %s WHERE id = %s", ["error", key]),
        "delete": ("DELETE FROM ledger_auditrow WHERE id = %s", [key]),
        "insert": ("UPDATE ledger_auditrow SET seq = seq + %s WHERE id = %s", [10**9, key]),
        "swap": (
            "UPDATE ledger_auditrow SET opened = %s, digest = %s WHERE id = %s",
            [two.opened, two.digest, key],
        ),
        "truncate": ("DELETE FROM ledger_auditrow WHERE seq > %s", [item.seq]),
    }
    with transaction.atomic():
        with connection.cursor() as cursor:
            statement, parameters = statements[name]
            cursor.execute(statement, parameters)
        results = not verify_whole_chain(organization_id).ok
        transaction.set_rollback(True)
    return results


CHANGES = ("flip", "column", "delete", "insert", "swap", "truncate")


def measure() -> None:
    """Measure this process's database and print one line."""
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", "ledger", verbosity=0)
    from tests.ledger_chain import verify_whole_chain  # its models need the settings

    organization_id = uuid4()
    asyncio.run(write_rows(organization_id))
    close_writer()
    started_at, processor_time = time.perf_counter(), time.process_time()
    report = verify_whole_chain(organization_id)
    elapsed, processor_time = time.perf_counter() - started_at, time.process_time() - processor_time
    results = sum(detects_change(name, organization_id) for name in CHANGES)
    line = f"{report.rows} {report.ok} {elapsed:.3f} {processor_time:.3f} {results}/{len(CHANGES)}"
    sys.stdout.write(f"{line}\n")


def test_the_audit_is_verified() -> None:
    main()


def main() -> None:
    """Measure each available database and print a table."""
    table = Table(title="`audit verify`")
    for title in ("database", "rows", "sound", "s", "processor s", "changes found"):
        table.add_column(title, justify="left" if title == "database" else "right")
    console = Console()
    for name, lines in measure_each_database(__file__, console):
        for line in lines:
            table.add_row(name, *line)
    console.print(table)


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["measure"] else main()
