"""The settings: defaults, the effects of each service, and invalid values."""

import importlib
import os
import runpy
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.cache.backends.filebased import FileBasedCache
from django.core.exceptions import ImproperlyConfigured

from bonobot import settings
from bonobot.celery import app
from bonobot.core.crypto.key_files import generate_field_key, generate_signing_key
from bonobot.jobs import queues
from bonobot.settings import accounts, limits

FILE = Path(__file__).parents[3] / "bonobot" / "settings" / "__init__.py"


@pytest.fixture
def var(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Remove the variables of this run and set a new data folder."""
    for name in list(os.environ):
        if name.startswith(("BONOBOT_", "DATABASE_URL", "REDIS_URL")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BONOBOT_VAR", str(tmp_path / "var"))
    return tmp_path / "var"


def load_settings() -> dict[str, Any]:
    """Load the settings from the current environment."""
    for section in (limits, accounts):
        importlib.reload(section)
    return runpy.run_path(str(FILE))


def read_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_defaults_are_local_and_private(var: Path) -> None:
    values = load_settings()
    assert values["DEBUG"] is False
    assert values["ALLOWED_HOSTS"] == ["localhost", "127.0.0.1", "[::1]"]
    assert values["DATABASES"]["default"]["NAME"] == var / "bonobot.sqlite3"
    assert values["CACHES"]["default"]["BACKEND"].endswith("FileBasedCache")
    assert values["CELERY_BROKER_URL"].startswith("filesystem://")
    assert values["BONOBOT_URL"] == "http://127.0.0.1:8000"
    assert values["SESSION_COOKIE_SECURE"] is False


def test_keys_are_created_once_and_readable_only_by_the_owner(var: Path) -> None:
    first, second = load_settings(), load_settings()
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
    assert {read_mode(file) for file in files} == {0o600}
    assert read_mode(var) == read_mode(var / "keys") == 0o700


def test_configured_keys_are_used_and_none_is_created(
    var: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = generate_field_key(), generate_field_key()
    monkeypatch.setenv("BONOBOT_SECRET_KEY", "s" * 60)
    monkeypatch.setenv("BONOBOT_SECRET_KEY_FALLBACKS", f"{'a' * 60},{'b' * 60}")
    monkeypatch.setenv("BONOBOT_FIELD_KEYS", f"{new},{old}")
    monkeypatch.setenv("BONOBOT_TOKEN_PEPPERS", f"1:{'p' * 40},2:{'q' * 40}")
    signing_key = generate_signing_key()
    monkeypatch.setenv("BONOBOT_AUDIT_KEYS", signing_key)
    values = load_settings()
    assert values["BONOBOT_AUDIT_KEYS"] == [signing_key]
    assert values["SECRET_KEY"] == "s" * 60
    assert values["SECRET_KEY_FALLBACKS"] == ["a" * 60, "b" * 60]
    assert values["FIELD_ENCRYPTION_KEY"] == [new, old]
    assert values["BONOBOT_TOKEN_PEPPERS"] == {1: "p" * 40, 2: "q" * 40}
    assert not (var / "keys").exists()


def test_without_redis_the_processes_of_a_host_share_a_private_cache(var: Path) -> None:
    options = load_settings()["CACHES"]["default"]
    assert options["LOCATION"] == var / "cache"
    here, there = (FileBasedCache(options["LOCATION"], options) for _ in range(2))
    here.set("failed_attempts", 3)
    assert there.get("failed_attempts") == 3
    assert read_mode(var / "cache") == 0o700


def test_the_filesystem_broker_is_fast_and_private(var: Path) -> None:
    values = load_settings()["CELERY_BROKER_TRANSPORT_OPTIONS"]
    assert values["data_folder_in"] == values["data_folder_out"]
    assert values["polling_interval"] == 0.1
    for folder in (values["data_folder_in"], values["control_folder"], str(var / "broker")):
        assert read_mode(Path(folder)) == 0o700


@pytest.mark.usefixtures("var")
def test_postgresql_and_redis_replace_the_files(var: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://app:pw@db/bonobot")
    monkeypatch.setenv("REDIS_URL", "rediss://:pw@cache:6380/1")
    monkeypatch.setenv("BONOBOT_DATABASE_POOL", "9")
    values = load_settings()
    assert values["DATABASES"]["default"]["ENGINE"].endswith("postgresql")
    assert values["DATABASES"]["default"]["OPTIONS"]["pool"]["max_size"] == 9
    assert values["CACHES"]["default"]["LOCATION"] == "rediss://:pw@cache:6380/1"
    assert values["CELERY_BROKER_URL"] == "rediss://:pw@cache:6380/1"
    assert values["CACHES"]["default"]["KEY_PREFIX"] == "bonobot"
    assert values["CELERY_BROKER_TRANSPORT_OPTIONS"] == {"global_keyprefix": "bonobot:"}
    assert not (var / "broker").exists()


@pytest.mark.usefixtures("var")
def test_installations_share_a_redis_with_their_own_prefixes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://cache/1")
    monkeypatch.setenv("BONOBOT_REDIS_PREFIX", "second")
    values = load_settings()
    assert values["CACHES"]["default"]["KEY_PREFIX"] == "second"
    assert values["CELERY_BROKER_TRANSPORT_OPTIONS"] == {"global_keyprefix": "second:"}


@pytest.mark.usefixtures("var")
def test_cookies_and_hsts_follow_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BONOBOT_URL", "https://bots.example.com/")
    values = load_settings()
    assert values["BONOBOT_URL"] == "https://bots.example.com"
    assert "bots.example.com" in values["ALLOWED_HOSTS"]
    assert values["CSRF_TRUSTED_ORIGINS"] == ["https://bots.example.com"]
    assert values["SESSION_COOKIE_SECURE"] is values["CSRF_COOKIE_SECURE"] is True
    assert values["SESSION_COOKIE_NAME"].startswith("__Host-")
    assert values["CSRF_COOKIE_NAME"].startswith("__Host-")
    assert values["SECURE_HSTS_SECONDS"] > 0


@pytest.mark.usefixtures("var")
def test_configured_hosts_replace_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BONOBOT_URL", "http://[fd00::1]:9000")
    monkeypatch.setenv("BONOBOT_ALLOWED_HOSTS", "bots.internal, bots")
    assert load_settings()["ALLOWED_HOSTS"] == ["bots.internal", "bots", "[fd00::1]"]


def test_every_setting_can_be_read_from_a_file(var: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = var.parent / "url"
    file.write_text("postgresql://app:from-a-file@db/bonobot\n", encoding="utf-8")
    monkeypatch.setenv("DATABASE_URL_FILE", str(file))
    assert load_settings()["DATABASES"]["default"]["PASSWORD"] == "from-a-file"


@pytest.mark.usefixtures("var")
def test_the_products_interpreter_is_always_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"npx", "uvx", "docker", sys.executable} <= set(load_settings()["BONOBOT_LAUNCHERS"])
    monkeypatch.setenv("BONOBOT_LAUNCHERS", "podman")
    assert load_settings()["BONOBOT_LAUNCHERS"] == ("podman", *settings.list_interpreter_paths())


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
        load_settings()


@pytest.mark.usefixtures("var")
def test_the_scheduler_sends_existing_tasks_and_never_piles_them_up() -> None:
    app.loader.import_default_modules()
    for entry in load_settings()["CELERY_BEAT_SCHEDULE"].values():
        assert entry["task"] in app.tasks
        assert entry["options"]["expires"] < entry["schedule"]


@pytest.mark.usefixtures("var")
def test_messages_have_no_results() -> None:
    values = load_settings()
    assert values["CELERY_TASK_IGNORE_RESULT"] is True
    assert values["CELERY_TASK_ACKS_LATE"] is False
    assert values["CELERY_WORKER_PREFETCH_MULTIPLIER"] == 1
    assert values["CELERY_WORKER_POOL"] == "threads"
    assert values["CELERY_ACCEPT_CONTENT"] == ["json"]
    assert {queue.name for queue in values["CELERY_TASK_QUEUES"]} == {
        route["queue"] for route in values["CELERY_TASK_ROUTES"].values()
    }


@pytest.mark.parametrize(
    ("task", "queue"),
    [
        ("mcp_servers.tasks.check_due_servers", "health"),
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
