"""A network of fakes: names that resolve as a test says, sockets that only take note."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import httpcore2

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Dial(httpcore2.AsyncNetworkBackend):
    """Records what would be connected to and answers with canned bytes."""

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


def answers(*rounds: list[str]) -> Callable[[str, int], Awaitable[list[str]]]:
    """Return a resolver whose answer differs from one look-up to the next."""
    left = list(rounds)

    async def resolve(host: str, port: int) -> list[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve
