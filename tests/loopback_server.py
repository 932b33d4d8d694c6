"""Serve connections on the loopback, and end all of them with the block that needs them."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serve_connections(
    handler: Handler, tls: ssl.SSLContext | None = None, *, port: int = 0
) -> AsyncIterator[int]:
    """Listen while the block runs; yield the port. A connection is closed after its handler.

    Handlers still running at the end are cancelled. Without that, a loop that ends at the same
    time as its connections leaves open sockets, which are reported in a later test.
    """
    tasks: list[asyncio.Future[None]] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(handler(reader, writer))
        # Not in the task: one that is cancelled before it starts runs nothing.
        task.add_done_callback(lambda _: writer.close())
        tasks.append(task)

    async with await asyncio.start_server(accept, "127.0.0.1", port, ssl=tls) as server:
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
