"""The commands and environments of the processes web, worker and beat.

`bonobot up` starts web and a worker with the scheduler in one terminal; `bonobot web`, `bonobot
worker` and `bonobot beat` each exec one of them, for a service manager or a container.
"""

import os
import sys
from argparse import ArgumentError, ArgumentParser, ArgumentTypeError
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from django.conf import settings

from bonobot.core.crypto import key_files
from bonobot.jobs.queues import QUEUE_NAMES, SCHEDULER_OPTION
from bonobot.processes.supervisor import ProcessSpec, build_python_command

# Loopback addresses by wildcard address, to connect from this machine.
LOOPBACK_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not listened on
# Checks run separately (`bonobot check`): Celery's would load all URLs and pages in each worker.
CELERY_ARGUMENTS = ("--quiet", "--skip-checks", "--app", "bonobot")
# Of `bonobot up`.
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
# What settings read of the variables that `bonobot up` sets.
SETTINGS_VARIABLES = ("BONOBOT_LOG_FORMAT", "BONOBOT_URL")


def build_web_process(
    host: str, port: int, *, name: str = "web", reuse_port: bool = False
) -> ProcessSpec:
    """Return the web process, which serves HTTP; with `reuse_port`, others share its port."""
    return ProcessSpec(
        name,
        build_python_command(
            *("bonobot.processes.run_web_process", "--host", host, "--port", str(port)),
            *(("--reuse-port",) if reuse_port else ()),
        ),
    )


def build_worker_process(
    queues: tuple[str, ...] = QUEUE_NAMES, name: str = "", *, with_beat: bool = False
) -> ProcessSpec:
    """Return a worker process for these queues; `name` distinguishes workers of one host.

    With `with_beat` it also runs the scheduler, in a thread.
    """
    return ProcessSpec(
        "worker",
        build_python_command(
            *("bonobot.processes.run_celery_worker", *CELERY_ARGUMENTS, "worker"),
            *("--pool", "threads", "--queues", ",".join(queues)),
            *("--without-gossip", "--without-mingle"),
            *(("--hostname", f"{name}@%h") if name else ()),
            *((SCHEDULER_OPTION,) if with_beat else ()),
        ),
        grace_s=settings.BONOBOT_DRAIN_S + 15.0,
    )


def build_beat_process() -> ProcessSpec:
    """Return the beat process, which schedules jobs; of several, one leads."""
    return ProcessSpec(
        "beat", build_python_command("celery", *CELERY_ARGUMENTS, "beat", "--pidfile=")
    )


def list_processes(
    host: str, port: int, *, web_count: int = 1, with_worker: bool
) -> tuple[ProcessSpec, ...]:
    """Return the processes of `bonobot up` in start order; they stop in reverse."""
    names = [f"web{number}" for number in range(1, web_count + 1)] if web_count > 1 else ["web"]
    web = [build_web_process(host, port, name=name, reuse_port=web_count > 1) for name in names]
    return (*web, build_worker_process(with_beat=True)) if with_worker else (*web,)


def replace_current_process(program: ProcessSpec) -> NoReturn:
    """Replace this process with the program (exec), so that it receives its signals."""
    environment = build_process_environment(os.environ)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(program.command[0], program.command, environment)  # noqa: S606 - our own Python


def build_local_environment(host: str, port: int) -> dict[str, str]:
    """Return the environment for `bonobot up`: ours, with text logs and a local URL."""
    return build_process_environment(_add_settings_variables(os.environ, host, port))


def _add_settings_variables(base: Mapping[str, str], host: str, port: int) -> dict[str, str]:
    environment = dict(base)
    environment.setdefault("BONOBOT_LOG_FORMAT", "text")
    if "BONOBOT_URL_FILE" not in environment:
        environment.setdefault("BONOBOT_URL", build_browser_url(host, port))
    return environment


def set_settings_variables(options: Sequence[str]) -> None:
    """Set in this process what settings read in the processes of `bonobot up` with these options.

    Only then can they be forked from it. Call it before settings are read. The command itself
    reports wrong options.
    """
    parser = ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--host", default=DEFAULT_HOST)
    parser.add_argument("--port", type=parse_port, default=DEFAULT_PORT)
    with suppress(ArgumentError):
        known, _ = parser.parse_known_args(options)
        os.environ.update(_add_settings_variables(os.environ, known.host, known.port))


def has_settings_variables(environment: Mapping[str, str]) -> bool:
    """Return whether settings would be the same in a process with this environment."""
    return all(os.environ.get(name) == environment.get(name) for name in SETTINGS_VARIABLES)


def build_process_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that every process needs, based on `base`."""
    environment = dict(base)
    environment |= {"BONOBOT_VAR": str(settings.BONOBOT_VAR), "PYTHONUNBUFFERED": "1"}
    if not settings.REDIS_URL:
        # Celery's filesystem broker moves messages through the temporary folder.
        environment["TMPDIR"] = str(
            key_files.ensure_private_folder(Path(settings.BONOBOT_VAR) / "tmp")
        )
    return environment


def build_browser_url(host: str, port: int) -> str:
    """Return the URL for a browser on this machine."""
    name = LOOPBACK_ADDRESSES.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def parse_port(text: str) -> int:
    """Return a valid port number; raises `ArgumentTypeError`."""
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= 65_535:
        return int(text)
    raise ArgumentTypeError(f"{text!r} isn't a valid port: choose one from 1 to 65535")
