"""Streams that tell quickly whether anything has come: each request asks it of each idle one.

A pool looks whether a server has closed its idle connections before it takes one. AnyIO works out
all that can be said of a stream for it, addresses included; here the socket is kept instead.
"""

import select
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore2


class Backend(httpcore2.AnyIOBackend):
    """Connects as AnyIO does."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Return a stream to an address."""
        return Stream(await super().connect_tcp(host, port, timeout, local_address, socket_options))


class Stream(httpcore2.AsyncNetworkStream):
    """Another stream, whose socket is asked directly."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner
        self._socket: Any = inner.get_extra_info("socket")
        self.read = inner.read  # type: ignore[method-assign]  # nothing is added to them
        self.write = inner.write  # type: ignore[method-assign]
        self.aclose = inner.aclose  # type: ignore[method-assign]

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Return the encrypted stream over this one."""
        return Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        """Return what is known of the connection; `is_readable`: data has come, or its end."""
        if info == "is_readable" and self._socket is not None:
            return _readable(self._socket.fileno())
        return self._inner.get_extra_info(info)


def _readable(descriptor: int) -> bool:
    if descriptor < 0:
        return True  # closed: a read would say so at once
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
