"""A grown organization: `tests.large_organization` with thousands of agents, months of audit.

    DATABASE_URL=postgresql://… python -m benchmarks.grown_organization --agents 10000 \\
        --servers 5000 --rows 10000000

The calls are those of `call_history`. Their rows of the audit are sealed as the ledger's writer
seals them, so `bonobot audit verify` reads them as any others; what they come to is counted by the
product's own `usage.aggregation`, and summed by its `usage.build_rollups`. Audit and rollups are
written by COPY, at once, and their indices made afterwards. SQLite takes the same lines, one table
after the other.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from benchmarks.call_history import Plan, list_server_indexes

if TYPE_CHECKING:
    from agents.models import Agent
    from tests.large_organization import LargeOrganization

DAYS = 60
BATCH_SIZE = 2_000
COPY_BATCH_SIZE = 500  # lines that are handed to COPY together
TOOLS = 20
PROGRESS_INTERVAL = 500_000  # rows between two words about how far it is
# What PostgreSQL may take for making an index.
MEMORY = "512MB"


def create_agents(town: "LargeOrganization", count: int) -> "list[Agent]":
    """Create agents like the first one, each with some servers and a policy; return all agents."""
    from agents.models import Agent, AgentServer, ToolPolicy
    from mcp_servers.models import Server

    where, mayor = town.organization, town.agent
    created = [
        Agent(
            organization=where,
            name=f"Agent {number:05}",
            slug=f"agent-{number:05}",
            description=f"Looks after team {number % 97}",
            model_endpoint_id=mayor.model_endpoint_id,
        )
        for number in range(1, count)
    ]
    Agent.objects.bulk_create(created, batch_size=BATCH_SIZE)
    ToolPolicy.objects.bulk_create(
        [ToolPolicy(organization=where, agent=item, mode="all") for item in created],
        batch_size=BATCH_SIZE,
    )
    servers = list(Server.objects.for_organization(where.pk).order_by("name"))
    AgentServer.objects.bulk_create(
        [
            AgentServer(organization_id=where.pk, agent=item, server=servers[index])
            for number, item in enumerate(created)
            for index in list_server_indexes(number, len(servers))
        ],
        batch_size=BATCH_SIZE,
    )
    return [mayor, *created]


def build_plan(
    town: "LargeOrganization", agents: "list[Agent]", *, rows: int, began: datetime, ended: datetime
) -> Plan:
    """Return the plan of the calls to generate for a period."""
    from mcp_servers.models import Server
    from tests.large_organization import build_declaration

    servers = Server.objects.for_organization(town.organization.pk).order_by("name")
    return Plan(
        organization_id=str(town.organization.pk),
        agents=[(str(item.pk), item.name) for item in agents],
        servers=[(str(item.pk), item.name) for item in servers.only("name")],
        tools=[build_declaration(number)["name"] for number in range(TOOLS)],
        rows=rows,
        began=began,
        lasted=ended - began,
    )


def write_table(lines: Iterator[str], table: str, columns: tuple[str, ...]) -> None:
    """Write lines in the format of COPY to a table, and create its indexes afterwards."""
    from django.db import connection

    print_progress(f"{table}: begins")
    (_copy_rows if connection.vendor == "postgresql" else _insert_rows)(
        _report_progress(lines, table), table, columns
    )
    print_progress(f"{table}: done")


def _copy_rows(lines: Iterator[str], table: str, columns: tuple[str, ...]) -> None:
    from django.db import connection, transaction
    from psycopg import sql

    listed = sql.SQL(",").join(map(sql.Identifier, columns))
    copying = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table), listed)
    with transaction.atomic(), connection.cursor() as cursor:
        dropped, created = _build_index_statements(cursor, table)
        for statement in dropped:
            cursor.execute(statement)
        with cursor.copy(copying) as rows:  # psycopg's own
            while piece := list(islice(lines, COPY_BATCH_SIZE)):
                rows.write("\n".join(piece) + "\n")
        cursor.execute(f"SET LOCAL maintenance_work_mem = '{MEMORY}'")
        for statement in created:
            cursor.execute(statement)


def _build_index_statements(cursor: Any, table: str) -> tuple[list[str], list[str]]:
    """Return the statements that drop a table's indices and constraints, and make them again."""
    cursor.execute(
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE conrelid = %s::regclass AND contype IN ('p', 'u')",
        [table],
    )
    constraints = cursor.fetchall()
    cursor.execute("SELECT indexname, indexdef FROM pg_indexes WHERE tablename = %s", [table])
    named = {name for name, _definition in constraints}
    indices = [(name, created) for name, created in cursor.fetchall() if name not in named]
    alter = f'ALTER TABLE "{table}"'
    dropped = [f'{alter} DROP CONSTRAINT "{name}"' for name, _definition in constraints]
    created = [f'{alter} ADD CONSTRAINT "{name}" {definition}' for name, definition in constraints]
    dropped += [f'DROP INDEX "{name}"' for name, _definition in indices]
    return dropped, created + [definition for _name, definition in indices]


