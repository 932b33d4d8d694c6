"""An installation that a release left behind, put back so that today's code can take it over."""

import gzip
import json
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from django.db import connection

from tests.environment import VAR
from tests.parts import ROOT
from tests.processes import build_database_url, build_environment
from tests.upgrades.commands import CommandResult

RECORDED = Path(__file__).parent
VERSIONS = sorted(path.name for path in RECORDED.iterdir() if (path / "sqlite").is_dir())
# Tables of Django and of libraries whose rows follow the code: content types, permissions, beat.
FOLLOWS_CODE = ("django_", "auth_", "sqlite_")


@dataclass(frozen=True)
class Installation:
    """A database and the folder beside it, with what was recorded of it."""

    version: str
    var: Path
    url: str
    facts: dict[str, Any]

    @property
    def env(self) -> dict[str, str]:
        """What its processes are given."""
        return build_environment({"BONOBOT_VAR": str(self.var), "DATABASE_URL": self.url})

    @contextmanager
    def commands(self) -> Iterator[Callable[[str], CommandResult]]:
        """Give a function that runs one of today's commands on it; all run in one process."""
        with subprocess.Popen(
            [sys.executable, "-m", "tests.upgrades.commands"],
            cwd=ROOT,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            words, answers = process.stdin, process.stdout
            assert words is not None
            assert answers is not None

            def run(line: str) -> CommandResult:
                words.write(json.dumps(shlex.split(line)) + "\n")
                words.flush()
                return CommandResult(*json.loads(answers.readline()))

            yield run

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of an SQL statement, committed."""
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as file, file:
                return file.execute(statement).fetchall()
        with psycopg.connect(self.url) as server:
            found = server.execute(statement.encode())
            return found.fetchall() if found.description else []

    def tables(self) -> list[str]:
        """Return the names of its tables that hold what people made."""
        if self.url.startswith("sqlite"):
            rows = self.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        else:
            rows = self.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        return sorted(name for (name,) in rows if not name.startswith(FOLLOWS_CODE))

    def counts(self) -> dict[str, int]:
        """Return how many rows each table has."""
        return {
            name: self.execute(f'SELECT count(*) FROM "{name}"')[0][0]  # noqa: S608 - its own names
            for name in self.tables()
        }

    def schema(self) -> set[tuple[str, ...]]:
        """Return columns, constraints and indices in an order-free form."""
        if self.url.startswith("sqlite"):
            return set(_sqlite_schema(self))
        return {
            *(("column", *row) for row in self.execute(COLUMNS)),
            *(("constraint", *row[:2], _bare(row[2]), row[3]) for row in self.execute(CONSTRAINTS)),
            *(("index", table, _bare(text)) for table, text in self.execute(INDICES)),
        }


COLUMNS = """
SELECT table_name, column_name, data_type, is_nullable, coalesce(column_default, ''),
       coalesce(character_maximum_length, 0)::text
FROM information_schema.columns WHERE table_schema = 'public'
"""
# Names of foreign keys hold digests of what they were made with; what they say is the rest.
CONSTRAINTS = """
SELECT conrelid::regclass::text, contype::text, pg_get_constraintdef(oid),
       CASE WHEN contype = 'f' THEN '' ELSE conname END
FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
"""
INDICES = "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'"


def _bare(condition: str) -> str:
    """Return a condition without the casts and parentheses that a dump adds when it is read."""
    return re.sub(r"::(character varying|text|\w+)(\[\])?|[() ]", "", condition)


def _sqlite_schema(kept: Installation) -> Iterator[tuple[str, ...]]:
    """Yield each column, constraint and index: a table that was remade has them in other order."""
    rows = kept.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    for kind, name, sql in rows:
        if kind != "table":
            yield kind, name, sql
            continue
        body = sql[sql.index("(") + 1 : sql.rindex(")")]
        for part in _parts(body):
            yield kind, name, part


def _parts(body: str) -> Iterator[str]:
    """Yield what commas outside of parentheses separate."""
    depth, start = 0, 0
    for at, letter in enumerate(body):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            yield body[start:at].strip()
            start = at + 1
    yield body[start:].strip()


def current() -> Installation:
    """Return the run's own database, which today's migrations made."""
    return Installation("", VAR, build_database_url(), {})


@contextmanager
def empty(folder: Path, name: str) -> Iterator[Installation]:
    """Give an installation without a table, on the kind of database that the run is about."""
    var = folder / name
    var.mkdir()
    if connection.vendor == "sqlite":
        yield Installation("", var, f"sqlite:///{var / 'bonobot.sqlite3'}", {})
        return
    database = f"{connection.settings_dict['NAME']}_{name}"
    owner = build_database_url().rpartition("/")[0]
    with psycopg.connect(f"{owner}/postgres", autocommit=True) as link:
        link.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)'.encode())
        link.execute(f'CREATE DATABASE "{database}"'.encode())
        try:
            yield Installation("", var, f"{owner}/{database}", {})
        finally:
            link.execute(f'DROP DATABASE "{database}" WITH (FORCE)'.encode())


@contextmanager
def left_by(version: str, folder: Path) -> Iterator[Installation]:
    """Give the installation that this release left behind."""
    recorded = RECORDED / version / connection.vendor
    facts = json.loads((recorded / "facts.json").read_text(encoding="utf-8"))
    text = gzip.decompress((recorded / "database.sql.gz").read_bytes()).decode()
    with empty(folder, "left") as made:
        keys = shutil.copytree(recorded / "keys", made.var / "keys")
        for path in (keys, *keys.iterdir()):
            path.chmod(0o700 if path.is_dir() else 0o600)
        if connection.vendor == "sqlite":
            with closing(sqlite3.connect(made.var / "bonobot.sqlite3")) as link:
                link.executescript(text)
        else:
            with psycopg.connect(made.url) as server:
                server.execute(text.encode())
        yield Installation(version, made.var, made.url, facts)
