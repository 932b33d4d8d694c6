"""The HTTP proxy that outbound connections use (`BONOBOT_EGRESS_PROXY`)."""

import asyncio
import base64
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

import httpcore2

from bonobot.core.http.connection_errors import explain_error
from bonobot.core.i18n.messages import format_message

MAX_PROXY_RESPONSE_BYTES = 16 * 1024
DEFAULT_PROXY_PORT = 80


@dataclass(frozen=True)
class HttpProxy:
    """The proxy's address and its `Proxy-Authorization` value."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)


def parse_proxy_url(url: str) -> HttpProxy | None:
    """Return the proxy of `http://[user:password@]host[:port]`, None if blank."""
    if not url:
        return None
    parts = urlsplit(url)
    authorization = ""
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(credentials.encode()).decode('ascii')}"
    return HttpProxy(parts.hostname or "", parts.port or DEFAULT_PROXY_PORT, authorization)


async def open_tunnel(
    socket_backend: httpcore2.AsyncNetworkBackend,
    proxy: HttpProxy,
    host: str,
    port: int,
    timeout_s: float | None,
) -> httpcore2.AsyncNetworkStream:
    """Return a stream to `host` through the proxy, which resolves the name.

    Raises `ProxyError` if it refuses, `ConnectError` or `ConnectTimeout` if it is unreachable.
    """
    try:
        async with asyncio.timeout(timeout_s):
            stream = await _connect_to_proxy(socket_backend, proxy, timeout_s)
            try:
                await _request_tunnel(
                    stream, proxy, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                )
            except BaseException:
                await stream.aclose()
                raise
            return stream
    except TimeoutError:
        raise httpcore2.ConnectTimeout(
            format_message("the proxy did not connect in time")
        ) from None


async def _connect_to_proxy(
    socket_backend: httpcore2.AsyncNetworkBackend, proxy: HttpProxy, timeout_s: float | None
) -> httpcore2.AsyncNetworkStream:
    try:
        return await socket_backend.connect_tcp(proxy.host, proxy.port, timeout_s)
    except httpcore2.ConnectError as error:
        # No cause: its failure would be reported as one of the target address.
        raise httpcore2.ConnectError(
            format_message("the proxy isn't there: {error}", error=explain_error(error))
        ) from None


async def _request_tunnel(
    stream: httpcore2.AsyncNetworkStream, proxy: HttpProxy, target: str
) -> None:
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    await stream.write("\r\n".join([*lines, "", ""]).encode("ascii"))
    head = b""
    while b"\r\n\r\n" not in head:
        chunk = await stream.read(4096)
        head += chunk
        if not chunk or len(head) > MAX_PROXY_RESPONSE_BYTES:
            raise _build_invalid_response()
    status_line, _, _ = head.partition(b"\r\n")
    status = b"".join(status_line.split(b" ", 2)[1:2])[:3].decode("ascii", "replace")
    if not status.isdecimal():
        raise _build_invalid_response()
    if not head.endswith(b"\r\n\r\n") or not status.startswith("2"):
        raise httpcore2.ProxyError(
            format_message("the proxy refused the connection: {status}", status=status)
        )


def _build_invalid_response() -> httpcore2.ProxyError:
    return httpcore2.ProxyError(
        format_message("the proxy closed the connection or sent an invalid HTTP response")
    )
