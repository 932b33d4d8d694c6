"""The egress proxy of sandboxed servers: an HTTP proxy on a socket that only the sandbox reaches.

It enforces the egress rules (`bonobot.core.http.egress`): names are resolved here, never in the
sandbox, and every address is checked before connecting to it. Addresses of this machine are denied
even if private addresses are allowed. It supports CONNECT, and plain HTTP with one request per
connection (RFC 9110, sections 7.6 and 9.3.6).
"""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import httpcore2
from django.conf import settings

from bonobot.core.http.egress import EgressDenied, GuardedBackend, check_url, resolve_host
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from mcp_servers.client.forwarded_ports import ForwardedPort, format_hosts

MAX_HEAD_BYTES = 32 * 1024
HEAD_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 15.0
CHUNK_BYTES = 64 * 1024
MAX_CONNECTIONS = 256  # concurrent connections
# Headers of one connection, which aren't forwarded (RFC 9110, section 7.6.1).
CONNECTION_HEADERS = frozenset(
    {b"connection", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"upgrade"}
)
UNREACHABLE_ERRORS = (
    httpcore2.NetworkError,
    httpcore2.TimeoutException,
    httpcore2.ProxyError,
    OSError,
)
INVALID_REQUEST_ERRORS = (
    ValueError,
    TimeoutError,
    asyncio.IncompleteReadError,
    asyncio.LimitOverrunError,
)

ETC_FOLDER = Path(__file__).with_name("etc")  # files for /etc of sandboxes
HOSTS_FILE = ETC_FOLDER / "hosts"  # only `localhost`, no names of the internal network

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProxyRequest:
    """A parsed proxy request; `head` is forwarded before the rest."""

    host: str
    port: int
    tunnel: bool
    head: bytes


class EgressProxy:
    """The proxy of one sandboxed server; `server` is its name in the log.

    `ports` of the sandbox are forwarded to it; `hosts` is the sandbox's `/etc/hosts`.
    """

    def __init__(
        self, server: str, *, allow_private: bool, ports: tuple[ForwardedPort, ...] = ()
    ) -> None:
        self.ports = ports
        # The last denied connection.
        self.refusal: Problem | None = None
        self._server = server
        self._allow_private = allow_private
        self._backend = GuardedBackend(
            allow_private=allow_private,
            resolve=resolve_outside,
            proxy=str(settings.BONOBOT_EGRESS_PROXY),
        )
        self._folder = Path(tempfile.mkdtemp(prefix="bonobot-egress-"))
        self.hosts = self._folder / "hosts"
        self.hosts.write_text(HOSTS_FILE.read_text() + format_hosts(ports))
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)

    @property
    def socket_path(self) -> str:
        """Return the path of its socket."""
        return str(self._folder / "socket")

    async def open(self) -> None:
        """Start listening."""
        self._listener = await asyncio.start_unix_server(
            self._accept_connection, self.socket_path, limit=MAX_HEAD_BYTES
        )

    async def close(self) -> None:
        """Stop listening and close every connection."""
        if self._listener:
            self._listener.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.ensure_future(self._serve_connection(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async with self._slots:
            try:
                request = await _read_head(reader)
                upstream = await self._connect(request)
            except Problem as refusal:
                self.refusal = refusal
                logger.warning(
                    "a sandboxed server was refused an address",
                    extra={"server": self._server, "code": refusal.code},
                )
                await _write_response(writer, 403, f"{refusal.detail} {refusal.remedy}")
            except UNREACHABLE_ERRORS as error:
                await _write_response(writer, 502, str(error))
            except INVALID_REQUEST_ERRORS:
                await _write_response(writer, 400, "This isn't a request to a proxy.")
            else:
                await _forward(request, upstream, reader, writer)
            finally:
                await _close(writer)

    async def _connect(self, request: ProxyRequest) -> httpcore2.AsyncNetworkStream:
        host = f"[{request.host}]" if ":" in request.host else request.host
        check_url(f"http://{host}:{request.port}/", allow_private=self._allow_private)
        return await self._backend.connect_tcp(request.host, request.port, CONNECT_TIMEOUT_S)


async def resolve_outside(host: str, port: int) -> Sequence[str]:
    """Resolve a host name; raises `EgressDenied` for an address of this machine."""
    addresses = await resolve_host(host, port)
    for text in addresses:
        address = ip_address(text.partition("%")[0])
        plain_address = getattr(address, "ipv4_mapped", None) or address
        if plain_address.is_loopback or plain_address.is_unspecified or plain_address.is_link_local:
            raise EgressDenied(
                format_message(
                    "`{host}` is an address of this host. Sandboxed servers can't connect to it.",
                    host=host,
                ),
                code="private_address",
                remedy="A platform administrator can set the server's network to `host`.",
            )
    return addresses


async def _read_head(reader: asyncio.StreamReader) -> ProxyRequest:
    """Read and parse the head of a request; raises `ValueError` if it is invalid."""
    async with asyncio.timeout(HEAD_TIMEOUT_S):
        head = await reader.readuntil(b"\r\n\r\n")
    return parse_head(head)


def parse_head(head: bytes) -> ProxyRequest:
    """Parse the head of a proxy request; raises `ValueError`."""
    line, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    method, target, version = line.split(b" ")
    if not version.startswith(b"HTTP/1."):
        raise ValueError(version)
    if method == b"CONNECT":
        host, port = _parse_authority(target.decode("ascii"), 0)
        return ProxyRequest(host, port, True, b"")
    scheme, separator, remainder = target.partition(b"://")
    if scheme.lower() != b"http" or not separator:
        raise ValueError(target)
    authority, slash, path = remainder.partition(b"/")
    host, port = _parse_authority(authority.decode("ascii"), 80)
    forwarded_fields = [
        field
        for field in fields
        if field.partition(b":")[0].strip().lower() not in CONNECTION_HEADERS
    ]
    first = b" ".join((method, slash + path or b"/", b"HTTP/1.1"))
    return ProxyRequest(
        host, port, False, b"\r\n".join((first, *forwarded_fields, b"Connection: close", b"", b""))
    )


def _parse_authority(text: str, default: int) -> tuple[str, int]:
    """Return the host and port of `host:port` or `[address]:port`; raises `ValueError`."""
    if "@" in text:
        raise ValueError(text)
    host, _, port = text.rpartition(":") if text.rpartition(":")[2].isdecimal() else (text, "", "")
    host = host.removeprefix("[").removesuffix("]")
    number = int(port or default)
    if not host or not 0 < number < 65536:
        raise ValueError(text)
    return host, number


async def _forward(
    request: ProxyRequest,
    upstream: httpcore2.AsyncNetworkStream,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Copy both ways until one side ends."""

    async def copy_to_upstream() -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            await upstream.write(chunk)

    async def copy_to_client() -> None:
        while chunk := await upstream.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()

    try:
        if request.tunnel:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            await upstream.write(request.head)
        # The end of the response ends it; a client may stop sending before that.
        sending = asyncio.ensure_future(copy_to_upstream())
        try:
            await copy_to_client()
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, OSError, httpcore2.NetworkError):
                await sending
    except (OSError, httpcore2.NetworkError):
        pass  # either side closed the connection
    finally:
        await upstream.aclose()


async def _write_response(writer: asyncio.StreamWriter, status: int, text: str) -> None:
    body = f"{text}\n".encode()
    head = f"HTTP/1.1 {status} -\r\nContent-Type: text/plain; charset=utf-8\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)


async def _close(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.close()
        await writer.wait_closed()
