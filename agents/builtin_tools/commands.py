"""Run a command in the sandbox: bounded in time and output, killed with all that it started.

A command ends with whoever asked for it: when they go away, when its time is over, when it writes
more than anybody will read, and when it fills the workspace beyond its quota.
"""

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from agents.builtin_tools.sandbox import ENVIRONMENT, Box
from agents.builtin_tools.workspaces import Workspace, beside
from bonobot.lib.problems import Problem
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import without_terminal
from mcp_servers.connections.confinement import Unavailable
from mcp_servers.connections.containment import signal_group

HEAD = 128 * 1024
TAIL = 128 * 1024
HOPELESS = 64 * 1024 * 1024
REAP_S = 5.0
WATCH_S = 1.0


class SandboxUnavailable(Problem):
    """Commands can't be boxed on this host, so none is run."""

    code = "sandbox_unavailable"
    status = 503
    title = "No sandbox"


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended; `ended` says what ended it: "" by itself, `time`, `output`, `quota`.

    `out` are its output and errors together, the first and the last of them.
    """

    status: int
    out: str
    ended: str = ""


@dataclass(slots=True)
class Output:
    """The beginning and the end of what a command wrote."""

    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    size: int = 0

    def add(self, data: bytes) -> None:
        """Keep `data`, forget what is in the middle."""
        self.size += len(data)
        room = HEAD - len(self.head)
        self.head += data[:room]
        self.tail += data[room:] if room < len(data) else b""
        if len(self.tail) > 2 * TAIL:
            del self.tail[:-TAIL]

    def text(self) -> str:
        """Return it, with a note where something is left out."""
        head, tail = bytes(self.head), bytes(self.tail)[-TAIL:]
        left_out = self.size - len(head) - len(tail)
        note = f"\n[{left_out:,} bytes left out]\n".encode() if left_out else b""
        text = (head + note + tail).decode("utf-8", "replace")
        return without_terminal(text).replace("\r\n", "\n")


async def run(
    place: Workspace,
    box: Box,
    command: Sequence[str],
    *,
    seconds: float,
    env: Mapping[str, str] | None = None,
) -> Finished:
    """Run a command and return how it ended; raises `SandboxUnavailable` rather than unboxed."""
    try:
        words = await beside(box.words)
    except Unavailable as problem:
        raise SandboxUnavailable(
            say("Commands can't be put into a sandbox on this host: {problem}.", problem=problem),
            remedy=problem.remedy,
        ) from None
    command_run = _Running()
    transport = await _started([*words, *command], {**ENVIRONMENT, **(env or {})}, command_run)
    try:
        ended = await _until_over(command_run, place, seconds)
    finally:
        # Whatever happened, none of it is left behind.
        _kill(transport)
        try:
            await _within(command_run.unplugged, REAP_S)
        finally:
            transport.close()
    return Finished(transport.get_returncode() or 0, command_run.output.text(), ended)


async def _started(
    words: Sequence[str], env: Mapping[str, str], running: "_Running"
) -> asyncio.SubprocessTransport:
    """Start a process in a group of its own.

    Being cancelled half-way would kill its leader alone, perhaps before that has arranged for the
    others to die with it; so the start is let end, and all of it is killed then.
    """
    loop = asyncio.get_running_loop()
    starting = asyncio.ensure_future(
        loop.subprocess_exec(
            lambda: running,
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(env),
            cwd="/",
            start_new_session=True,
        )
    )
    try:
        transport, _ = await asyncio.shield(starting)
    except asyncio.CancelledError:
        running.start = starting
        starting.add_done_callback(_abandon)
        raise
    return transport


def _abandon(starting: "asyncio.Future[tuple[asyncio.SubprocessTransport, _Running]]") -> None:
    if not starting.cancelled() and starting.exception() is None:
        transport, running = starting.result()
        _kill(transport)
        running.on_exit = transport.close


def _kill(transport: asyncio.SubprocessTransport) -> None:
    signal_group(transport.get_pid(), signal.SIGKILL)


class _Running(asyncio.SubprocessProtocol):
    """A command that runs: its output, and events for how it ends."""

    def __init__(self) -> None:
        self.output = Output()
        self.exited = asyncio.Event()
        self.flooded = asyncio.Event()
        self.unplugged = asyncio.Event()
        self.on_exit: Callable[[], object] = lambda: None
        self.start: object = None  # held until it is over

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Take what it wrote (called by the loop)."""
        self.output.add(data)
        if self.output.size > HOPELESS:
            self.flooded.set()

    def process_exited(self) -> None:
        """Note the exit (called by the loop)."""
        self.exited.set()
        self.on_exit()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the process and its pipe are gone (called by the loop)."""
        self.unplugged.set()


async def _until_over(command: _Running, place: Workspace, seconds: float) -> str:
    """Wait until the command has ended or must; returns what ended it."""
    exit_, flood, quota = tasks = [
        asyncio.create_task(one)
        for one in (command.exited.wait(), command.flooded.wait(), _outgrown(place))
    ]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        endings = ((exit_, ""), (flood, "output"), (quota, "quota"))
        return next((why for task, why in endings if task.done()), "time")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _within(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


async def _outgrown(place: Workspace) -> None:
    """Return once the workspace is over its quota; of an attached folder nothing is counted."""
    if place.attached:
        await asyncio.Event().wait()
    while not await beside(_is_over, place):
        await asyncio.sleep(WATCH_S)


def _is_over(place: Workspace) -> bool:
    with place.open() as folder:
        used = place.usage(folder)
    return used.more or used.files > place.most_files or used.size > place.most_bytes
