"""Resolving: the system's answer to what a name means, waited for beside the loop."""

import asyncio
import os
import socket
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache


async def system_resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host, each once, in the order in which they are to be tried."""
    return await asyncio.wrap_future(look_up(host, port))


def look_up(host: str, port: int) -> Future[list[str]]:
    """Begin to look up the addresses of a host."""
    return _resolvers(os.getpid()).submit(_looked_up, host, port)


@cache
def _resolvers(pid: int) -> ThreadPoolExecutor:
    # Own threads, so that names which never resolve hold up nobody else's work; per process,
    # because threads don't survive a fork.
    return ThreadPoolExecutor(32, thread_name_prefix=f"resolve-{pid}")


def _looked_up(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
