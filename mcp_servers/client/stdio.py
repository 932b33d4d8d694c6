"""Stdio connections: the handshake with a child process, and requests to it."""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bonobot.core.i18n.messages import format_message
from mcp_servers.client.answer_server_requests import (
    Host,
    build_declared_capabilities,
    select_request_capabilities,
)
from mcp_servers.client.change_notifications import (
    DesiredSubscriptions,
    OnFrame,
    OnNotification,
    OnSubscriptionResult,
    build_listen_request,
    list_notifying_topics,
    sync_subscriptions,
    wait_for_first,
    watch_resources_by_stream,
)
from mcp_servers.client.child_process import (
    EOF_GRACE_S,
    ChildProcess,
    StderrReporter,
    StderrTail,
    spawn_child,
)
from mcp_servers.client.endpoint import Era, ServerEndpoint
from mcp_servers.client.errors import (
    UpstreamError,
    build_closed_error,
    build_crash_error,
    build_protocol_error,
    build_unreachable_error,
)
from mcp_servers.client.extension_points import StderrSink
from mcp_servers.client.jsonrpc import McpRequest, encode_message
from mcp_servers.client.jsonrpc_peer import StreamPeer
from mcp_servers.client.package_installation import install_package
from mcp_servers.client.protocol_versions import (
    HandshakeResult,
    build_initialize_request,
    build_request_meta,
    check_handshake_allowed,
    fetch_discover_result,
    is_handshake_refused,
    is_other_era_error,
    parse_initialize_result,
)
from mcp_servers.client.task_set import TaskSet

# A server that does not answer the probe within this time gets the handshake too.
PROBE_TIMEOUT_S = 1.0
MAX_UNREAD_BYTES = 4 * 1024 * 1024
START_REMEDY = format_message(
    "Check its command and arguments. It must write only MCP messages to its output. See "
    "its error output for details."
)
READ_REMEDY = "Restart the server. It doesn't read its input."


