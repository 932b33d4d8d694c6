"""System checks of an installation.

`bonobot check` reports nothing on a fresh clone; `bonobot check --deploy` lists what deployments
must change. Ids are stable: below 100 for every installation, from 100 for deployments.
"""

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register

from bonobot.core import environment
from bonobot.core.crypto.key_files import list_exposed_key_files
from bonobot.core.db.database_url import MIN_SQLITE_VERSION, is_sqlite
from bonobot.core.i18n.messages import format_message

KEY_VARIABLES = (
    "BONOBOT_SECRET_KEY",
    "BONOBOT_FIELD_KEYS",
    "BONOBOT_TOKEN_PEPPERS",
    "BONOBOT_AUDIT_KEYS",
)

Configs = Sequence[AppConfig] | None


@register(Tags.database)
def check_sqlite_version(app_configs: Configs, **_: Any) -> list[CheckMessage]:
    """Find a SQLite library without `RETURNING`."""
    if not _uses_sqlite() or sqlite3.sqlite_version_info >= MIN_SQLITE_VERSION:
        return []
    min_version = ".".join(map(str, MIN_SQLITE_VERSION))
    return [
        Error(
            format_message(
                "Python uses SQLite {version}, but SQLite {wanted} or newer is required.",
                version=sqlite3.sqlite_version,
                wanted=min_version,
            ),
            hint=format_message(
                "Use a Python build with a newer SQLite, or set `DATABASE_URL` to a "
                "PostgreSQL database."
            ),
            id="bonobot.E001",
        )
    ]


@register(Tags.security)
def check_key_permissions(app_configs: Configs, **_: Any) -> list[CheckMessage]:
    """Find generated keys that other users of the machine can read."""
    return [
        Error(
            format_message(
                "The key file `{path}` can be read by other users (mode {mode:04o}).",
                path=path,
                mode=mode,
            ),
            hint=format_message(
                "Run `chmod 600 {path}`. If other people have access to this host, rotate the key.",
                path=path,
            ),
            id="bonobot.E002",
        )
        for path, mode in list_exposed_key_files(settings.BONOBOT_VAR / "keys")
    ]


@register(Tags.security)
def check_known_variables(app_configs: Configs, **_: Any) -> list[CheckMessage]:
    """Find `BONOBOT_*` variables that no setting reads."""
    return [
        Warning(
            format_message("The environment variable `{name}` isn't a Bonobot setting.", name=name),
            hint=format_message(
                "Correct the name or remove the variable. `.env.example` lists all settings."
            ),
            id="bonobot.W001",
        )
        for name in environment.list_unknown_variables()
    ]


@register(Tags.security, deploy=True)
def check_url_encryption(app_configs: Configs, **_: Any) -> list[CheckMessage]:
    """Find a public URL without TLS."""
    url = urlsplit(settings.BONOBOT_URL)
    if url.scheme == "https":
        return []
    return [
        Warning(
            format_message(
                "`BONOBOT_URL` is `{url}`, so passwords and tokens are sent unencrypted.",
                url=settings.BONOBOT_URL,
            ),
            hint=format_message(
                "Serve Bonobot over https and set `BONOBOT_URL=https://…`. Cookies "
                "are then sent only over https."
            ),
            id="bonobot.W101",
        )
    ]


@register(Tags.security, deploy=True)
def check_generated_keys(app_configs: Configs, **_: Any) -> list[CheckMessage]:
    """Find generated keys that are stored next to the data they protect."""
    generated = [name for name in KEY_VARIABLES if not _is_set(name)]
    if not generated:
        return []
    return [
        Warning(
            format_message(
                "Not set: {names}. The generated keys in `{folder}` are stored next "
                "to the data that they protect, and a second host would generate "
                "different keys.",
                names=", ".join(f"`{name}`" for name in generated),
                folder=settings.BONOBOT_VAR / "keys",
            ),
            hint=format_message(
                "Move the keys to your secret store and provide them to every host, "
                "for example with `BONOBOT_FIELD_KEYS_FILE=/run/secrets/field_keys`."
            ),
            id="bonobot.W102",
        )
    ]


@register(Tags.database, deploy=True)
def check_shared_services(app_configs: Configs, **_: Any) -> list[CheckMessage]:
    """Find a database or a broker that only one machine can use."""
    messages: list[CheckMessage] = []
    if _uses_sqlite():
        messages.append(
            Warning(
                format_message(
                    "The database is SQLite, which supports only one host and one writer at a time."
                ),
                hint=format_message(
                    "Set `DATABASE_URL=postgresql://…` for more than one host or many agents."
                ),
                id="bonobot.W103",
            )
        )
    if not settings.REDIS_URL:
        messages.append(
            Warning(
                format_message(
                    "The broker is a folder. Workers on other hosts receive no jobs, and "
                    "the jobs of a killed worker are recovered only after a delay."
                ),
                hint=format_message("Set `REDIS_URL=redis://…`."),
                id="bonobot.W104",
            )
        )
    return messages


@register(Tags.security, deploy=True)
def check_process_user(app_configs: Configs, **_: Any) -> list[CheckMessage]:
    """Find a process that runs as root, with everything it starts."""
    if os.geteuid() != 0:
        return []
    return [
        Warning(
            format_message("Bonobot runs as root, and so do the stdio servers that it starts."),
            hint=format_message(
                "Run Bonobot as a dedicated user that can write only to `BONOBOT_VAR`."
            ),
            id="bonobot.W105",
        )
    ]


@register(Tags.security, deploy=True)
def check_checkpoint_location(app_configs: Configs, **_: Any) -> list[CheckMessage]:
    """Find signed checkpoints of the audit log in the same folder as the data."""
    folder = Path(settings.BONOBOT_AUDIT_HEADS).absolute()
    if not folder.is_relative_to(Path(settings.BONOBOT_VAR)):
        return []
    return [
        Warning(
            format_message(
                "The signed checkpoints are stored in `{heads}`, next to the audit "
                "log. Anyone who can change the audit log can also delete the "
                "checkpoints.",
                heads=folder,
            ),
            hint=format_message(
                "Set `BONOBOT_AUDIT_HEADS` to a folder that is collected by another host."
            ),
            id="bonobot.W106",
        )
    ]


def _is_set(name: str) -> bool:
    return any(os.environ.get(variable, "").strip() for variable in (name, f"{name}_FILE"))


def _uses_sqlite() -> bool:
    return is_sqlite(settings.DATABASES["default"])
