"""Emptying the database between tests: what a migration puts there stays.

Django deletes every row and then makes content types and permissions again, which takes most of the
time of a small test. They never change here; of the catalog's rows, those that a test changed are
put back. On PostgreSQL TRUNCATE would make new files for each table, and sync them.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

from django.apps import apps
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import IntegrityError, OperationalError, connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.operations import BaseDatabaseOperations
from django.db.models import Model

from mcp_servers.models import Preset
from mcp_servers.presets.services import load_presets

KEPT = frozenset(model._meta.db_table for model in (ContentType, Permission))
PLATFORM = {Preset._meta.db_table: "organization_id IS NOT NULL"}
TRIES = 5
# The platform's presets as they were when no test had changed them.
_loaded: list[tuple[Any, ...]] = []

_execute = BaseDatabaseOperations.execute_sql_flush


def statements(_style: object, connection: BaseDatabaseWrapper, **_: object) -> list[str]:
    """Return what empties the tables; keys are checked at the commit, so their order is free."""
    found = [f"DELETE FROM {table}{_which(table)}" for table in _tables()]  # noqa: S608 - our own
    return found if connection.vendor == "sqlite" else ["; ".join(found)]


def execute(operations: BaseDatabaseOperations, sql_list: Iterable[str]) -> None:
    """Empty the tables, again where a row came meanwhile that belongs to a deleted one, or where
    another transaction stood in the way: what a test left running writes a little longer."""
    for tried in range(1, TRIES + 1):
        try:
            _execute(operations, sql_list)
            return
        except (IntegrityError, OperationalError):
            if tried == TRIES:
                raise


def restore(*_: Any, **__: Any) -> None:
    """Put back what a test changed of the catalog's rows.

    Few tests change one, and to compare the rows takes a twentieth of the time of loading them.
    """
    if _read_platform_presets() != _loaded:
        load_presets()
        _loaded[:] = _read_platform_presets()


def _read_platform_presets() -> list[tuple[Any, ...]]:
    """Return all columns of the rows, as the database has them."""
    table = Preset._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table} WHERE organization_id IS NULL ORDER BY id")  # noqa: S608
        return list(cursor.fetchall())


@cache
def _tables() -> tuple[str, ...]:
    """Return all tables in the order in which the product locks rows: what still runs of the test
    before, such as a stream's holder, must not deadlock with this."""
    names = connection.introspection.django_table_names(only_existing=True, include_views=False)
    models = {model._meta.db_table: model for model in apps.get_models(include_auto_created=True)}
    ordered = sorted(
        set(names) - KEPT, key=lambda name: (name.startswith("ledger_"), _depth(models[name]), name)
    )
    return tuple(ordered)


def _depth(model: type[Model], below: frozenset[type[Model]] = frozenset()) -> int:
    """Return how many tables lie above this one; parents come first, the ledger's rows last."""
    below |= {model}
    related = {field.related_model for field in model._meta.fields if field.remote_field}
    above = {one for one in related if isinstance(one, type)} - below
    return max((_depth(one, below) + 1 for one in above), default=0)


def _which(table: str) -> str:
    return f" WHERE {PLATFORM[table]}" if table in PLATFORM else ""
