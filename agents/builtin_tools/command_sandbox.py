"""Run commands in bubblewrap.

A command is stopped when its caller is canceled, when its timeout expires, when its output is too
large, and when it fills the workspace beyond its quota.

The sandbox exposes nothing else of the host: no home, only the files of `/etc` that programs need
to start, no socket, no other process, and no network unless granted. Only the workspace and a small
`/tmp` are writable. If the sandbox can't be created, the command isn't run.
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
    """A sandbox: its workspace folder, start folder, network access and limits.

    `read_only_files` maps paths of the workspace to our own files, mounted over them read-only.
    """

    root: Path
    at: str = ""
    network: bool = False
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    covers: Mapping[str, Path] = field(default_factory=dict)

    def words(self) -> tuple[str, ...]:
        """Return the arguments before a command. Blocks; raises `ServerSandboxUnavailable`."""
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
    """Return why no sandbox can be created on this host; None if one can. Blocks."""
    try:
        _require()
    except ServerSandboxUnavailable as problem:
        return problem
    return None


_seen: set[str] = set()


def _require() -> None:
    """Raise `ServerSandboxUnavailable` unless a sandbox works; only success is cached."""
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
    """Return whether bubblewrap can forbid nested namespaces; older versions can't."""
    return not _try_sandbox(_build_bwrap_arguments(network=False, alone=True))


def _try_sandbox(words: tuple[str, ...]) -> str:
    """Return why a command can't be run in a sandbox; "" if it can."""
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
    """Commands can't be sandboxed on this host, so none is run."""

    code = "sandbox_unavailable"
    status = 503
    title = "No sandbox"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command; `ended_by` is "" if it exited, else `time`, `output` or `quota`.

    `output` is stdout and stderr together, without the middle of long output.
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
        """Append `data`; bytes in the middle are dropped."""
        self.size += len(data)
        room = HEAD - len(self.head)
        self.head += data[:room]
        self.tail += data[room:] if room < len(data) else b""
        if len(self.tail) > 2 * TAIL:
            del self.tail[:-TAIL]

    def text(self) -> str:
        """Return the output as text, with a note where bytes are left out."""
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
    """Run a command and return its result; raises `SandboxUnavailable`."""
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
        # No process may outlive the call.
        _kill(transport)
        try:
            await _wait_for_event(command_run.unplugged, REAP_S)
        finally:
            transport.close()
    return CommandResult(transport.get_returncode() or 0, command_run.output.text(), ended)


async def _start_process(
    words: Sequence[str], env: Mapping[str, str], running: "_CommandProtocol"
) -> asyncio.SubprocessTransport:
    """Start a process in a process group of its own.

    Canceling the start would kill only the group's leader, perhaps before it has arranged for the
    others to die with it. So the start completes, and then the whole group is killed.
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
    """A running command: its output, and events for how it ends."""

    def __init__(self) -> None:
        self.output = CommandOutput()
        self.exited = asyncio.Event()
        self.flooded = asyncio.Event()
        self.unplugged = asyncio.Event()
        self.on_exit: Callable[[], object] = lambda: None
        self.start: object = None  # keeps a reference until the start completes

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Add output (called by the event loop)."""
        self.output.add(data)
        if self.output.size > HOPELESS:
            self.flooded.set()

    def process_exited(self) -> None:
        """Handle the exit (called by the event loop)."""
        self.exited.set()
        self.on_exit()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the closed pipe (called by the event loop)."""
        self.unplugged.set()


async def _wait_for_end(command: _CommandProtocol, place: Workspace, seconds: float) -> str:
    """Wait until the command ends or must be stopped; return the value of `ended_by`."""
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
    """Return once the workspace exceeds its quota; attached folders have none."""
    if place.attached:
        await asyncio.Event().wait()
    while not await run_in_thread(_is_over, place):
        await asyncio.sleep(WATCH_S)


def _is_over(place: Workspace) -> bool:
    with place.open() as folder:
        used = place.usage(folder)
    return used.more or used.files > place.most_files or used.size > place.most_bytes