def _insert_rows(lines: Iterator[str], table: str, columns: tuple[str, ...]) -> None:
    from django.apps import apps
    from django.db import connection, transaction

    from benchmarks.audit_writer import NULL

    model = next(item for item in apps.get_models() if item._meta.db_table == table)
    kinds = [model._meta.get_field(name).get_internal_type() for name in columns]
    ids = [index for index, kind in enumerate(kinds) if kind == "UUIDField"]
    times = [index for index, kind in enumerate(kinds) if kind == "DateTimeField"]

    def to_sqlite_values(line: str) -> list[str | None]:
        """Return the values as SQLite has them."""
        results: list[Any] = [None if cell == NULL else cell for cell in line.split("\t")]
        for index in ids:
            results[index] = results[index] and results[index].replace("-", "")
        for index in times:
            text = results[index]
            results[index] = text and text.replace("T", " ").removesuffix("Z").removesuffix(
                "+00:00"
            )
        return results

    listed = ", ".join(f'"{name}"' for name in columns)
    blanks = ", ".join(["%s"] * len(columns))
    statement = f'INSERT INTO "{table}" ({listed}) VALUES ({blanks})'  # noqa: S608
    while piece := [to_sqlite_values(line) for line in islice(lines, BATCH_SIZE * 10)]:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.executemany(statement, piece)


def _report_progress(lines: Iterator[str], table: str) -> Iterator[str]:
    started_at = time.perf_counter()
    for number, line in enumerate(lines, start=1):
        yield line
        if number % PROGRESS_INTERVAL == 0:
            pace = number / (time.perf_counter() - started_at)
            print_progress(f"{table}: {number:,} rows, {pace:,.0f} a second")


def write_rollups(planned: Plan) -> None:
    """Write the rollups of the calls, in a separate process."""
    import django

    django.setup()
    from benchmarks import rollups
    from bonobot.ledger.models import Rollup

    columns = tuple(item.attname for item in Rollup._meta.concrete_fields)
    write_table(rollups.iterate_lines(planned, columns), Rollup._meta.db_table, columns)


def write_audit_rows(planned: Plan) -> None:
    """Write the audit rows of the calls, and update the organization's head and rollup cursor."""
    from benchmarks.audit_writer import COLUMNS, AuditLineWriter
    from bonobot.ledger.audit.hash_chain import ChainTip
    from bonobot.ledger.models import AuditRow, Head, RollupCursor

    head = Head.objects.get(pk=planned.organization_id)
    scribe = AuditLineWriter(planned, ChainTip(head.seq, head.digest, head.generation))
    write_table(scribe.lines(), AuditRow._meta.db_table, COLUMNS)
    Head.objects.filter(pk=head.pk).update(seq=scribe.tip.seq, digest=scribe.tip.digest)
    seen = {"seq": scribe.tip.seq, "head": scribe.tip.seq, "summed_since": None}
    RollupCursor.objects.update_or_create(organization_id=head.pk, defaults=seen)


def fill_database(*, agents: int, servers: int, each: int, rows: int, days: int) -> None:
    """Fill the database of the settings."""
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    from django.db import connection

    from bonobot.ledger.usage import build_rollups
    from bonobot.ledger.writer import writer_thread
    from tests import large_organization

    founded = datetime.now(UTC) - timedelta(days=days)
    town = large_organization.create_large_organization(
        servers=servers, each=each, calls=0, founded=founded
    )
    print_progress(f"{servers:,} servers with {each} definitions each")
    # The chain begins with what was done to found the town, a minute before its first call.
    began, ended = founded + timedelta(minutes=1), datetime.now(UTC)
    planned = build_plan(town, create_agents(town, agents), rows=rows, began=began, ended=ended)
    print_progress(f"{agents:,} agents")
    writer_thread.close_writer()
    build_rollups.count_organization(town.organization.pk)
    counter = get_context("spawn").Process(target=write_rollups, args=(planned,))
    counter.start()
    if connection.vendor != "postgresql":
        counter.join()  # it has one writer at a time
    write_audit_rows(planned)
    counter.join()
    if counter.exitcode:
        sys.exit("The calls could not be counted.")
    started_at = time.perf_counter()
    summed = build_rollups.sum_missing_days(float("inf"))
    print_progress(
        f"{summed} days summed, {(time.perf_counter() - started_at) / (summed or 1):.2f} s each"
    )
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE" if connection.vendor == "postgresql" else "ANALYZE")
    print_progress("done")


def print_progress(text: str) -> None:
    sys.stdout.write(f"{datetime.now(UTC):%H:%M:%S} {text}\n")
    sys.stdout.flush()


def main() -> None:
    """Read the options and fill the database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=10)
    parser.add_argument("--servers", type=int, default=5)
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--days", type=int, default=DAYS)
    given_options = vars(parser.parse_args())
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bonobot.settings")
    fill_database(**given_options)


if __name__ == "__main__":
    main()
