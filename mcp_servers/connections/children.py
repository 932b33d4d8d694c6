"""Children: server processes, their bounded lines and their last words.

A child's output is pushed to us by the loop in pieces and cut into lines here, in linear time and
with a bound: of a line that is too long only the two ends are kept, so that it can still be told
which request it answered. What it writes to stderr is kept in a ring of 64 KiB.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bonobot.lib.masking import MASK, mask_text
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible, without_terminal
from mcp_servers.connections.confinement import Unavailable
from mcp_servers.connections.containment import (
    containment,
    environment,
    find_command,
    signal_group,
)
from mcp_servers.connections.egress_proxy import EgressProxy
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.connections.environment_rules import danger_of, without_exception
from mcp_servers.connections.errors import (
    UpstreamError,
    folder_not_allowed,
    not_confined,
    not_sandboxed,
    unreachable,
    variable_not_allowed,
)
from mcp_servers.connections.forwarded_ports import find_forwarded_ports, replace_addresses
from mcp_servers.connections.open_folders import FolderReplaced, OpenFolders
from mcp_servers.connections.pacing import Pace

RING = 64 * 1024
SHORTEST_SECRET = 4
END_KEPT = 256
HOPELESS = 16  # times the longest line: then the child is not worth reading on
EOF_GRACE_S = 2.0
TERM_GRACE_S = 1.0
REAP_S = 5.0
LAST_OUTPUT_S = 0.25
COMMAND_REMEDY = "Check the command and that it is installed on this machine."


@dataclass(frozen=True)
class Overlong:
    """A line over the bound: its two ends; `hopeless` when it was never going to end."""

    head: bytes
    tail: bytes
    hopeless: bool = False


OnLine = Callable[[bytes | Overlong], None]
OnOver = Callable[["Child"], None]


class Lines:
    """Cuts a stream of bytes into lines of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._start()

    def feed(self, data: bytes) -> Iterator[bytes | Overlong]:
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
        self._overlong: Overlong | None = None

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._overlong is not None:
            tail = (self._overlong.tail + part[-END_KEPT:])[-END_KEPT:]
            self._overlong = replace(self._overlong, tail=tail)
            return
        self._parts.append(part)
        if self._size > self._limit:
            whole = b"".join(self._parts)
            self._overlong = Overlong(whole[:END_KEPT], whole[-END_KEPT:])
            self._parts = []


class Tail:
    """The last 64 KiB of what a child wrote where nobody reads; `on_add` hears of all of it."""

    def __init__(self, secrets: tuple[str, ...] = ()) -> None:
        self.on_add: Callable[[], None] = lambda: None
        self._secrets = tuple(secret for secret in secrets if len(secret) >= SHORTEST_SECRET)
        self._kept = b""
        self._cut = False
        self._fresh = 0

    def add(self, data: bytes) -> None:
        """Keep `data`, forget the oldest."""
        self._cut = self._cut or len(self._kept) + len(data) > RING
        self._kept = (self._kept + data)[-RING:]
        self._fresh = min(RING, self._fresh + len(data))
        self.on_add()

    def mark(self) -> None:
        """Take note that another child writes from here on."""
        self._fresh = 0

    def text(self) -> str:
        """Return what is kept, masked and visible, without terminal sequences; any thread may."""
        return self._shown(self._kept, cut=self._cut)

    def last_words(self) -> str:
        """Return, in the same way, what the last child wrote."""
        fresh = self._kept[-self._fresh :] if self._fresh else b""
        return self._shown(fresh, cut=self._cut and self._fresh == RING)

    def _shown(self, kept: bytes, *, cut: bool) -> str:
        text = without_terminal(kept.decode("utf-8", "replace")).replace("\r\n", "\n")
        return visible(self._masked(text, cut=cut).replace("\r", "\n"))[-RING:]

    def _masked(self, text: str, *, cut: bool) -> str:
        """Mask the secrets, and what the cut left of one at the start or time at the end."""
        text = mask_text(text, self._secrets)
        longest = max(map(len, self._secrets), default=0)
        if cut and longest:
            text = text[longest - 1 :]
        for secret in self._secrets:
            shown = range(len(secret) - 1, SHORTEST_SECRET - 1, -1)
            if begun := next((n for n in shown if text.endswith(secret[:n])), 0):
                return text[:-begun] + MASK
        return text


