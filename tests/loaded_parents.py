"""Parents that have loaded the product: web processes and workers are forked from them.

To load the product takes most of a start. It is done once for each environment: a parent reads its
settings and imports its modules as the first process with this environment would, connects to
nothing, starts no thread, and waits. What it wrote while it loaded begins the log of each child.
"""

import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path

from django.db import connections

from tests.environment import VAR
from tests.fork_server import bind_to_parent, fork, prepare_child, redirect_output, run_module
from tests.wait import eventually

POLL_S = 0.01
_parents: dict[tuple[str, frozenset[tuple[str, str]]], "LoadedParent"] = {}


class LoadedParent:
    """A process that has loaded the product with one environment, and forks from itself."""

    def __init__(self, module: str, env: Mapping[str, str], cwd: Path, log_file: Path) -> None:
        self._log_file = log_file
        self._lock = threading.Lock()
        self._connection, connection = multiprocessing.Pipe()
        fork(f"loaded-{module}", run_parent, connection, module, dict(env), str(cwd), str(log_file))
        connection.close()

    def start(self, name: str, arguments: Sequence[str], log_file: Path) -> "LoadedChild":
        """Run `python -m` with the arguments in a child that leads its own process group."""
        log_file.touch()  # whoever reads it at once finds nothing, not an error
        pid = self._ask("start", list(arguments), str(log_file))
        assert pid is not None
        return LoadedChild(name, pid, self)

    def get_status(self, pid: int) -> int | None:
        """Return the exit status of a child, or None while it runs."""
        return self._ask("status", pid)

    def _ask(self, *order: object) -> int | None:
        with self._lock:
            try:
                self._connection.send(order)
                answer: int | None = self._connection.recv()
            except (EOFError, OSError) as error:
                log = self._log_file.read_text(encoding="utf-8", errors="replace")
                raise AssertionError(f"the product wasn't loaded:\n{log}") from error
            return answer


class LoadedChild:
    """A child of a `LoadedParent` with the part of `subprocess.Popen` that tests use."""

    def __init__(self, name: str, pid: int, parent: LoadedParent) -> None:
        self.pid = pid
        self._name = name
        self._parent = parent

    def poll(self) -> int | None:
        """Return the exit status, negative after a signal, or None while it runs."""
        return self._parent.get_status(self.pid)

    def wait(self, timeout: float) -> int:
        """Return the exit status; raises subprocess.TimeoutExpired after `timeout` seconds."""
        try:
            eventually(lambda: self.poll() is not None, within=timeout, every=POLL_S)
        except AssertionError:
            raise subprocess.TimeoutExpired(self._name, timeout) from None
        status = self.poll()
        assert status is not None
        return status

    def terminate(self) -> None:
        """Ask it to end."""
        os.kill(self.pid, signal.SIGTERM)


def start_loaded(
    name: str, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log_file: Path
) -> LoadedChild:
    """Run `python -m module …` in a child of the parent that has loaded it, with a new log."""
    key = (command[2], frozenset(env.items()))
    if key not in _parents:
        log = VAR / f"loaded-{command[2]}-{len(_parents)}.log"  # a test's folder is deleted
        _parents[key] = LoadedParent(command[2], env, cwd, log)
    return _parents[key].start(name, command[2:], log_file)


def load_web() -> None:
    """Import and compute what a web process needs before its first request."""
    import bonobot.asgi  # noqa: F401 - sets up Django for the import below
    from bonobot.management import preload_modules

    preload_modules.load_web()


def load_worker() -> None:
    """Import what a worker needs before it is ready."""
    from bonobot.management import preload_modules

    preload_modules.load_worker(with_scheduler=False)


LOADERS: dict[str, Callable[[], None]] = {
    "bonobot.processes.run_web_process": load_web,
    "celery": load_worker,
}


def run_parent(orders: Connection, module: str, env: dict[str, str], cwd: str, log: str) -> None:
    """Load the product, then start children until the test run ends; this runs in the parent."""
    prepare_child(env, cwd)
    redirect_output(log)
    gc.disable()
    LOADERS[module]()
    assert threading.active_count() == 1, "a child would not have the other threads"
    assert not connections["default"].connection, "all children would use it"
    gc.freeze()  # a child that collects garbage would copy all of it
    sys.stdout.flush()
    children: dict[int, ForkProcess] = {}
    while True:
        try:
            kind, *arguments = orders.recv()
        except EOFError:
            return
        if kind == "status":
            orders.send(children[arguments[0]].exitcode)
            continue
        child = multiprocessing.get_context("fork").Process(
            target=run_child, args=(orders, log, *arguments), daemon=True
        )
        child.start()
        assert child.pid is not None
        children[child.pid] = child
        orders.send(child.pid)


def run_child(orders: Connection, log: str, arguments: list[str], own_log: str) -> None:
    """Become `python -m module …` in a child of the parent."""
    gc.enable()  # as in a process of its own
    orders.close()
    os.setsid()
    bind_to_parent()
    shutil.copyfile(log, own_log)
    redirect_output(own_log)
    run_module(arguments)
