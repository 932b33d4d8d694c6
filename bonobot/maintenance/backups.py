"""Back up and restore database and files.

SQLite is copied by itself while everything runs (`VACUUM INTO`), PostgreSQL by `pg_dump`; agents'
workspaces and the signed heads of the audit go into an archive. `manifest.json` says what it is and
carries a digest of each file, which is compared before anything is put back. Who has a backup and
not the keys reads no credential; who has lost the keys reads none either.
"""

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.migrations.recorder import MigrationRecorder

from bonobot import __version__
from bonobot.core.db.database_url import is_sqlite
from bonobot.core.problems import Conflict, InvalidInput, ServiceUnavailable

MANIFEST = "manifest.json"
FOLDERS = {"workspaces.tar.gz": "workspaces", "audit-heads.tar.gz": "audit-heads"}
BLOCK = 1 << 20

Database = Mapping[str, Any]


@dataclass(frozen=True)
class BackupManifest:
    """What a backup is: of which version and database, when it was made, and its files' digests."""

    version: str
    vendor: str
    made_at: str
    migrations: int
    files: Mapping[str, str]


def save(folder: Path, *, database: Database, var: Path, workspaces: bool = True) -> BackupManifest:
    """Write a backup into a new or empty folder; raises `Conflict`, `Unavailable`."""
    if folder.exists() and any(folder.iterdir()):
        raise Conflict(
            f"{str(folder)!r} isn't empty.",
            code="folder_not_empty",
            field="FOLDER",
            remedy="Name a new folder for each backup.",
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = "database.sqlite3" if is_sqlite(database) else "database.pgdump"
    if is_sqlite(database):
        _copy_sqlite(Path(database["NAME"]), folder / name)
    else:
        _run("pg_dump", database, "--format=custom", "--no-owner", f"--file={folder / name}")
    if workspaces:
        heads = Path(settings.BONOBOT_AUDIT_HEADS)
        for archive, where in FOLDERS.items():
            _archive_folder(
                heads if where == "audit-heads" else var / where, folder / archive, where
            )
    return describe(folder, vendor="sqlite" if is_sqlite(database) else "postgresql")


def describe(folder: Path, *, vendor: str = "") -> BackupManifest:
    """Write the manifest of what lies in a folder, for its owner alone; no vendor: no backup."""
    made = BackupManifest(
        version=__version__,
        vendor=vendor,
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        migrations=MigrationRecorder.Migration.objects.count(),
        files={path.name: hash_file(path) for path in sorted(folder.iterdir())},
    )
    text = json.dumps(asdict(made), indent=2)
    (folder / MANIFEST).write_text(f"{text}\n", encoding="utf-8")
    for path in folder.iterdir():
        path.chmod(0o600)
    return made


def read(folder: Path) -> BackupManifest:
    """Return what a folder's backup is, its digests compared; raises `Invalid`."""
    try:
        found = BackupManifest(**json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
        wrong = [name for name, known in found.files.items() if hash_file(folder / name) != known]
    except (OSError, ValueError, TypeError) as error:
        raise _build_invalid_backup_error(f"{str(folder)!r} holds no backup ({error}).") from error
    if wrong:
        raise _build_invalid_backup_error(f"These files aren't what was saved: {', '.join(wrong)}.")
    return found


def restore(folder: Path, *, database: Database, var: Path) -> BackupManifest:
    """Put a backup back, with every process stopped; what was there is kept beside it.

    SQLite's file is renamed to `….before-restore`; in PostgreSQL one transaction replaces the
    tables, so that a failure changes nothing. Raises `Invalid`, `Unavailable`.
    """
    found = read(folder)
    if found.vendor != ("sqlite" if is_sqlite(database) else "postgresql"):
        raise _build_invalid_backup_error(
            f"It is a backup of {found.vendor}, and `DATABASE_URL` names another one."
        )
    if is_sqlite(database):
        _put_sqlite(folder / "database.sqlite3", Path(database["NAME"]))
    else:
        options = ("--clean", "--if-exists", "--no-owner", "--single-transaction")
        named = f"--dbname={database['NAME']}"
        _run("pg_restore", database, *options, named, str(folder / "database.pgdump"))
    for archive, where in FOLDERS.items():
        if archive in found.files:
            target = Path(settings.BONOBOT_AUDIT_HEADS) if where == "audit-heads" else var / where
            _extract_archive(folder / archive, target)
    return found


def hash_file(path: Path) -> str:
    """Return a file's SHA-256."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found.update(block)
    return found.hexdigest()


def _copy_sqlite(source: Path, target: Path) -> None:
    try:
        with closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=60)) as link:
            link.execute("VACUUM INTO ?", [str(target)])
        with closing(sqlite3.connect(target)) as link:
            (said,) = link.execute("PRAGMA integrity_check").fetchone()
    except sqlite3.Error as error:
        raise _build_backup_failed_error(
            f"SQLite couldn't copy {str(source)!r}: {error}"
        ) from error
    if said != "ok":
        raise _build_backup_failed_error(f"The copy of {str(source)!r} isn't whole: {said}")


def _put_sqlite(source: Path, target: Path) -> None:
    draft = target.with_name(f".{target.name}.restoring")
    shutil.copyfile(source, draft)
    draft.chmod(0o600)
    for suffix in ("", "-wal", "-shm"):
        old = target.with_name(target.name + suffix)
        if old.exists():
            old.replace(target.with_name(f"{target.name}.before-restore{suffix}"))
    draft.replace(target)


def _run(program: str, database: Database, *arguments: str) -> None:
    """Run one of PostgreSQL's programs, the password in its environment."""
    path = shutil.which(program)
    if path is None:
        raise ServiceUnavailable(
            f"`{program}` isn't installed.",
            code="program_missing",
            remedy="Install PostgreSQL's client programs, of the server's version or newer.",
        )
    named = {"HOST": "PGHOST", "PORT": "PGPORT", "USER": "PGUSER", "PASSWORD": "PGPASSWORD"}
    given = {theirs: str(database[ours]) for ours, theirs in named.items() if database.get(ours)}
    env = {**os.environ, **given, "PGDATABASE": str(database["NAME"])}
    ended = subprocess.run(  # noqa: S603 - a program of the administrator's, no shell
        [path, "--no-password", *arguments], capture_output=True, check=False, env=env, text=True
    )
    if ended.returncode:
        raise _build_backup_failed_error(f"`{program}` failed: {ended.stderr.strip()[:2_000]}")


def _archive_folder(source: Path, target: Path, name: str) -> None:
    if source.is_dir():
        with tarfile.open(target, "w:gz") as archive:
            archive.add(source, arcname=name)


def _extract_archive(source: Path, target: Path) -> None:
    """Unpack beside the target and put it in its place; what was there is kept."""
    draft = target.with_name(f".{target.name}.restoring")
    shutil.rmtree(draft, ignore_errors=True)
    with tarfile.open(source, "r:gz") as archive:
        archive.extractall(draft, members=_filter_members(archive), filter="data")
    kept = target.with_name(f"{target.name}.before-restore")
    shutil.rmtree(kept, ignore_errors=True)
    if target.exists():
        target.replace(kept)
    (inner,) = draft.iterdir()
    inner.replace(target)
    draft.rmdir()


def _filter_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield files and folders; links in workspaces may lead anywhere, and stay behind."""
    return (one for one in archive if one.isfile() or one.isdir())


def _build_invalid_backup_error(detail: str) -> InvalidInput:
    remedy = "Name a folder that `bonobot backup` wrote."
    return InvalidInput(detail, code="backup_unfit", field="FOLDER", remedy=remedy)


def _build_backup_failed_error(detail: str) -> ServiceUnavailable:
    return ServiceUnavailable(
        detail, code="backup_failed", remedy="Nothing was changed; try again."
    )
