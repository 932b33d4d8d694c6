"""Log formatters and configuration.

`LogContext(call="…")` adds the ids of a request, session or call to every record made inside it,
also in threads and tasks, because they are context variables.
"""

import json
import logging
import sys
import time
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

from bonobot.core.text import masking
from bonobot.core.text.untrusted_text import make_visible

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
STYLES = ("auto", "text", "json")
MAX_MESSAGE = 8_192
MAX_TRACEBACK = 32_768

request_id: ContextVar[str] = ContextVar("request_id", default="")
session_id: ContextVar[str] = ContextVar("session_id", default="")
call_id: ContextVar[str] = ContextVar("call_id", default="")
REQUEST_ID_BYTES = 4  # logs for people show the first eight digits of an ID
_CONTEXT = {"request": request_id, "session": session_id, "call": call_id}

# Attributes of every record, and those that repeat the message (Django's request, Celery's task
# data); all others come from `extra=`.
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {
    "asctime",
    "message",
    "taskName",
}
_REDUNDANT_ATTRIBUTES = frozenset({"color_message", "data", "request"})


def build_logging_config(*, level: str, style: str) -> dict[str, Any]:
    """Return Django's LOGGING; the style `auto` means `text` if stderr is a terminal."""
    if style == "auto":
        style = "text" if sys.stderr.isatty() else "json"
    quiet = "DEBUG" if level == "DEBUG" else "WARNING"
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "text": {"()": "bonobot.core.telemetry.logging.TextFormatter"},
            "json": {"()": "bonobot.core.telemetry.logging.JSONFormatter"},
        },
        "filters": {"brief": {"()": "bonobot.core.telemetry.logging.TracebackFilter"}},
        "handlers": {"console": {"class": "logging.StreamHandler", "formatter": style}},
        "root": {"handlers": ["console"], "level": level},
        # These log every request, message or frame at INFO.
        "loggers": {
            name: {"level": quiet}
            for name in (
                *("asyncio", "celery.app.trace", "celery.beat", "celery.worker.strategy"),
                *("httpcore2", "httpx", "httpx2", "kombu", "mcp", "openai"),
            )
        }
        # These have their own handlers: use ours instead.
        | {
            name: {"handlers": [], "propagate": True}
            for name in ("django", "django.server", "uvicorn", "uvicorn.error")
        }
        | {"uvicorn.access": {"handlers": [], "level": quiet}}
        # Anyone can send a wrong Host header: no traceback needed.
        | {"django.security.DisallowedHost": {"filters": ["brief"]}},
    }


def set_new_request_id() -> None:
    """Give the log records of the current context a new request ID."""
    request_id.set(token_hex(REQUEST_ID_BYTES))


class LogContext:
    """Adds ids to every record made inside."""

    __slots__ = ("_tokens", "_values")

    def __init__(self, *, request: str = "", session: str = "", call: str = "") -> None:
        self._values = ((request_id, request), (session_id, session), (call_id, call))
        self._tokens: list[tuple[ContextVar[str], Token[str]]] = []

    def __enter__(self) -> None:
        """Set the ids that aren't blank."""
        self._tokens = [(name, name.set(value)) for name, value in self._values if value]

    def __exit__(self, *_error: object) -> None:
        """Restore the previous ids."""
        for name, token in reversed(self._tokens):
            name.reset(token)


class TracebackFilter(logging.Filter):
    """Removes tracebacks from records."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass the record without its exception."""
        record.exc_info = record.exc_text = None
        return True


class JSONFormatter(logging.Formatter):
    """Formats records as one JSON object per line, for programs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line, masked."""
        masker = masking.get_process_masker()
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": masker.mask_text(record.getMessage())[:MAX_MESSAGE],
        }
        entry |= _collect_context()
        if traceback := _format_traceback(self, record):
            entry["traceback"] = masker.mask_text(traceback)[:MAX_TRACEBACK]
        return json.dumps(masker.mask_value(_collect_extras(record)) | entry, ensure_ascii=True)


class TextFormatter(logging.Formatter):
    """Formats records as one line for people, followed by the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text, masked, with hidden characters made visible."""
        masker = masking.get_process_masker()
        time_text = time.strftime("%H:%M:%S", time.localtime(record.created))
        ids = {name: value[:8] for name, value in _collect_context().items()}
        extras = masker.mask_value(ids | _collect_extras(record))
        text = record.getMessage()
        simple_extras = {
            name: extra for name, extra in extras.items() if not isinstance(extra, dict)
        }
        if simple_extras:
            text += (
                " (" + " ".join(f"{name}={extra}" for name, extra in simple_extras.items()) + ")"
            )
        text = masker.mask_text(text)
        # Objects are masked by field: as text, a signature would be masked like a secret.
        for name, extra in extras.items():
            if isinstance(extra, dict):
                text += f" {name}={json.dumps(extra)}"
        line = make_visible(text, MAX_MESSAGE).replace("\n", " ⏎ ")
        lines = [f"{time_text} {record.levelname:<7} {record.name}: {line}"]
        if traceback := _format_traceback(self, record):
            lines.append(make_visible(masker.mask_text(traceback), MAX_TRACEBACK))
        return "\n".join(lines)


def _collect_context() -> dict[str, str]:
    return {name: value for name, variable in _CONTEXT.items() if (value := variable.get())}


def _collect_extras(record: logging.LogRecord) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(record).items()
        if name not in _STANDARD_ATTRIBUTES | _REDUNDANT_ATTRIBUTES
    }


def _format_traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info:
        parts.append(formatter.formatException(record.exc_info))
    elif record.exc_text:
        parts.append(record.exc_text)
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)
