"""Child processes of stdio servers: start, lines of output, process group, stderr.

Output is split into lines in linear time and with a limit: only the two ends of an overlong line
are kept, enough to identify the request it answered. The last 64 KiB of stderr are kept.

On Linux, where possible, `setpriv` sends SIGKILL to the child when the thread that started it ends,
and `unshare` runs it in its own process namespace, so that everything it started dies with it and
it sees no other process. Without namespaces only the child dies with its owner, and its group is
killed on close. On other systems only the group is killed. What works is tried once per process.

Stderr is not stored here: `set_stderr_sink` registers the function that stores it.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from uuid import UUID, uuid4

from bonobot.core.i18n.messages import format_message
from bonobot.core.text.masking import MASK, mask_text
from bonobot.core.text.untrusted_text import make_visible, strip_terminal_sequences
from mcp_servers.client.background_tasks import ReadThrottle, TaskSet
from mcp_servers.client.egress_proxy import EgressProxy
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.environment_rules import danger_of, without_exception
from mcp_servers.client.errors import (
    UpstreamError,
    build_sandbox_error,
    build_unreachable_error,
    folder_not_allowed,
    not_sandboxed,
    variable_not_allowed,
)
from mcp_servers.client.forwarded_ports import find_forwarded_ports, replace_addresses
from mcp_servers.client.open_folders import FolderReplaced, OpenFolders
from mcp_servers.client.sandbox_modes import ServerSandboxUnavailable

TRIAL_S = 5.0
TOOLS = ("setpriv", "unshare")
# All that a child gets besides its configured variables: PATH to find launchers, HOME for their
# caches, the others for user, language, time zone and temporary files.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")


@dataclass(frozen=True)
class ProcessContainment:
    """One way to contain a child; `prefix` goes before its command."""

    name: str
    promise: str
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


@cache
def choose_containment() -> ProcessContainment:
    """Return the strongest containment that works here (blocks up to 10 s the first time)."""
    for way in (NAMESPACE, DEATH_SIGNAL):
        if sys.platform == "linux" and (found := _resolve_containment(way)):
            return found
    return GROUP


def build_environment(declared: Mapping[str, str]) -> dict[str, str]:
    """Return a child's whole environment: `INHERITED_VARIABLES` and the configured ones.

    The folder of Bonobot's own Python is last on PATH.
    """
    own = {name: os.environ[name] for name in INHERITED if name in os.environ}
    beside = str(Path(sys.executable).parent)
    own["PATH"] = os.pathsep.join(filter(None, (own.get("PATH", os.defpath), beside)))
    return own | dict(declared)


def find_command(command: str, env: Mapping[str, str], cwd: str | None) -> str | None:
    """Return the executable that `command` names for the child, or None."""
    if cwd is not None and os.sep in command and not Path(command).is_absolute():
        command = str(Path(cwd) / command)
    found = shutil.which(command, path=env.get("PATH", os.defpath))
    return str(Path(found).absolute()) if found else None


def send_group_signal(pid: int, number: signal.Signals) -> None:
    """Signal the process group of the child `pid`; do nothing if it is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _resolve_containment(way: ProcessContainment) -> ProcessContainment | None:
    """Return `containment` with absolute tool paths (ignoring the child's PATH), if it works."""
    paths = {word: shutil.which(word) or "" for word in way.prefix if word in TOOLS}
    if not all(paths.values()):
        return None
    found = replace(way, prefix=tuple(paths.get(word, word) for word in way.prefix))
    try:
        trial = subprocess.run(  # noqa: S603 - fixed words
            [*found.prefix, "true"],
            capture_output=True,
            timeout=TRIAL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found if trial.returncode == 0 else None


RING = 64 * 1024
SHORTEST_SECRET = 4
END_KEPT = 256
HOPELESS = 16  # times the line limit: then the child is killed
EOF_GRACE_S = 2.0
TERM_GRACE_S = 1.0
REAP_S = 5.0
LAST_OUTPUT_S = 0.25
COMMAND_REMEDY = "Check the command and that it is installed on this machine."


@dataclass(frozen=True)
class OverlongLine:
    """The two ends of a line over the limit; `endless` if reading it was given up."""

    head: bytes
    tail: bytes
    hopeless: bool = False


OnLine = Callable[[bytes | OverlongLine], None]
OnOver = Callable[["ChildProcess"], None]


class LineSplitter:
    """Splits a stream of bytes into lines of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._start()

    def feed(self, data: bytes) -> Iterator[bytes | OverlongLine]:
        """Yield the lines that `data` completes."""
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._add(end)
            yield self._overlong or b"".join(self._parts)
            self._start()
        self._add(rest)
        if self._overlong and self._size > HOPELESS * self._limit:
            yield replace(self._overlong, hopeless=True)

    def _start(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._overlong: OverlongLine | None = None

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._overlong is not None:
            tail = (self._overlong.tail + part[-END_KEPT:])[-END_KEPT:]
            self._overlong = replace(self._overlong, tail=tail)
            return
        self._parts.append(part)
        if self._size > self._limit:
            whole = b"".join(self._parts)
            self._overlong = OverlongLine(whole[:END_KEPT], whole[-END_KEPT:])
            self._parts = []


class StderrTail:
    """The last 64 KiB that children wrote to stderr; `on_add` is called for every write."""

    def __init__(self, secrets: tuple[str, ...] = ()) -> None:
        self.on_add: Callable[[], None] = lambda: None
        self._secrets = tuple(secret for secret in secrets if len(secret) >= SHORTEST_SECRET)
        self._kept = b""
        self._cut = False
        self._fresh = 0

    def add(self, data: bytes) -> None:
        """Append `data` and drop the oldest."""
        self._cut = self._cut or len(self._kept) + len(data) > RING
        self._kept = (self._kept + data)[-RING:]
        self._fresh = min(RING, self._fresh + len(data))
        self.on_add()

    def mark(self) -> None:
        """Start the output of a new child."""
        self._fresh = 0

    def text(self) -> str:
        """Return the text, masked and without terminal sequences; thread-safe."""
        return self._shown(self._kept, cut=self._cut)

    def last_words(self) -> str:
        """Return the output of the latest child in the same form."""
        fresh = self._kept[-self._fresh :] if self._fresh else b""
        return self._shown(fresh, cut=self._cut and self._fresh == RING)

    def _shown(self, kept: bytes, *, cut: bool) -> str:
        text = strip_terminal_sequences(kept.decode("utf-8", "replace")).replace("\r\n", "\n")
        return make_visible(self._masked(text, cut=cut).replace("\r", "\n"))[-RING:]

    def _masked(self, text: str, *, cut: bool) -> str:
        """Mask the secrets, also ones that are incomplete at the start or end of the text."""
        text = mask_text(text, self._secrets)
        longest = max(map(len, self._secrets), default=0)
        if cut and longest:
            text = text[longest - 1 :]
        for secret in self._secrets:
            shown = range(len(secret) - 1, SHORTEST_SECRET - 1, -1)
            if begun := next((n for n in shown if text.endswith(secret[:n])), 0):
                return text[:-begun] + MASK
        return text


class ChildProcess(asyncio.SubprocessProtocol):
    """One running server process; `on_end` is called once it can no longer answer."""

    def __init__(
        self,
        on_line: OnLine,
        on_over: OnOver,
        tail: StderrTail,
        limit: int,
        way_out: EgressProxy | None = None,
    ) -> None:
        self._way_out = way_out
        self._on_line = on_line
        self._on_over: OnOver | None = on_over
        self._lines = LineSplitter(limit)
        self._tail = tail
        self._silent = False
        self._paces = {1: ReadThrottle(), 2: ReadThrottle()}
        self._exited = asyncio.Event()
        self._unplugged = asyncio.Event()
        self._process: asyncio.SubprocessTransport | None = None

    @property
    def waiting_bytes(self) -> int:
        """Return how many written bytes the child hasn't read."""
        pipe = self._stdin()
        return pipe.get_write_buffer_size() if pipe else 0

    def write(self, line: bytes) -> None:
        """Send one line; drop it if the child is dead, as `on_end` reports that."""
        pipe = self._stdin()
        if pipe is not None and not pipe.is_closing():
            pipe.write(line + b"\n")

    @property
    def returncode(self) -> int | None:
        """Return the exit status, None while it runs."""
        return self._process.get_returncode() if self._process else None

    def end(self) -> str:
        """Return how the process ended, as text."""
        code = self._process.get_returncode() if self._process else None
        if code is None:
            return "it closed its output"
        if code < 0:
            with suppress(ValueError):
                return f"it was killed by {signal.Signals(-code).name}"
        return f"it exited with status {code}"

    async def close(self, grace_s: float = EOF_GRACE_S) -> None:
        """End the process: close its input, then SIGTERM, then SIGKILL for the whole group."""
        assert self._process is not None  # noqa: S101 - `spawn` returned
        pid = self._process.get_pid()
        try:
            if pipe := self._stdin():
                pipe.close()
            if not await _wait_for_event(self._exited, grace_s):
                send_group_signal(pid, signal.SIGTERM)
                await _wait_for_event(self._exited, TERM_GRACE_S)
        finally:
            send_group_signal(pid, signal.SIGKILL)  # also members of its group that outlived it
            await _wait_for_event(self._exited, REAP_S)
            self._process.close()
            if self._way_out:
                await self._way_out.close()
        await _wait_for_event(self._unplugged, REAP_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport (called by the loop)."""
        assert isinstance(transport, asyncio.SubprocessTransport)  # noqa: S101
        self._process = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Handle output of the process (called by the loop); pause reading if it is too much."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if fd == 2:
            self._tail.add(data)
        else:
            self._cut(data)
        now = loop.time()
        if pause_s := self._paces[fd].spent(now - began, now):
            self._pause(fd, pause_s)

    def _cut(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            if line:
                self._on_line(line)
            if isinstance(line, OverlongLine) and line.hopeless:
                self._kill()

    def _pause(self, fd: int, seconds: float) -> None:
        pipe = self._process.get_pipe_transport(fd) if self._process else None
        if isinstance(pipe, asyncio.ReadTransport) and pipe.is_reading():
            pipe.pause_reading()
            asyncio.get_running_loop().call_later(seconds, pipe.resume_reading)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Record the end of stdout: no more responses will come (called by the loop)."""
        if fd == 1:
            self._silent = True
            self._soon_over()

    def process_exited(self) -> None:
        """Record the exit, even if a grandchild keeps the pipes open (called by the loop)."""
        self._exited.set()
        self._soon_over()

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that process and pipes are closed (called by the loop)."""
        self._unplugged.set()

    def _soon_over(self) -> None:
        # The exit and the end of the output come in any order: wait briefly for the other.
        wait_s = 0 if self._silent and self._exited.is_set() else LAST_OUTPUT_S
        asyncio.get_running_loop().call_later(wait_s, self._over)

    def _over(self) -> None:
        if tell := self._on_over:
            self._on_over = None
            tell(self)

    def _kill(self) -> None:
        assert self._process is not None  # noqa: S101
        send_group_signal(self._process.get_pid(), signal.SIGKILL)

    def _stdin(self) -> asyncio.WriteTransport | None:
        pipe = self._process.get_pipe_transport(0) if self._process else None
        return pipe if isinstance(pipe, asyncio.WriteTransport) else None


async def spawn(
    endpoint: ServerEndpoint, on_line: OnLine, on_over: OnOver, tail: StderrTail
) -> ChildProcess:
    """Start the endpoint's command in its own process group.

    Raises `UpstreamError`: `server_unreachable`; `variable_not_allowed` and `folder_not_allowed`
    for configurations that predate or bypass these rules; `sandbox_unavailable` or
    `confinement_unavailable` if the configured protection is not available.
    """
    _refuse_configuration(endpoint)
    env = build_environment(endpoint.env)
    command = find_command(endpoint.command, env, endpoint.cwd)
    if command is None:
        raise _build_start_error(
            endpoint, format_message("`{command}` is not a command here", command=endpoint.command)
        )
    folders = _open_folders(endpoint)
    way_out = await _open_way_out(endpoint)
    try:
        launch = await asyncio.to_thread(_prepare, endpoint, command, env, folders, way_out)
        starting = asyncio.ensure_future(
            asyncio.get_running_loop().subprocess_exec(
                lambda: ChildProcess(on_line, on_over, tail, endpoint.max_line, way_out),
                *(*launch.words, *endpoint.limits.prefix(), command, *launch.args),
                env=launch.env,
                cwd=endpoint.cwd,
                start_new_session=True,
                pass_fds=folders.descriptors,
            )
        )
        starting.add_done_callback(lambda _: folders.close())
        return await _await_started_child(starting)
    except BaseException as error:
        folders.close()
        if way_out:
            await way_out.close()
        if not isinstance(error, OSError | ValueError):
            raise
        said = str(error)
        if isinstance(error, OSError) and error.strerror:
            said = f"{error.strerror}: {error.filename}"
        raise _build_start_error(
            endpoint, format_message("it could not be started ({error})", error=said)
        ) from error


def find_installer(endpoint: ServerEndpoint, installer: str) -> str | None:
    """Return the installer in the folder of the endpoint's launcher, else on the PATH."""
    env = build_environment(endpoint.env)
    launcher = find_command(endpoint.command, env, endpoint.cwd)
    beside = str(Path(launcher).with_name(installer)) if launcher else installer
    return find_command(beside, env, None) or find_command(installer, env, None)


def _refuse_configuration(endpoint: ServerEndpoint) -> None:
    """Raise for variables and folders that no server may have, even if they are stored."""
    for name in without_exception(endpoint.env, endpoint.env_exceptions):
        raise variable_not_allowed(endpoint, name, danger_of(name))
    why = endpoint.folder_rule.refusal(endpoint.cwd) if endpoint.cwd else None
    if why:
        raise folder_not_allowed(endpoint, why)


async def _await_started_child(
    starting: "asyncio.Future[tuple[asyncio.SubprocessTransport, ChildProcess]]",
) -> ChildProcess:
    """Return the child once it has started; end it if the caller was canceled meanwhile.

    The start itself is never canceled: asyncio may hang on a process whose pipes it is connecting.
    """
    try:
        _, child = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait({starting})
        if not starting.cancelled() and starting.exception() is None:
            await starting.result()[1].close(0)
        raise
    return child


@dataclass(frozen=True)
class Launch:
    """The prefix of a command, its arguments and its environment."""

    words: tuple[str, ...]
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


async def _open_way_out(endpoint: ServerEndpoint) -> EgressProxy | None:
    """Open the egress proxy of a sandboxed server with network `egress`."""
    sandbox = endpoint.sandbox
    if sandbox is None or sandbox.network != "egress":
        return None
    ports = find_forwarded_ports(endpoint.args, endpoint.env)
    way_out = EgressProxy(endpoint.name, allow_private=sandbox.allow_private, ports=ports)
    await way_out.open()
    return way_out


def _prepare(
    endpoint: ServerEndpoint,
    command: str,
    env: Mapping[str, str],
    folders: OpenFolders,
    way_out: EgressProxy | None,
) -> Launch:
    """Return how to start the command with its protection (blocks the first time)."""
    args = endpoint.args
    if sandbox := endpoint.sandbox:
        try:
            words = sandbox.words(command, cwd=endpoint.cwd, folders=folders, way_out=way_out)
        except ServerSandboxUnavailable as problem:
            if sandbox.required:
                raise not_sandboxed(endpoint, str(problem), problem.remedy) from None
            return Launch(choose_containment().prefix, args, env)
        ports = way_out.ports if way_out else ()
        inside = sandbox.environment(env)
        return Launch(
            words,
            tuple(replace_addresses(value, ports) for value in args),
            {name: replace_addresses(value, ports) for name, value in inside.items()},
        )
    if endpoint.confinement.kind == "none":
        return Launch(choose_containment().prefix, args, env)
    try:
        home = env.get("HOME", "")
        prefix = endpoint.confinement.prefix(command, home=home, cwd=endpoint.cwd)
        return Launch(prefix, args, env)
    except ServerSandboxUnavailable as problem:
        raise build_sandbox_error(endpoint, str(problem), problem.remedy) from None


def _build_start_error(endpoint: ServerEndpoint, why: str) -> UpstreamError:
    return build_unreachable_error(endpoint, why, remedy=COMMAND_REMEDY)


async def _wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


EVERY_S = 3.0  # minimum interval between two reports while the child writes
PATIENCE_S = 5.0
CLOSED = "Bonobot closed it"


@dataclass(frozen=True)
class StderrSnapshot:
    """One child's stderr; `ended` says how the child ended, "" while it runs."""

    child_id: UUID
    server_id: UUID
    organization_id: UUID
    text: str = field(repr=False)
    ended: str = ""


Keep = Callable[[StderrSnapshot], Awaitable[None]]
_keep: list[Keep] = []


def keep_with(keep: Keep) -> None:
    """Register the function that stores the stderr of children."""
    _keep[:] = [keep]


def find_stderr_keeper() -> Keep | None:
    """Return the registered function, if any."""
    return _keep[-1] if _keep else None


class StderrReporter:
    """Reports the stderr of one child: every three seconds at most, and at its end."""

    def __init__(
        self, endpoint: ServerEndpoint, tail: StderrTail, crew: TaskSet, keep: Keep | None
    ) -> None:
        self._endpoint = endpoint
        self._tail = tail
        self._crew = crew
        self._keep = keep
        self._child_id = uuid4()
        self._writing: asyncio.Task[None] | None = None
        self._written = False

    def written(self) -> None:
        """Record that the child wrote something (called by the loop)."""
        self._written = True
        if self._keep is not None and (self._writing is None or self._writing.done()):
            self._writing = self._crew.spawn(self._soon(self._keep), name="keep stderr")

    async def end(self, how: str) -> None:
        """Report the final output; nothing for a silent child that we closed."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait({self._writing})
        if self._keep is not None and (self._written or how):
            last = self._crew.spawn(
                _report_snapshot(self._keep, self._words(how or CLOSED)), name="keep stderr"
            )
            await asyncio.wait({last}, timeout=PATIENCE_S)

    async def _soon(self, keep: Keep) -> None:
        await asyncio.sleep(EVERY_S)
        await keep(self._words())

    def _words(self, ended: str = "") -> StderrSnapshot:
        return StderrSnapshot(
            self._child_id,
            self._endpoint.server_id,
            self._endpoint.organization_id,
            self._tail.text(),
            ended,
        )


async def _report_snapshot(keep: Keep, words: StderrSnapshot) -> None:
    await keep(words)
