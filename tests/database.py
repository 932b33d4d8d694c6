"""The test database: migrated once in a run, then copied for each process of the run.

The first process that needs a database prepares the template; the others wait for it and copy it.
Migrating takes 20 s of processor time, so SQLite's is kept in `.pytest_cache` for the next runs,
until a migration or the version of a library changes. After a change of other code, only what
follows migrations is done again: content types, permissions and presets.

Nothing that tests write has to outlive a power failure: SQLite files are in memory where the system
offers that, PostgreSQL commits without waiting for its disk.
"""

import fcntl
import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path

import pytest
from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.core.management.sql import emit_post_migrate_signal
from django.db import DEFAULT_DB_ALIAS, connection

from bonobot.settings.oauth_server import LIBRARY
from tests.environment import RUN_FOLDER
from tests.parts import ROOT

MEMORY = Path("/dev/shm")
MEMORY_BYTES = 2 << 30  # a container may have much less of it
PROCESS = os.environ.get("PYTEST_XDIST_WORKER", "main")
KEPT = ROOT / ".pytest_cache" / "migrated"
PACKAGES = ("agents", "bonobot", "mcp_servers")
# Files that migrations and what follows them may read; templates and translations are not.
READ = frozenset({".json", ".py", ".sql", ".toml", ".yaml", ".yml"})
# What migrations consist of: themselves, what they import, and the settings.
MIGRATING = (
    "bonobot/accounts/models/organizations.py",
    "bonobot/accounts/roles.py",
    "bonobot/core/crypto/",
    "bonobot/core/db/",
    "bonobot/settings/",
    "tests/database.py",
    "tests/environment.py",
)


def create_database() -> None:
    """Create this process's database as a copy of the run's template, and connect to it."""
    template = _template_name()
    with _lock():
        marker = RUN_FOLDER / "template"
        if not marker.exists():
            _prepare(template)
            marker.write_text(template, encoding="utf-8")
        _copy(template, _own_name())
    _use(_own_name())
    connection.ensure_connection()


def drop_database() -> None:
    """Drop this process's database; nothing of this process may be connected to it."""
    _disconnect()
    if connection.vendor == "sqlite":
        for suffix in ("", "-wal", "-shm"):
            Path(_own_name() + suffix).unlink(missing_ok=True)
    else:
        with connection._nodb_cursor() as cursor:
            cursor.execute(f'DROP DATABASE IF EXISTS "{_own_name()}" WITH (FORCE)')


def drop_template() -> None:
    """Drop the template at the end of the run; SQLite's lies in the run's folder."""
    marker = RUN_FOLDER / "template"
    if not marker.exists():
        return
    if connection.vendor == "sqlite":
        Path(_template_name()).unlink(missing_ok=True)
    else:
        with connection._nodb_cursor() as cursor:
            cursor.execute(f'DROP DATABASE IF EXISTS "{_template_name()}" WITH (FORCE)')
    marker.unlink()


def is_in_use() -> bool:
    """Return whether this process is connected to its copy: no other database may be emptied."""
    return bool(connection.settings_dict["NAME"] == _own_name())


def copy_template(target: Path) -> None:
    """Copy the template's tables, without a row that a test wrote, to a new SQLite file."""
    shutil.copyfile(_template_name(), target)


def _template_name() -> str:
    return _name("template")


def _own_name() -> str:
    return _name(PROCESS)


def _name(part: str) -> str:
    """Return the path or the name of one of the run's databases."""
    if connection.vendor == "sqlite":
        return str(_folder() / f"{RUN_FOLDER.name}-{part}.sqlite3")
    return f"{RUN_FOLDER.name}-{part}".replace("-", "_").lower()


def _folder() -> Path:
    """Return where SQLite files go: in memory if there is room, else the run's folder."""
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        space = os.statvfs(MEMORY)
        if space.f_frsize * space.f_blocks >= MEMORY_BYTES:
            return MEMORY
    return RUN_FOLDER


