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
from pathlib import Path

from agents.builtin_tools.workspaces import SANDBOX_PATH, Workspace, run_in_thread
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.process_cache import compute_once
from bonobot.core.text.untrusted_text import strip_terminal_sequences
from mcp_servers.client.child_process import send_group_signal
from mcp_servers.client.folder_rules import OpenFolders
from mcp_servers.client.resource_limits import ProcessLimits
from mcp_servers.client.sandbox import (
    ServerSandboxUnavailable,
    build_namespace_arguments,
    build_system_arguments,
    build_tmpfs_arguments,
    find_sandbox_problem,
    try_command,
)

TMP_BYTES = 64 * 1024 * 1024  # bytes of /tmp
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp",  # noqa: S108 - its own one
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
_seen: set[str] = set()
HEAD_BYTES = 128 * 1024
TAIL_BYTES = 128 * 1024
MAX_OUTPUT_BYTES = 64 * 1024 * 1024
EXIT_TIMEOUT_S = 5.0
QUOTA_CHECK_INTERVAL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class CommandSandbox:
    """A sandbox: its workspace folder, start folder, network access and limits.

    `read_only_files` maps paths of the workspace to our own files, mounted over them read-only.
    """

    root: Path
    start_folder: str = ""
    network: bool = False
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    read_only_files: Mapping[str, Path] = field(default_factory=dict)

    def build_arguments(self, mode_filter: int | None) -> tuple[str, ...]:
        """Return the arguments before a command. Blocks; raises `ServerSandboxUnavailable`."""
        _require_working_sandbox()
        if self.root.resolve() != self.root:
            raise ServerSandboxUnavailable(
                "the workspace path resolves to another folder", "Attach the folder itself."
            )
        bind_arguments = [
            argument
            for path, source in self.read_only_files.items()
            for argument in ("--ro-bind", str(source), f"{SANDBOX_PATH}/{path}")
        ]
        start_path = f"{SANDBOX_PATH}/{self.start_folder}" if self.start_folder else SANDBOX_PATH
        return (
            *_build_bwrap_arguments(
                self.network,
                forbids_namespaces=_can_forbid_namespaces(),
                mode_filter=mode_filter,
            ),
            *("--bind", str(self.root), SANDBOX_PATH),
            *bind_arguments,
            *("--remount-ro", "/", "--chdir", start_path, "--"),
            *self.limits.build_command_prefix(),
        )


def find_sandbox_fault() -> ServerSandboxUnavailable | None:
    """Return why no sandbox can be created on this host; None if one can. Blocks."""
    try:
        _require_working_sandbox()
    except ServerSandboxUnavailable as problem:
        return problem
    return None


def _require_working_sandbox() -> None:
    """Raise `ServerSandboxUnavailable` unless a sandbox works; only success is cached."""
    if "works" in _seen:
        return
    if problem := find_sandbox_problem("bubblewrap", "none"):
        raise problem
    for network in (False, True):
        if failure := _find_sandbox_failure(
            _build_bwrap_arguments(network, forbids_namespaces=False)
        ):
            raise ServerSandboxUnavailable(
                format_message("the sandbox doesn't work on this host: {error}", error=failure),
                "Allow this user to create user and mount namespaces.",
            )
    _seen.add("works")


@compute_once
def _can_forbid_namespaces() -> bool:
    """Return whether bubblewrap can forbid nested namespaces; older versions can't."""
    return not _find_sandbox_failure(_build_bwrap_arguments(network=False, forbids_namespaces=True))


def _find_sandbox_failure(arguments: tuple[str, ...]) -> str:
    """Return why a command can't be run in a sandbox; "" if it can."""
    command = ("--remount-ro", "/", "--", "/usr/bin/env", "true")
    return try_command([*arguments, *command], ENVIRONMENT)


def _build_bwrap_arguments(
    network: bool, *, forbids_namespaces: bool, mode_filter: int | None = None
) -> tuple[str, ...]:
    return (
        *build_namespace_arguments(
            network=network, forbids_namespaces=forbids_namespaces, mode_filter=mode_filter
        ),
        *build_system_arguments(network=network),
        *build_tmpfs_arguments("/tmp", TMP_BYTES),  # noqa: S108
    )


