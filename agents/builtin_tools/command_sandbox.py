"""Run commands in bubblewrap.

A command ends with whoever asked for it: when they go away, when its time is over, when it writes
more than anybody will read, and when it fills the workspace beyond its quota.

Nothing else of the host is in it: no home, no `/etc` but what programs need to start, no socket, no
other process, and no network unless it was granted. Nothing but the workspace and a small `/tmp`
can be written to. Where such a box can't be made, nothing is run: never in a weaker one.
"""

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from agents.builtin_tools.workspaces import INSIDE, Workspace, run_in_thread
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.text.untrusted_text import strip_terminal_sequences
from mcp_servers.client import sandbox_modes
from mcp_servers.client.child_process import send_group_signal
from mcp_servers.client.sandbox import namespace_words
from mcp_servers.client.sandbox_modes import ServerSandboxUnavailable
from mcp_servers.client.server_sandbox import ProcessLimits
from mcp_servers.client.system_view import system_words

SCRATCH = 64 * 1024 * 1024  # bytes of /tmp
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp",  # noqa: S108 - its own one
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}


@dataclass(frozen=True, kw_only=True)
class CommandSandbox:
    """One box: the folder that is its workspace, where commands start, and what covers what.

    `covers` are files of ours that stand in the workspace in place of its own, read-only.
    """

    root: Path
    at: str = ""
    network: bool = False
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    covers: Mapping[str, Path] = field(default_factory=dict)

    def words(self) -> tuple[str, ...]:
        """Return the words that go before a command. Blocks; raises `Unavailable`."""
        _require()
        if self.root.resolve() != self.root:
            raise ServerSandboxUnavailable(
                "the workspace leads elsewhere", "Attach the folder itself."
            )
        covers = [
            word
            for path, ours in self.covers.items()
            for word in ("--ro-bind", str(ours), f"{INSIDE}/{path}")
        ]
        start = f"{INSIDE}/{self.at}" if self.at else INSIDE
        return (
            *_build_bwrap_arguments(self.network, alone=_can_forbid_namespaces()),
            *("--bind", str(self.root), INSIDE),
            *covers,
            *("--remount-ro", "/", "--chdir", start, "--"),
            *self.limits.prefix(),
        )


def find_sandbox_fault() -> ServerSandboxUnavailable | None:
    """Return why no box can be made here, with what would help; None where one can. Blocks."""
    try:
        _require()
    except ServerSandboxUnavailable as problem:
        return problem
    return None


_seen: set[str] = set()


def _require() -> None:
    """Raise `Unavailable` unless a box has been seen to work; what failed is tried again."""
    if "works" in _seen:
        return
    if problem := sandbox_modes.find_sandbox_problem("bubblewrap", "none"):
        raise problem
    for network in (False, True):
        if said := _try_sandbox(_build_bwrap_arguments(network, alone=False)):
            raise ServerSandboxUnavailable(
                format_message("the sandbox doesn't work here: {said}", said=said),
                "Allow this user to make user and mount namespaces, as for confined servers.",
            )
    _seen.add("works")


@cache
def _can_forbid_namespaces() -> bool:
    """Tell whether bubblewrap can also forbid namespaces within; old ones and some hosts can't."""
    return not _try_sandbox(_build_bwrap_arguments(network=False, alone=True))


def _try_sandbox(words: tuple[str, ...]) -> str:
    """Return why a command can't be run in a box; "" when it can."""
    inside = ("--remount-ro", "/", "--", "/usr/bin/env", "true")
    return sandbox_modes.try_command([*words, *inside], ENVIRONMENT)


def _build_bwrap_arguments(network: bool, *, alone: bool) -> tuple[str, ...]:
    return (
        *namespace_words(network=network, forbids_namespaces=alone),
        *system_words(network=network),
        *("--size", str(SCRATCH), "--tmpfs", "/tmp"),  # noqa: S108
    )


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
class CommandResult:
    """How a command ended; `ended` says what ended it: "" by itself, `time`, `output`, `quota`.

    `out` are its output and errors together, the first and the last of them.
    """

    status: int
    out: str
    ended: str = ""


@dataclass(slots=True)
class CommandOutput:
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
        return strip_terminal_sequences(text).replace("\r\n", "\n")


async def run(
    place: Workspace,
    box: CommandSandbox,
    command: Sequence[str],
    *,
    seconds: float,
    env: Mapping[str, str] | None = None,
) -> CommandResult:
    """Run a command and return how it ended; raises `SandboxUnavailable` rather than unboxed."""
    try:
        words = await run_in_thread(box.words)
    except ServerSandboxUnavailable as problem:
        raise SandboxUnavailable(
            format_message(
                "Commands can't be put into a sandbox on this host: {problem}.", problem=problem
            ),
            remedy=problem.remedy,
        ) from None
    command_run = _CommandProtocol()
    transport = await _start_process(
        [*words, *command], {**ENVIRONMENT, **(env or {})}, command_run
    )
    try:
        ended = await _wait_for_end(command_run, place, seconds)
    finally:
        # Whatever happened, none of it is left behind.
        _kill(transport)
        try:
            await _wait_for_event(command_run.unplugged, REAP_S)
        finally:
            transport.close()
    return CommandResult(transport.get_returncode() or 0, command_run.output.text(), ended)


async def _start_process(
    words: Sequence[str], env: Mapping[str, str], running: "_CommandProtocol"
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
        starting.add_done_callback(_kill_when_started)
        raise
    return transport


def _kill_when_started(
    starting: "asyncio.Future[tuple[asyncio.SubprocessTransport, _CommandProtocol]]",
) -> None:
    if not starting.cancelled() and starting.exception() is None:
        transport, running = starting.result()
        _kill(transport)
        running.on_exit = transport.close


def _kill(transport: asyncio.SubprocessTransport) -> None:
    send_group_signal(transport.get_pid(), signal.SIGKILL)


class _CommandProtocol(asyncio.SubprocessProtocol):
    """A command that runs: its output, and events for how it ends."""

    def __init__(self) -> None:
        self.output = CommandOutput()
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


async def _wait_for_end(command: _CommandProtocol, place: Workspace, seconds: float) -> str:
    """Wait until the command has ended or must; returns what ended it."""
    exit_, flood, quota = tasks = [
        asyncio.create_task(one)
        for one in (command.exited.wait(), command.flooded.wait(), _wait_until_over_quota(place))
    ]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        endings = ((exit_, ""), (flood, "output"), (quota, "quota"))
        return next((why for task, why in endings if task.done()), "time")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_for_event(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


async def _wait_until_over_quota(place: Workspace) -> None:
    """Return once the workspace is over its quota; of an attached folder nothing is counted."""
    if place.attached:
        await asyncio.Event().wait()
    while not await run_in_thread(_is_over, place):
        await asyncio.sleep(WATCH_S)


def _is_over(place: Workspace) -> bool:
    with place.open() as folder:
        used = place.usage(folder)
    return used.more or used.files > place.most_files or used.size > place.most_bytes
