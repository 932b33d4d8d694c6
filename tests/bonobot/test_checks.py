import os
import sqlite3
from pathlib import Path

import pytest
from django.core import checks
from pytest_django import Settings

from bonobot.checks import KEY_VARIABLES, check_shared_services
from bonobot.core.db.database_url import build_database_settings

# Some checks of Django query the database.
pytestmark = pytest.mark.django_db


def list_ids(*tags: str, deploy: bool = False) -> set[str]:
    """Run all checks, or those with the tags, which is faster, and return the IDs of their
    messages, without those that the settings silence."""
    messages = checks.run_checks(
        tags=tags or None, include_deployment_checks=deploy, databases=["default"]
    )
    return {message.id or "" for message in messages if not message.is_silenced()}


def test_a_fresh_clone_has_no_warnings() -> None:
    assert list_ids() == set()


def test_a_laptop_deployment_gets_warnings_with_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for name in KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert {"bonobot.W101", "bonobot.W102", "bonobot.W105", "bonobot.W106"} <= list_ids(deploy=True)


def test_a_sqlite_deployment_is_warned_about_as_configured(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, tmp_path: Path
) -> None:
    database = build_database_settings(f"sqlite:////{tmp_path}/x", var=tmp_path, pool_size=1)
    monkeypatch.setitem(settings.DATABASES, "default", database)
    assert check_shared_services(None)[0].id == "bonobot.W103"


def test_a_complete_deployment_has_no_warnings(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    for name in KEY_VARIABLES:
        monkeypatch.setenv(name, "given")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    settings.BONOBOT_URL = "https://bonobot.example.com"
    settings.REDIS_URL = "redis://redis.internal/0"
    settings.BONOBOT_AUDIT_HEADS = Path("/srv/audit-heads")
    engine = "django.db.backends.postgresql"
    monkeypatch.setitem(settings.DATABASES["default"], "ENGINE", engine)
    assert list_ids(deploy=True) - set(settings.SILENCED_SYSTEM_CHECKS) == set()


@pytest.mark.parametrize("name", KEY_VARIABLES)
def test_one_generated_key_is_enough_for_the_warning(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in KEY_VARIABLES:
        monkeypatch.setenv(f"{variable}_FILE", "/run/secrets/key")
    assert "bonobot.W102" not in list_ids(checks.Tags.security, deploy=True)
    monkeypatch.delenv(f"{name}_FILE")
    assert "bonobot.W102" in list_ids(checks.Tags.security, deploy=True)


def test_an_old_sqlite_is_an_error(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    engine = "django.db.backends.sqlite3"
    monkeypatch.setitem(settings.DATABASES["default"], "ENGINE", engine)
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    assert "bonobot.E001" in list_ids()


def test_a_readable_key_is_an_error(tmp_path: Path, settings: Settings) -> None:
    settings.BONOBOT_VAR = tmp_path
    key = tmp_path / "keys" / "secret_key"
    key.parent.mkdir()
    key.write_text("key", encoding="utf-8")
    key.chmod(0o640)
    assert "bonobot.E002" in list_ids()
    key.chmod(0o600)
    assert "bonobot.E002" not in list_ids()


def test_a_misspelt_variable_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BONOBOT_ALOWED_HOSTS", "example.com")
    assert "bonobot.W001" in list_ids()


def test_services_that_need_one_machine_are_warned_about(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    settings.REDIS_URL = ""
    engine = "django.db.backends.sqlite3"
    monkeypatch.setitem(settings.DATABASES["default"], "ENGINE", engine)
    assert {"bonobot.W103", "bonobot.W104"} <= list_ids(deploy=True)