class SandboxUnavailable(Problem):
    """Commands can't be sandboxed on this host, so none is run."""

    code = "sandbox_unavailable"
    status = 503
    title = "Sandbox unavailable"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command; `ended_by` is "" if it exited, else `time`, `output` or `quota`.

    `output` is stdout and stderr together, without the middle of long output.
    """

    exit_status: int
    output: str
    ended_by: str = ""


@dataclass(slots=True)
class CommandOutput:
    """The beginning and the end of what a command wrote."""

    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    size: int = 0

    def add(self, data: bytes) -> None:
        """Append `data`; bytes in the middle are dropped."""
        self.size += len(data)
        room = HEAD_BYTES - len(self.head)
        self.head += data[:room]
        self.tail += data[room:] if room < len(data) else b""
        if len(self.tail) > 2 * TAIL_BYTES:
            del self.tail[:-TAIL_BYTES]

    def to_text(self) -> str:
        """Return the output as text, with a note where bytes are left out."""
        head, tail = bytes(self.head), bytes(self.tail)[-TAIL_BYTES:]
        omitted = self.size - len(head) - len(tail)
        note = f"\n[{omitted:,} bytes left out]\n".encode() if omitted else b""
        text = (head + note + tail).decode("utf-8", "replace")
        return strip_terminal_sequences(text).replace("\r\n", "\n")


async def run_command(
    workspace: Workspace,
    sandbox: CommandSandbox,
    command: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
) -> CommandResult:
    """Run a command and return its result; raises `SandboxUnavailable`."""
    inherited = OpenFolders(())
    try:
        arguments = await run_in_thread(sandbox.build_arguments, inherited.mode_filter)
    except ServerSandboxUnavailable as problem:
        inherited.close()
        raise SandboxUnavailable(
            format_message(
                "Commands can't run in a sandbox on this host: {problem}.", problem=problem
            ),
            remedy=problem.remedy,
        ) from None
    command_run = _CommandProtocol()
    transport = await _start_process(
        [*arguments, *command], {**ENVIRONMENT, **(env or {})}, command_run, inherited
    )
    try:
        ended_by = await _wait_for_end(command_run, workspace, timeout_s)
    finally:
        # No process may outlive the call.
        _kill_process_group(transport)
        try:
            await _wait_for_event(command_run.connection_closed, EXIT_TIMEOUT_S)
        finally:
            transport.close()
    return CommandResult(transport.get_returncode() or 0, command_run.output.to_text(), ended_by)


async def _start_process(
    arguments: Sequence[str],
    env: Mapping[str, str],
    protocol: "_CommandProtocol",
    inherited: OpenFolders,
) -> asyncio.SubprocessTransport:
    """Start a process in a process group of its own, then close what it inherited.

    Canceling the start would kill only the group's leader, perhaps before it has arranged for the
    others to die with it. So the start completes, and then the whole group is killed.
    """
    loop = asyncio.get_running_loop()
    start_future = asyncio.ensure_future(
        loop.subprocess_exec(
            lambda: protocol,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(env),
            cwd="/",
            start_new_session=True,
            pass_fds=inherited.descriptors,
        )
    )
    start_future.add_done_callback(lambda _: inherited.close())
    try:
        transport, _ = await asyncio.shield(start_future)
    except asyncio.CancelledError:
        protocol.start_future = start_future
        start_future.add_done_callback(_kill_when_started)
        raise
    return transport


def _kill_when_started(
    start_future: "asyncio.Future[tuple[asyncio.SubprocessTransport, _CommandProtocol]]",
) -> None:
    if not start_future.cancelled() and start_future.exception() is None:
        transport, protocol = start_future.result()
        _kill_process_group(transport)
        protocol.on_exit = transport.close


def _kill_process_group(transport: asyncio.SubprocessTransport) -> None:
    send_group_signal(transport.get_pid(), signal.SIGKILL)


class _CommandProtocol(asyncio.SubprocessProtocol):
    """A running command: its output, and events for how it ends."""

    def __init__(self) -> None:
        self.output = CommandOutput()
        self.exited = asyncio.Event()
        self.output_exceeded = asyncio.Event()
        self.connection_closed = asyncio.Event()
        self.on_exit: Callable[[], object] = lambda: None
        self.start_future: object = None  # keeps a reference until the start completes

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Add output (called by the event loop)."""
        self.output.add(data)
        if self.output.size > MAX_OUTPUT_BYTES:
            self.output_exceeded.set()

    def process_exited(self) -> None:
        """Handle the exit (called by the event loop)."""
        self.exited.set()
        self.on_exit()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the closed pipe (called by the event loop)."""
        self.connection_closed.set()


async def _wait_for_end(command: _CommandProtocol, workspace: Workspace, timeout_s: float) -> str:
    """Wait until the command ends or must be stopped; return the value of `ended_by`."""
    exit_task, output_task, quota_task = tasks = [
        asyncio.create_task(awaitable)
        for awaitable in (
            command.exited.wait(),
            command.output_exceeded.wait(),
            _wait_until_over_quota(workspace),
        )
    ]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        endings = ((exit_task, ""), (output_task, "output"), (quota_task, "quota"))
        return next((reason for task, reason in endings if task.done()), "time")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_for_event(event: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), timeout_s)


async def _wait_until_over_quota(workspace: Workspace) -> None:
    """Return once the workspace exceeds its quota; attached folders have none."""
    if workspace.attached:
        await asyncio.Event().wait()
    while not await run_in_thread(_is_over_quota, workspace):
        await asyncio.sleep(QUOTA_CHECK_INTERVAL_S)


def _is_over_quota(workspace: Workspace) -> bool:
    with workspace.open() as folder:
        usage = workspace.measure_usage(folder)
    return (
        usage.is_partial
        or usage.file_count > workspace.max_files
        or usage.size > workspace.max_bytes
    )
