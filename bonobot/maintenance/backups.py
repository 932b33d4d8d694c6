"""Back up and restore database and files.

SQLite is copied online (`VACUUM INTO`), PostgreSQL with `pg_dump`; agents' workspaces and the
signed checkpoints of the audit log become archives. `manifest.json` describes the backup and has a
digest of each file, which is checked before a restore. Credentials can't be decrypted without the
keys, which aren't part of a backup.
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
from pathlib import Path, PurePosixPath
from typing import Any

from django.conf import settings
from django.db.migrations.recorder import MigrationRecorder

from bonobot import __version__
from bonobot.core.db.database_url import is_sqlite
from bonobot.core.problems import Conflict, InvalidInput, ServiceUnavailable

MANIFEST_NAME = "manifest.json"
ARCHIVED_FOLDERS = {"workspaces.tar.gz": "workspaces", "audit-heads.tar.gz": "audit-heads"}
BLOCK_BYTES = 1 << 20

Database = Mapping[str, Any]


@dataclass(frozen=True)
class BackupManifest:
    """The version, database vendor, time and file digests of a backup."""

    version: str
    vendor: str
    made_at: str
    migrations: int
    files: Mapping[str, str]


def create_backup(
    folder: Path, *, database: Database, var: Path, workspaces: bool = True
) -> BackupManifest:
    """Write a backup to a new or empty folder; raises `Conflict`, `ServiceUnavailable`."""
    if folder.exists() and any(folder.iterdir()):
        raise Conflict(
            f"{str(folder)!r} isn't empty.",
            code="folder_not_empty",
            field="FOLDER",
            remedy="Specify a new folder for each backup.",
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = "database.sqlite3" if is_sqlite(database) else "database.pgdump"
    if is_sqlite(database):
        _copy_sqlite(Path(database["NAME"]), folder / name)
    else:
        _run_postgres_program(
            "pg_dump", database, "--format=custom", "--no-owner", f"--file={folder / name}"
        )
    if workspaces:
        heads_folder = Path(settings.BONOBOT_AUDIT_HEADS)
        for archive, folder_name in ARCHIVED_FOLDERS.items():
            _archive_folder(
                heads_folder if folder_name == "audit-heads" else var / folder_name,
                folder / archive,
                folder_name,
            )
    return write_manifest(folder, vendor="sqlite" if is_sqlite(database) else "postgresql")


def write_manifest(folder: Path, *, vendor: str = "") -> BackupManifest:
    """Write the manifest of a folder and make its files private; no vendor: not a backup."""
    manifest = BackupManifest(
        version=__version__,
        vendor=vendor,
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        migrations=MigrationRecorder.Migration.objects.count(),
        files={path.name: hash_file(path) for path in sorted(folder.iterdir())},
    )
    text = json.dumps(asdict(manifest), indent=2)
    (folder / MANIFEST_NAME).write_text(f"{text}\n", encoding="utf-8")
    for path in folder.iterdir():
        path.chmod(0o600)
    return manifest


def read_backup(folder: Path) -> BackupManifest:
    """Return the manifest of a backup after checking its digests; raises `InvalidInput`."""
    try:
        manifest = BackupManifest(
            **json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
        )
        changed_files = [
            name for name, digest in manifest.files.items() if hash_file(folder / name) != digest
        ]
    except (OSError, ValueError, RecursionError, TypeError) as error:
        raise _build_invalid_backup_error(
            f"{str(folder)!r} doesn't contain a backup ({error})."
        ) from error
    if changed_files:
        raise _build_invalid_backup_error(
            f"These files differ from the saved ones: {', '.join(changed_files)}."
        )
    return manifest


def restore_backup(folder: Path, *, database: Database, var: Path) -> BackupManifest:
    """Restore a backup; every process must be stopped.

    The current SQLite file and folders are kept as `….before-restore`; in PostgreSQL one
    transaction replaces the tables, so that a failure changes nothing. Raises `InvalidInput`,
    `ServiceUnavailable`.
    """
    manifest = read_backup(folder)
    if manifest.vendor != ("sqlite" if is_sqlite(database) else "postgresql"):
        raise _build_invalid_backup_error(
            f"It is a backup of {manifest.vendor}, but `DATABASE_URL` is for another database."
        )
    if is_sqlite(database):
        _restore_sqlite(folder / "database.sqlite3", Path(database["NAME"]))
    else:
        options = ("--clean", "--if-exists", "--no-owner", "--single-transaction")
        database_option = f"--dbname={database['NAME']}"
        _run_postgres_program(
            "pg_restore", database, *options, database_option, str(folder / "database.pgdump")
        )
    for archive, folder_name in ARCHIVED_FOLDERS.items():
        if archive in manifest.files:
            target = (
                Path(settings.BONOBOT_AUDIT_HEADS)
                if folder_name == "audit-heads"
                else var / folder_name
            )
            _extract_archive(folder / archive, target)
    return manifest


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _copy_sqlite(source: Path, target: Path) -> None:
    try:
        with closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=60)) as connection:
            connection.execute("VACUUM INTO ?", [str(target)])
        with closing(sqlite3.connect(target)) as connection:
            (check_result,) = connection.execute("PRAGMA integrity_check").fetchone()
    except sqlite3.Error as error:
        raise _build_backup_failed_error(
            f"SQLite couldn't copy {str(source)!r}: {error}"
        ) from error
    if check_result != "ok":
        raise _build_backup_failed_error(
            f"The copy of {str(source)!r} is incomplete: {check_result}"
        )


def _restore_sqlite(source: Path, target: Path) -> None:
    draft = target.with_name(f".{target.name}.restoring")
    shutil.copyfile(source, draft)
    draft.chmod(0o600)
    for suffix in ("", "-wal", "-shm"):
        old = target.with_name(target.name + suffix)
        if old.exists():
            old.replace(target.with_name(f"{target.name}.before-restore{suffix}"))
    draft.replace(target)


def _run_postgres_program(program: str, database: Database, *arguments: str) -> None:
    """Run a PostgreSQL client program with the password in its environment."""
    path = shutil.which(program)
    if path is None:
        raise ServiceUnavailable(
            f"`{program}` isn't installed.",
            code="program_missing",
            remedy="Install PostgreSQL's client programs in the server's version or newer.",
        )
    variables = {"HOST": "PGHOST", "PORT": "PGPORT", "USER": "PGUSER", "PASSWORD": "PGPASSWORD"}
    connection_env = {
        variable: str(database[setting])
        for setting, variable in variables.items()
        if database.get(setting)
    }
    env = {**os.environ, **connection_env, "PGDATABASE": str(database["NAME"])}
    completed = subprocess.run(  # noqa: S603 - a program of the administrator's, no shell
        [path, "--no-password", *arguments], capture_output=True, check=False, env=env, text=True
    )
    if completed.returncode:
        raise _build_backup_failed_error(f"`{program}` failed: {completed.stderr.strip()[:2_000]}")


def _archive_folder(source: Path, target: Path, name: str) -> None:
    if source.is_dir():
        with tarfile.open(target, "w:gz") as archive:
            archive.add(source, arcname=name)


def _extract_archive(source: Path, target: Path) -> None:
    """Unpack next to the target and replace it; the old folder is kept."""
    draft = target.with_name(f".{target.name}.restoring")
    shutil.rmtree(draft, ignore_errors=True)
    with tarfile.open(source, "r:gz") as archive:
        # Python 3.11.0 to 3.11.3 (as in Debian 12) have no filters: `_filter_members` suffices.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(draft, members=_filter_members(archive))  # noqa: S202 - see above
    previous = target.with_name(f"{target.name}.before-restore")
    shutil.rmtree(previous, ignore_errors=True)
    if target.exists():
        target.replace(previous)
    (inner,) = draft.iterdir()
    inner.replace(target)
    draft.rmdir()


def _filter_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield files and folders inside the target, but no links, as those may point anywhere."""
    for member in archive:
        path = PurePosixPath(member.name)
        is_inside = not path.is_absolute() and ".." not in path.parts
        if is_inside and (member.isfile() or member.isdir()):
            yield member


def _build_invalid_backup_error(detail: str) -> InvalidInput:
    remedy = "Choose a folder that was created by `bonobot backup`."
    return InvalidInput(detail, code="invalid_backup", field="FOLDER", remedy=remedy)


def _build_backup_failed_error(detail: str) -> ServiceUnavailable:
    return ServiceUnavailable(
        detail, code="backup_failed", remedy="Nothing was changed; try again."
    )
