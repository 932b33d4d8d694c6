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

from benchmarks.call_history import Plan, given

if TYPE_CHECKING:
    from agents.models import Agent
    from tests.large_organization import LargeOrganization

DAYS = 60
AT_ONCE = 2_000
PIECE = 500  # lines that are handed to COPY together
TOOLS = 20
TOLD = 500_000  # rows between two words about how far it is
# What PostgreSQL may take for making an index.
MEMORY = "512MB"


def people(town: "LargeOrganization", count: int) -> "list[Agent]":
    """Add agents like the mayor, each with some servers and its policy; return all agents."""
    from agents.models import Agent, AgentServer, ToolPolicy
    from mcp_servers.models import Server

    where, mayor = town.organization, town.agent
    made = [
        Agent(
            organization=where,
            name=f"Agent {number:05}",
            slug=f"agent-{number:05}",
            description=f"Looks after team {number % 97}",
            model_endpoint_id=mayor.model_endpoint_id,
        )
        for number in range(1, count)
    ]
    Agent.objects.bulk_create(made, batch_size=AT_ONCE)
    ToolPolicy.objects.bulk_create(
        [ToolPolicy(organization=where, agent=one, mode="all") for one in made], batch_size=AT_ONCE
    )
    servers = list(Server.objects.for_organization(where.pk).order_by("name"))
    AgentServer.objects.bulk_create(
        [
            AgentServer(organization_id=where.pk, agent=one, server=servers[place])
            for number, one in enumerate(made)
            for place in given(number, len(servers))
        ],
        batch_size=AT_ONCE,
    )
    return [mayor, *made]


def plan(
    town: "LargeOrganization", agents: "list[Agent]", *, rows: int, began: datetime, ended: datetime
) -> Plan:
    """Return whose calls are to be written, from one time to another."""
    from mcp_servers.models import Server
    from tests.large_organization import build_declaration

    servers = Server.objects.for_organization(town.organization.pk).order_by("name")
    return Plan(
        organization_id=str(town.organization.pk),
        agents=[(str(one.pk), one.name) for one in agents],
        servers=[(str(one.pk), one.name) for one in servers.only("name")],
        tools=[build_declaration(number)["name"] for number in range(TOOLS)],
        rows=rows,
        began=began,
        lasted=ended - began,
    )


def write(lines: Iterator[str], table: str, columns: tuple[str, ...]) -> None:
    """Write lines as COPY takes them into a table whose indices are made afterwards."""
    from django.db import connection

    _say(f"{table}: begins")
    (_write if connection.vendor == "postgresql" else _insert)(_paced(lines, table), table, columns)
    _say(f"{table}: done")


def _write(lines: Iterator[str], table: str, columns: tuple[str, ...]) -> None:
    from django.db import connection, transaction
    from psycopg import sql

    listed = sql.SQL(",").join(map(sql.Identifier, columns))
    copying = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table), listed)
    with transaction.atomic(), connection.cursor() as cursor:
        dropped, made = _indices(cursor, table)
        for statement in dropped:
            cursor.execute(statement)
        with cursor.copy(copying) as rows:  # psycopg's own
            while piece := list(islice(lines, PIECE)):
                rows.write("\n".join(piece) + "\n")
        cursor.execute(f"SET LOCAL maintenance_work_mem = '{MEMORY}'")
        for statement in made:
            cursor.execute(statement)


def _indices(cursor: Any, table: str) -> tuple[list[str], list[str]]:
    """Return the statements that drop a table's indices and constraints, and make them again."""
    cursor.execute(
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE conrelid = %s::regclass AND contype IN ('p', 'u')",
        [table],
    )
    constraints = cursor.fetchall()
    cursor.execute("SELECT indexname, indexdef FROM pg_indexes WHERE tablename = %s", [table])
    named = {name for name, _definition in constraints}
    indices = [(name, made) for name, made in cursor.fetchall() if name not in named]
    alter = f'ALTER TABLE "{table}"'
    dropped = [f'{alter} DROP CONSTRAINT "{name}"' for name, _definition in constraints]
    made = [f'{alter} ADD CONSTRAINT "{name}" {definition}' for name, definition in constraints]
    dropped += [f'DROP INDEX "{name}"' for name, _definition in indices]
    return dropped, made + [definition for _name, definition in indices]


