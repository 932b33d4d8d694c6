"""Logs: readable at a terminal, JSON elsewhere, with ids, without secrets."""

import json
import logging
import logging.config
import sys
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest

from bonobot.core.telemetry import logging as telemetry_logging
from bonobot.core.text import masking
from bonobot.core.text.masking import MASK


def build_record(message: str, *args: object, **extra: Any) -> logging.LogRecord:
    logger = logging.getLogger("bonobot.trial")
    return logger.makeRecord(logger.name, logging.INFO, "f", 1, message, args, None, extra=extra)


def build_failed_record(error: Exception) -> logging.LogRecord:
    log_record = build_record("Failed")
    try:
        raise error
    except type(error):
        log_record.exc_info = sys.exc_info()
    return log_record


def format_json(log_record: logging.LogRecord) -> dict[str, Any]:
    line = telemetry_logging.JSONFormatter().format(log_record)
    assert "\n" not in line
    assert line.isascii()
    entry = json.loads(line)
    assert isinstance(entry, dict)
    return entry


def format_text(log_record: logging.LogRecord) -> str:
    return telemetry_logging.TextFormatter().format(log_record)


def test_json_logs_have_all_fields() -> None:
    entry = format_json(build_record("Connected to %s", "git", server="s1", latency_ms=12))
    assert entry.pop("time").endswith("+00:00")
    assert entry == {
        "level": "info",
        "logger": "bonobot.trial",
        "message": "Connected to git",
        "server": "s1",
        "latency_ms": 12,
    }


def test_text_logs_are_one_line() -> None:
    line = format_text(build_record("Connected to %s", "git", latency_ms=12))
    assert line[8:] == " INFO    bonobot.trial: Connected to git (latency_ms=12)"


def test_every_record_has_the_ids_of_its_context() -> None:
    with (
        telemetry_logging.LogContext(request="r-1", call="c-1"),
        telemetry_logging.LogContext(session="s-1", call="c-2"),
    ):
        entry = format_json(build_record("inside"))
        assert (entry["request"], entry["session"], entry["call"]) == ("r-1", "s-1", "c-2")
        assert "(request=r-1 session=s-1 call=c-2)" in format_text(build_record("inside"))
    assert "request" not in format_json(build_record("outside"))


def test_other_threads_dont_inherit_the_ids() -> None:
    ids: list[str] = []
    with telemetry_logging.LogContext(call="c-1"):
        thread = Thread(target=lambda: ids.append(telemetry_logging.call_id.get()))
        thread.start()
        thread.join()
    assert ids == [""]


@pytest.mark.parametrize(
    "render", [format_text, lambda log_record: json.dumps(format_json(log_record))]
)
def test_secrets_never_reach_a_log(render: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_memory", type(masking._memory)())
    masking.register_secret("opened-secret-1")
    records = [
        build_record("sent %s", {"Authorization": "Bearer abc123def456"}),
        build_record("opened-secret-1"),
        build_record("x", token="abc123", headers={"X-Api-Key": "abc123"}),
        build_failed_record(ValueError("refused opened-secret-1")),
    ]
    for log_record in records:
        line = render(log_record)
        assert MASK in line
        assert "abc123" not in line
        assert "opened-secret" not in line


def test_logged_text_cant_forge_a_line() -> None:
    line = format_text(build_record("name: %s", "x\n12:00:00 INFO root: all is well\u202e\x1b[2J"))
    assert "\n" not in line
    assert "⟨U+202E⟩" in line
    assert "⟨U+001B⟩" in line


def test_an_exception_is_logged_with_its_traceback() -> None:
    assert "LookupError: gone" in format_json(build_failed_record(LookupError("gone")))["traceback"]
    assert format_text(build_failed_record(LookupError("gone"))).endswith("LookupError: gone")


def test_a_huge_message_is_truncated() -> None:
    assert len(format_json(build_record("x" * 100_000))["message"]) == telemetry_logging.MAX_MESSAGE
    assert len(format_text(build_record("x" * 100_000))) < telemetry_logging.MAX_MESSAGE + 100


def test_values_that_arent_json_are_logged_as_text() -> None:
    assert format_json(build_record("x", thing={1, 2} - {2}))["thing"] == "{1}"


def test_a_record_isnt_modified_for_other_handlers() -> None:
    log_record = build_record("password=%s", "hunter2")
    format_text(log_record)
    assert log_record.getMessage() == "password=hunter2"


@pytest.mark.usefixtures("_restore_logging")
def test_bad_requests_cant_fill_the_log_with_tracebacks(capsys: pytest.CaptureFixture[str]) -> None:
    logging.config.dictConfig(telemetry_logging.build_logging_config(level="INFO", style="text"))
    try:
        raise ValueError("evil.example")
    except ValueError:
        logging.getLogger("django.security.DisallowedHost").exception("evil.example")
    errors = capsys.readouterr().err
    assert "evil.example" in errors
    assert "Traceback" not in errors


@pytest.fixture
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level


@pytest.mark.parametrize(
    ("style", "terminal", "expected"),
    [
        ("auto", True, telemetry_logging.TextFormatter),
        ("auto", False, telemetry_logging.JSONFormatter),
        ("text", False, telemetry_logging.TextFormatter),
        ("json", True, telemetry_logging.JSONFormatter),
    ],
)
@pytest.mark.usefixtures("_restore_logging")
def test_the_style_follows_the_terminal_unless_it_is_set(
    monkeypatch: pytest.MonkeyPatch, style: str, terminal: bool, expected: type
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    logging.config.dictConfig(telemetry_logging.build_logging_config(level="WARNING", style=style))
    (handler,) = logging.getLogger().handlers
    assert type(handler.formatter) is expected
    assert logging.getLogger("bonobot.trial").isEnabledFor(logging.WARNING)
    assert not logging.getLogger("bonobot.trial").isEnabledFor(logging.INFO)
