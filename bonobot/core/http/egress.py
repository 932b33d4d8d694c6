"""The egress guard: checks addresses of outbound HTTP connections.

The guard is httpcore2's network backend: it resolves a name once, checks every address and opens
the socket to a checked address, which prevents DNS rebinding. TLS names and Host headers stay those
of the URL. Proxy variables, redirects and cookies are ignored; bodies are unencoded and capped.

If `BONOBOT_EGRESS_PROXY` is set, that proxy resolves names and must check them. Literal addresses
are checked here; private hosts are connected to directly if allowed.
"""

import asyncio
import os
import re
import socket
import ssl
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import cast

import httpcore2
import httpx2
from django.conf import settings

from bonobot.core.http import network_backend
from bonobot.core.http.connection_errors import build_connection_error, explain_error
from bonobot.core.http.ip_addresses import AddressClassification, AddressScope, classify_address
from bonobot.core.http.outbound_proxy import open_tunnel, parse_proxy_url
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.process_cache import compute_once

MAX_BODY = 4 * 1024 * 1024
MAX_URL_LENGTH = 8192
# Most servers close idle connections after 5 s; close earlier to not race with that.
KEEP_ALIVE_S = 4.5
# Per client: concurrent requests, and idle connections to keep.
MAX_CONNECTIONS = 100
MAX_IDLE_CONNECTIONS = 20
MAX_TRIED_ADDRESSES = 4
PREVIEW_TIMEOUT_S = 5.0
HOST_NAME = re.compile(
    r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*"
)
NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
UNSAFE_CHARACTERS = re.compile(r"[\x00-\x20\x7f\\]")
REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
COMPLETE_URL_REMEDY = format_message("Enter the complete URL, such as https://example.com/path.")
PRIVATE_ADDRESS_REMEDY = "A platform administrator can allow private addresses for this server."
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Return the distinct addresses of a host in the order to try them."""
    return await asyncio.wrap_future(start_host_lookup(host, port))


def start_host_lookup(host: str, port: int) -> Future[list[str]]:
    """Start looking up the addresses of a host in a thread."""
    return _get_resolver_pool(os.getpid()).submit(_resolve_addresses, host, port)


@compute_once
def _get_resolver_pool(pid: int) -> ThreadPoolExecutor:
    # Own threads, so that slow lookups don't block other work; per process, because threads don't
    # survive a fork.
    return ThreadPoolExecutor(32, thread_name_prefix=f"resolve-{pid}")


def _resolve_addresses(host: str, port: int) -> list[str]:
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


class EgressDenied(Problem):
    """A connection or response that the guard refuses.

    Codes: `egress_denied`, `bad_url`, `private_address`, `redirect_denied`, `encoding_rejected`,
    `response_too_large`.
    """

    code = "egress_denied"
    status = 400
    title = "Connection not allowed"


@dataclass
class BodyAllowance:
    """How many bytes a body may have; reset `used_bytes` to 0 to extend a long stream."""

    limit: int
    used_bytes: int = 0


def check_url(url: str, *, allow_private: bool) -> None:
    """Check a URL without network access.

    Raises `EgressDenied` with `bad_url`, `private_address` or `egress_denied`.
    """
    host = _parse_host(url)
    if host == "localhost" or host.endswith((".localhost", ".localdomain")):
        classification = AddressClassification(
            address=host, scope=AddressScope.PRIVATE, description="loopback address"
        )
    elif ":" in host or NUMERIC_LABEL.fullmatch(host.rpartition(".")[2]):
        try:
            classification = classify_address(host)
        except ValueError:
            message = format_message("`{host}` isn't a valid IP address.", host=host)
            raise _build_bad_url_error(
                message, "Use the form 192.0.2.7 or [2001:db8::7]."
            ) from None
    else:
        return
    _check_classification(host, classification, allow_private=allow_private)


def resolve_for_preview(host: str) -> tuple[AddressClassification, ...]:
    """Return the classified addresses of `host` for previews; () if it doesn't resolve.

    Blocks for up to 5 s; don't call it on the loop.
    """
    try:
        addresses = start_host_lookup(host.strip("[]"), 443).result(PREVIEW_TIMEOUT_S)
    except (OSError, UnicodeError, TimeoutError):
        return ()
    return tuple(classify_address(address) for address in addresses)


def build_guarded_client(
    *,
    allow_private: bool,
    headers: Mapping[str, str] | None = None,
    connect_s: float = 30,
    read_s: float = 60,
    max_body: int = MAX_BODY,
    max_connections: int = MAX_CONNECTIONS,
    auth: httpx2.Auth | None = None,
    resolve: Resolver | None = None,
    socket_backend: httpcore2.AsyncNetworkBackend | None = None,
) -> httpx2.AsyncClient:
    """Return an HTTP client that connects to permitted addresses only.

    `max_body` caps a body in bytes; a request's extension `max_body` (an int or a `BodyAllowance`)
    overrides it. Requests beyond `max_connections` wait. `resolve` and `socket_backend` replace the
    system's resolver and sockets. The client raises `EgressDenied` for what the guard refuses.
    """
    proxy = settings.BONOBOT_EGRESS_PROXY if settings.configured else ""
    backend = GuardedBackend(
        allow_private=allow_private, resolve=resolve, socket_backend=socket_backend, proxy=proxy
    )
    return httpx2.AsyncClient(
        transport=GuardedTransport(
            backend,
            allow_private=allow_private,
            max_body=max_body,
            max_connections=max_connections,
        ),
        headers={"Accept-Encoding": "identity", "User-Agent": "bonobot", **(headers or {})},
        timeout=httpx2.Timeout(read_s, connect=connect_s, pool=connect_s),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        auth=auth,
        trust_env=False,
        follow_redirects=False,
    )


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Opens sockets to checked addresses only."""

    def __init__(
        self,
        *,
        allow_private: bool,
        resolve: Resolver | None = None,
        socket_backend: httpcore2.AsyncNetworkBackend | None = None,
        proxy: str = "",
    ) -> None:
        self._proxy = parse_proxy_url(proxy)
        self._allow_private = allow_private
        self._resolve = resolve or resolve_host
        self._socket_backend = socket_backend or network_backend.AsyncioNetworkBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Resolve `host` once, check all addresses, connect to the first that accepts.

        With a proxy, only private addresses are connected to directly, and only if they are
        allowed; the proxy resolves all other names.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        if self._proxy:
            targets = await self._resolve_private_addresses(host, port, timeout)
            if not targets:
                remaining_s = None if deadline is None else max(deadline - loop.time(), 0.0)
                return await open_tunnel(self._socket_backend, self._proxy, host, port, remaining_s)
        else:
            targets = await self._resolve_permitted_addresses(host, port, timeout)
        failure: Exception = httpcore2.ConnectError(
            format_message("{host} has no address", host=host)
        )
        for position, target in enumerate(targets):
            # Divide the time, so that a dead address can't use it up.
            remaining_s = None if deadline is None else max(deadline - loop.time(), 0.0)
            share_s = None if remaining_s is None else remaining_s / (len(targets) - position)
            try:
                return await self._socket_backend.connect_tcp(
                    target, port, share_s, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Raise `EgressDenied`: Unix sockets aren't supported."""
        raise EgressDenied("Local sockets can't be used for HTTP.")

    async def sleep(self, seconds: float) -> None:
        """Sleep between httpcore2's retries."""
        await asyncio.sleep(seconds)

    async def _resolve_private_addresses(
        self, host: str, port: int, timeout_s: float | None
    ) -> list[str]:
        """Return the private addresses of `host` if they are allowed, else none.

        A public address of the same name isn't among them: the proxy must not be bypassed.
        """
        if not self._allow_private:
            return []
        try:
            async with asyncio.timeout(timeout_s):
                addresses = await self._resolve(host, port)
        except (OSError, UnicodeError):  # a name that only the proxy can resolve
            return []
        classifications = [classify_address(address) for address in addresses]
        private = [item.address for item in classifications if item.scope is AddressScope.PRIVATE]
        if private:  # connected to directly, so no other address of the name may be a forbidden one
            for classification in classifications:
                _check_classification(host, classification, allow_private=True)
        return private[:MAX_TRIED_ADDRESSES]

    async def _resolve_permitted_addresses(
        self, host: str, port: int, timeout_s: float | None
    ) -> list[str]:
        try:
            async with asyncio.timeout(timeout_s):
                addresses = await self._resolve(host, port)
        except TimeoutError:
            raise httpcore2.ConnectTimeout(
                format_message("{host} did not resolve in time", host=host)
            ) from None
        except (OSError, UnicodeError) as error:
            raise build_connection_error(
                httpcore2.ConnectError,
                error,
                format_message("the name {host} can't be resolved", host=host),
            ) from error
        classifications = [classify_address(address) for address in addresses]
        for classification in classifications:
            _check_classification(host, classification, allow_private=self._allow_private)
        return [classification.address for classification in classifications[:MAX_TRIED_ADDRESSES]]


class GuardedTransport(httpx2.AsyncBaseTransport):
    """A pool of guarded connections; refuses redirects, encodings and bodies over the cap."""

    def __init__(
        self,
        backend: httpcore2.AsyncNetworkBackend,
        *,
        allow_private: bool,
        max_body: int,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._allow_private = allow_private
        self._max_body = max_body
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=build_ssl_context(),
            max_connections=max_connections,
            max_keepalive_connections=MAX_IDLE_CONNECTIONS,
            keepalive_expiry=KEEP_ALIVE_S,
            network_backend=backend,
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request; the response body is capped while it is read."""
        url = request.url
        check_url(str(url), allow_private=self._allow_private)
        limit: int | BodyAllowance = request.extensions.get("max_body", self._max_body)
        allowance = limit if isinstance(limit, BodyAllowance) else BodyAllowance(limit)
        with convert_httpcore_errors():
            response = await self._pool.handle_async_request(
                httpcore2.Request(
                    method=request.method,
                    url=httpcore2.URL(
                        scheme=url.raw_scheme,
                        host=url.raw_host,
                        port=url.port,
                        target=url.raw_path,
                    ),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        body = _CappedStream(cast("httpx2.AsyncByteStream", response.stream), allowance)
        headers = httpx2.Headers(response.headers)
        try:
            check_response(url.host, response.status, headers, allowance.limit)
        except EgressDenied:
            await body.aclose()
            raise
        return httpx2.Response(
            response.status, headers=headers, stream=body, extensions=response.extensions
        )

    async def aclose(self) -> None:
        """Close every connection."""
        await self._pool.aclose()


class _CappedStream(httpx2.AsyncByteStream):
    """A body stream that raises `EgressDenied` once it exceeds the cap."""

    def __init__(self, chunks: httpx2.AsyncByteStream, allowance: BodyAllowance) -> None:
        self._chunks = chunks
        self._allowance = allowance

    async def __aiter__(self) -> AsyncIterator[bytes]:
        allowance = self._allowance
        with convert_httpcore_errors():
            async for chunk in self._chunks:
                allowance.used_bytes += len(chunk)
                if allowance.used_bytes > allowance.limit:
                    raise build_too_large_error(allowance.limit)
                yield chunk

    async def aclose(self) -> None:
        await self._chunks.aclose()


@lru_cache(maxsize=1024)  # called for every request
def _parse_host(url: str) -> str:
    """Return the lower-case host of a URL; raises `EgressDenied` if the URL isn't well-formed."""
    if UNSAFE_CHARACTERS.search(url) or len(url) > MAX_URL_LENGTH:
        raise _build_bad_url_error(
            "The URL contains spaces, control characters, or backslashes, or is too long."
        )
    try:
        # Use the client's own parser: another one may read odd URLs differently.
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError) as error:
        raise _build_bad_url_error(
            format_message("The URL isn't valid: {error}", error=error)
        ) from None
    if parsed.scheme not in ("http", "https") or "://" not in url:
        raise _build_bad_url_error("The URL must start with https:// or http://.")
    if parsed.userinfo:
        raise _build_bad_url_error(
            "The URL contains a username or password.", "Send credentials in a header instead."
        )
    if parsed.port is not None and not 0 < parsed.port < 65536:
        raise _build_bad_url_error(format_message("{port} isn't a valid port.", port=parsed.port))
    host = parsed.raw_host.decode("ascii").lower().removesuffix(".")
    literal = ":" in host and "%" not in host  # no zone ids: they are local to a machine
    if len(host) > 253 or not (literal or HOST_NAME.fullmatch(host)):
        raise _build_bad_url_error("The URL has no valid host.")
    return host


def _check_classification(
    host: str, classification: AddressClassification, *, allow_private: bool
) -> None:
    if classification.is_allowed(allow_private=allow_private):
        return
    if classification.scope is AddressScope.PRIVATE:
        address = classification.address
        raise EgressDenied(
            format_message(
                "Connections to `{shown}` need a platform administrator's approval: {what}.",
                shown=host if host == address else f"{host} ({address})",
                what=classification.description,
            ),
            code="private_address",
            field="url",
            remedy=PRIVATE_ADDRESS_REMEDY,
        )
    if host == classification.address:
        message = format_message(
            "`{host}` is a reserved address ({what}). Connections to it aren't allowed.",
            host=host,
            what=classification.description,
        )
    else:
        message = format_message(
            "`{host}` resolves to `{address}`, a reserved address ({what}). "
            "Connections to it aren't allowed.",
            host=host,
            address=classification.address,
            what=classification.description,
        )
    remedy = format_message("Enter another address. This one can't be allowed.")
    raise EgressDenied(message, field="url", remedy=remedy)


def check_response(host: str, status: int, headers: Mapping[str, str], limit: int) -> None:
    """Raise `EgressDenied` for a redirect, an encoded body, or an announced length over `limit`."""
    if status in REDIRECT_STATUSES and (location := headers.get("location")):
        raise EgressDenied(
            format_message(
                "`{host}` responded with a redirect. Redirects aren't followed.", host=host
            ),
            code="redirect_denied",
            remedy="If the new location is correct, use its URL.",
            extra={"location": location[:MAX_URL_LENGTH]},
        )
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise EgressDenied(
            format_message(
                "`{host}` sent a body encoded as {encoding!r}, but no encoding was requested.",
                host=host,
                encoding=encoding[:40],
            ),
            code="encoding_rejected",
            remedy="Configure the server, or the proxy in front of it, to honor `Accept-Encoding: "
            "identity`.",
        )
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit() and len(length) < 20 and int(length) > limit:
        raise build_too_large_error(limit)


def build_too_large_error(limit: int) -> EgressDenied:
    """Return the error of a body that is longer than `limit` bytes."""
    detail = format_message("The response is larger than {limit:,} bytes.", limit=limit)
    return EgressDenied(detail, code="response_too_large", status=502, extra={"limit": limit})


def _build_bad_url_error(detail: str, remedy: str = COMPLETE_URL_REMEDY) -> EgressDenied:
    return EgressDenied(detail, code="bad_url", field="url", remedy=remedy)


@contextmanager
def convert_httpcore_errors() -> Iterator[None]:
    """Convert httpcore2's errors to httpx2's classes of the same names."""
    try:
        yield
    except (
        httpcore2.TimeoutException,
        httpcore2.NetworkError,
        httpcore2.ProtocolError,
        httpcore2.ProxyError,
        httpcore2.UnsupportedProtocol,
    ) as error:
        raise getattr(httpx2, type(error).__name__)(explain_error(error)) from error


@compute_once
def build_ssl_context() -> ssl.SSLContext:
    """Return the TLS context that all clients share."""
    # Cached: reading the system's certificates takes tens of milliseconds.
    context = httpx2.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


async def probe_connection(url: str, *, allow_private: bool, connect_s: float) -> None:
    """Connect to the host of `url`, over TLS for https, without sending a request.

    Raises `EgressDenied` or `httpx2.ConnectError`.
    """
    check_url(url, allow_private=allow_private)
    parsed = httpx2.URL(url)
    uses_tls = parsed.scheme == "https"
    backend = GuardedBackend(allow_private=allow_private, proxy=settings.BONOBOT_EGRESS_PROXY)
    try:
        stream = await backend.connect_tcp(
            parsed.raw_host.decode("ascii"), parsed.port or (443 if uses_tls else 80), connect_s
        )
        try:
            if uses_tls:
                host = parsed.raw_host.decode("ascii")
                stream = await stream.start_tls(
                    build_ssl_context(), server_hostname=host, timeout=connect_s
                )
        finally:
            await stream.aclose()
    except (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProxyError) as error:
        raise httpx2.ConnectError(str(error)) from error
