"""The egress proxy: which connections use it, and what happens when it fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpcore2
import httpx2
import pytest
from pytest_django import Settings

from bonobot.core.http.egress import EgressDenied, GuardedBackend, build_guarded_client
from bonobot.core.http.outbound_proxy import parse_proxy_url
from tests.bonobot.core.http.fake_network import OK, FakeNetwork, build_resolver
from tests.loopback_server import serve_connections

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
MASKED = "http://bob:p%40ss@proxy.example:3128"


class FakeProxy:
    """A loopback proxy that answers CONNECT with `answer` and then responds itself."""

    def __init__(self, answer: bytes = ESTABLISHED) -> None:
        self.answer = answer
        self.heads: list[bytes] = []
        self.closed = asyncio.Event()
        self.url = ""

    @asynccontextmanager
    async def run(self) -> AsyncIterator["FakeProxy"]:
        async with serve_connections(self._serve) as port:
            self.url = f"http://bob:p%40ss@127.0.0.1:{port}"
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            for response in (self.answer, OK):
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(response)
                await writer.drain()
            await reader.read()
        self.closed.set()


async def test_public_hosts_are_reached_through_the_proxy_which_resolves_them(
    settings: Settings,
):
    async with FakeProxy().run() as proxy:
        settings.BONOBOT_EGRESS_PROXY = proxy.url
        async with build_guarded_client(allow_private=False, resolve=build_resolver([])) as client:
            assert (await client.get("http://mcp.example.com:8080/a")).text == "ok"
    connect, request = proxy.heads
    assert connect.startswith(b"CONNECT mcp.example.com:8080 HTTP/1.1\r\nHost: mcp.example.com:80")
    assert b"\r\nProxy-Authorization: Basic Ym9iOnBAc3M=\r\n" in connect
    assert request.startswith(b"GET /a HTTP/1.1\r\n")
    assert b"proxy-auth" not in request.lower()


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "[::1]", "169.254.169.254", "localhost"])
async def test_literal_addresses_are_checked_with_a_proxy_too(settings: Settings, host: str):
    async with FakeProxy().run() as proxy:
        settings.BONOBOT_EGRESS_PROXY = proxy.url
        async with build_guarded_client(allow_private=False) as client:
            with pytest.raises(EgressDenied):
                await client.get(f"http://{host}/")
        assert proxy.heads == []


async def test_a_permitted_private_address_is_connected_to_directly():
    for address, connected in (("10.0.0.7", ["10.0.0.7"]), ("93.184.216.34", ["proxy.example"])):
        network = FakeNetwork(ESTABLISHED)
        backend = GuardedBackend(
            allow_private=True,
            resolve=build_resolver([address], [address]),
            socket_backend=network,
            proxy=MASKED,
        )
        await backend.connect_tcp("inside.example", 443, 1.0)
        assert network.connected == connected


async def test_a_public_address_beside_a_private_one_never_bypasses_the_proxy():
    network = FakeNetwork(ESTABLISHED, dead=["10.0.0.7"])
    backend = GuardedBackend(
        allow_private=True,
        resolve=build_resolver(["10.0.0.7", "93.184.216.34"]),
        socket_backend=network,
        proxy=MASKED,
    )
    with pytest.raises(httpcore2.ConnectError):
        await backend.connect_tcp("both.example", 443, 1.0)
    assert network.connected == ["10.0.0.7"]


async def test_a_forbidden_address_beside_a_private_one_is_refused_behind_a_proxy_too():
    network = FakeNetwork(ESTABLISHED)
    backend = GuardedBackend(
        allow_private=True,
        resolve=build_resolver(["10.0.0.7", "169.254.169.254"]),
        socket_backend=network,
        proxy=MASKED,
    )
    with pytest.raises(EgressDenied):
        await backend.connect_tcp("both.example", 443, 1.0)
    assert network.connected == []


async def test_a_name_that_only_the_proxy_resolves_goes_there():
    async def unknown(host: str, port: int) -> list[str]:
        raise OSError

    network = FakeNetwork(ESTABLISHED)
    backend = GuardedBackend(
        allow_private=True, resolve=unknown, socket_backend=network, proxy=MASKED
    )
    await backend.connect_tcp("far.example", 443, 1.0)
    assert network.connected == ["proxy.example"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "407"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", "403"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "invalid HTTP response"),
        (ESTABLISHED + b"too early", "200"),
        (b"x" * 20_000, "invalid HTTP response"),
    ],
)
async def test_a_refusal_of_the_proxy_is_reported_and_closes_the_connection(
    settings: Settings, answer: bytes, expected: str
):
    async with FakeProxy(answer).run() as proxy:
        settings.BONOBOT_EGRESS_PROXY = proxy.url
        async with build_guarded_client(allow_private=False) as client:
            with pytest.raises(httpx2.ProxyError, match=expected):
                await client.get("https://mcp.example.com/")
        async with asyncio.timeout(5):
            await proxy.closed.wait()


async def test_a_silent_proxy_ends_at_the_connect_timeout(settings: Settings):
    async with FakeProxy(b"HTTP/1.1 200 ").run() as proxy:
        settings.BONOBOT_EGRESS_PROXY = proxy.url
        async with build_guarded_client(allow_private=False, connect_s=0.2) as client:
            with pytest.raises(httpx2.ConnectTimeout):
                await client.get("http://mcp.example.com/")


async def test_an_unreachable_proxy_is_a_connect_error():
    backend = GuardedBackend(
        allow_private=False, socket_backend=FakeNetwork(dead=["proxy.example"]), proxy=MASKED
    )
    with pytest.raises(httpcore2.ConnectError):
        await backend.connect_tcp("mcp.example.com", 443, 1.0)


def test_a_proxy_url_is_parsed_and_its_password_hidden():
    proxy = parse_proxy_url(MASKED)
    assert proxy is not None
    assert (proxy.host, proxy.port) == ("proxy.example", 3128)
    assert "Basic" not in repr(proxy)
    assert parse_proxy_url("") is None
