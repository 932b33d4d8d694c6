"""The egress proxy: what goes through it, what doesn't, and what happens when it refuses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpcore2
import httpx2
import pytest
from pytest_django import Settings

from bonobot.core.http.egress import (
    EgressDenied,
    GuardedBackend,
    build_guarded_client,
    parse_proxy_url,
)
from tests.bonobot.core.http.fake_network import OK, Dial, answers

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
MASKED = "http://bob:p%40ss@proxy.example:3128"


class FakeProxy:
    """A proxy on the loopback that answers CONNECT with `answer` and then serves by itself."""

    def __init__(self, answer: bytes = ESTABLISHED) -> None:
        self.answer = answer
        self.heads: list[bytes] = []
        self.closed = asyncio.Event()
        self.url = ""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["FakeProxy"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            self.url = f"http://bob:p%40ss@127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            for answer in (self.answer, OK):
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(answer)
                await writer.drain()
            await reader.read()
        self.closed.set()
        writer.close()


async def test_public_hosts_are_reached_through_the_proxy_which_resolves_them(
    settings: Settings,
):
    async with FakeProxy().listening() as proxy:
        settings.BONOBOT_EGRESS_PROXY = proxy.url
        async with build_guarded_client(allow_private=False, resolve=answers([])) as client:
            assert (await client.get("http://mcp.example.com:8080/a")).text == "ok"
    connect, request = proxy.heads
    assert connect.startswith(b"CONNECT mcp.example.com:8080 HTTP/1.1\r\nHost: mcp.example.com:80")
    assert b"\r\nProxy-Authorization: Basic Ym9iOnBAc3M=\r\n" in connect
    assert request.startswith(b"GET /a HTTP/1.1\r\n")
    assert b"proxy-auth" not in request.lower()


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "[::1]", "169.254.169.254", "localhost"])
async def test_literal_addresses_are_checked_with_a_proxy_too(settings: Settings, host: str):
    async with FakeProxy().listening() as proxy:
        settings.BONOBOT_EGRESS_PROXY = proxy.url
        async with build_guarded_client(allow_private=False) as client:
            with pytest.raises(EgressDenied):
                await client.get(f"http://{host}/")
        assert proxy.heads == []


async def test_a_permitted_private_address_is_connected_to_directly():
    for address, connected in (("10.0.0.7", ["10.0.0.7"]), ("93.184.216.34", ["proxy.example"])):
        dial = Dial(ESTABLISHED)
        backend = GuardedBackend(
            allow_private=True,
            resolve=answers([address], [address]),
            socket_backend=dial,
            proxy=MASKED,
        )
        await backend.connect_tcp("inside.example", 443, 1.0)
        assert dial.connected == connected


async def test_a_public_address_beside_a_private_one_never_bypasses_the_proxy():
    dial = Dial(ESTABLISHED, dead=["10.0.0.7"])
    backend = GuardedBackend(
        allow_private=True,
        resolve=answers(["10.0.0.7", "93.184.216.34"]),
        socket_backend=dial,
        proxy=MASKED,
    )
    with pytest.raises(httpcore2.ConnectError):
        await backend.connect_tcp("both.example", 443, 1.0)
    assert dial.connected == ["10.0.0.7"]


async def test_a_forbidden_address_beside_a_private_one_is_refused_behind_a_proxy_too():
    dial = Dial(ESTABLISHED)
    backend = GuardedBackend(
        allow_private=True,
        resolve=answers(["10.0.0.7", "169.254.169.254"]),
        socket_backend=dial,
        proxy=MASKED,
    )
    with pytest.raises(EgressDenied):
        await backend.connect_tcp("both.example", 443, 1.0)
    assert dial.connected == []


async def test_a_name_that_only_the_proxy_resolves_goes_there():
    async def unknown(host: str, port: int) -> list[str]:
        raise OSError

    dial = Dial(ESTABLISHED)
    backend = GuardedBackend(allow_private=True, resolve=unknown, socket_backend=dial, proxy=MASKED)
    await backend.connect_tcp("far.example", 443, 1.0)
    assert dial.connected == ["proxy.example"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "407"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", "403"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "nothing known"),
        (ESTABLISHED + b"too early", "200"),
        (b"x" * 20_000, "as one does"),
    ],
)
async def test_a_refusal_of_the_proxy_is_reported_and_closes_the_connection(
    settings: Settings, answer: bytes, said: str
):
    async with FakeProxy(answer).listening() as proxy:
        settings.BONOBOT_EGRESS_PROXY = proxy.url
        async with build_guarded_client(allow_private=False) as client:
            with pytest.raises(httpx2.ProxyError, match=said):
                await client.get("https://mcp.example.com/")
        async with asyncio.timeout(5):
            await proxy.closed.wait()


async def test_a_silent_proxy_ends_at_the_connect_timeout(settings: Settings):
    async with FakeProxy(b"HTTP/1.1 200 ").listening() as proxy:
        settings.BONOBOT_EGRESS_PROXY = proxy.url
        async with build_guarded_client(allow_private=False, connect_s=0.2) as client:
            with pytest.raises(httpx2.ConnectTimeout):
                await client.get("http://mcp.example.com/")


async def test_an_unreachable_proxy_is_a_connect_error():
    backend = GuardedBackend(
        allow_private=False, socket_backend=Dial(dead=["proxy.example"]), proxy=MASKED
    )
    with pytest.raises(httpcore2.ConnectError):
        await backend.connect_tcp("mcp.example.com", 443, 1.0)


def test_a_proxy_url_is_parsed_and_its_password_hidden():
    proxy = parse_proxy_url(MASKED)
    assert proxy is not None
    assert (proxy.host, proxy.port) == ("proxy.example", 3128)
    assert "Basic" not in repr(proxy)
    assert parse_proxy_url("") is None
