"""Egress: every outbound HTTP connection starts here, and only to an address that was checked.

The guard sits in the network backend of httpcore2: a name is resolved once, every answer is
judged, and the socket is opened to a judged address, so a name that answers differently a moment
later gains nothing. TLS names and Host headers stay those of the URL. Nothing comes from proxy
variables, no redirect is followed, no cookie is kept, bodies come unencoded and end at a cap.

Where `BONOBOT_EGRESS_PROXY` is set, that proxy leads outside: it resolves names, and has to judge
them. Literal addresses are judged here; what lies inside is connected to directly where allowed.
"""

import asyncio
import re
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
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import cast

import httpcore2
import httpx2
from django.conf import settings

from bonobot.lib import streams
from bonobot.lib.failures import failed, why
from bonobot.lib.networks import Reach, Verdict, judge
from bonobot.lib.problems import Problem
from bonobot.lib.resolving import look_up, system_resolve
from bonobot.lib.sayings import say
from bonobot.lib.tunnels import open_tunnel, proxy_of

MAX_BODY = 4 * 1024 * 1024
LONGEST_URL = 8192
# Most servers hang up after 5 s of silence: a request must not cross that on its way.
KEEP_ALIVE_S = 4.5
# Of one client: how many requests are under way at once, and how many idle connections are kept.
MAX_CONNECTIONS = 100
KEPT_CONNECTIONS = 20
TRIED_ADDRESSES = 4
PREVIEW_S = 5.0

LABELS = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*")
NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")
REDIRECTS = frozenset({301, 302, 303, 307, 308})
WHOLE = "Write it whole, such as https://example.com/mcp."
BY_PERMISSION = "A platform administrator can allow private addresses for this server."

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class EgressDenied(Problem):
    """A connection, or an answer, that the guard doesn't let through.

    Codes: `egress_denied`, `bad_url`, `private_address`, `redirect_refused`, `encoding_refused`,
    `response_too_large`.
    """

    code = "egress_denied"
    status = 400
    title = "Connection not allowed"


@dataclass
class Allowance:
    """How many bytes a body may have; setting `spent` to 0 grants a long stream as much again."""

    limit: int
    spent: int = 0


def check_url(url: str, *, allow_private: bool) -> None:
    """Refuse a URL that can be judged without asking the network.

    Raises `EgressDenied` with `bad_url`, `private_address` or `egress_denied`.
    """
    host = _host(url)
    if host == "localhost" or host.endswith((".localhost", ".localdomain")):
        verdict = Verdict(address=host, reach=Reach.PRIVATE, what="this machine")
    elif ":" in host or NUMBER.fullmatch(host.rpartition(".")[2]):
        try:
            verdict = judge(host)
        except ValueError:
            no_address = say("`{host}` is not an address.", host=host)
            raise _bad_url(no_address, "Write it as 192.0.2.7 or [2001:db8::7].") from None
    else:
        return
    _permit(host, verdict, allow_private=allow_private)


def addresses(host: str) -> tuple[Verdict, ...]:
    """Return what `host` resolves to, for previews; () when it resolves to nothing.

    Blocks for up to 5 s: never call it on the loop.
    """
    try:
        found = look_up(host.strip("[]"), 443).result(PREVIEW_S)
    except (OSError, UnicodeError, TimeoutError):
        return ()
    return tuple(judge(address) for address in found)


