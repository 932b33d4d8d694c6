"""Run several programs in one terminal, and start one that ends again.

Each program runs in its own process group, so that Ctrl-C reaches only the supervisor, which stops
them in order. On Linux the kernel kills them if the supervisor is killed; elsewhere they survive.
"""

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, cast

from bonobot.processes.forked_process import ForkedProcess, can_fork, fork_module
from bonobot.processes.process_status import ProcessStatus, State

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PREFIX_COLORS = (36, 35, 33, 32, 34)  # of prefixes, in the order of the programs
ERROR_COLOR = 31
MAX_LINE_BYTES = 64 * 1024  # bytes; a longer one is cut into lines
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class ProcessSpec:
    """A program to start, its name, and how long it may take to end (seconds)."""

    name: str
    command: tuple[str, ...]
    grace_s: float = 10.0


@dataclass(frozen=True)
class RestartPolicy:
    """When a program that ended is started again (seconds).

    The first restart is immediate; then the delay doubles with each end, up to `max_delay_s`. A
    program that ran for `stable_s` is restarted immediately again; one that ends more than
    `max_restarts` times in a row is given up.
    """

    first_delay_s: float = 1.0
    max_delay_s: float = 30.0
    max_restarts: int = 5
    stable_s: float = 5.0

    def compute_delay_s(self, ends: int) -> float:
        """Return the delay after this many ends in a row."""
        if ends == 1:
            return 0.0
        return float(min(self.first_delay_s * 2 ** (ends - 2), self.max_delay_s))


@dataclass
class SupervisedProcess:
    """A started program, the incomplete last line of its output, and how it ended.

    `ends` counts the ends in a row; `restart_at` is set while it waits to be started again.
    """

    program: ProcessSpec
    popen: subprocess.Popen[bytes] | ForkedProcess
    partial: bytes = field(default=b"")
    started_at: float = field(default_factory=time.monotonic)
    ends: int = 0
    restarts: int = 0
    last_end: str = ""
    last_end_at: float = 0.0
    restart_at: float | None = None
    is_given_up: bool = False

    @property
    def is_started(self) -> bool:
        """Whether the process was started and its end, if any, wasn't handled yet."""
        return self.restart_at is None and not self.is_given_up

    @property
    def status(self) -> ProcessStatus:
        """The state for the settings check."""
        state: State
        state = "running" if self.is_started else "stopped" if self.is_given_up else "restarting"
        return ProcessStatus(
            self.program.name,
            state=state,
            restarts=self.restarts,
            last_end=self.last_end,
            last_end_at=self.last_end_at,
        )

    @property
    def output(self) -> IO[bytes]:
        return cast(IO[bytes], self.popen.stdout)  # always a pipe


