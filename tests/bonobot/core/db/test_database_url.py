"""`DATABASE_URL`: two databases, a reason for every error, no password shown."""

import os
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from bonobot.core.db.database_url import build_database_settings


def build_settings(url: str, var: Path = Path("/var/bonobot")) -> dict[str, Any]:
    return build_database_settings(url, var=var, pool_size=7)


def test_without_a_url_sqlite_is_stored_in_var() -> None:
    database = build_settings("")
    assert database["ENGINE"] == "bonobot.core.db.sqlite"
    assert database["NAME"] == Path("/var/bonobot/bonobot.sqlite3")
    assert database["OPTIONS"]["transaction_mode"] == "IMMEDIATE"
    assert database["OPTIONS"]["timeout"] == 20
    assert "journal_mode=WAL" in database["OPTIONS"]["init_command"]


def test_each_test_process_has_its_own_database() -> None:
    assert str(os.getpid()) in str(build_settings("")["TEST"]["NAME"])
    assert build_settings("postgres:///x")["TEST"]["NAME"] == f"test_bonobot_{os.getpid()}"


def test_three_slashes_are_a_relative_and_four_an_absolute_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert build_settings("sqlite:///data%20x.db")["NAME"] == tmp_path / "data x.db"
    assert build_settings(f"sqlite:///{tmp_path}/data.db")["NAME"] == tmp_path / "data.db"


def test_a_postgresql_url_is_parsed() -> None:
    database = build_settings("postgresql://us%40er:p%3Aw%2Fd@db.example:6432/name?sslmode=require")
    assert database["ENGINE"] == "django.db.backends.postgresql"
    assert (database["USER"], database["PASSWORD"]) == ("us@er", "p:w/d")
    assert (database["HOST"], database["PORT"], database["NAME"]) == ("db.example", "6432", "name")
    assert database["OPTIONS"]["sslmode"] == "require"
    assert database["OPTIONS"]["pool"] == {"min_size": 1, "max_size": 7, "timeout": 10}
    assert database["CONN_MAX_AGE"] == 0


def test_a_postgresql_socket_is_set_by_an_option() -> None:
    database = build_settings("postgres:///name?host=/run/postgresql&connect_timeout=3")
    assert (database["HOST"], database["PORT"]) == ("/run/postgresql", "")
    assert database["OPTIONS"]["connect_timeout"] == "3"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://u:hunter2@h/n", "its scheme is 'mysql'"),
        ("just words", "its scheme is ''"),
        ("postgres://u:hunter2@h", "one database name"),
        ("postgres://u:hunter2@h/", "one database name"),
        ("postgres://u:hunter2@h/a/b", "one database name"),
        ("postgres://u:hunter2@h:99999/n", "host or port"),
        ("postgres://u:hunter2@h:five/n", "host or port"),
        ("postgres://u:hunter2@[::1/n", "host or port"),
        ("postgres://u:hunter2#x@h/n", "write `#` as `%23`"),
        ("postgres://u:hunter2/x@h/n", "`/` as `%2F`"),
        ("postgres://u:hunter2@h/n?sslmod=require", "sslmod"),
        ("postgres://u:hunter2@h/n?sslmode", "unusable"),
        ("sqlite://", "a path after three slashes"),
        ("sqlite:///", "a path after three slashes"),
        ("sqlite://host/file", "a path after three slashes"),
        ("sqlite:///file?mode=ro", "a path after three slashes"),
        ("sqlite:////no/such/folder/file", "doesn't exist"),
    ],
)
def test_an_invalid_url_is_refused_with_its_reason_and_without_its_password(
    url: str, reason: str
) -> None:
    with pytest.raises(ImproperlyConfigured, match=reason) as raised:
        build_settings(url)
    assert str(raised.value).startswith("`DATABASE_URL` must be like")
    assert "hunter2" not in str(raised.value)