class StdioConnection:
    """A child process and its requests, run by one owner task.

    `on_notification` gets the change notifications of the child; no child is started for them.
    `stderr_sink` gets what the child writes to stderr. With `is_modern`, a child that supports both
    eras gets no handshake even if the host needs one.
    """

    def __init__(
        self,
        endpoint: ServerEndpoint,
        host: Host,
        tail: StderrTail,
        on_notification: OnNotification | None = None,
        stderr_sink: StderrSink | None = None,
        *,
        is_modern: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self.handshake: HandshakeResult | None = None
        self.failure: UpstreamError | None = None
        self._host = host
        self._tail = tail
        self._on_notification = on_notification
        self._is_modern = is_modern
        self._ended = asyncio.Event()
        self._watcher_count = 0
        self._user_count = 0
        self._tasks = TaskSet()
        self._stderr_reporter = StderrReporter(endpoint, tail, self._tasks, stderr_sink)
        tail.on_add = self._stderr_reporter.mark_written
        self._peer: StreamPeer | None = None
        self._child: ChildProcess
        self._opened = asyncio.Event()
        self._owner_task = self._tasks.spawn(self._run_connection(), name=f"stdio {endpoint.name}")

    @property
    def alive(self) -> bool:
        """Return whether a request may be tried."""
        return not (self._owner_task.done() or self._ended.is_set() or self.failure)

    @property
    def busy(self) -> bool:
        """Return whether it is starting, in use or has pending requests."""
        is_opening = self.alive and not self._opened.is_set()
        return is_opening or self._user_count > 0 or (self._peer is not None and self._peer.busy)

    @contextmanager
    def track_use(self) -> Iterator[None]:
        """Count as busy during the block, for a caller that is about to send a request."""
        self._user_count += 1
        try:
            yield
        finally:
            self._user_count -= 1

    async def wait_until_open(self) -> HandshakeResult:
        """Wait until the handshake is complete; raises `UpstreamError` if it fails."""
        await self._opened.wait()
        if self.handshake is None:
            raise (self.failure or build_closed_error(self.endpoint)).with_sent(False)
        return self.handshake

    async def send_request(self, request: McpRequest) -> dict[str, Any]:
        """Return the raw result; raises `UpstreamError`. The caller sets the deadline."""
        handshake = await self.wait_until_open()
        if self._child.unsent_bytes > MAX_UNREAD_BYTES:
            raise build_unreachable_error(
                self.endpoint, "it doesn't read its input", remedy=READ_REMEDY
            )
        capabilities = select_request_capabilities(
            self.endpoint, request, request.host or self._host
        )
        request.era = handshake.era
        meta = build_request_meta(handshake.era, capabilities)
        assert self._peer is not None  # noqa: S101 - it has greeted
        return await self._peer.send_request(request, meta)

    async def watch_resources(
        self, desired: DesiredSubscriptions, on_result: OnSubscriptionResult
    ) -> None:
        """Subscribe to the desired resources until the stream ends; raises what ended it.

        The child is not closed as idle meanwhile, but may be closed to make room for others.
        """
        handshake = await self.wait_until_open()
        watching = (
            watch_resources_by_stream(
                self.endpoint, self._receive_frames, desired, on_result, self._on_notification
            )
            if handshake.era == "modern"
            else sync_subscriptions(self.endpoint, self.send_request, desired, on_result)
        )
        self._watcher_count += 1
        try:
            await wait_for_first(watching, self._wait_until_ended())
        finally:
            self._watcher_count -= 1

    @property
    def watched(self) -> bool:
        """Return whether its resources are being watched."""
        return self._watcher_count > 0

    def keep_open(self) -> None:
        """Do not close the child as idle until `allow_closing`."""
        self._watcher_count += 1

    def allow_closing(self) -> None:
        """End the effect of one `keep_open`."""
        self._watcher_count -= 1

    async def close(self) -> None:
        """End the child and wait until it is gone."""
        self._ended.set()
        if not self._opened.is_set():
            self._owner_task.cancel()
        await asyncio.wait({self._owner_task})
        await self._tasks.close()

    async def _run_connection(self) -> None:
        era: Era | None = self.endpoint.era
        if not self._is_modern and self._host.needs_handshake(self.endpoint):
            era = "handshake"
        try:
            while await self._run_child(era):
                era = "handshake"
        except UpstreamError as error:
            self._fail(error)
        finally:
            self._opened.set()
            await self._stderr_reporter.report_end(self._describe_end())

    def _describe_end(self) -> str:
        """Return how it ended, without its stderr output; "" if we closed it."""
        return self.failure.summary if self.failure else ""

    def _fail(self, failure: UpstreamError) -> None:
        # Before the child is closed, which may take seconds: waiting callers must not wait for it.
        self.failure = failure
        self._opened.set()

    async def _run_child(self, era: Era | None) -> bool:
        """Run one child to its end; return True if the probe killed it: retry without one."""
        self._tail.mark_new_child()
        self._peer = peer = StreamPeer(
            self.endpoint, self._send_message, self._host, self._tasks, self._on_notification
        )
        self._child = child = await spawn_child(
            await install_package(self.endpoint),
            peer.receive_line,
            lambda child: self._handle_child_end(peer, child),
            self._tail,
        )
        try:
            async with asyncio.timeout(self.endpoint.start_s):
                self.handshake = await self._perform_handshake(peer, era)
            self._start_listening(peer, self.handshake)
            self._opened.set()
            await self._ended.wait()
        except TimeoutError:
            seconds = f"{self.endpoint.start_s:g}"
            detail = format_message(
                "it didn't respond within {seconds} s after start", seconds=seconds
            )
            self._fail(build_unreachable_error(self.endpoint, detail, remedy=START_REMEDY))
        except UpstreamError as error:
            if error.code == "server_crashed" and era != "handshake":
                return True
            self._fail(error)
        finally:
            peer.fail_all(build_closed_error(self.endpoint))
            await child.close(EOF_GRACE_S if self.handshake else 0)
        return False

    def _start_listening(self, peer: StreamPeer, handshake: HandshakeResult) -> None:
        """Subscribe to change notifications of a modern child; older ones send them anyway."""
        topics = list_notifying_topics(handshake.capabilities)
        if self._on_notification is not None and topics and handshake.era == "modern":
            meta = build_request_meta("modern", build_declared_capabilities(self.endpoint))
            listening = peer.send_standing_request(build_listen_request(topics), meta)
            self._tasks.spawn(listening, name=f"listen {self.endpoint.name}")

    async def _receive_frames(self, request: McpRequest, on_frame: OnFrame) -> None:
        assert self._peer is not None  # noqa: S101 - it has greeted
        meta = build_request_meta("modern", build_declared_capabilities(self.endpoint))
        await self._peer.receive_frames(request, meta, on_frame)

    async def _wait_until_ended(self) -> None:
        """Wait until the child is gone; raises the reason."""
        await self._ended.wait()
        raise self.failure or build_closed_error(self.endpoint)

    def _handle_child_end(self, peer: StreamPeer, child: ChildProcess) -> None:
        """Record that `child`, the process behind `peer`, can no longer answer."""
        failure = build_crash_error(
            self.endpoint, child.describe_end(), self._tail.get_last_output()
        )
        if peer is self._peer and self.handshake is not None and not self._ended.is_set():
            self.failure = failure
            self._ended.set()
        peer.fail_all(failure)

    async def _perform_handshake(self, peer: StreamPeer, era: Era | None) -> HandshakeResult:
        if era == "handshake":
            if self.endpoint.era == "modern":
                return await self._try_handshake(peer)
            try:
                return await self._send_initialize(peer)
            except UpstreamError as error:
                if not is_other_era_error(error, era):
                    raise
                return await self._fetch_discover_result(peer)
        # A server known to be modern may be slow; an unknown one soon gets the handshake too.
        return await self._probe_era(
            peer, PROBE_TIMEOUT_S if era is None else self.endpoint.start_s / 2
        )

    async def _try_handshake(self, peer: StreamPeer) -> HandshakeResult:
        """Send `initialize` to a modern server; fall back if it is refused or unanswered."""
        handshake = self._tasks.spawn(_wait_for_result(self._send_initialize(peer)), name="try")
        discovery: asyncio.Task[HandshakeResult | UpstreamError] | None = None
        try:
            await asyncio.wait({handshake}, timeout=self.endpoint.start_s / 2)
            if handshake.done() and _is_settled(outcome := handshake.result()):
                return _unwrap_result(outcome)
            # An unanswered handshake stays open: a server that starts slowly answers it first.
            discovery = self._tasks.spawn(
                _wait_for_result(self._fetch_discover_result(peer)), name="discover"
            )
            if not handshake.done():
                await asyncio.wait({handshake, discovery}, return_when=asyncio.FIRST_COMPLETED)
            if handshake.done() and _is_settled(outcome := handshake.result()):
                return _unwrap_result(outcome)
            return _unwrap_result(await discovery)
        finally:
            for task in filter(None, (handshake, discovery)):
                task.cancel()

    async def _probe_era(self, peer: StreamPeer, timeout_s: float) -> HandshakeResult:
        """Send `server/discover`; fall back to the handshake if it is refused or unanswered."""
        probe = self._tasks.spawn(_wait_for_result(self._fetch_discover_result(peer)), name="probe")
        handshake: asyncio.Task[HandshakeResult | UpstreamError] | None = None
        try:
            await asyncio.wait({probe}, timeout=timeout_s)
            if not probe.done():
                # The probe stays open: a modern server that starts slowly answers it first.
                handshake = self._tasks.spawn(
                    _wait_for_result(self._send_initialize(peer)), name="handshake"
                )
                await asyncio.wait({probe, handshake}, return_when=asyncio.FIRST_COMPLETED)
            if probe.done():
                return await self._complete_handshake(probe.result(), handshake, peer)
            assert handshake is not None  # noqa: S101 - one of both is done
            first = handshake.result()
            if isinstance(first, UpstreamError):  # then a late answer to the probe decides
                await asyncio.wait({probe}, timeout=timeout_s)
                return _unwrap_result(probe.result() if probe.done() else first, first)
            return first
        finally:
            for task in filter(None, (probe, handshake)):
                task.cancel()

    async def _complete_handshake(
        self,
        outcome: HandshakeResult | UpstreamError,
        handshake: asyncio.Task[HandshakeResult | UpstreamError] | None,
        peer: StreamPeer,
    ) -> HandshakeResult:
        if isinstance(outcome, HandshakeResult):
            return outcome
        check_handshake_allowed(self.endpoint, outcome)
        return _unwrap_result(await handshake if handshake else await self._send_initialize(peer))

    async def _fetch_discover_result(self, peer: StreamPeer) -> HandshakeResult:
        meta = build_request_meta("modern", build_declared_capabilities(self.endpoint))
        handshake = await fetch_discover_result(lambda request: peer.send_request(request, meta))
        if handshake is None:
            raise build_protocol_error(
                self.endpoint, "it has no protocol version that Bonobot supports"
            )
        return handshake

    async def _send_initialize(self, peer: StreamPeer) -> HandshakeResult:
        result = await peer.send_request(
            build_initialize_request(build_declared_capabilities(self.endpoint)), {}
        )
        handshake = parse_initialize_result(self.endpoint, result)
        peer.notify("notifications/initialized")
        return handshake

    def _send_message(self, message: Mapping[str, Any]) -> None:
        self._child.write_line(encode_message(message))


async def _wait_for_result(
    handshake: Coroutine[Any, Any, HandshakeResult],
) -> HandshakeResult | UpstreamError:
    try:
        return await handshake
    except UpstreamError as error:
        return error


def _is_settled(outcome: HandshakeResult | UpstreamError) -> bool:
    """Return whether a handshake ended with a result, or with an outage instead of a refusal."""
    return isinstance(outcome, HandshakeResult) or not is_handshake_refused(outcome)


def _unwrap_result(
    outcome: HandshakeResult | UpstreamError,
    preferred_failure: HandshakeResult | UpstreamError | None = None,
) -> HandshakeResult:
    """Return the handshake result or raise the failure, preferably `preferred_failure`."""
    if isinstance(outcome, HandshakeResult):
        return outcome
    raise preferred_failure if isinstance(preferred_failure, UpstreamError) else outcome