def guarded_client(
    *,
    allow_private: bool,
    headers: Mapping[str, str] | None = None,
    connect_s: float = 30,
    read_s: float = 60,
    max_body: int = MAX_BODY,
    max_connections: int = MAX_CONNECTIONS,
    auth: httpx2.Auth | None = None,
    resolve: Resolve | None = None,
    dial: httpcore2.AsyncNetworkBackend | None = None,
) -> httpx2.AsyncClient:
    """Return an HTTP client that connects to permitted addresses only.

    `max_body` caps a body in bytes; a request's extension `max_body`, a number or an `Allowance`,
    overrides it. Requests beyond `max_connections` wait for their turn. `resolve` and `dial`
    replace the system's resolver and sockets. Whatever the guard refuses raises `EgressDenied`.
    """
    proxy = settings.BONOBOT_EGRESS_PROXY if settings.configured else ""
    backend = GuardedBackend(allow_private=allow_private, resolve=resolve, dial=dial, proxy=proxy)
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
    """Opens sockets, each to an address that was judged a moment before."""

    def __init__(
        self,
        *,
        allow_private: bool,
        resolve: Resolve | None = None,
        dial: httpcore2.AsyncNetworkBackend | None = None,
        proxy: str = "",
    ) -> None:
        self._proxy = proxy_of(proxy)
        self._allow_private = allow_private
        self._resolve = resolve or system_resolve
        self._dial = dial or streams.Backend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Resolve `host` once, judge all answers, connect to the first that accepts."""
        if self._proxy and not await self._is_inside(host, port, timeout):
            return await open_tunnel(self._dial, self._proxy, host, port, timeout)
        loop = asyncio.get_running_loop()
        ends_at = None if timeout is None else loop.time() + timeout
        targets = await self._permitted(host, port, timeout)
        failure: Exception = httpcore2.ConnectError(f"{host} has no address")
        for position, target in enumerate(targets):
            # Each address gets its share of the time, so that a dead one can't use it all up.
            left = None if ends_at is None else max(ends_at - loop.time(), 0.0)
            share = None if left is None else left / (len(targets) - position)
            try:
                return await self._dial.connect_tcp(
                    target, port, share, local_address, socket_options
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
        """Refuse: nothing outside is reached over a local socket."""
        raise EgressDenied("Local sockets are not reached over HTTP.")

    async def sleep(self, seconds: float) -> None:
        """Wait between httpcore2's own attempts."""
        await asyncio.sleep(seconds)

    async def _is_inside(self, host: str, port: int, timeout_s: float | None) -> bool:
        """Say whether we may go to private addresses, and `host` has one."""
        if not self._allow_private:
            return False
        try:
            async with asyncio.timeout(timeout_s):
                found = await self._resolve(host, port)
        except (OSError, UnicodeError):
            return False
        return any(judge(address).reach is Reach.PRIVATE for address in found)

    async def _permitted(self, host: str, port: int, timeout_s: float | None) -> list[str]:
        try:
            async with asyncio.timeout(timeout_s):
                found = await self._resolve(host, port)
        except TimeoutError:
            raise httpcore2.ConnectTimeout(f"{host} did not resolve in time") from None
        except (OSError, UnicodeError) as error:
            raise failed(httpcore2.ConnectError, error, f"the name {host} is not known") from error
        verdicts = [judge(address) for address in found]
        for verdict in verdicts:
            _permit(host, verdict, allow_private=self._allow_private)
        return [verdict.address for verdict in verdicts[:TRIED_ADDRESSES]]


