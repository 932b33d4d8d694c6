"""stdio: one child process, the era it speaks, and the task that owns both."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from bonobot.lib.sayings import say
from mcp_servers.connections.changes import Hear, listen_request, notifiable
from mcp_servers.connections.children import EOF_GRACE_S, Child, Tail, spawn
from mcp_servers.connections.crew import Crew
from mcp_servers.connections.endpoint import Endpoint, Era
from mcp_servers.connections.eras import (
    Greeting,
    after_probe,
    ask_who_it_is,
    initialize,
    initialized,
    is_foreign,
    stamp,
)
from mcp_servers.connections.errors import UpstreamError, crashed, protocol_error, unreachable
from mcp_servers.connections.host import Host
from mcp_servers.connections.installation import installed
from mcp_servers.connections.last_words import Keep, Notes
from mcp_servers.connections.peer import Peer
from mcp_servers.connections.updates import (
    OnFrame,
    Told,
    Wish,
    first_of,
    keep_listening,
    subscribe_to,
)
from mcp_servers.connections.wire import Request, encode

# A server that says nothing to the probe gets the handshake beside it after this long.
SILENCE_S = 1.0
UNREAD_LIMIT = 4 * 1024 * 1024
SPEAK = say(
    "Check its command and arguments: it must speak MCP on its output, and nothing else. "
    "Its error output tells more."
)
READ_REMEDY = "Restart the server: it does not read what it is sent."


class StdioConnection:
    """A child process and what is asked of it; entered and left in one owner task.

    `hear` takes the change notices of a child that runs anyway; none runs for their sake. `keep`
    is handed what it writes to stderr.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        host: Host,
        tail: Tail,
        hear: Hear | None = None,
        keep: Keep | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.greeting: Greeting | None = None
        self.failure: UpstreamError | None = None
        self._host = host
        self._tail = tail
        self._hear = hear
        self._ended = asyncio.Event()
        self._followers = 0
        self._crew = Crew()
        self._notes = Notes(endpoint, tail, self._crew, keep)
        tail.on_add = self._notes.written
        self._peer: Peer | None = None
        self._child: Child
        self._opened = asyncio.Event()
        self._owner = self._crew.spawn(self._own(), name=f"stdio {endpoint.name}")

    @property
    def alive(self) -> bool:
        """Say whether a request may be tried."""
        return not (self._owner.done() or self._ended.is_set() or self.failure)

    @property
    def busy(self) -> bool:
        """Say whether it is starting or somebody waits for an answer."""
        opening = self.alive and not self._opened.is_set()
        return opening or (self._peer is not None and self._peer.busy)

    async def opened(self) -> Greeting:
        """Wait until the server has greeted; raises `UpstreamError` when it doesn't."""
        await self._opened.wait()
        if self.greeting is None:
            raise (self.failure or self._closed()).unsent()
        return self.greeting

    async def request(self, request: Request) -> dict[str, Any]:
        """Return the raw result; raises `UpstreamError`. Waits for ever: deadlines are callers'."""
        greeting = await self.opened()
        if self._child.waiting_bytes > UNREAD_LIMIT:
            raise unreachable(self.endpoint, "it reads nothing", remedy=READ_REMEDY)
        meta = stamp(greeting.era, self._host.capabilities(self.endpoint))
        assert self._peer is not None  # noqa: S101 - it has greeted
        return await self._peer.request(request, meta)

    async def follow(self, wish: Wish, told: Told) -> None:
        """Have the server tell of what is wished for, until that ends; raises what ends it.

        The child is kept as long, but gives its place up where others need it.
        """
        greeting = await self.opened()
        following = (
            keep_listening(self.endpoint, self._frames, wish, told, self._hear)
            if greeting.era == "modern"
            else subscribe_to(self.endpoint, self.request, wish, told)
        )
        self._followers += 1
        try:
            await first_of(following, self._over_with())
        finally:
            self._followers -= 1

    @property
    def followed(self) -> bool:
        """Say whether somebody wants to be told what it says by itself."""
        return self._followers > 0

    async def close(self) -> None:
        """End the child and wait until it is gone."""
        self._ended.set()
        if not self._opened.is_set():
            self._owner.cancel()
        await asyncio.wait({self._owner})
        await self._crew.close()

    async def _own(self) -> None:
        era = self.endpoint.era
        try:
            while await self._serve(era):
                era = "handshake"
        except UpstreamError as error:
            self._end(error)
        finally:
            self._opened.set()
            await self._notes.end(self._ended_how())

    def _ended_how(self) -> str:
        """Say how it ended, without the output that is kept beside it; "" when we closed it."""
        return str(self.failure).partition(" Its last words:")[0] if self.failure else ""

    def _end(self, failure: UpstreamError) -> None:
        # Before the child is closed, which may take seconds: nobody has to wait for that.
        self.failure = failure
        self._opened.set()

    async def _serve(self, era: Era | None) -> bool:
        """Run one child to its end; True: it died of the probe and is to be tried without."""
        self._tail.mark()
        self._peer = peer = Peer(self.endpoint, self._send, self._host, self._crew, self._hear)
        self._child = child = await spawn(
            await installed(self.endpoint),
            peer.receive,
            lambda child: self._over(peer, child),
            self._tail,
        )
        try:
            async with asyncio.timeout(self.endpoint.start_s):
                self.greeting = await self._greet(peer, era)
            self._listen(peer, self.greeting)
            self._opened.set()
            await self._ended.wait()
        except TimeoutError:
            seconds = f"{self.endpoint.start_s:g}"
            late = say("it did not answer within {seconds} s of its start", seconds=seconds)
            self._end(unreachable(self.endpoint, late, remedy=SPEAK))
        except UpstreamError as error:
            if error.code == "server_crashed" and era != "handshake":
                return True
            self._end(error)
        finally:
            peer.fail(self._closed())
            await child.close(EOF_GRACE_S if self.greeting else 0)
        return False

    def _listen(self, peer: Peer, greeting: Greeting) -> None:
        """Ask a modern child for its change notices; older ones send them unasked."""
        topics = notifiable(greeting.capabilities)
        if self._hear is not None and topics and greeting.era == "modern":
            meta = stamp("modern", self._host.capabilities(self.endpoint))
            listening = peer.stand(listen_request(topics), meta)
            self._crew.spawn(listening, name=f"listen {self.endpoint.name}")

    async def _frames(self, request: Request, on_frame: OnFrame) -> None:
        assert self._peer is not None  # noqa: S101 - it has greeted
        meta = stamp("modern", self._host.capabilities(self.endpoint))
        await self._peer.frames(request, meta, on_frame)

    async def _over_with(self) -> None:
        """Wait until the child is gone; raises why."""
        await self._ended.wait()
        raise self.failure or self._closed()

    def _over(self, peer: Peer, child: Child) -> None:
        """Take note that `child`, to whom `peer` speaks, can't answer any more."""
        failure = crashed(self.endpoint, child.end(), self._tail.last_words())
        if peer is self._peer and self.greeting is not None and not self._ended.is_set():
            self.failure = failure
            self._ended.set()
        peer.fail(failure)

    async def _greet(self, peer: Peer, era: Era | None) -> Greeting:
        if era == "handshake":
            try:
                return await self._initialize(peer)
            except UpstreamError as error:
                if not is_foreign(error, era):
                    raise
                return await self._discover(peer)
        # What is known to be modern may take its time; a stranger is asked the other way soon.
        return await self._probe(peer, SILENCE_S if era is None else self.endpoint.start_s / 2)

    async def _probe(self, peer: Peer, patience_s: float) -> Greeting:
        """Ask for a discovery; where that is refused or met by silence, shake hands."""
        probe = self._crew.spawn(_settled(self._discover(peer)), name="probe")
        handshake: asyncio.Task[Greeting | UpstreamError] | None = None
        try:
            await asyncio.wait({probe}, timeout=patience_s)
            if not probe.done():
                # The probe stays open: a slow starter answers it first, and is modern then.
                handshake = self._crew.spawn(_settled(self._initialize(peer)), name="handshake")
                await asyncio.wait({probe, handshake}, return_when=asyncio.FIRST_COMPLETED)
            if probe.done():
                return await self._after_probe(probe.result(), handshake, peer)
            assert handshake is not None  # noqa: S101 - one of both is done
            first = handshake.result()
            if isinstance(first, UpstreamError):  # then the slow answer to the probe decides
                await asyncio.wait({probe}, timeout=patience_s)
                return _greeting(probe.result() if probe.done() else first, first)
            return first
        finally:
            for task in filter(None, (probe, handshake)):
                task.cancel()

    async def _after_probe(
        self,
        outcome: Greeting | UpstreamError,
        handshake: asyncio.Task[Greeting | UpstreamError] | None,
        peer: Peer,
    ) -> Greeting:
        if isinstance(outcome, Greeting):
            return outcome
        after_probe(self.endpoint, outcome)
        return _greeting(await handshake if handshake else await self._initialize(peer))

    async def _discover(self, peer: Peer) -> Greeting:
        meta = stamp("modern", self._host.capabilities(self.endpoint))
        greeting = await ask_who_it_is(lambda request: peer.request(request, meta))
        if greeting is None:
            raise protocol_error(self.endpoint, "it discovered no version that Bonobot speaks")
        return greeting

    async def _initialize(self, peer: Peer) -> Greeting:
        result = await peer.request(initialize(self._host.capabilities(self.endpoint)), {})
        greeting = initialized(self.endpoint, result)
        peer.notify("notifications/initialized")
        return greeting

    def _send(self, message: Mapping[str, Any]) -> None:
        self._child.write(encode(message))

    def _closed(self) -> UpstreamError:
        return unreachable(self.endpoint, "the connection was closed", remedy="Try again.")


async def _settled(greeting: Coroutine[Any, Any, Greeting]) -> Greeting | UpstreamError:
    try:
        return await greeting
    except UpstreamError as error:
        return error


def _greeting(
    outcome: Greeting | UpstreamError, rather: Greeting | UpstreamError | None = None
) -> Greeting:
    """Return the greeting, or raise the failure; `rather` is the failure that tells more."""
    if isinstance(outcome, Greeting):
        return outcome
    raise rather if isinstance(rather, UpstreamError) else outcome
