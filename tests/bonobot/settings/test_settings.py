"""The settings: what holds when nothing is set, what each service changes, what is refused."""

import importlib
import os
import runpy
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from bonobot import settings
from bonobot.celery import app
from bonobot.core.crypto.key_files import generate_field_key, generate_signing_key
from bonobot.jobs import queues
from bonobot.settings import accounts, limits

FILE = Path(__file__).parents[3] / "bonobot" / "settings" / "__init__.py"


@pytest.fixture
def var(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forget what this run has set, and give the settings a new folder."""
    for name in list(os.environ):
        if name.startswith(("BONOBOT_", "DATABASE_URL", "REDIS_URL")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BONOBOT_VAR", str(tmp_path / "var"))
    return tmp_path / "var"


def loaded() -> dict[str, Any]:
    """Return the settings as the environment makes them now."""
    for section in (limits, accounts):
        importlib.reload(section)
    return runpy.run_path(str(FILE))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_defaults_are_local_and_private(var: Path) -> None:
    found = loaded()
    assert found["DEBUG"] is False
    assert found["ALLOWED_HOSTS"] == ["localhost", "127.0.0.1", "[::1]"]
    assert found["DATABASES"]["default"]["NAME"] == var / "bonobot.sqlite3"
    assert found["CACHES"]["default"]["BACKEND"].endswith("LocMemCache")
    assert found["CELERY_BROKER_URL"].startswith("filesystem://")
    assert found["BONOBOT_URL"] == "http://127.0.0.1:8000"
    assert found["SESSION_COOKIE_SECURE"] is False


def test_keys_are_created_once_and_readable_only_by_the_owner(var: Path) -> None:
    first, second = loaded(), loaded()
    for name in (
        "SECRET_KEY",
        "FIELD_ENCRYPTION_KEY",
        "BONOBOT_TOKEN_PEPPERS",
        "BONOBOT_AUDIT_KEYS",
    ):
        assert first[name]
        assert first[name] == second[name]
    files = sorted((var / "keys").iterdir())
    assert [file.name for file in files] == [
        "audit_keys",
        "field_keys",
        "secret_key",
        "token_peppers",
    ]
    assert {mode(file) for file in files} == {0o600}
    assert mode(var) == mode(var / "keys") == 0o700


def test_configured_keys_are_used_and_none_is_created(
    var: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = generate_field_key(), generate_field_key()
    monkeypatch.setenv("BONOBOT_SECRET_KEY", "s" * 60)
    monkeypatch.setenv("BONOBOT_SECRET_KEY_FALLBACKS", f"{'a' * 60},{'b' * 60}")
    monkeypatch.setenv("BONOBOT_FIELD_KEYS", f"{new},{old}")
    monkeypatch.setenv("BONOBOT_TOKEN_PEPPERS", f"1:{'p' * 40},2:{'q' * 40}")
    signs = generate_signing_key()
    monkeypatch.setenv("BONOBOT_AUDIT_KEYS", signs)
    found = loaded()
    assert found["BONOBOT_AUDIT_KEYS"] == [signs]
    assert found["SECRET_KEY"] == "s" * 60
    assert found["SECRET_KEY_FALLBACKS"] == ["a" * 60, "b" * 60]
    assert found["FIELD_ENCRYPTION_KEY"] == [new, old]
    assert found["BONOBOT_TOKEN_PEPPERS"] == {1: "p" * 40, 2: "q" * 40}
    assert not (var / "keys").exists()


def test_the_filesystem_broker_is_fast_and_private(var: Path) -> None:
    found = loaded()["CELERY_BROKER_TRANSPORT_OPTIONS"]
    assert found["data_folder_in"] == found["data_folder_out"]
    assert found["polling_interval"] == 0.1
    for folder in (found["data_folder_in"], found["control_folder"], str(var / "broker")):
        assert mode(Path(folder)) == 0o700


@pytest.mark.usefixtures("var")
def test_postgresql_and_redis_replace_the_files(var: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://app:pw@db/bonobot")
    monkeypatch.setenv("REDIS_URL", "rediss://:pw@cache:6380/1")
    monkeypatch.setenv("BONOBOT_DATABASE_POOL", "9")
    found = loaded()
    assert found["DATABASES"]["default"]["ENGINE"].endswith("postgresql")
    assert found["DATABASES"]["default"]["OPTIONS"]["pool"]["max_size"] == 9
    assert found["CACHES"]["default"]["LOCATION"] == "rediss://:pw@cache:6380/1"
    assert found["CELERY_BROKER_URL"] == "rediss://:pw@cache:6380/1"
    assert found["CACHES"]["default"]["KEY_PREFIX"] == "bonobot"
    assert found["CELERY_BROKER_TRANSPORT_OPTIONS"] == {"global_keyprefix": "bonobot:"}
    assert not (var / "broker").exists()


@pytest.mark.usefixtures("var")
def test_installations_share_a_redis_with_their_own_prefixes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://cache/1")
    monkeypatch.setenv("BONOBOT_REDIS_PREFIX", "second")
    found = loaded()
    assert found["CACHES"]["default"]["KEY_PREFIX"] == "second"
    assert found["CELERY_BROKER_TRANSPORT_OPTIONS"] == {"global_keyprefix": "second:"}


@pytest.mark.usefixtures("var")
def test_cookies_and_hsts_follow_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BONOBOT_URL", "https://bots.example.com/")
    found = loaded()
    assert found["BONOBOT_URL"] == "https://bots.example.com"
    assert "bots.example.com" in found["ALLOWED_HOSTS"]
    assert found["CSRF_TRUSTED_ORIGINS"] == ["https://bots.example.com"]
    assert found["SESSION_COOKIE_SECURE"] is found["CSRF_COOKIE_SECURE"] is True
    assert found["SESSION_COOKIE_NAME"].startswith("__Host-")
    assert found["CSRF_COOKIE_NAME"].startswith("__Host-")
    assert found["SECURE_HSTS_SECONDS"] > 0


@pytest.mark.usefixtures("var")
def test_configured_hosts_replace_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BONOBOT_URL", "http://[fd00::1]:9000")
    monkeypatch.setenv("BONOBOT_ALLOWED_HOSTS", "bots.internal, bots")
    assert loaded()["ALLOWED_HOSTS"] == ["bots.internal", "bots", "[fd00::1]"]


def test_every_setting_can_be_read_from_a_file(var: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = var.parent / "url"
    file.write_text("postgresql://app:from-a-file@db/bonobot\n", encoding="utf-8")
    monkeypatch.setenv("DATABASE_URL_FILE", str(file))
    assert loaded()["DATABASES"]["default"]["PASSWORD"] == "from-a-file"


@pytest.mark.usefixtures("var")
def test_the_products_interpreter_is_always_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"npx", "uvx", "docker", sys.executable} <= set(loaded()["BONOBOT_LAUNCHERS"])
    monkeypatch.setenv("BONOBOT_LAUNCHERS", "podman")
    assert loaded()["BONOBOT_LAUNCHERS"] == ("podman", *settings.list_interpreter_paths())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BONOBOT_URL", "bots.example.com"),
        ("BONOBOT_URL", "https://bots.example.com/path"),
        ("BONOBOT_URL", "https://user@bots.example.com"),
        ("BONOBOT_URL", "https://bots.example.com:http"),
        ("BONOBOT_URL", "ftp://bots.example.com"),
        ("BONOBOT_OAUTH_CLIENT_ID", "http://bots.example.com/client.json"),
        ("BONOBOT_OAUTH_CLIENT_ID", "https://bots.example.com"),
        ("BONOBOT_OAUTH_CLIENT_ID", "https://bots.example.com/client.json?a=b"),
        ("BONOBOT_CORS_ORIGINS", "https://a.example,*"),
        ("BONOBOT_DEBUG", "perhaps"),
        ("BONOBOT_LOG_LEVEL", "LOUD"),
        ("BONOBOT_LOG_FORMAT", "xml"),
        ("BONOBOT_TOOL_NAME_STYLE", "triple"),
        ("BONOBOT_FIELD_KEYS", "not-a-key"),
        ("BONOBOT_TOKEN_PEPPERS", "1:short"),
        ("BONOBOT_DATABASE_POOL", "0"),
        ("BONOBOT_CALLS_PER_MINUTE", "sixty"),
        ("BONOBOT_MAX_BODY", "1"),
        ("DATABASE_URL", "oracle://db"),
        ("REDIS_URL", "amqp://broker"),
        ("BONOBOT_EGRESS_PROXY", "socks5://proxy:1080"),
    ],
)
@pytest.mark.usefixtures("var")
def test_an_invalid_value_stops_the_start_and_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ImproperlyConfigured, match=f"`{name}` must"):
        loaded()


@pytest.mark.usefixtures("var")
def test_the_scheduler_sends_existing_tasks_and_never_piles_them_up() -> None:
    app.loader.import_default_modules()
    for entry in loaded()["CELERY_BEAT_SCHEDULE"].values():
        assert entry["task"] in app.tasks
        assert entry["options"]["expires"] < entry["schedule"]


@pytest.mark.usefixtures("var")
def test_messages_have_no_results() -> None:
    found = loaded()
    assert found["CELERY_TASK_IGNORE_RESULT"] is True
    assert found["CELERY_TASK_ACKS_LATE"] is False
    assert found["CELERY_WORKER_PREFETCH_MULTIPLIER"] == 1
    assert found["CELERY_WORKER_POOL"] == "threads"
    assert found["CELERY_ACCEPT_CONTENT"] == ["json"]
    assert {queue.name for queue in found["CELERY_TASK_QUEUES"]} == {
        route["queue"] for route in found["CELERY_TASK_ROUTES"].values()
    }


@pytest.mark.parametrize(
    ("task", "queue"),
    [
        ("mcp_servers.tasks.check_due", "health"),
        ("agents.tasks.sweep", "sweeps"),
        ("agents.tasks.run_session", "sessions"),
        ("elsewhere.tasks.any", "sweeps"),
    ],
)
def test_a_message_is_sent_to_one_queue(task: str, queue: str) -> None:
    options = app.amqp.router.route({}, task)
    bound = {(q.exchange.name, q.routing_key) for q in app.amqp.queues.values()}
    assert options["queue"].name == queue
    assert len(bound) == len(queues.QUEUE_NAMES)
