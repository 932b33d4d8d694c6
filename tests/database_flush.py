"""Empty the database between tests, except for rows that migrations created.

Django's `flush` deletes every row and recreates content types and permissions, which takes most of
the time of a small test. They never change here; platform presets that a test changed are restored.
On PostgreSQL, TRUNCATE would create new files for each table, and sync them.
"""

from functools import cache
from typing import Any

from django.apps import apps
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.models import Model

from bonobot.ledger.writer import writer_thread
from mcp_servers.models import Preset
from mcp_servers.presets.sync_catalog import load_presets

KEPT = frozenset(model._meta.db_table for model in (ContentType, Permission))
PLATFORM = {Preset._meta.db_table: "organization_id IS NOT NULL"}
FUNCTION = "empty_tables"  # of PostgreSQL
TRIES = 5
# The platform presets before any test changed them.
_loaded: list[tuple[Any, ...]] = []


def empty_tables() -> None:
    """Delete what a test wrote; retry if tasks that it left running still write rows.

    The ledger's writer ends first: it counts repeated refusals for a minute and then writes.
    """
    writer_thread.close_writer()
    for attempt in range(1, TRIES + 1):
        try:
            _delete_rows()
            break
        except (IntegrityError, OperationalError):
            if attempt == TRIES:
                raise
    restore_presets()


def _delete_rows() -> None:
    """Delete rows; foreign keys are checked at commit, so any order works.

    To look which tables have rows takes less time than to delete from all of them.
    """
    if connection.vendor == "postgresql":
        _create_function()
    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"SELECT {FUNCTION}()")
            return
        cursor.execute(_build_search())
        for (table,) in cursor.fetchall():
            cursor.execute(_build_deletion(table))


@cache
def _create_function() -> None:
    """Create the function that empties the tables: PostgreSQL plans its statements only once."""
    deletions = "".join(
        f"IF EXISTS (SELECT 1 FROM {table}{_build_condition(table)}) "  # noqa: S608 - our own
        f"THEN {_build_deletion(table)}; END IF; "
        for table in _list_tables()
    )
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE OR REPLACE FUNCTION {FUNCTION}() RETURNS void LANGUAGE plpgsql "
            f"AS $$ BEGIN {deletions} END $$"
        )


@cache
def _build_search() -> str:
    """Return the query for the names of the tables that have rows."""
    return " UNION ALL ".join(
        f"SELECT '{table}' WHERE EXISTS (SELECT 1 FROM {table}{_build_condition(table)})"  # noqa: S608 - our own
        for table in _list_tables()
    )


def _build_deletion(table: str) -> str:
    return f"DELETE FROM {table}{_build_condition(table)}"  # noqa: S608 - our own


def restore_presets() -> None:
    """Restore platform presets that a test changed.

    Few tests change one, and comparing the rows takes a twentieth of the time of loading them.
    """
    if _read_platform_presets() != _loaded:
        load_presets()
        _loaded[:] = _read_platform_presets()


def _read_platform_presets() -> list[tuple[Any, ...]]:
    """Return all columns of the platform presets."""
    table = Preset._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table} WHERE organization_id IS NULL ORDER BY id")  # noqa: S608
        return list(cursor.fetchall())


@cache
def _list_tables() -> tuple[str, ...]:
    """Return all tables in the order in which the product locks rows, so that tasks that still run
    don't deadlock with the flush."""
    names = connection.introspection.django_table_names(only_existing=True, include_views=False)
    models = {model._meta.db_table: model for model in apps.get_models(include_auto_created=True)}
    ordered = sorted(
        set(names) - KEPT,
        key=lambda name: (name.startswith("ledger_"), _compute_depth(models[name]), name),
    )
    return tuple(ordered)


def _compute_depth(model: type[Model], seen: frozenset[type[Model]] = frozenset()) -> int:
    """Return the depth of a table below its parents; parents come first."""
    seen |= {model}
    related = {field.related_model for field in model._meta.fields if field.remote_field}
    parents = {parent for parent in related if isinstance(parent, type)} - seen
    return max((_compute_depth(parent, seen) + 1 for parent in parents), default=0)


def _build_condition(table: str) -> str:
    return f" WHERE {PLATFORM[table]}" if table in PLATFORM else ""