@contextmanager
def _lock() -> Iterator[None]:
    """Wait until no other process of the run prepares a database."""
    with (RUN_FOLDER / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _prepare(template: str) -> None:
    """Create the template: a copy of the one that an earlier run kept, or migrated anew."""
    if connection.vendor != "sqlite":
        _migrate(template)
        return
    migrating, following = compute_digests(ROOT)
    kept = KEPT / f"{migrating}-{following}.sqlite3"
    try:
        shutil.copyfile(next(KEPT.glob(f"{migrating}-*.sqlite3"), kept), template)
    except FileNotFoundError:
        _migrate(template)
        keep_template(Path(template), kept)
        return
    if not kept.exists():
        _use(template)
        emit_post_migrate_signal(verbosity=0, interactive=False, db=DEFAULT_DB_ALIAS)
        _leave(template)
        keep_template(Path(template), kept)


def keep_template(template: Path, kept: Path) -> None:
    """Keep a migrated template for the next runs, instead of those of other states of the code."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    own = kept.with_name(f"{RUN_FOLDER.name}.part")
    shutil.copyfile(template, own)
    own.replace(kept)  # a run beside this one reads a whole file or none
    for other in kept.parent.glob("*.sqlite3"):
        if other != kept:
            other.unlink(missing_ok=True)


def compute_digests(root: Path) -> tuple[str, str]:
    """Return digests of what decides what `migrate` writes: in migrations, and after them."""
    migrating = sha256(f"{sys.version} {sqlite3.sqlite_version}".encode())
    for version in sorted(
        f"{distribution.name} {distribution.version}" for distribution in distributions()
    ):
        migrating.update(version.encode() + b"\0")
    following = migrating.copy()
    files = {file for package in PACKAGES for file in (root / package).rglob("*")}
    files |= {root / name for name in MIGRATING}
    for file in sorted(file for file in files if file.suffix in READ and file.is_file()):
        name = file.relative_to(root).as_posix()
        digest = migrating if is_migrating(name) else following
        digest.update(name.encode() + b"\0" + sha256(file.read_bytes()).digest())
    return migrating.hexdigest(), following.hexdigest()


def is_migrating(name: str) -> bool:
    """Return whether migrations consist of a file, which may change their outcome."""
    return "/migrations/" in name or name.startswith(MIGRATING)


def _migrate(template: str) -> None:
    """Create the template and apply all migrations to it."""
    if connection.vendor == "postgresql":
        with connection._nodb_cursor() as cursor:
            cursor.execute(f'CREATE DATABASE "{template}"')
    _use(template)
    # What it alters makes each related model anew: they are fewer while most of ours are absent.
    if apps.is_installed(LIBRARY):
        call_command("migrate", LIBRARY, verbosity=0, interactive=False)
    call_command("migrate", verbosity=0, interactive=False)
    _leave(template)


def _leave(template: str) -> None:
    """Leave the template as one that can be copied."""
    _disconnect()
    if connection.vendor == "sqlite":
        with closing(sqlite3.connect(template)) as template_file:
            template_file.execute("PRAGMA journal_mode=DELETE")  # one file holds everything


def _copy(template: str, name: str) -> None:
    if connection.vendor == "sqlite":
        shutil.copyfile(template, name)
        return
    _disconnect()
    with connection._nodb_cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        cursor.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')


def _use(name: str) -> None:
    """Point Django's default connection at a database."""
    _disconnect()
    settings.DATABASES["default"]["NAME"] = name
    connection.settings_dict["NAME"] = name


def _disconnect() -> None:
    """Leave the database: PostgreSQL neither copies nor drops one that is in use."""
    connection.close()
    if connection.vendor == "postgresql":
        connection.close_pool()  # type: ignore[attr-defined]  # PostgreSQL's only


def pytest_unconfigure(config: pytest.Config) -> None:
    """Drop the template when the run ends: the process that distributes the tests does it."""
    if not hasattr(config, "workerinput"):
        drop_template()
