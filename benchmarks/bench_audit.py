"""How long `audit verify` reads 10,000 rows, and that it finds each way of changing them.

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
from benchmarks.databases import on_each
from bonobot.ledger.writer.writer_thread import close_writer, get_writer

ROWS = 10_000
AT_ONCE = 128


async def fill(organization_id: UUID) -> None:
    """Write the rows."""
    caller, left = Caller(organization_id), iter(range(ROWS))

    async def work() -> None:
        for _ in left:
            admission = caller.admission()
            await get_writer().admit_call_async(admission)
            await get_writer().settle_call_async(caller.settlement(admission))

    await asyncio.gather(*[work() for _ in range(AT_ONCE)])


def changed(name: str, organization_id: UUID) -> bool:
    """Change the rows in one way, verify, take it back; tell whether it was found."""
    from django.db import connection, transaction

    from bonobot.ledger.audit.verify_chain import verify_whole_chain
    from bonobot.ledger.models import AuditRow

    rows = AuditRow.objects.filter(organization_id=organization_id).order_by("seq")
    one, two = rows[ROWS // 2], rows[ROWS // 2 + 1]
    key = one.pk.hex if connection.vendor == "sqlite" else one.pk
    statements: dict[str, tuple[str, list[Any]]] = {
        "flip": ("UPDATE ledger_auditrow SET opened = %s WHERE id = %s", [one.opened + " ", key]),
        "column": ("UPDATE ledger_auditrow SET outcome = %s WHERE id = %s", ["error", key]),
        "delete": ("DELETE FROM ledger_auditrow WHERE id = %s", [key]),
        "insert": ("UPDATE ledger_auditrow SET seq = seq + %s WHERE id = %s", [10**9, key]),
        "swap": (
            "UPDATE ledger_auditrow SET opened = %s, digest = %s WHERE id = %s",
            [two.opened, two.digest, key],
        ),
        "truncate": ("DELETE FROM ledger_auditrow WHERE seq > %s", [one.seq]),
    }
    with transaction.atomic():
        with connection.cursor() as cursor:
            statement, parameters = statements[name]
            cursor.execute(statement, parameters)
        found = not verify_whole_chain(organization_id).ok
        transaction.set_rollback(True)
    return found


CHANGES = ("flip", "column", "delete", "insert", "swap", "truncate")


def measure() -> None:
    """Measure this process's database; print one line."""
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", "ledger", verbosity=0)
    from bonobot.ledger.audit.verify_chain import verify_whole_chain  # its models need the settings

    organization_id = uuid4()
    asyncio.run(fill(organization_id))
    close_writer()
    began, spent = time.perf_counter(), time.process_time()
    report = verify_whole_chain(organization_id)
    took, spent = time.perf_counter() - began, time.process_time() - spent
    found = sum(changed(name, organization_id) for name in CHANGES)
    line = f"{report.rows} {report.ok} {took:.3f} {spent:.3f} {found}/{len(CHANGES)}"
    sys.stdout.write(f"{line}\n")


def test_the_audit_is_verified() -> None:
    main()


def main() -> None:
    """Measure what there is and print one table."""
    table = Table(title="`audit verify`")
    for title in ("database", "rows", "sound", "s", "processor s", "changes found"):
        table.add_column(title, justify="left" if title == "database" else "right")
    console = Console()
    for name, lines in on_each(__file__, console):
        for line in lines:
            table.add_row(name, *line)
    console.print(table)


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["measure"] else main()
