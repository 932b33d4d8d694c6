"""Child processes of stdio servers: start, lines of output, process group, stderr.

Output is split into lines in linear time and with a limit: only the two ends of an overlong line
are kept, enough to identify the request it answered. The last 64 KiB of stderr are kept.

On Linux, where possible, `setpriv` sends SIGKILL to the child when the thread that started it ends,
and `unshare` runs it in its own process namespace, so that everything it started dies with it and
it sees no other process. Without namespaces only the child dies with its owner, and its group is
killed on close. On other systems only the group is killed. What works is tried once per process.

Stderr is not stored here: `extension_points.set_stderr_sink` registers the function that stores it.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID, uuid4

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.process_cache import compute_once
from bonobot.core.text.masking import MASK, mask_text
from bonobot.core.text.untrusted_text import make_visible, strip_terminal_sequences
from mcp_servers.client.egress_proxy import EgressProxy
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.environment_rules import (
    build_environment,
    find_variable_danger,
    list_variables_needing_exception,
)
from mcp_servers.client.errors import (
    UpstreamError,
    build_bundle_error,
    build_folder_error,
    build_missing_folder_error,
    build_required_sandbox_error,
    build_sandbox_error,
    build_unreachable_error,
    build_variable_error,
)
from mcp_servers.client.extension_points import StderrSink
from mcp_servers.client.folder_rules import FolderReplaced, OpenFolders
from mcp_servers.client.forwarded_ports import find_forwarded_ports, replace_addresses
from mcp_servers.client.read_throttle import ReadThrottle
from mcp_servers.client.sandbox import ServerSandboxUnavailable
from mcp_servers.client.task_set import TaskSet

TRIAL_TIMEOUT_S = 5.0
CONTAINMENT_TOOLS = ("setpriv", "unshare")
MAX_STDERR_BYTES = 64 * 1024
SHORTEST_SECRET = 4
LINE_END_BYTES = 256
MAX_LINE_FACTOR = 16  # times the line limit: then the child is killed
EOF_GRACE_S = 2.0
TERM_GRACE_S = 1.0
REAP_S = 5.0
LAST_OUTPUT_S = 0.25
COMMAND_REMEDY = "Check the command, and that it is installed on this machine."
OnEnd = Callable[["ChildProcess"], None]
REPORT_INTERVAL_S = 3.0  # minimum interval between two reports while the child writes
LAST_REPORT_TIMEOUT_S = 5.0
CLOSED_BY_BONOBOT = "Bonobot closed it"


@dataclass(frozen=True)
class ProcessContainment:
    """One way to contain a child; `prefix` goes before its command."""

    name: str
    guarantee: str
    prefix: tuple[str, ...]


GROUP = ProcessContainment(
    "group",
    "The child and its group are killed on close; if Bonobot is killed, they see their input end.",
    (),
)
DEATH_SIGNAL = ProcessContainment(
    "death-signal",
    "The child dies with Bonobot; what it started in sessions of its own may survive it.",
    ("setpriv", "--pdeathsig", "KILL", "--"),
)
NAMESPACE = ProcessContainment(
    "namespace",
    "The child and everything it started die with Bonobot; it sees no other process.",
    (
        *("setpriv", "--pdeathsig", "KILL", "--"),
        *("unshare", "--user", "--map-current-user", "--pid", "--mount-proc", "--fork"),
        *("--kill-child=SIGKILL", "--"),
    ),
)


@compute_once
def choose_containment() -> ProcessContainment:
    """Return the strongest containment that works here (blocks up to 10 s the first time)."""
    for containment in (NAMESPACE, DEATH_SIGNAL):
        if sys.platform == "linux" and (resolved := _resolve_containment(containment)):
            return resolved
    return GROUP


def find_command(command: str, env: Mapping[str, str], cwd: str | None) -> str | None:
    """Return the executable that `command` names for the child, or None."""
    if cwd is not None and os.sep in command and not Path(command).is_absolute():
        command = str(Path(cwd) / command)
    executable = shutil.which(command, path=env.get("PATH", os.defpath))
    return str(Path(executable).absolute()) if executable else None


def send_group_signal(pid: int, number: signal.Signals) -> None:
    """Signal the process group of the child `pid`; do nothing if it is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _resolve_containment(containment: ProcessContainment) -> ProcessContainment | None:
    """Return `containment` with absolute tool paths (ignoring the child's PATH), if it works."""
    paths = {
        word: shutil.which(word) or "" for word in containment.prefix if word in CONTAINMENT_TOOLS
    }
    if not all(paths.values()):
        return None
    resolved = replace(
        containment, prefix=tuple(paths.get(word, word) for word in containment.prefix)
    )
    try:
        trial = subprocess.run(  # noqa: S603 - fixed words
            [*resolved.prefix, "true"],
            capture_output=True,
            timeout=TRIAL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return resolved if trial.returncode == 0 else None


@dataclass(frozen=True)
class OverlongLine:
    """The two ends of a line over the limit; `endless` if reading it was given up."""

    head: bytes
    tail: bytes
    endless: bool = False


OnLine = Callable[[bytes | OverlongLine], None]


class LineSplitter:
    """Splits a stream of bytes into lines of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._start_line()

    def feed(self, data: bytes) -> Iterator[bytes | OverlongLine]:
        """Yield the lines that `data` completes."""
        *line_ends, remainder = data.split(b"\n")
        for line_end in line_ends:
            self._add_part(line_end)
            yield self._overlong or b"".join(self._parts)
            self._start_line()
        self._add_part(remainder)
        if self._overlong and self._size > MAX_LINE_FACTOR * self._limit:
            yield replace(self._overlong, endless=True)

    def _start_line(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._overlong: OverlongLine | None = None

    def _add_part(self, part: bytes) -> None:
        self._size += len(part)
        if self._overlong is not None:
            tail = (self._overlong.tail + part[-LINE_END_BYTES:])[-LINE_END_BYTES:]
            self._overlong = replace(self._overlong, tail=tail)
            return
        self._parts.append(part)
        if self._size > self._limit:
            line = b"".join(self._parts)
            self._overlong = OverlongLine(line[:LINE_END_BYTES], line[-LINE_END_BYTES:])
            self._parts = []


class StderrTail:
    """The last 64 KiB that children wrote to stderr; `on_add` is called for every write."""

    def __init__(self, secrets: tuple[str, ...] = ()) -> None:
        self.on_add: Callable[[], None] = lambda: None
        self._secrets = tuple(secret for secret in secrets if len(secret) >= SHORTEST_SECRET)
        self._buffer = b""
        self._truncated = False
        self._current_size = 0

    def add(self, data: bytes) -> None:
        """Append `data` and drop the oldest."""
        self._truncated = self._truncated or len(self._buffer) + len(data) > MAX_STDERR_BYTES
        self._buffer = (self._buffer + data)[-MAX_STDERR_BYTES:]
        self._current_size = min(MAX_STDERR_BYTES, self._current_size + len(data))
        self.on_add()

    def mark_new_child(self) -> None:
        """Start the output of a new child."""
        self._current_size = 0

    def get_text(self) -> str:
        """Return the text, masked and without terminal sequences; thread-safe."""
        return self._format_output(self._buffer, truncated=self._truncated)

    def get_last_output(self) -> str:
        """Return the output of the latest child in the same form."""
        output = self._buffer[-self._current_size :] if self._current_size else b""
        return self._format_output(
            output, truncated=self._truncated and self._current_size == MAX_STDERR_BYTES
        )

    def _format_output(self, output: bytes, *, truncated: bool) -> str:
        text = strip_terminal_sequences(output.decode("utf-8", "replace")).replace("\r\n", "\n")
        return make_visible(self._mask_secrets(text, truncated=truncated).replace("\r", "\n"))[
            -MAX_STDERR_BYTES:
        ]

    def _mask_secrets(self, text: str, *, truncated: bool) -> str:
        """Mask the secrets, also ones that are incomplete at the start or end of the text."""
        text = mask_text(text, self._secrets)
        longest = max(map(len, self._secrets), default=0)
        if truncated and longest:
            text = text[longest - 1 :]
        for secret in self._secrets:
            lengths = range(len(secret) - 1, SHORTEST_SECRET - 1, -1)
            if prefix_length := next((n for n in lengths if text.endswith(secret[:n])), 0):
                return text[:-prefix_length] + MASK
        return text


class ChildProcess(asyncio.SubprocessProtocol):
    """One running server process; `on_end` is called once it can no longer answer."""

    def __init__(
        self,
        on_line: OnLine,
        on_end: OnEnd,
        tail: StderrTail,
        limit: int,
        egress_proxy: EgressProxy | None = None,
    ) -> None:
        self._egress_proxy = egress_proxy
        self._on_line = on_line
        self._on_end: OnEnd | None = on_end
        self._lines = LineSplitter(limit)
        self._tail = tail
        self._output_ended = False
        self._throttles = {1: ReadThrottle(), 2: ReadThrottle()}
        self._exited = asyncio.Event()
        self._disconnected = asyncio.Event()
        self._process: asyncio.SubprocessTransport | None = None

    @property
    def unsent_bytes(self) -> int:
        """Return how many written bytes the child hasn't read."""
        pipe = self._get_stdin()
        return pipe.get_write_buffer_size() if pipe else 0

    def write_line(self, line: bytes) -> None:
        """Send one line; drop it if the child is dead, as `on_end` reports that."""
        pipe = self._get_stdin()
        if pipe is not None and not pipe.is_closing():
            pipe.write(line + b"\n")

    @property
    def returncode(self) -> int | None:
        """Return the exit status, None while it runs."""
        return self._process.get_returncode() if self._process else None

    def describe_end(self) -> str:
        """Return how the process ended, as text."""
        code = self._process.get_returncode() if self._process else None
        if code is None:
            return format_message("it closed its output")
        if code < 0:
            with suppress(ValueError):
                return format_message(
                    "it was killed by {signal}", signal=signal.Signals(-code).name
                )
        return format_message("it exited with status {code}", code=code)

    @property
    def egress_refusal(self) -> Problem | None:
        """Return the last connection that the egress rules denied, if any."""
        return self._egress_proxy.refusal if self._egress_proxy else None

    async def close(self, grace_s: float = EOF_GRACE_S) -> None:
        """End the process: close its input, then SIGTERM, then SIGKILL for the whole group."""
        assert self._process is not None  # noqa: S101 - `spawn` returned
        pid = self._process.get_pid()
        try:
            if pipe := self._get_stdin():
                pipe.close()
            if not await _wait_for_event(self._exited, grace_s):
                send_group_signal(pid, signal.SIGTERM)
                await _wait_for_event(self._exited, TERM_GRACE_S)
        finally:
            send_group_signal(pid, signal.SIGKILL)  # also members of its group that outlived it
            await _wait_for_event(self._exited, REAP_S)
            self._process.close()
            if self._egress_proxy:
                await self._egress_proxy.close()
        await _wait_for_event(self._disconnected, REAP_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport (called by the loop)."""
        assert isinstance(transport, asyncio.SubprocessTransport)  # noqa: S101
        self._process = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Handle output of the process (called by the loop); pause reading if it is too much."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        if fd == 2:
            self._tail.add(data)
        else:
            self._split_lines(data)
        now = loop.time()
        if pause_s := self._throttles[fd].add_work(now - started_at, now):
            self._pause_reading(fd, pause_s)

    def _split_lines(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            if line:
                self._on_line(line)
            if isinstance(line, OverlongLine) and line.endless:
                self._kill()

    def _pause_reading(self, fd: int, seconds: float) -> None:
        pipe = self._process.get_pipe_transport(fd) if self._process else None
        if isinstance(pipe, asyncio.ReadTransport):  # paused or closed twice, it does nothing
            pipe.pause_reading()
            asyncio.get_running_loop().call_later(seconds, pipe.resume_reading)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Record the end of stdout: no more responses will come (called by the loop)."""
        if fd == 1:
            self._output_ended = True
            self._schedule_end()

    def process_exited(self) -> None:
        """Record the exit, even if a grandchild keeps the pipes open (called by the loop)."""
        self._exited.set()
        self._schedule_end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that process and pipes are closed (called by the loop)."""
        self._disconnected.set()

    def _schedule_end(self) -> None:
        # The exit and the end of the output come in any order: wait briefly for the other.
        wait_s = 0 if self._output_ended and self._exited.is_set() else LAST_OUTPUT_S
        asyncio.get_running_loop().call_later(wait_s, self._notify_end)

    def _notify_end(self) -> None:
        if callback := self._on_end:
            self._on_end = None
            callback(self)

    def _kill(self) -> None:
        assert self._process is not None  # noqa: S101
        send_group_signal(self._process.get_pid(), signal.SIGKILL)

    def _get_stdin(self) -> asyncio.WriteTransport | None:
        pipe = self._process.get_pipe_transport(0) if self._process else None
        return pipe if isinstance(pipe, asyncio.WriteTransport) else None


async def spawn_child(
    endpoint: ServerEndpoint, on_line: OnLine, on_end: OnEnd, tail: StderrTail
) -> ChildProcess:
    """Start the endpoint's command in its own process group.

    Raises `UpstreamError`: `server_unreachable`; `variable_not_allowed` and `folder_not_allowed`
    for configurations that predate or bypass these rules; `bundle_changed`; `sandbox_unavailable`
    if the configured protection is not available.
    """
    _check_configuration(endpoint)
    env = build_environment(endpoint.env)
    if endpoint.cwd and not Path(endpoint.cwd).is_dir():
        raise build_missing_folder_error(endpoint)
    if endpoint.bundle and not await asyncio.to_thread(endpoint.bundle.is_unchanged):
        raise build_bundle_error(endpoint)
    if endpoint.bundle:
        env["PYTHONDONTWRITEBYTECODE"] = "1"  # outside of a sandbox, its folder is writable
    command = find_command(endpoint.command, env, endpoint.cwd)
    if command is None:
        raise _build_start_error(
            endpoint, format_message("command `{command}` wasn't found", command=endpoint.command)
        )
    folders = _open_folders(endpoint)
    egress_proxy = await _open_egress_proxy(endpoint)
    try:
        launch = await asyncio.to_thread(
            _prepare_launch, endpoint, command, env, folders, egress_proxy
        )
        start = asyncio.ensure_future(
            asyncio.get_running_loop().subprocess_exec(
                lambda: ChildProcess(on_line, on_end, tail, endpoint.max_body, egress_proxy),
                *(*launch.prefix, *endpoint.limits.build_command_prefix(), command, *launch.args),
                env=launch.env,
                cwd=endpoint.cwd,
                start_new_session=True,
                pass_fds=folders.descriptors,
            )
        )
        start.add_done_callback(lambda _: folders.close())
        return await _await_started_child(start)
    except BaseException as error:
        folders.close()
        if egress_proxy:
            await egress_proxy.close()
        if not isinstance(error, OSError | ValueError):
            raise
        detail = str(error)
        if isinstance(error, OSError) and error.strerror:
            detail = f"{error.strerror}: {error.filename}"
        raise _build_start_error(
            endpoint, format_message("it couldn't be started ({error})", error=detail)
        ) from error


def find_installer(endpoint: ServerEndpoint, installer: str) -> str | None:
    """Return the installer in the folder of the endpoint's launcher, else on the PATH."""
    env = build_environment(endpoint.env)
    launcher = find_command(endpoint.command, env, endpoint.cwd)
    sibling = str(Path(launcher).with_name(installer)) if launcher else installer
    return find_command(sibling, env, None) or find_command(installer, env, None)


def _check_configuration(endpoint: ServerEndpoint) -> None:
    """Raise for variables and folders that no server may have, even if they are stored."""
    for name in list_variables_needing_exception(endpoint.env, endpoint.env_exceptions):
        raise build_variable_error(endpoint, name, find_variable_danger(name))
    refusal = endpoint.folder_rule.find_refusal(endpoint.cwd) if endpoint.cwd else None
    if refusal:
        raise build_folder_error(endpoint, refusal)


async def _await_started_child(
    start: "asyncio.Future[tuple[asyncio.SubprocessTransport, ChildProcess]]",
) -> ChildProcess:
    """Return the child once it has started; end it if the caller was canceled meanwhile.

    The start itself is never canceled: asyncio may hang on a process whose pipes it is connecting.
    """
    try:
        _, child = await asyncio.shield(start)
    except asyncio.CancelledError:
        await asyncio.wait({start})
        if not start.cancelled() and start.exception() is None:
            await start.result()[1].close(0)
        raise
    return child


@dataclass(frozen=True)
class Launch:
    """The prefix of a command, its arguments and its environment."""

    prefix: tuple[str, ...]
    args: tuple[str, ...]
    env: Mapping[str, str]


def _open_folders(endpoint: ServerEndpoint) -> OpenFolders:
    """Open the folders of a sandboxed server; raises `server_unreachable`."""
    if endpoint.sandbox is None:
        return OpenFolders(())
    try:
        return endpoint.sandbox.open_folders(endpoint.cwd)
    except FolderReplaced as error:
        raise _build_start_error(endpoint, str(error)) from error


async def _open_egress_proxy(endpoint: ServerEndpoint) -> EgressProxy | None:
    """Open the egress proxy of a sandboxed server with network `egress`."""
    sandbox = endpoint.sandbox
    if sandbox is None or sandbox.network != "egress":
        return None
    ports = find_forwarded_ports(endpoint.args, endpoint.env)
    egress_proxy = EgressProxy(endpoint.name, allow_private=sandbox.allow_private, ports=ports)
    await egress_proxy.open()
    return egress_proxy


def _prepare_launch(
    endpoint: ServerEndpoint,
    command: str,
    env: Mapping[str, str],
    folders: OpenFolders,
    egress_proxy: EgressProxy | None,
) -> Launch:
    """Return how to start the command with its protection (blocks the first time)."""
    args = endpoint.args
    if sandbox := endpoint.sandbox:
        try:
            sandbox_prefix = sandbox.build_command_prefix(
                command, cwd=endpoint.cwd, folders=folders, egress_proxy=egress_proxy
            )
        except ServerSandboxUnavailable as problem:
            if sandbox.required:
                raise build_required_sandbox_error(endpoint, str(problem), problem.remedy) from None
            return Launch(choose_containment().prefix, args, env)
        ports = egress_proxy.ports if egress_proxy else ()
        sandbox_env = sandbox.build_environment(env)
        return Launch(
            sandbox_prefix,
            tuple(replace_addresses(value, ports) for value in args),
            {name: replace_addresses(value, ports) for name, value in sandbox_env.items()},
        )
    if endpoint.sandbox_mode.kind == "none":
        return Launch(choose_containment().prefix, args, env)
    try:
        home = env.get("HOME", "")
        prefix = endpoint.sandbox_mode.build_command_prefix(command, home=home, cwd=endpoint.cwd)
        return Launch(prefix, args, env)
    except ServerSandboxUnavailable as problem:
        raise build_sandbox_error(endpoint, str(problem), problem.remedy) from None


def _build_start_error(endpoint: ServerEndpoint, reason: str) -> UpstreamError:
    return build_unreachable_error(endpoint, reason, remedy=COMMAND_REMEDY)


async def _wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


@dataclass(frozen=True)
class StderrSnapshot:
    """One child's stderr; `ended` says how the child ended, "" while it runs."""

    child_id: UUID
    server_id: UUID
    organization_id: UUID
    text: str = field(repr=False)
    ended: str = ""


class StderrReporter:
    """Reports the stderr of one child: every three seconds at most, and at its end."""

    def __init__(
        self, endpoint: ServerEndpoint, tail: StderrTail, tasks: TaskSet, sink: StderrSink | None
    ) -> None:
        self._endpoint = endpoint
        self._tail = tail
        self._tasks = tasks
        self._sink = sink
        self._child_id = uuid4()
        self._report_task: asyncio.Task[None] | None = None
        self._written = False

    def mark_written(self) -> None:
        """Record that the child wrote something (called by the loop)."""
        self._written = True
        if self._sink is not None and (self._report_task is None or self._report_task.done()):
            self._report_task = self._tasks.spawn(
                self._report_after_delay(self._sink), name="keep stderr"
            )

    async def report_end(self, reason: str) -> None:
        """Report the final output; nothing for a silent child that we closed."""
        if self._report_task is not None:
            self._report_task.cancel()
            await asyncio.wait({self._report_task})
        if self._sink is not None and (self._written or reason):
            last_report = self._tasks.spawn(
                _report_snapshot(self._sink, self._build_snapshot(reason or CLOSED_BY_BONOBOT)),
                name="keep stderr",
            )
            await asyncio.wait({last_report}, timeout=LAST_REPORT_TIMEOUT_S)

    async def _report_after_delay(self, sink: StderrSink) -> None:
        await asyncio.sleep(REPORT_INTERVAL_S)
        await sink(self._build_snapshot())

    def _build_snapshot(self, end_reason: str = "") -> StderrSnapshot:
        return StderrSnapshot(
            self._child_id,
            server_id=self._endpoint.server_id,
            organization_id=self._endpoint.organization_id,
            text=self._tail.get_text(),
            ended=end_reason,
        )


async def _report_snapshot(sink: StderrSink, snapshot: StderrSnapshot) -> None:
    await sink(snapshot)
