"""A proxy in front of a web process that adds the token that the suite can't send.

It passes bytes on unchanged in both directions, and closes both sides when one closes. A connection
carries one request, so that only its headers have to be parsed.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from anyio.from_thread import start_blocking_portal

CHUNK = 65_536
REPLACED_HEADERS = (b"authorization:", b"connection:")


@dataclass(frozen=True)
class Proxy:
    """The target port, and the token to add."""

    port: int
    token: str

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one request and its response."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            inward, outward = await asyncio.open_connection("127.0.0.1", self.port)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()
            return
        outward.write(self._with_token(head))
        tasks = [
            asyncio.ensure_future(_copy_stream(reader, outward)),
            asyncio.ensure_future(_copy_stream(inward, writer)),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for side in (outward, writer):
            side.close()

    def _with_token(self, head: bytes) -> bytes:
        line, *headers = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        kept_headers = [
            header for header in headers if not header.lower().startswith(REPLACED_HEADERS)
        ]
        added_headers = [b"Authorization: Bearer " + self.token.encode(), b"Connection: close"]
        return b"\r\n".join([line, *kept_headers, *added_headers, b"", b""])


async def _copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
    except ConnectionError:
        return


@contextmanager
def door(port: int, to: int, token: str) -> Iterator[None]:
    """Listen on a loopback port and forward requests to the port `to`."""
    with start_blocking_portal() as portal:
        server = portal.call(asyncio.start_server, Proxy(to, token).forward, "127.0.0.1", port)
        try:
            yield
        finally:
            portal.call(server.close)