class ProcessSupervisor:
    """Starts programs together, prints their output, restarts them, and stops them together.

    `report` is called with the states whenever one changes. With `forks`, programs that are Python
    modules run in children forked from this process (`bonobot.processes.forked_process`).
    """

    def __init__(
        self,
        programs: Sequence[ProcessSpec],
        *,
        environment: Mapping[str, str],
        write_line: Callable[[str], object],
        use_color: bool = False,
        restarts: RestartPolicy | None = None,
        report: Callable[[Sequence[ProcessStatus]], object] = lambda statuses: None,
        forks: bool = False,
    ) -> None:
        self._programs = tuple(programs)
        self._environment = dict(environment)
        self._print_raw = write_line
        self._width = max(len(program.name) for program in programs)
        self._use_color = use_color
        self._restart_policy = restarts or RestartPolicy()
        self._report = report
        self._forks = forks
        self._children: list[SupervisedProcess] = []
        self._selector = selectors.DefaultSelector()
        self._signal_count = 0
        self._output_closed = False
        self._old_handlers: dict[signal.Signals, object] = {}

    def __enter__(self) -> "ProcessSupervisor":
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        self._wakeup_reader.setblocking(False)
        self._wakeup_writer.setblocking(False)
        self._old_wakeup_fd = signal.set_wakeup_fd(self._wakeup_writer.fileno())
        self._selector.register(self._wakeup_reader, selectors.EVENT_READ, None)
        self._old_handlers = {name: signal.signal(name, self._on_signal) for name in STOP_SIGNALS}
        try:
            self._children += (self._start(program) for program in self._programs)
            self._report(self.statuses)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for name, handler in self._old_handlers.items():
            signal.signal(name, handler)  # type: ignore[arg-type]  # what signal.signal returned
        signal.set_wakeup_fd(self._old_wakeup_fd)
        self._selector.close()
        self._wakeup_reader.close()
        self._wakeup_writer.close()

    @property
    def stop_requested(self) -> bool:
        """Whether a stop signal came or the output was closed."""
        return self._signal_count > 0 or self._output_closed

    @property
    def statuses(self) -> list[ProcessStatus]:
        """The states of the programs, in their order."""
        return [child.status for child in self._children]

    def describe_ended_process(self, prefix: str) -> str:
        """Return how a program whose name has this prefix ended; blank while all of them run."""
        for child in self._children:
            name = child.program.name
            if not name.startswith(prefix):
                continue
            if child.last_end and not child.is_started:
                return f"`{name}` ended ({child.last_end})"
            if (status := child.popen.poll()) is not None:
                return f"`{name}` ended ({format_exit_status(status)})"
        return ""

    @property
    def has_given_up(self) -> bool:
        """Whether no program runs or will be started again."""
        return all(child.is_given_up for child in self._children)

    def restart_ended_processes(self) -> None:
        """Start the programs whose delay is over, and schedule the restart of others that ended."""
        now = time.monotonic()
        for index, child in enumerate(self._children):
            if child.restart_at is not None and now >= child.restart_at:
                restarted = self._start(child.program)
                restarted.ends, restarted.restarts = child.ends, child.restarts + 1
                restarted.last_end, restarted.last_end_at = child.last_end, child.last_end_at
                self._children[index] = restarted
            elif child.is_started and child.popen.poll() is not None:
                self._handle_end(child, now)
            else:
                continue
            self._report(self.statuses)

    def _handle_end(self, child: SupervisedProcess, now: float) -> None:
        """Clean up after a program that ended, and schedule its restart or give it up."""
        send_signal(child, signal.SIGKILL)  # what is left in its process group
        self._copy_rest(child)
        policy, name = self._restart_policy, child.program.name
        child.last_end = format_exit_status(child.popen.wait())
        child.last_end_at = time.time()
        child.ends = 1 if now - child.started_at >= policy.stable_s else child.ends + 1
        if child.ends > policy.max_restarts:
            child.is_given_up = True
            self.print_error(
                f"`{name}` ended {child.ends} times in a row ({child.last_end}) and isn't started "
                "again. The other processes continue. Fix the cause shown in its last output, "
                "then restart `bonobot up`."
            )
            return
        delay_s = policy.compute_delay_s(child.ends)
        child.restart_at = now + delay_s
        delay_text = f"in {delay_s:g} s" if delay_s else "now"
        self.print_error(f"`{name}` ended ({child.last_end}). It is restarted {delay_text}.")

    def copy_output(self, timeout_s: float) -> None:
        """Copy the programs' output to the terminal; return after the timeout or a signal."""
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._drain_wakeups()
            else:
                self._copy_available(key.data)

    def stop(self) -> None:
        """Stop the programs in reverse order; another signal kills them at once."""
        signals_before = self._signal_count
        for child in reversed([child for child in self._children if child.is_started]):
            deadline = time.monotonic() + child.program.grace_s
            send_signal(child, signal.SIGTERM)
            while child.popen.poll() is None:
                if time.monotonic() >= deadline or self._signal_count > signals_before:
                    self.print_line(f"{child.program.name} doesn't end: killing it")
                    break
                self.copy_output(0.1)
            send_signal(child, signal.SIGKILL)  # also for what is left in its process group
            child.popen.wait()
            self._copy_rest(child)
        self._children.clear()

    def print_line(self, text: str) -> None:
        """Print a line of the supervisor itself."""
        self._print_prefixed("bonobot", 1, text)

    def print_error(self, text: str) -> None:
        """Print an error of the supervisor itself."""
        self._print_prefixed("bonobot", ERROR_COLOR, text)

    def _start(self, program: ProcessSpec) -> SupervisedProcess:
        child = SupervisedProcess(program, self._start_child(program))
        os.set_blocking(child.output.fileno(), False)
        self._selector.register(child.output, selectors.EVENT_READ, child)
        return child

    def _start_child(self, program: ProcessSpec) -> subprocess.Popen[bytes] | ForkedProcess:
        bind_to_parent = build_parent_death_hook(os.getpid())
        interpreter = build_python_command()
        is_module = program.command[: len(interpreter)] == interpreter
        if self._forks and is_module and can_fork():
            return fork_module(
                program.command[len(interpreter) :],
                title=f"bonobot {program.name}",
                environment=self._environment,
                prepare_child=bind_to_parent,
            )
        return subprocess.Popen(  # noqa: S603 - our own programs
            program.command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=bind_to_parent,
        )

    def _copy_available(self, child: SupervisedProcess) -> bool:
        try:
            data = os.read(child.output.fileno(), MAX_LINE_BYTES)
        except BlockingIOError:
            return False
        *lines, child.partial = (child.partial + data).split(b"\n")
        if child.partial and (not data or len(child.partial) >= MAX_LINE_BYTES):
            lines, child.partial = [*lines, child.partial], b""
        for line in lines:
            self._print_output_line(child, line)
        if not data:
            self._selector.unregister(child.output)
        return bool(data)

    def _copy_rest(self, child: SupervisedProcess) -> None:
        while child.output in self._selector.get_map() and self._copy_available(child):
            pass
        if child.output in self._selector.get_map():
            self._selector.unregister(child.output)
        child.output.close()

    def _print_output_line(self, child: SupervisedProcess, line: bytes) -> None:
        color = PREFIX_COLORS[self._children.index(child) % len(PREFIX_COLORS)]
        self._print_prefixed(
            child.program.name, color, line.decode("utf-8", errors="replace").rstrip()
        )

    def _print_prefixed(self, name: str, color: int, text: str) -> None:
        prefix = f"{name:<{self._width}} │"
        if self._use_color:
            prefix = f"\x1b[{color}m{prefix}\x1b[0m"
        try:
            self._print_raw(f"{prefix} {text}")
        except OSError:  # the terminal or pipe was closed
            self._output_closed = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal_count += 1

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakeup_reader.recv(64):
                pass


def build_parent_death_hook(parent: int) -> Callable[[], None] | None:
    """Return a `preexec_fn` that has the child killed when `parent` ends; None except on Linux."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def bind_to_parent() -> None:
        # SIGKILL, as no supervisor is left to follow a SIGTERM.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the call above
            os._exit(1)

    return bind_to_parent


def send_signal(child: SupervisedProcess, number: signal.Signals) -> None:
    """Send a signal to a child's process group, if it still exists."""
    # macOS returns EPERM for a group of zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.popen.pid, number)


def format_exit_status(status: int) -> str:
    """Return a description of an exit status."""
    if status >= 0:
        return f"exit status {status}"
    return f"killed by {signal.Signals(-status).name}"


def build_python_command(*arguments: str) -> tuple[str, ...]:
    """Return the command that runs a Python module of this environment."""
    return (sys.executable, "-m", *arguments)


def format_process_names(programs: Iterable[ProcessSpec]) -> str:
    """Return `a, b and c`."""
    *first, last = (program.name for program in programs)
    return f"{', '.join(first)} and {last}" if first else last
