"""A door before a web process that lets the suite in: it adds the token that the suite can't send.

Bytes go through as they come, both ways; an end on one side is one on the other. A connection is
for one request, so that only its beginning has to be read.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from anyio.from_thread import start_blocking_portal

CHUNK = 65_536
OURS = (b"authorization:", b"connection:")


@dataclass(frozen=True)
class Door:
    """Where requests go, and with which token."""

    port: int
    token: str

    async def let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one request on, and its answer back."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            inward, outward = await asyncio.open_connection("127.0.0.1", self.port)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()
            return
        outward.write(self._with_token(head))
        passing = [
            asyncio.ensure_future(_pass(reader, outward)),
            asyncio.ensure_future(_pass(inward, writer)),
        ]
        await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        for one in passing:
            one.cancel()
        for end in (outward, writer):
            end.close()

    def _with_token(self, head: bytes) -> bytes:
        line, *headers = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        kept = [header for header in headers if not header.lower().startswith(OURS)]
        added = [b"Authorization: Bearer " + self.token.encode(), b"Connection: close"]
        return b"\r\n".join([line, *kept, *added, b"", b""])


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
    except ConnectionError:
        return


@contextmanager
def door(port: int, to: int, token: str) -> Iterator[None]:
    """Listen on a port of the loopback for requests to the port `to`."""
    with start_blocking_portal() as portal:
        listening = portal.call(asyncio.start_server, Door(to, token).let_in, "127.0.0.1", port)
        try:
            yield
        finally:
            portal.call(listening.close)
