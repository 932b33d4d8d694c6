"""Whether the database responds and is migrated; commands that only read rows use it too."""

import threading
from typing import Any

from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

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
    """Return the number of unapplied migrations; raises `DatabaseError` if unreachable."""
    connection.ensure_connection()
    executor = MigrationExecutor(connection)
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))


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
