"""Run a Python module in a child that is forked from this process, without a new interpreter.

The child has the modules that this process has loaded, and shares their memory until it writes to
it. This process must have no other threads, event loop or database connections, which a child
can't use. The child ends as an interpreter does, with its `atexit` functions.
"""

import atexit
import ctypes
import os
import runpy
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import IO, NoReturn

FIRST_OTHER_FD = 3  # after those of stdin, stdout and stderr
# In /proc/self/stat, counted after the name: the first and the last address of the command line.
ARGUMENT_FIELDS = slice(45, 47)


class ForkedProcess:
    """A forked child, with the part of `subprocess.Popen` that the supervisor uses."""

    def __init__(self, pid: int, stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdout = stdout
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, negative after a signal, or None while it runs."""
        return self._collect_status(os.WNOHANG)

    def wait(self) -> int:
        """Wait for the end; return the exit status."""
        status = self._collect_status(0)
        assert status is not None  # noqa: S101 - only `WNOHANG` returns without one
        return status

    def _collect_status(self, options: int) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status


def can_fork() -> bool:
    """Return whether a child could use everything that this process has."""
    # macOS' libraries don't survive a fork.
    return sys.platform.startswith("linux") and threading.active_count() == 1


def fork_module(
    arguments: Sequence[str],
    *,
    title: str,
    environment: Mapping[str, str],
    prepare_child: Callable[[], object] | None,
) -> ForkedProcess:
    """Run `python -m` with the arguments in a child that leads its own session.

    `title` replaces the child's command line in the output of `ps`. `prepare_child` is called
    first. The child's stdout and stderr are one pipe.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    output, child_output = os.pipe()
    pid = os.fork()
    if pid == 0:
        _run_child(arguments, title, environment, prepare_child, child_output)
    os.close(child_output)
    return ForkedProcess(pid, os.fdopen(output, "rb", buffering=0))


def _run_child(
    arguments: Sequence[str],
    title: str,
    environment: Mapping[str, str],
    prepare_child: Callable[[], object] | None,
    output: int,
) -> NoReturn:
    status = 1
    try:
        os.setsid()
        _reset_signals()
        _redirect_streams(output)
        if prepare_child is not None:
            prepare_child()
        set_process_title(title)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None  # TMPDIR may differ
        sys.argv = list(arguments)
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ending:
        status = _print_exit_message(ending.code)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        _end_child(status)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _redirect_streams(output: int) -> None:
    """Read nothing, write to `output`, and close the other files of the parent."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    # Not all possible numbers: the limit of open files can be a billion.
    descriptors = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    for descriptor in descriptors:
        if descriptor >= FIRST_OTHER_FD:
            with suppress(OSError):  # the folder's own, which is closed by now
                os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(write_through=True)


def _print_exit_message(code: object) -> int:
    """Return the exit status of `sys.exit`, whose argument may be a message."""
    if code is None or isinstance(code, int):
        return code or 0
    sys.stderr.write(f"{code}\n")
    return 1


def _end_child(status: int) -> NoReturn:
    """End as an interpreter does, but without the parent's functions on the stack."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as at any exit
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
    finally:
        os._exit(status)


def set_process_title(title: str) -> None:
    """Overwrite the command line that `ps` shows, as far as there is room for the title."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    start, end = map(int, fields[ARGUMENT_FIELDS])
    size = end - start
    if start and size > 0:
        ctypes.memmove(start, title.encode()[: size - 1].ljust(size, b"\0"), size)
