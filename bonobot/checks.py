"""System checks: what is wrong with an installation before it serves anyone.

`bonobot check` is silent on a fresh clone; `bonobot check --deploy` lists what real deployments
must change. Ids are stable: E and W below 100 concern every installation, from 100 deployments.
"""

import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register

from bonobot.lib import env
from bonobot.lib.databases import is_sqlite
from bonobot.lib.sayings import say

OLDEST_SQLITE = (3, 35, 0)  # the first with RETURNING, which the ledger's claims need
KEY_VARIABLES = (
    "BONOBOT_SECRET_KEY",
    "BONOBOT_FIELD_KEYS",
    "BONOBOT_TOKEN_PEPPERS",
    "BONOBOT_AUDIT_KEYS",
)

Configs = Sequence[AppConfig] | None


@register(Tags.database)
def sqlite_is_new_enough(app_configs: Configs, **_: Any) -> list[CheckMessage]:
    """Find a SQLite library without `RETURNING`."""
    if not _on_sqlite() or sqlite3.sqlite_version_info >= OLDEST_SQLITE:
        return []
    wanted = ".".join(map(str, OLDEST_SQLITE))
    return [
        Error(
            say(
                "Python's SQLite library is {version}, but {wanted} is needed.",
                version=sqlite3.sqlite_version,
                wanted=wanted,
            ),
            hint=say("Use a Python with a newer SQLite, or PostgreSQL through `DATABASE_URL`."),
            id="bonobot.E001",
        )
    ]


@register(Tags.security)
def keys_are_private(app_configs: Configs, **_: Any) -> list[CheckMessage]:
    """Find generated keys that other users of the machine can read."""
    return [
        Error(
            say(
                "The key file `{path}` can be read by other users (mode {mode:04o}).",
                path=path,
                mode=mode,
            ),
            hint=say(
                "Run `chmod 600 {path}` and, if others have access here, rotate the key.", path=path
            ),
            id="bonobot.E002",
        )
        for path, mode in open_key_files()
    ]


@register(Tags.security)
def variables_are_known(app_configs: Configs, **_: Any) -> list[CheckMessage]:
    """Find `BONOBOT_*` variables that no setting reads."""
    return [
        Warning(
            say("The environment variable `{name}` is not a setting of Bonobot.", name=name),
            hint=say("Correct its spelling or remove it; `.env.example` lists all settings."),
            id="bonobot.W001",
        )
        for name in env.unknown()
    ]


@register(Tags.security, deploy=True)
def url_is_encrypted(app_configs: Configs, **_: Any) -> list[CheckMessage]:
    """Find a public URL without TLS."""
    url = urlsplit(settings.BONOBOT_URL)
    if url.scheme == "https":
        return []
    return [
        Warning(
            say(
                "`BONOBOT_URL` is `{url}`: passwords and tokens travel unencrypted.",
                url=settings.BONOBOT_URL,
            ),
            hint=say("Serve Bonobot over https and set `BONOBOT_URL=https://…`; cookies follow."),
            id="bonobot.W101",
        )
    ]


@register(Tags.security, deploy=True)
def keys_are_given(app_configs: Configs, **_: Any) -> list[CheckMessage]:
    """Find keys that were generated beside the data they protect."""
    generated = [name for name in KEY_VARIABLES if not _is_set(name)]
    if not generated:
        return []
    return [
        Warning(
            say(
                "Not set: {names}. The keys in `{folder}` lie beside the data that they protect, "
                "and a second host would make others.",
                names=", ".join(f"`{name}`" for name in generated),
                folder=settings.BONOBOT_VAR / "keys",
            ),
            hint=say(
                "Move them to your secret store and give them to every host, for example as "
                "`BONOBOT_FIELD_KEYS_FILE=/run/secrets/field_keys`."
            ),
            id="bonobot.W102",
        )
    ]


@register(Tags.database, deploy=True)
def services_are_shared(app_configs: Configs, **_: Any) -> list[CheckMessage]:
    """Find a database or a broker that only one machine can use."""
    found: list[CheckMessage] = []
    if _on_sqlite():
        found.append(
            Warning(
                say("The database is SQLite: one machine, one writer at a time."),
                hint=say(
                    "Set `DATABASE_URL=postgresql://…` for more than one host or many agents."
                ),
                id="bonobot.W103",
            )
        )
    if not settings.REDIS_URL:
        found.append(
            Warning(
                say(
                    "The broker is a folder: workers on other hosts get no work, and what a killed "
                    "worker held waits for the next sweep."
                ),
                hint=say("Set `REDIS_URL=redis://…`."),
                id="bonobot.W104",
            )
        )
    return found


@register(Tags.security, deploy=True)
def user_is_ordinary(app_configs: Configs, **_: Any) -> list[CheckMessage]:
    """Find a process that runs as root, with everything it starts."""
    if os.geteuid() != 0:
        return []
    return [
        Warning(
            say("Bonobot runs as root, and so does every stdio server it starts."),
            hint=say("Run it as a user of its own that may write only `BONOBOT_VAR`."),
            id="bonobot.W105",
        )
    ]


@register(Tags.security, deploy=True)
def heads_are_elsewhere(app_configs: Configs, **_: Any) -> list[CheckMessage]:
    """Find signed heads of the audit in the folder of the data that they vouch for."""
    heads = Path(settings.BONOBOT_AUDIT_HEADS).absolute()
    if not heads.is_relative_to(Path(settings.BONOBOT_VAR)):
        return []
    return [
        Warning(
            say(
                "The signed heads of the audit are kept in `{heads}`, beside what they vouch for: "
                "who can change the one can remove the other.",
                heads=heads,
            ),
            hint=say("Set `BONOBOT_AUDIT_HEADS` to a folder that another host collects."),
            id="bonobot.W106",
        )
    ]


def open_key_files() -> Iterator[tuple[Path, int]]:
    """Yield the generated key files that others can read or write, with their mode."""
    folder = Path(settings.BONOBOT_VAR) / "keys"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            yield path, mode


def _is_set(name: str) -> bool:
    return any(os.environ.get(form, "").strip() for form in (name, f"{name}_FILE"))


def _on_sqlite() -> bool:
    return is_sqlite(settings.DATABASES["default"])
