"""Build Django's `DATABASES` entry from `DATABASE_URL`."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

MIN_SQLITE_VERSION = (3, 35, 0)  # the first with RETURNING, which the ledger needs
POSTGRESQL_SCHEMES = frozenset({"postgres", "postgresql"})
EXPECTED_URLS = "`postgresql://user:password@host:5432/name` or `sqlite:///path/to/file`"
UNREADABLE_REASON = (
    "its host or port can't be read; inside a user name or password write `#` as `%23`, `/` as "
    "`%2F`, `?` as `%3F`, `@` as `%40`, `:` as `%3A`"
)

# IMMEDIATE takes the write lock at BEGIN, so the timeout applies to all writers; with WAL readers
# never block writers. Calls write mostly to the same pages, so a high `wal_autocheckpoint`
# copies each of them once for many calls.
SQLITE_PRAGMAS = (
    "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=4000; "
    "PRAGMA journal_size_limit=27103364; PRAGMA cache_size=2000;"
)


def build_database_settings(url: str, *, var: Path, pool_size: int) -> dict[str, Any]:
    """Return the settings of the database at `url`; blank means SQLite in the folder `var`."""
    if not url:
        return _build_sqlite_settings(var / "bonobot.sqlite3")
    parts = _parse_url(url)
    if parts.scheme == "sqlite":
        return _build_sqlite_settings(_parse_sqlite_path(parts))
    if parts.scheme in POSTGRESQL_SCHEMES:
        return _build_postgresql_settings(parts, pool_size=pool_size)
    raise _build_url_error(f"its scheme is {parts.scheme!r}")


def _parse_url(url: str) -> SplitResult:
    # The parser's own message may contain a part of the password.
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError on access
    except ValueError:
        raise _build_url_error(UNREADABLE_REASON) from None
    if parts.fragment:
        raise _build_url_error(UNREADABLE_REASON)
    return parts


def is_sqlite(database: Mapping[str, Any]) -> bool:
    """Return whether database settings use SQLite (our engine or Django's)."""
    return "sqlite" in str(database["ENGINE"])


def _build_sqlite_settings(path: Path) -> dict[str, Any]:
    # One file per process, so that parallel test runs never share one.
    test_name = Path(tempfile.gettempdir()) / f"bonobot-test-{os.getpid()}.sqlite3"
    return {
        "ENGINE": "bonobot.core.db.sqlite",
        "NAME": path,
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": SQLITE_PRAGMAS,
        },
        "TEST": {"NAME": test_name},
    }


def _parse_sqlite_path(parts: SplitResult) -> Path:
    if parts.netloc or parts.query or len(parts.path) < 2:
        raise _build_url_error(
            "a SQLite database is a path after three slashes, without host or options"
        )
    # By convention three slashes start a relative path, four an absolute one.
    path = Path(unquote(parts.path[1:]))
    if not path.parent.is_dir():
        raise _build_url_error(f"the folder {str(path.parent)!r} doesn't exist")
    return path.absolute()


def _build_postgresql_settings(parts: SplitResult, *, pool_size: int) -> dict[str, Any]:
    name = unquote(parts.path[1:])
    if not name or "/" in name:
        raise _build_url_error("it must end with one database name")
    options = _parse_libpq_options(parts.query)
    host = unquote(parts.hostname or "") or options.pop("host", "")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": str(parts.port or ""),
        "CONN_MAX_AGE": 0,  # return connections to the pool after each request
        "OPTIONS": {"connect_timeout": 10}
        | options
        | {"pool": {"min_size": 1, "max_size": pool_size, "timeout": 10}},
        "TEST": {"NAME": f"test_bonobot_{os.getpid()}"},
    }


def _parse_libpq_options(query: str) -> dict[str, str]:
    from psycopg import ProgrammingError, conninfo  # loaded only where PostgreSQL is used

    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
        conninfo.make_conninfo(**options)
    except (ValueError, ProgrammingError) as error:
        raise _build_url_error(f"its options are unusable ({str(error).strip()})") from None
    return options


def _build_url_error(reason: str) -> ImproperlyConfigured:
    """Return an error without the URL, which contains a password."""
    return ImproperlyConfigured(f"`DATABASE_URL` must be like {EXPECTED_URLS}: {reason}.")