class GuardedTransport(httpx2.AsyncBaseTransport):
    """One pool of guarded connections; refuses redirects, encodings and bodies over the cap."""

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
            ssl_context=tls(),
            max_connections=max_connections,
            max_keepalive_connections=KEPT_CONNECTIONS,
            keepalive_expiry=KEEP_ALIVE_S,
            network_backend=backend,
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request; the answer's body is capped while it is read."""
        url = request.url
        check_url(str(url), allow_private=self._allow_private)
        limit: int | Allowance = request.extensions.get("max_body", self._max_body)
        allowance = limit if isinstance(limit, Allowance) else Allowance(limit)
        with _as_httpx_errors():
            answer = await self._pool.handle_async_request(
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
        body = _Capped(cast("httpx2.AsyncByteStream", answer.stream), allowance)
        headers = httpx2.Headers(answer.headers)
        try:
            _check_answer(url.host, answer.status, headers, allowance.limit)
        except EgressDenied:
            await body.aclose()
            raise
        return httpx2.Response(
            answer.status, headers=headers, stream=body, extensions=answer.extensions
        )

    async def aclose(self) -> None:
        """Close every connection."""
        await self._pool.aclose()


class _Capped(httpx2.AsyncByteStream):
    """A body that ends with an error once it is longer than the cap."""

    def __init__(self, parts: httpx2.AsyncByteStream, allowance: Allowance) -> None:
        self._parts = parts
        self._allowance = allowance

    async def __aiter__(self) -> AsyncIterator[bytes]:
        allowance = self._allowance
        with _as_httpx_errors():
            async for part in self._parts:
                allowance.spent += len(part)
                if allowance.spent > allowance.limit:
                    raise _too_large(allowance.limit)
                yield part

    async def aclose(self) -> None:
        await self._parts.aclose()


@lru_cache(maxsize=1024)  # every request asks again
def _host(url: str) -> str:
    """Return the lower-case host of a URL that is well formed in every part we use."""
    if UNSAFE.search(url) or len(url) > LONGEST_URL:
        raise _bad_url("The URL has blanks, control characters or backslashes, or is too long.")
    try:
        # The parser that will also connect: two parsers would read odd URLs in two ways.
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError) as error:
        raise _bad_url(say("The URL can't be read: {error}", error=error)) from None
    if parsed.scheme not in ("http", "https") or "://" not in url:
        raise _bad_url("The URL doesn't begin with https:// or http://.")
    if parsed.userinfo:
        raise _bad_url(
            "The URL carries a user name or password.", "Put credentials into a header instead."
        )
    if parsed.port is not None and not 0 < parsed.port < 65536:
        raise _bad_url(say("{port} is not a port.", port=parsed.port))
    host = parsed.raw_host.decode("ascii").lower().removesuffix(".")
    literal = ":" in host and "%" not in host  # no zones: they mean something on this machine only
    if len(host) > 253 or not (literal or LABELS.fullmatch(host)):
        raise _bad_url("The URL has no host that could be connected to.")
    return host


def _permit(host: str, verdict: Verdict, *, allow_private: bool) -> None:
    if verdict.allowed(allow_private=allow_private):
        return
    shown = host if host == verdict.address else f"{host} ({verdict.address})"
    if verdict.reach is Reach.PRIVATE:
        raise EgressDenied(
            say("`{shown}` is {what}, which needs a permission.", shown=shown, what=verdict.what),
            code="private_address",
            field="url",
            remedy=BY_PERMISSION,
        )
    never = say("`{shown}` is never connected to: {what}.", shown=shown, what=verdict.what)
    raise EgressDenied(never, field="url")


def _check_answer(host: str, status: int, headers: httpx2.Headers, limit: int) -> None:
    if status in REDIRECTS and (location := headers.get("location")):
        raise EgressDenied(
            say("`{host}` answered with a redirect, which is not followed.", host=host),
            code="redirect_refused",
            remedy="If the new place is the right one, use its URL.",
            extra={"location": location[:LONGEST_URL]},
        )
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise EgressDenied(
            say(
                "`{host}` sent a body encoded as {encoding!r}, though none was asked for.",
                host=host,
                encoding=encoding[:40],
            ),
            code="encoding_refused",
            remedy="Have the server, or the proxy before it, honour `Accept-Encoding: identity`.",
        )
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit() and len(length) < 20 and int(length) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> EgressDenied:
    detail = say("The answer is larger than {limit:,} bytes.", limit=limit)
    return EgressDenied(detail, code="response_too_large", status=502)


def _bad_url(detail: str, remedy: str = WHOLE) -> EgressDenied:
    return EgressDenied(detail, code="bad_url", field="url", remedy=remedy)


@contextmanager
def _as_httpx_errors() -> Iterator[None]:
    """Raise httpcore2's errors under httpx2's classes, which carry the same names."""
    try:
        yield
    except (
        httpcore2.TimeoutException,
        httpcore2.NetworkError,
        httpcore2.ProtocolError,
        httpcore2.ProxyError,
        httpcore2.UnsupportedProtocol,
    ) as error:
        raise getattr(httpx2, type(error).__name__)(why(error)) from error


@cache
def tls() -> ssl.SSLContext:
    """Return what judges certificates, for all clients."""
    # Reading the system's certificates takes tens of milliseconds: once for all clients.
    return httpx2.create_ssl_context()
