"""The three programs of an installation, web, worker and beat: one place says how each is started.

`bonobot up` starts all of them in one terminal; `bonobot web`, `bonobot worker` and `bonobot beat`
each become one of them, for a service manager or a container.
"""

import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from django.conf import settings

from bonobot.lib import keys
from bonobot.management.processes import Program, python
from bonobot.queues import NAMES

# Celery says it in seven lines at every start; `bonobot check --deploy` says it in one.
ROOT_WARNING = "ignore:You're running the worker with superuser privileges"
# Addresses that mean "all of them": to look from here, use the loopback.
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not listened on
# `bonobot check` is a step of its own: Celery's would load all addresses and pages in each worker.
CELERY = ("celery", "--quiet", "--skip-checks", "--app", "bonobot")


PROTOCOL = "bonobot.http_protocol:Protocol"


def web(host: str, port: int) -> Program:
    """Return the program that answers HTTP."""
    return Program(
        "web",
        python(
            *("uvicorn", "bonobot.asgi:application", "--host", host, "--port", str(port)),
            *("--lifespan", "on", "--no-access-log", "--no-server-header"),
            # h11, whatever else is installed: httptools reads heads of any size
            # (docs/performance.md). Ours closes slow senders, too.
            *("--http", PROTOCOL, "--timeout-graceful-shutdown", "5"),
        ),
    )


def worker(queues: tuple[str, ...] = NAMES, name: str = "") -> Program:
    """Return the program that takes work from the queues; `name` tells two on one host apart."""
    return Program(
        "worker",
        python(
            *(*CELERY, "worker", "--pool", "threads", "--queues", ",".join(queues)),
            *("--without-gossip", "--without-mingle"),
            *(("--hostname", f"{name}@%h") if name else ()),
        ),
        grace_s=settings.BONOBOT_DRAIN_S + 15.0,
    )


def beat() -> Program:
    """Return the program that sends what is due; of several one leads, the others stand by."""
    return Program("beat", python(*CELERY, "beat", "--pidfile="))


def lineup(host: str, port: int, *, work: bool) -> tuple[Program, ...]:
    """Return what `bonobot up` starts, in order; it is stopped in the opposite order."""
    return (web(host, port), worker(), beat()) if work else (web(host, port),)


def become(program: Program) -> NoReturn:
    """Replace this process by the program, which gets its signals from then on."""
    given = shared(os.environ)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(program.command[0], program.command, given)  # noqa: S606 - our own Python


def environment(host: str, port: int) -> dict[str, str]:
    """Return the environment of the programs: ours, with what a terminal and a laptop need."""
    given = dict(os.environ)
    given.setdefault("BONOBOT_LOG_FORMAT", "text")
    if "BONOBOT_URL_FILE" not in given:
        given.setdefault("BONOBOT_URL", address(host, port))
    return shared(given)


def shared(given: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with what every program needs, wherever it is started."""
    found = {"PYTHONWARNINGS": ROOT_WARNING} | dict(given)
    found |= {"BONOBOT_VAR": str(settings.BONOBOT_VAR), "PYTHONUNBUFFERED": "1"}
    if not settings.REDIS_URL:
        # Celery's filesystem broker moves messages through the folder for temporary files.
        found["TMPDIR"] = str(keys.private_folder(Path(settings.BONOBOT_VAR) / "tmp"))
    return found


def address(host: str, port: int) -> str:
    """Return the URL for a browser on this machine."""
    name = ANYWHERE.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def port_number(text: str) -> int:
    """Return a port that exists; raises ArgumentTypeError."""
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= 65_535:
        return int(text)
    raise ArgumentTypeError(f"{text!r} is no port: choose one from 1 to 65535")