def _insert(lines: Iterator[str], table: str, columns: tuple[str, ...]) -> None:
    from django.apps import apps
    from django.db import connection, transaction

    from benchmarks.audit_writer import NOTHING

    model = next(one for one in apps.get_models() if one._meta.db_table == table)
    kinds = [model._meta.get_field(name).get_internal_type() for name in columns]
    ids = [place for place, kind in enumerate(kinds) if kind == "UUIDField"]
    times = [place for place, kind in enumerate(kinds) if kind == "DateTimeField"]

    def stored(line: str) -> list[str | None]:
        """Return the values as SQLite has them."""
        found: list[Any] = [None if cell == NOTHING else cell for cell in line.split("\t")]
        for place in ids:
            found[place] = found[place] and found[place].replace("-", "")
        for place in times:
            said = found[place]
            found[place] = said and said.replace("T", " ").removesuffix("Z").removesuffix("+00:00")
        return found

    listed = ", ".join(f'"{name}"' for name in columns)
    blanks = ", ".join(["%s"] * len(columns))
    statement = f'INSERT INTO "{table}" ({listed}) VALUES ({blanks})'  # noqa: S608
    while piece := [stored(line) for line in islice(lines, AT_ONCE * 10)]:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.executemany(statement, piece)


def _paced(lines: Iterator[str], table: str) -> Iterator[str]:
    began = time.perf_counter()
    for number, line in enumerate(lines, start=1):
        yield line
        if number % TOLD == 0:
            pace = number / (time.perf_counter() - began)
            _say(f"{table}: {number:,} rows, {pace:,.0f} a second")


def count(planned: Plan) -> None:
    """Write what the calls come to, in a process of its own."""
    import django

    django.setup()
    from benchmarks import rollups
    from bonobot.ledger.models import Rollup

    columns = tuple(one.attname for one in Rollup._meta.concrete_fields)
    write(rollups.lines(planned, columns), Rollup._meta.db_table, columns)


def seal(planned: Plan) -> None:
    """Write the calls into the audit, and move the organization's head and what is counted."""
    from benchmarks.audit_writer import COLUMNS, Scribe
    from bonobot.ledger.audit.hash_chain import ChainTip
    from bonobot.ledger.models import AuditRow, Head, RollupCursor

    head = Head.objects.get(pk=planned.organization_id)
    scribe = Scribe(planned, ChainTip(head.seq, head.digest, head.generation))
    write(scribe.lines(), AuditRow._meta.db_table, COLUMNS)
    Head.objects.filter(pk=head.pk).update(seq=scribe.tip.seq, digest=scribe.tip.digest)
    seen = {"seq": scribe.tip.seq, "head": scribe.tip.seq, "summed_since": None}
    RollupCursor.objects.update_or_create(organization_id=head.pk, defaults=seen)


def build(*, agents: int, servers: int, each: int, rows: int, days: int) -> None:
    """Fill the database that the settings name."""
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
    _say(f"{servers:,} servers with {each} definitions each")
    # The chain begins with what was done to found the town, a minute before its first call.
    began, ended = founded + timedelta(minutes=1), datetime.now(UTC)
    planned = plan(town, people(town, agents), rows=rows, began=began, ended=ended)
    _say(f"{agents:,} agents")
    writer_thread.close_writer()
    build_rollups.count_organization(town.organization.pk)
    counter = get_context("spawn").Process(target=count, args=(planned,))
    counter.start()
    if connection.vendor != "postgresql":
        counter.join()  # it has one writer at a time
    seal(planned)
    counter.join()
    if counter.exitcode:
        sys.exit("The calls could not be counted.")
    started_at = time.perf_counter()
    summed = build_rollups.sum_missing_days(float("inf"))
    _say(f"{summed} days summed, {(time.perf_counter() - started_at) / (summed or 1):.2f} s each")
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE" if connection.vendor == "postgresql" else "ANALYZE")
    _say("done")


def _say(text: str) -> None:
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
    build(**given_options)


if __name__ == "__main__":
    main()
