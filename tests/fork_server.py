"""Processes of the product that start in a third of the time.

A fork server (the standard library's) imports the libraries of the product once for each process
of the test run; web, workers and commands are forked from it. It imports nothing of the product and
no settings: each child reads its own environment, as a new interpreter does.
"""

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

# Imported before the fork: what takes long, reads no settings and starts no thread.
LIBRARIES = (
    "celery.bin.celery",
    "celery.bin.worker",
    "celery.concurrency.thread",
    "cryptography.fernet",
    "django.contrib.postgres.fields",
    "django.core.management",
    "django.core.serializers.json",
    "django.db.models",
    "django.template.defaulttags",
    "django.urls",
    "django.views.generic",
    "fido2.server",
    "httpcore2",
    "httpx2",
    "jsonschema",
    "kombu.transport.filesystem",
    "mcp.client.client",
    "mcp.server.auth.middleware.bearer_auth",
    "mcp.server.lowlevel.server",
    "mcp.types",
    "nh3",
    "opentelemetry.trace",
    "prometheus_client",
    "psycopg",
    "psycopg_pool",
    "redis",
    "rich.console",
    "uvicorn",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.httptools_impl",
    "yaml",
)
OURS = frozenset({"agents", "bonobot", "mcp_servers"})


class ForkedProcess:
    """A forked child with the part of `subprocess.Popen` that tests use."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        self.pid = int(process.pid or 0)

    def poll(self) -> int | None:
        """Return the exit status, negative after a signal, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status; raises subprocess.TimeoutExpired after `timeout` seconds."""
        self._process.join(timeout)
        status = self._process.exitcode
        if status is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)
        return status

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()


def can_fork(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return whether `python -m module …` would import the same in a forked child."""
    return tuple(command[:2]) == (sys.executable, "-m") and "PYTHONPATH" not in env


def fork_module(
    name: str, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log_file: Path
) -> ForkedProcess:
    """Run `python -m module …` in a forked child that leads its own process group."""
    log_file.touch()  # whoever reads it at once finds nothing, not an error
    return fork(name, run_new_module, list(command[2:]), dict(env), str(cwd), str(log_file))


def fork(name: str, target: Callable[..., None], *arguments: object) -> ForkedProcess:
    """Call a function in a child that has imported the libraries only."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(LIBRARIES))
    process = context.Process(target=target, args=arguments, name=name, daemon=True)
    process.start()
    return ForkedProcess(process)


def run_new_module(arguments: list[str], env: dict[str, str], cwd: str, log_file: str) -> None:
    """Become `python -m module …`; this runs in the child."""
    prepare_child(env, cwd)
    redirect_output(log_file)
    run_module(arguments)


def prepare_child(env: dict[str, str], cwd: str) -> None:
    """Use the environment and the folder, and end with the parent."""
    assert not OURS & {name.partition(".")[0] for name in sys.modules}
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    bind_to_parent()


def bind_to_parent() -> None:
    """End with the parent, which ends with the test run; a daemon could have no children."""
    from bonobot.processes.supervisor import build_parent_death_hook

    if bind := build_parent_death_hook(os.getppid()):
        bind()
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]


def redirect_output(log_file: str) -> None:
    """Write what is printed to the end of a file, and read nothing."""
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def run_module(arguments: list[str]) -> None:
    """Run `python -m module …` in this child."""
    sys.argv = arguments
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    finally:
        with suppress(Exception):
            atexit._run_exitfuncs()  # multiprocessing's children leave without them
