"""Emptying the database between tests: what a migration puts there stays.

Django deletes every row and then makes content types and permissions again, which takes most of the
time of a small test. They never change here; of the catalogue's rows, those that a test changed are
put back. On PostgreSQL TRUNCATE would make new files for each table, and sync them.
"""

from functools import cache
from typing import Any

from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper

from mcp_servers.models import Preset
from mcp_servers.presets.loading import load_presets

KEPT = frozenset(model._meta.db_table for model in (ContentType, Permission))
PLATFORM = {Preset._meta.db_table: "organization_id IS NOT NULL"}


def statements(_style: object, connection: BaseDatabaseWrapper, **_: object) -> list[str]:
    """Return what empties the tables; keys are checked at the commit, so their order is free."""
    found = [f"DELETE FROM {table}{_which(table)}" for table in _tables()]  # noqa: S608 - our own
    return found if connection.vendor == "sqlite" else ["; ".join(found)]


def restore(*_: Any, **__: Any) -> None:
    """Put back what a test changed of the catalogue's rows."""
    load_presets()


@cache
def _tables() -> tuple[str, ...]:
    names = connection.introspection.django_table_names(only_existing=True, include_views=False)
    return tuple(name for name in names if name not in KEPT)


def _which(table: str) -> str:
    return f" WHERE {PLATFORM[table]}" if table in PLATFORM else ""