class Child(asyncio.SubprocessProtocol):
    """One running server process; `on_over` is called once it can't answer any more."""

    def __init__(
        self,
        on_line: OnLine,
        on_over: OnOver,
        tail: Tail,
        limit: int,
        way_out: EgressProxy | None = None,
    ) -> None:
        self._way_out = way_out
        self._on_line = on_line
        self._on_over: OnOver | None = on_over
        self._lines = Lines(limit)
        self._tail = tail
        self._silent = False
        self._paces = {1: Pace(), 2: Pace()}
        self._exited = asyncio.Event()
        self._unplugged = asyncio.Event()
        self._process: asyncio.SubprocessTransport | None = None

    @property
    def waiting_bytes(self) -> int:
        """Return how much of what we wrote the child hasn't taken."""
        pipe = self._stdin()
        return pipe.get_write_buffer_size() if pipe else 0

    def write(self, line: bytes) -> None:
        """Send one line; what a dead child can't take is dropped: its death is told."""
        pipe = self._stdin()
        if pipe is not None and not pipe.is_closing():
            pipe.write(line + b"\n")

    @property
    def returncode(self) -> int | None:
        """Return the exit status, None while it runs."""
        return self._process.get_returncode() if self._process else None

    def end(self) -> str:
        """Say in words how the process ended."""
        code = self._process.get_returncode() if self._process else None
        if code is None:
            return "it closed its output"
        if code < 0:
            with suppress(ValueError):
                return f"it was killed by {signal.Signals(-code).name}"
        return f"it exited with status {code}"

    async def close(self, grace_s: float = EOF_GRACE_S) -> None:
        """End the process: by its input's end, then SIGTERM, then SIGKILL for all of its group."""
        assert self._process is not None  # noqa: S101 - `spawn` returned
        pid = self._process.get_pid()
        try:
            if pipe := self._stdin():
                pipe.close()
            if not await _within(self._exited, grace_s):
                signal_group(pid, signal.SIGTERM)
                await _within(self._exited, TERM_GRACE_S)
        finally:
            signal_group(pid, signal.SIGKILL)  # and those of its group that outlived it
            await _within(self._exited, REAP_S)
            self._process.close()
            if self._way_out:
                await self._way_out.close()
        await _within(self._unplugged, REAP_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take hold of the process (called by the loop)."""
        assert isinstance(transport, asyncio.SubprocessTransport)  # noqa: S101
        self._process = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Take what the process wrote (called by the loop), and read on when it is its turn."""
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
            if isinstance(line, Overlong) and line.hopeless:
                self._kill()

    def _pause(self, fd: int, seconds: float) -> None:
        pipe = self._process.get_pipe_transport(fd) if self._process else None
        if isinstance(pipe, asyncio.ReadTransport) and pipe.is_reading():
            pipe.pause_reading()
            asyncio.get_running_loop().call_later(seconds, pipe.resume_reading)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Note the end of stdout: nothing more will be answered (called by the loop)."""
        if fd == 1:
            self._silent = True
            self._soon_over()

    def process_exited(self) -> None:
        """Note the exit, even where a grandchild holds the pipes open (called by the loop)."""
        self._exited.set()
        self._soon_over()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that process and pipes are gone (called by the loop)."""
        self._unplugged.set()

    def _soon_over(self) -> None:
        # The exit and the end of the output come in any order: wait a little for the other.
        wait_s = 0 if self._silent and self._exited.is_set() else LAST_OUTPUT_S
        asyncio.get_running_loop().call_later(wait_s, self._over)

    def _over(self) -> None:
        if tell := self._on_over:
            self._on_over = None
            tell(self)

    def _kill(self) -> None:
        assert self._process is not None  # noqa: S101
        signal_group(self._process.get_pid(), signal.SIGKILL)

    def _stdin(self) -> asyncio.WriteTransport | None:
        pipe = self._process.get_pipe_transport(0) if self._process else None
        return pipe if isinstance(pipe, asyncio.WriteTransport) else None


async def spawn(endpoint: Endpoint, on_line: OnLine, on_over: OnOver, tail: Tail) -> Child:
    """Start the endpoint's command in a group of its own.

    Raises `server_unreachable`, `variable_not_allowed` and `folder_not_allowed` for what was
    configured before its rule or another way, and `sandbox_unavailable` or
    `confinement_unavailable` rather than starting it with less protection than asked for.
    """
    _refuse_configuration(endpoint)
    env = environment(endpoint.env)
    command = find_command(endpoint.command, env, endpoint.cwd)
    if command is None:
        raise _not_started(
            endpoint, say("`{command}` is not a command here", command=endpoint.command)
        )
    folders = _open_folders(endpoint)
    way_out = await _open_way_out(endpoint)
    try:
        launch = await asyncio.to_thread(_prepare, endpoint, command, env, folders, way_out)
        starting = asyncio.ensure_future(
            asyncio.get_running_loop().subprocess_exec(
                lambda: Child(on_line, on_over, tail, endpoint.max_line, way_out),
                *(*launch.words, *endpoint.limits.prefix(), command, *launch.args),
                env=launch.env,
                cwd=endpoint.cwd,
                start_new_session=True,
                pass_fds=folders.descriptors,
            )
        )
        starting.add_done_callback(lambda _: folders.close())
        return await _started(starting)
    except BaseException as error:
        folders.close()
        if way_out:
            await way_out.close()
        if not isinstance(error, OSError | ValueError):
            raise
        said = str(error)
        if isinstance(error, OSError) and error.strerror:
            said = f"{error.strerror}: {error.filename}"
        raise _not_started(
            endpoint, say("it could not be started ({error})", error=said)
        ) from error


def find_installer(endpoint: Endpoint, installer: str) -> str | None:
    """Return the installer that belongs to the endpoint's launcher: beside it, or on the PATH."""
    env = environment(endpoint.env)
    launcher = find_command(endpoint.command, env, endpoint.cwd)
    beside = str(Path(launcher).with_name(installer)) if launcher else installer
    return find_command(beside, env, None) or find_command(installer, env, None)


def _refuse_configuration(endpoint: Endpoint) -> None:
    """Raise for what no server may be given, whatever is stored."""
    for name in without_exception(endpoint.env, endpoint.env_exceptions):
        raise variable_not_allowed(endpoint, name, danger_of(name))
    why = endpoint.folder_rule.refusal(endpoint.cwd) if endpoint.cwd else None
    if why:
        raise folder_not_allowed(endpoint, why)


async def _started(starting: "asyncio.Future[tuple[asyncio.SubprocessTransport, Child]]") -> Child:
    """Return the child once it has started; one that nobody waits for any more is ended.

    The start itself is never cancelled: asyncio may wait for ever for a process whose pipes it was
    connecting then.
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
    """The words that go before a command, its arguments and its environment."""

    words: tuple[str, ...]
    args: tuple[str, ...]
    env: Mapping[str, str]


def _open_folders(endpoint: Endpoint) -> OpenFolders:
    """Open what a sandboxed server is shown; raises `server_unreachable`."""
    if endpoint.sandbox is None:
        return OpenFolders(())
    try:
        return endpoint.sandbox.open_folders(endpoint.cwd)
    except FolderReplaced as error:
        raise _not_started(endpoint, str(error)) from error


async def _open_way_out(endpoint: Endpoint) -> EgressProxy | None:
    """Open the egress proxy of a sandboxed server that may reach the network by it."""
    sandbox = endpoint.sandbox
    if sandbox is None or sandbox.network != "egress":
        return None
    ports = find_forwarded_ports(endpoint.args, endpoint.env)
    way_out = EgressProxy(endpoint.name, allow_private=sandbox.allow_private, ports=ports)
    await way_out.open()
    return way_out


def _prepare(
    endpoint: Endpoint,
    command: str,
    env: Mapping[str, str],
    folders: OpenFolders,
    way_out: EgressProxy | None,
) -> Launch:
    """Return how the command is started with the protection asked for (blocks the first time)."""
    args = endpoint.args
    if sandbox := endpoint.sandbox:
        try:
            words = sandbox.words(command, cwd=endpoint.cwd, folders=folders, way_out=way_out)
        except Unavailable as problem:
            if sandbox.required:
                raise not_sandboxed(endpoint, str(problem), problem.remedy) from None
            return Launch(containment().prefix, args, env)
        ports = way_out.ports if way_out else ()
        inside = sandbox.environment(env)
        return Launch(
            words,
            tuple(replace_addresses(value, ports) for value in args),
            {name: replace_addresses(value, ports) for name, value in inside.items()},
        )
    if endpoint.confinement.kind == "none":
        return Launch(containment().prefix, args, env)
    try:
        home = env.get("HOME", "")
        prefix = endpoint.confinement.prefix(command, home=home, cwd=endpoint.cwd)
        return Launch(prefix, args, env)
    except Unavailable as problem:
        raise not_confined(endpoint, str(problem), problem.remedy) from None


def _not_started(endpoint: Endpoint, why: str) -> UpstreamError:
    return unreachable(endpoint, why, remedy=COMMAND_REMEDY)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
