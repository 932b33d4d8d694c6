"""A restored backup is unchanged; keys aren't part of it."""

import json
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as used
from django.db import connection
from pytest_django import Settings

from agents.models import ModelEndpoint
from bonobot.accounts.models import Organization
from bonobot.core.problems import Conflict, InvalidInput, ServiceUnavailable
from bonobot.maintenance import backups
from tests.processes import build_environment

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "sk-very-secret-123"


@pytest.fixture
def var(tmp_path: Path, settings: Settings) -> Path:
    """A data folder with a workspace, audit checkpoints and keys."""
    folder = tmp_path / "var"
    for name in ("workspaces/acme/a.txt", "audit-heads/2026-11.jsonl", "keys/field_keys"):
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_text(f"{name}\n", encoding="utf-8")
    (folder / "workspaces" / "acme" / "link").symlink_to("/etc/passwd")
    settings.BONOBOT_AUDIT_HEADS = folder / "audit-heads"
    return folder


@pytest.fixture
def acme() -> Organization:
    organization = Organization.objects.create(name="Acme", slug="acme")
    ModelEndpoint.objects.create(
        organization=organization, name="m", slug="m", model="m", api_key=SECRET
    )
    return organization


def build_database_settings() -> dict[str, Any]:
    return {**used.DATABASES["default"], **connection.settings_dict}


def create_backup(folder: Path, var: Path) -> backups.BackupManifest:
    return backups.create_backup(folder, database=build_database_settings(), var=var)


def require_sqlite() -> None:
    if connection.vendor != "sqlite":
        pytest.skip("SQLite only")


def test_a_backup_contains_the_database_and_folders_and_no_keys(
    tmp_path: Path, var: Path, acme: Organization
) -> None:
    manifest = create_backup(tmp_path / "saved", var)
    assert manifest.migrations > 50
    names = sorted(path.name for path in (tmp_path / "saved").iterdir())
    kind = "database.sqlite3" if manifest.vendor == "sqlite" else "database.pgdump"
    assert names == ["audit-heads.tar.gz", kind, "manifest.json", "workspaces.tar.gz"]
    for path in (tmp_path / "saved").iterdir():
        assert path.stat().st_mode & 0o077 == 0
        assert SECRET.encode() not in path.read_bytes()
    assert backups.read_backup(tmp_path / "saved") == manifest


def test_a_restored_backup_is_unchanged_and_decrypts_with_the_keys(
    tmp_path: Path, var: Path, acme: Organization
) -> None:
    require_sqlite()
    create_backup(tmp_path / "saved", var)
    target = tmp_path / "elsewhere.sqlite3"
    target.write_bytes(b"what was there")
    (var / "workspaces" / "acme" / "a.txt").write_text("changed", encoding="utf-8")
    url = f"sqlite:///{target}"
    env = build_environment({"DATABASE_URL": url, "BONOBOT_AUDIT_HEADS": str(var / "audit-heads")})
    result = subprocess.run(
        [sys.executable, "-m", "bonobot", "restore", tmp_path / "saved", "--yes", "--json"],
        capture_output=True,
        check=False,
        env=env,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["unopened"] == []
    with closing(sqlite3.connect(target)) as link:
        assert link.execute("SELECT slug FROM tenancy_organization").fetchall() == [("acme",)]
    assert (tmp_path / "elsewhere.sqlite3.before-restore").read_bytes() == b"what was there"


def test_workspaces_are_restored_without_links_to_the_outside(
    tmp_path: Path, var: Path, acme: Organization
) -> None:
    require_sqlite()
    create_backup(tmp_path / "saved", var)
    file = var / "workspaces" / "acme" / "a.txt"
    file.write_text("changed", encoding="utf-8")
    target = {**build_database_settings(), "NAME": tmp_path / "elsewhere.sqlite3"}
    backups.restore_backup(tmp_path / "saved", database=target, var=var)
    assert file.read_text(encoding="utf-8") == "workspaces/acme/a.txt\n"
    assert sorted(path.name for path in file.parent.iterdir()) == ["a.txt"]
    previous = var / "workspaces.before-restore" / "acme" / "a.txt"
    assert previous.read_text(encoding="utf-8") == "changed"


def test_files_outside_of_an_archives_folder_arent_restored(
    tmp_path: Path, var: Path, acme: Organization
) -> None:
    require_sqlite()
    create_backup(tmp_path / "saved", var)
    archive_path = tmp_path / "saved" / "workspaces.tar.gz"
    with tarfile.open(archive_path, "w:gz") as archive:
        for name in ("workspaces/a.txt", "workspaces/../../b.txt", "/c.txt"):
            archive.addfile(tarfile.TarInfo(name))
    manifest_path = tmp_path / "saved" / "manifest.json"
    manifest = json.loads(manifest_path.read_text(encoding="utf-8"))
    manifest["files"][archive_path.name] = backups.hash_file(archive_path)
    manifest_path.write_text(json.dumps(manifest), encoding="utf-8")
    target = {**build_database_settings(), "NAME": tmp_path / "elsewhere.sqlite3"}
    backups.restore_backup(tmp_path / "saved", database=target, var=var)
    assert [path.name for path in (var / "workspaces").rglob("*")] == ["a.txt"]
    assert not [path for path in tmp_path.rglob("*") if path.name in {"b.txt", "c.txt"}]


def test_a_modified_archive_isnt_restored(tmp_path: Path, var: Path, acme: Organization) -> None:
    create_backup(tmp_path / "saved", var)
    with (tmp_path / "saved" / "workspaces.tar.gz").open("ab") as file:
        file.write(b"x")
    with pytest.raises(InvalidInput, match=r"workspaces\.tar\.gz"):
        backups.restore_backup(tmp_path / "saved", database=build_database_settings(), var=var)
    with pytest.raises(InvalidInput):
        backups.read_backup(tmp_path)


def test_an_existing_backup_isnt_overwritten(tmp_path: Path, var: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Conflict) as caught:
        create_backup(tmp_path, var)
    assert caught.value.code == "folder_not_empty"


def test_a_missing_program_is_reported(
    tmp_path: Path, var: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceUnavailable) as caught:
        backups._run_postgres_program("pg_dump", {"NAME": "x"})
    assert caught.value.code == "program_missing"


@pytest.mark.postgres
def test_postgresql_can_be_restored_into_another_database(
    tmp_path: Path, var: Path, acme: Organization
) -> None:
    manifest = create_backup(tmp_path / "saved", var)
    other = f"{connection.settings_dict['NAME']}_restored"
    with connection.cursor() as cursor:
        cursor.execute(f'DROP DATABASE IF EXISTS "{other}"')
        cursor.execute(f'CREATE DATABASE "{other}"')
    try:
        target = {**build_database_settings(), "NAME": other}
        assert backups.restore_backup(tmp_path / "saved", database=target, var=var) == manifest
        backups.restore_backup(tmp_path / "saved", database=target, var=var)
        backups._run_postgres_program(
            "psql", target, "--command=SELECT 1 / count(*) FROM tenancy_organization"
        )
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f'DROP DATABASE "{other}"')
