"""A fake network: resolvers with fixed answers, and sockets that record connections."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import httpcore2

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class FakeNetwork(httpcore2.AsyncNetworkBackend):
    """Record the addresses of connections and answer with fixed bytes."""

    def __init__(self, answer: bytes = OK, dead: Iterable[str] = ()) -> None:
        self.connected: list[str] = []
        self._answer = answer
        self._dead = set(dead)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore2.AsyncNetworkStream:
        self.connected.append(host)
        if host in self._dead:
            raise httpcore2.ConnectError("refused")
        return httpcore2.AsyncMockStream([self._answer])


def build_resolver(*answers: list[str]) -> Callable[[str, int], Awaitable[list[str]]]:
    """Build a resolver with one answer per lookup; the last one is repeated."""
    remaining = list(answers)

    async def resolve(host: str, port: int) -> list[str]:
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    return resolve
