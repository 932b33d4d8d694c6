"""Logs."""

from typing import Any

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
STYLES = ("auto", "text", "json")


def configuration(*, level: str, style: str) -> dict[str, Any]:
    """Return the LOGGING settings."""
    return {"version": 1, "disable_existing_loggers": False}
