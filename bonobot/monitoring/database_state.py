"""Whether the database responds and is migrated; commands that only read rows use it too."""

import threading
from typing import Any

from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from bonobot.core.i18n.messages import format_count

_ready = threading.Event()


def is_ready() -> bool:
    """Return whether this process has found the database ready (no query)."""
    return _ready.is_set()


def find_readiness_problem() -> str:
    """Return why this process isn't ready, blank if it is (queries the database until then)."""
    if not is_ready():
        try:
            pending = count_unapplied_migrations()
        except DatabaseError:
            return "the database doesn't respond"
        if pending:
            return f"{format_count(pending, 'unapplied migration')}. Run: bonobot migrate"
        _ready.set()
    return ""


def count_unapplied_migrations() -> int:
    """Return the number of unapplied migrations; raises `DatabaseError` if unreachable.

    Counted from the files and the applied names. Django's graph of migrations can't be built by
    commands that only read rows: they don't load all apps that migrations depend on.
    """
    connection.ensure_connection()
    applied = MigrationRecorder(connection).applied_migrations().keys()
    loader = MigrationLoader(None, load=False)
    loader.load_disk()
    migrations = loader.disk_migrations
    replaced = {name for migration in migrations.values() for name in migration.replaces}
    return sum(
        name not in applied and not (migration.replaces and applied >= set(migration.replaces))
        for name, migration in migrations.items()
        if name not in replaced
    )


def explain_database_error(error: DatabaseError) -> str:
    """Return why the database is unreachable; the error of a pool only says that it timed out."""
    shown_error: Exception = error
    if connection.vendor == "postgresql":
        backend: Any = connection.Database  # type: ignore[attr-defined]  # psycopg
        try:
            backend.connect(**connection.get_connection_params()).close()
        except backend.Error as cause:
            shown_error = cause
    return " ".join(str(shown_error).split())
