"""Tunnels: connections through an HTTP proxy, opened with CONNECT (RFC 9110, section 9.3.6)."""

import asyncio
import base64
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

import httpcore2

LONGEST_ANSWER = 16 * 1024
DEFAULT_PORT = 80


@dataclass(frozen=True)
class Proxy:
    """Where the proxy is, and what it is told to let us through."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)


def proxy_of(url: str) -> Proxy | None:
    """Return the proxy that `http://[user:password@]host[:port]` names, None for a blank."""
    if not url:
        return None
    parts = urlsplit(url)
    told = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        told = f"Basic {base64.b64encode(pair.encode()).decode('ascii')}"
    return Proxy(parts.hostname or "", parts.port or DEFAULT_PORT, told)


async def open_tunnel(
    dial: httpcore2.AsyncNetworkBackend, proxy: Proxy, host: str, port: int, timeout_s: float | None
) -> httpcore2.AsyncNetworkStream:
    """Return a stream to `host` through the proxy, which resolves the name.

    Raises `ProxyError` when it refuses, `ConnectError` or `ConnectTimeout` when it isn't there.
    """
    try:
        async with asyncio.timeout(timeout_s):
            stream = await _dialled(dial, proxy, timeout_s)
            try:
                await _connect(
                    stream, proxy, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                )
            except BaseException:
                await stream.aclose()
                raise
            return stream
    except TimeoutError:
        raise httpcore2.ConnectTimeout("the proxy did not connect in time") from None


async def _dialled(
    dial: httpcore2.AsyncNetworkBackend, proxy: Proxy, timeout_s: float | None
) -> httpcore2.AsyncNetworkStream:
    try:
        return await dial.connect_tcp(proxy.host, proxy.port, timeout_s)
    except httpcore2.ConnectError as error:
        # Not from it: whose address is to be looked at would be mistaken.
        raise httpcore2.ConnectError(f"the proxy isn't there: {error}") from None


async def _connect(stream: httpcore2.AsyncNetworkStream, proxy: Proxy, target: str) -> None:
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    await stream.write("\r\n".join([*lines, "", ""]).encode("ascii"))
    head = b""
    while b"\r\n\r\n" not in head:
        part = await stream.read(4096)
        head += part
        if not part or len(head) > LONGEST_ANSWER:
            raise httpcore2.ProxyError("the proxy did not answer as one does")
    first, _, _ = head.partition(b"\r\n")
    status = first.decode("ascii", "replace").split(" ", 2)[1:2]
    if not head.endswith(b"\r\n\r\n") or not (status and status[0].startswith("2")):
        shown = status[0][:3] if status and status[0][:3].isdecimal() else "nothing known"
        raise httpcore2.ProxyError(f"the proxy refused the connection: {shown}")
