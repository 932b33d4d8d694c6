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

from bonobot.core.crypto import key_files
from bonobot.jobs.queues import NAMES
from bonobot.processes.supervisor import ProcessSpec, build_python_command

# Celery says it in seven lines at every start; `bonobot check --deploy` says it in one.
ROOT_WARNING = "ignore:You're running the worker with superuser privileges"
# Addresses that mean "all of them": to look from here, use the loopback.
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not listened on
# `bonobot check` is a step of its own: Celery's would load all addresses and pages in each worker.
CELERY = ("celery", "--quiet", "--skip-checks", "--app", "bonobot")


PROTOCOL = "bonobot.processes.http_protocol:Protocol"


def build_web_process(host: str, port: int) -> ProcessSpec:
    """Return the program that answers HTTP."""
    return ProcessSpec(
        "web",
        build_python_command(
            *("uvicorn", "bonobot.asgi:application", "--host", host, "--port", str(port)),
            *("--lifespan", "on", "--no-access-log", "--no-server-header"),
            # h11, whatever else is installed: httptools reads heads of any size
            # (docs/performance.md). Ours closes slow senders, too.
            *("--http", PROTOCOL, "--timeout-graceful-shutdown", "5"),
        ),
    )


def build_worker_process(queues: tuple[str, ...] = NAMES, name: str = "") -> ProcessSpec:
    """Return the program that takes work from the queues; `name` tells two on one host apart."""
    return ProcessSpec(
        "worker",
        build_python_command(
            *(*CELERY, "worker", "--pool", "threads", "--queues", ",".join(queues)),
            *("--without-gossip", "--without-mingle"),
            *(("--hostname", f"{name}@%h") if name else ()),
        ),
        grace_s=settings.BONOBOT_DRAIN_S + 15.0,
    )


def build_beat_process() -> ProcessSpec:
    """Return the program that sends what is due; of several one leads, the others stand by."""
    return ProcessSpec("beat", build_python_command(*CELERY, "beat", "--pidfile="))


def list_processes(host: str, port: int, *, work: bool) -> tuple[ProcessSpec, ...]:
    """Return what `bonobot up` starts, in order; it is stopped in the opposite order."""
    return (
        (build_web_process(host, port), build_worker_process(), build_beat_process())
        if work
        else (build_web_process(host, port),)
    )


def replace_current_process(program: ProcessSpec) -> NoReturn:
    """Replace this process by the program, which gets its signals from then on."""
    given = build_process_environment(os.environ)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(program.command[0], program.command, given)  # noqa: S606 - our own Python


def build_local_environment(host: str, port: int) -> dict[str, str]:
    """Return the environment of the programs: ours, with what a terminal and a laptop need."""
    given = dict(os.environ)
    given.setdefault("BONOBOT_LOG_FORMAT", "text")
    if "BONOBOT_URL_FILE" not in given:
        given.setdefault("BONOBOT_URL", build_browser_url(host, port))
    return build_process_environment(given)


def build_process_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with what every program needs, wherever it is started."""
    found = {"PYTHONWARNINGS": ROOT_WARNING} | dict(given)
    found |= {"BONOBOT_VAR": str(settings.BONOBOT_VAR), "PYTHONUNBUFFERED": "1"}
    if not settings.REDIS_URL:
        # Celery's filesystem broker moves messages through the folder for temporary files.
        found["TMPDIR"] = str(key_files.ensure_private_folder(Path(settings.BONOBOT_VAR) / "tmp"))
    return found


def build_browser_url(host: str, port: int) -> str:
    """Return the URL for a browser on this machine."""
    name = ANYWHERE.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def parse_port(text: str) -> int:
    """Return a port that exists; raises ArgumentTypeError."""
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= 65_535:
        return int(text)
    raise ArgumentTypeError(f"{text!r} is no port: choose one from 1 to 65535")
