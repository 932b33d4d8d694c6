"""A session of the handshake era over Streamable HTTP, for one holder."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from mcp_servers.connections import changes
from mcp_servers.connections.changes import Hear
from mcp_servers.connections.channel import NOBODY, Channel, OnMessage
from mcp_servers.connections.crew import Crew
from mcp_servers.connections.endpoint import Endpoint, Wire
from mcp_servers.connections.eras import METHOD_NOT_FOUND, Greeting, initialize, initialized
from mcp_servers.connections.errors import UpstreamError
from mcp_servers.connections.host import Desk, Host
from mcp_servers.connections.listening import slowly
from mcp_servers.connections.wire import (
    Request,
    concerns,
    message_of,
    notification,
    report,
    result_of,
)

PARTING_S = 2.0
LISTENING_S = 1.0
SESSION_ID = "Mcp-Session-Id"


class Session:
    """What one holder asks of one server, and what the server says by itself."""

    wire: Wire = "streamable"
    alive = True  # as long as the server doesn't say that it is lost

    def __init__(
        self,
        endpoint: Endpoint,
        channel: Channel,
        host: Host,
        crew: Crew,
        clock: Callable[[], float],
        hear: Hear | None = None,
        followed: bool = False,
    ) -> None:
        self.greeting: Greeting
        self._asking = 0
        self._used_at = clock()
        self._clock = clock
        self._endpoint = endpoint
        self._channel = channel
        self._host = host
        self._crew = crew
        self._hear = hear
        self._followed = followed  # then there is one stream for what comes unasked already
        self._desk = Desk(endpoint, host, crew, self._tell)
        self._numbers = itertools.count(1)
        self._headers: dict[str, str] = {}
        self._listener: asyncio.Task[None] | None = None

    async def open(self) -> Greeting:
        """Shake hands."""
        request = initialize(self._host.capabilities(self._endpoint))
        message = message_of(next(self._numbers), request, {})
        found = await self._channel.ask(request, message, {}, self._heard(request, message["id"]))
        greeting = initialized(self._endpoint, result_of(self._endpoint, found.message))
        self._headers["MCP-Protocol-Version"] = greeting.protocol_version
        if number := found.headers.get(SESSION_ID):
            self._headers[SESSION_ID] = number
        await self._channel.tell(notification("notifications/initialized"), self._headers)
        if not self._followed:
            await self._listen(greeting, slowly(self._heard(request, message["id"])))
        self.greeting = greeting
        return greeting

    async def ask(self, request: Request) -> dict[str, Any]:
        """Return the raw result of a request within the session."""
        number = next(self._numbers)
        message = message_of(number, request, {})
        self._asking += 1
        try:
            with self._desk.waiting(request):
                found = await self._channel.ask(
                    request, message, self._headers, self._heard(request, number), resumable=True
                )
        except asyncio.CancelledError:
            gone = notification("notifications/cancelled", {"requestId": number})
            self._crew.spawn(self._tell(gone), name=f"cancel {self._endpoint.name}")
            raise
        finally:
            self._asking -= 1
            self._used_at = self._clock()
        return result_of(self._endpoint, found.message)

    async def follow(self, opened: asyncio.Event) -> None:
        """Hand on what the server says by itself, until that stream ends; raises what ended it."""
        heard = slowly(self._heard(Request("listen"), NOBODY))
        self._asking += 1
        try:
            await self._channel.follow(self._headers, heard, opened)
        finally:
            self._asking -= 1

    def idle_since(self, moment: float) -> bool:
        """Say whether nobody asks, nor has asked since `moment`."""
        return not self._asking and self._used_at < moment

    def lost(self, error: UpstreamError) -> bool:
        """Say whether the server no longer knows this session, so that nothing was done."""
        if SESSION_ID not in self._headers:
            return False
        if error.http_status == 404:
            return error.rpc_code != METHOD_NOT_FOUND
        # What several servers answer instead of the 404 that the protocol asks for.
        return error.http_status == 400 and "session" in str(error).lower()

    def leave(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.cancel()

    async def end(self) -> None:
        """Tell the server that the session is over, as far as it listens."""
        self.leave()
        if SESSION_ID in self._headers:
            await _politely(self._channel.delete(self._headers))

    async def _listen(self, greeting: Greeting, heard: OnMessage) -> None:
        """Start to listen, where what the server asks or tells may come on a stream of its own.

        Waits a little: servers drop that as long as nobody listens.
        """
        tells = self._hear is not None and changes.notifiable(greeting.capabilities)
        asked = self._host.listens and self._host.capabilities(self._endpoint)
        if not (asked or tells):
            return
        answered = asyncio.Event()
        listening = self._channel.listen(self._headers, heard, answered)
        self._listener = self._crew.spawn(listening, name=f"listen {self._endpoint.name}")
        try:
            async with asyncio.timeout(LISTENING_S):
                await answered.wait()
        except TimeoutError:
            return  # this server sends no headers before its first event
        except asyncio.CancelledError:
            self.leave()
            raise

    def _heard(self, request: Request, number: int) -> OnMessage:
        async def heard(message: dict[str, Any]) -> None:
            if message.get("id") is not None and isinstance(message.get("method"), str):
                self._desk.take(message, request)
            elif self._desk.hears(message):
                return
            elif concerns(message, number):
                await report(request, message)
            elif self._hear is not None and (notice := changes.notice_in(message)) is not None:
                self._hear(notice)

        return heard

    async def _tell(self, message: Mapping[str, Any]) -> None:
        await _politely(self._channel.tell(message, self._headers))


async def _politely(parting: Coroutine[Any, Any, None]) -> None:
    """Say something that may stay unheard, for 2 s at most."""
    with suppress(UpstreamError, TimeoutError):
        async with asyncio.timeout(PARTING_S):
            await parting
