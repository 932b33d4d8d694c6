"""Requests on persistent connections: when they are used again, and when they are closed."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest
from pytest_django import Settings

from bonobot.core.http import persistent_client
from bonobot.core.http.connection_errors import NO_HTTP, UNTRUSTED_REMEDY, find_failure
from bonobot.core.http.egress import BodyAllowance, EgressDenied
from bonobot.core.http.persistent_client import MAX_UNREAD_BYTES, PersistentClient, parse_target
from tests.bonobot.core.http.test_connection_errors import build_self_signed_context
from tests.bonobot.core.http.test_outbound_proxy import FakeProxy
from tests.loopback_server import serve_connections
from tests.wait import eventually

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LIMIT_S = 0.1

Respond = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class RawServer:
    """Answers each request by `respond`; `heads` has one list of request heads per connection."""

    respond: Respond
    heads: list[list[bytes]] = field(default_factory=list)
    url: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def listening(self, tls: ssl.SSLContext | None = None) -> AsyncIterator["RawServer"]:
        async with serve_connections(self._serve, tls) as port:
            self.url = f"https://localhost:{port}/a" if tls else f"http://127.0.0.1:{port}/a?b=c"
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads: list[bytes] = []
        self.heads.append(heads)
        try:
            while True:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                await self.respond(reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended.set()
        finally:
            writer.transport.abort()


def answer(response: bytes) -> Respond:
    """Return what sends these bytes at once."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(response)

    return respond


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Never answer; return when the client disconnects."""
    await reader.read()
    raise ConnectionError


@asynccontextmanager
async def open_client(
    *, allow_private: bool = True, connect_s: float = 5, headers: dict[str, str] | None = None
) -> AsyncIterator[PersistentClient]:
    client = PersistentClient(
        allow_private=allow_private, headers=headers or {}, connect_s=connect_s
    )
    try:
        yield client
    finally:
        await client.aclose()


async def fetch(
    client: PersistentClient, url: str, *, limit: int = 1000, sent: list[bool] | None = None
) -> bytes:
    """Return the body of a response."""

    def note_sent() -> None:
        if sent is not None:
            sent.append(True)

    async with (
        asyncio.timeout(5),
        client.open_response("POST", url, headers={}, limit=limit, on_send=note_sent) as response,
    ):
        return b"".join([part async for part in response.aiter_raw()])


async def leave_unread(client: PersistentClient, url: str) -> None:
    """Send a request and leave without reading the body."""
    async with client.open_response("GET", url, headers={}, limit=10**7, on_send=lambda: None):
        pass


async def until(predicate: Callable[[], object]) -> None:
    """Run the loop until `predicate` is true."""
    await asyncio.to_thread(eventually, predicate, every=0.01)


# --- requests


async def test_the_lines_of_a_request():
    async with (
        RawServer(answer(OK)).listening() as server,
        open_client(headers={"X-Key": "a", "accept": "x"}) as client,
        client.open_response(
            "POST", server.url, headers={"Accept": "y"}, content=b"{}", limit=2, on_send=print
        ) as response,
    ):
        assert response.status_code == 200
    port = server.url.split(":")[2].split("/")[0]
    assert server.heads[0][0].decode().split("\r\n") == [
        "POST /a?b=c HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Accept-Encoding: identity",
        "User-Agent: bonobot",
        "X-Key: a",
        "Accept: y",
        "Content-Length: 2",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Key", "a\r\nHost: elsewhere"),
        ("X-Key", "a\nb"),
        ("X-Key", "a\x00b"),
        ("X-Key", " a"),
        ("X-Key", "ü"),
        ("X Key", "secret"),
        ("X-Key:", "secret"),
        ("", "secret"),
        ("Host", "elsewhere"),
        ("content-length", "7"),
        ("Transfer-Encoding", "chunked"),
        ("Connection", "upgrade"),
    ],
)
async def test_headers_that_split_or_frame_a_request_are_refused(name: str, value: str):
    with pytest.raises(httpx2.LocalProtocolError) as error:
        PersistentClient(allow_private=True, headers={name: value}, connect_s=1)
    assert value not in str(error.value)
    async with RawServer(answer(OK)).listening() as server, open_client() as client:
        with pytest.raises(httpx2.LocalProtocolError):
            async with client.open_response(
                "GET", server.url, headers={name: value}, limit=2, on_send=print
            ):
                raise AssertionError
        assert server.heads == []


async def test_a_url_is_checked_before_anything_is_sent():
    async with RawServer(answer(OK)).listening() as server:
        async with open_client(allow_private=False) as client:
            with pytest.raises(EgressDenied) as error:
                await fetch(client, server.url)
            assert error.value.code == "private_address"
            with pytest.raises(EgressDenied) as error:
                await fetch(client, "http://user:secret@mcp.example/")
            assert error.value.code == "bad_url"
        assert server.heads == []


async def test_an_address_is_checked_when_a_connection_is_opened(monkeypatch: pytest.MonkeyPatch):
    answers = [["93.184.216.34", "127.0.0.1"], ["169.254.169.254"]]

    async def resolve(host: str, port: int) -> list[str]:
        return answers.pop(0)

    monkeypatch.setattr("bonobot.core.http.egress.resolve_host", resolve)
    sent: list[bool] = []
    async with open_client(allow_private=False) as client:
        with pytest.raises(EgressDenied) as error:
            await fetch(client, "http://rebind.example/", sent=sent)
        assert error.value.code == "private_address"
        with pytest.raises(EgressDenied) as error:
            await fetch(client, "http://rebind.example/", sent=sent)
    assert (error.value.code, sent) == ("egress_denied", [])


def test_connections_are_shared_by_scheme_host_and_port():
    origins = {
        parse_target(url, allow_private=False).origin
        for url in ("http://a.example/x", "http://a.example:80/y", "http://A.example/")
    }
    others = {
        parse_target(url, allow_private=False).origin
        for url in ("https://a.example/", "http://a.example:81/", "http://b.example/")
    }
    assert (len(origins), len(others | origins)) == (1, 4)


# --- persistent connections


async def test_a_connection_is_used_again():
    async with RawServer(answer(OK)).listening() as server, open_client() as client:
        for _ in range(3):
            assert await fetch(client, server.url) == b"ok"
        await leave_unread(client, server.url)
        assert await fetch(client, server.url) == b"ok"
    assert [len(heads) for heads in server.heads] == [5]


@pytest.mark.parametrize(
    "response",
    [
        OK.replace(b"200 OK\r\n", b"200 OK\r\nConnection: close\r\n"),
        OK + OK,
        OK + b"more",
        b"HTTP/1.1 200 OK\r\nConnection: upgrade\r\nUpgrade: x\r\nContent-Length: 2\r\n\r\nok???",
    ],
)
async def test_a_connection_with_more_than_the_response_isnt_used_again(response: bytes):
    async with RawServer(answer(response)).listening() as server, open_client() as client:
        assert await fetch(client, server.url) == b"ok"
        assert await fetch(client, server.url) == b"ok"
    assert [len(heads) for heads in server.heads] == [1, 1]


async def test_what_an_idle_server_sends_answers_no_request():
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await is_idle.wait()
        writer.write(OK.replace(b"ok", b"no"))

    is_idle = asyncio.Event()
    async with RawServer(respond).listening() as server, open_client() as client:
        assert await fetch(client, server.url) == b"ok"
        is_idle.set()
        await until(server.ended.is_set)
        assert await fetch(client, server.url) == b"ok"
    assert [len(heads) for heads in server.heads] == [1, 1]


async def test_a_connection_that_the_server_closed_isnt_used():
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        writer.close()

    async with RawServer(respond).listening() as server, open_client() as client:
        for _ in range(3):
            sent: list[bool] = []
            assert await fetch(client, server.url, sent=sent) == b"ok"
            assert sent == [True]
    assert len(server.heads) == 3


async def test_a_request_on_a_connection_that_ends_is_not_repeated():
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(server.heads[0]) == 1:
            writer.write(OK)
        else:
            raise ConnectionError

    async with RawServer(respond).listening() as server, open_client() as client:
        await fetch(client, server.url)
        with pytest.raises(httpx2.RemoteProtocolError, match="without sending a response"):
            await fetch(client, server.url)
    assert [len(heads) for heads in server.heads] == [2]


async def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(persistent_client, "KEEP_ALIVE_S", LIMIT_S)
    async with RawServer(answer(OK)).listening() as server, open_client() as client:
        await fetch(client, server.url)
        await until(server.ended.is_set)
        await until(lambda: not client._connections)
        assert await fetch(client, server.url) == b"ok"
    assert len(server.heads) == 2


async def test_all_connections_of_a_group_of_requests_are_used_by_the_next():
    async with RawServer(answer(OK)).listening() as server, open_client() as client:
        for _ in range(3):
            await asyncio.gather(*[fetch(client, server.url) for _ in range(32)])
    assert len(server.heads) == 32


async def test_few_idle_connections_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(persistent_client, "MAX_IDLE_CONNECTIONS", 2)
    async with RawServer(answer(OK)).listening() as server, open_client() as client:
        await asyncio.gather(*[fetch(client, server.url) for _ in range(5)])
        assert len(server.heads) == 5
        await until(lambda: len(client._connections) == 2)


async def test_requests_beyond_the_limit_wait_for_a_connection(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(persistent_client, "MAX_CONNECTIONS", 2)
    async with RawServer(answer(OK)).listening() as server, open_client() as client:
        await asyncio.gather(*[fetch(client, server.url) for _ in range(5)])
        assert len(server.heads) == 2
    async with RawServer(hang).listening() as server, open_client(connect_s=LIMIT_S) as client:
        pending = [asyncio.ensure_future(fetch(client, server.url)) for _ in range(2)]
        await until(lambda: len(server.heads) == 2)
        sent: list[bool] = []
        with pytest.raises(httpx2.PoolTimeout):
            await fetch(client, server.url, sent=sent)
        assert sent == []
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def test_a_canceled_request_closes_its_connection():
    async with RawServer(hang).listening() as server, open_client() as client:
        request = asyncio.ensure_future(fetch(client, server.url))
        await until(lambda: server.heads and server.heads[0])
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await until(server.ended.is_set)
        assert not client._connections


async def test_the_rest_of_a_response_is_awaited_for_the_next_request():
    released = asyncio.Event()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"2\r\nok\r\n")
        await released.wait()
        writer.write(b"0\r\n\r\n")

    async with RawServer(respond).listening() as server, open_client() as client:
        await leave_unread(client, server.url)
        released.set()
        await until(lambda: client._idle)
        await leave_unread(client, server.url)
    assert [len(heads) for heads in server.heads] == [2]


async def test_a_response_whose_rest_is_late_or_long_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(persistent_client, "MAX_UNREAD_S", LIMIT_S)

    async def stop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        await hang(reader, writer)

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = 2 * MAX_UNREAD_BYTES
        writer.write(CHUNKED + b"%x\r\n%s\r\n" % (size, bytes(size)))
        await hang(reader, writer)

    for respond in (stop, flood):
        async with RawServer(respond).listening() as server, open_client() as client:
            await leave_unread(client, server.url)
            await until(server.ended.is_set)
            assert not client._idle.get(parse_target(server.url, allow_private=True).origin)


async def test_closing_the_client_fails_its_requests():
    async with RawServer(hang).listening() as server, open_client() as client:
        request = asyncio.ensure_future(fetch(client, server.url))
        await until(lambda: server.heads and server.heads[0])
        await client.aclose()
        with pytest.raises(httpx2.RemoteProtocolError):
            await request
        await until(server.ended.is_set)


# --- responses


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (b"307 T\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0", "redirect_denied"),
        (b"200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2", "encoding_rejected"),
        (b"200 OK\r\nContent-Length: 2000", "response_too_large"),
    ],
)
async def test_a_response_that_the_guard_refuses(lines: bytes, code: str):
    response = b"HTTP/1.1 %s\r\n\r\n" % lines
    async with RawServer(answer(response)).listening() as server, open_client() as client:
        with pytest.raises(EgressDenied) as error:
            await fetch(client, server.url)
    assert error.value.code == code


async def test_an_allowance_can_be_extended_while_a_body_is_read():
    allowance = BodyAllowance(3)
    chunks = b"".join(b"2\r\nok\r\n" for _ in range(1))

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        for _ in range(3):
            writer.write(chunks)
            await more.wait()
            more.clear()
        writer.write(b"0\r\n\r\n")

    more = asyncio.Event()
    async with (
        RawServer(respond).listening() as server,
        open_client() as client,
        client.open_response(
            "GET", server.url, headers={}, limit=allowance, on_send=lambda: None
        ) as response,
    ):
        async for part in response.aiter_raw():
            assert part == b"ok"
            allowance.used_bytes = 0
            more.set()


async def test_a_server_that_speaks_first_is_sent_nothing():
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        received.append(await reader.read())
        writer.close()

    received: list[bytes] = []
    sent: list[bool] = []
    async with serve_connections(greet) as port, open_client() as client:
        url = f"http://127.0.0.1:{port}/"
        connect = client._backend.connect_tcp

        async def connect_late(*arguments: object) -> object:
            stream = await connect(*arguments)  # type: ignore[arg-type]
            await until(lambda: stream._protocol.readable)
            return stream

        client._backend.connect_tcp = connect_late  # type: ignore[method-assign, assignment]
        with pytest.raises(httpx2.ReadError) as error:
            await fetch(client, url, sent=sent)
        await until(lambda: received)
    assert (find_failure(error.value), sent, received) == (NO_HTTP, [], [b""])


# --- TLS and the proxy


async def test_a_server_with_tls_is_reached_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    context = build_self_signed_context(tmp_path)
    async with RawServer(answer(OK)).listening(context) as server:
        async with open_client() as client:
            with pytest.raises(httpx2.ConnectError) as error:
                await fetch(client, server.url)
            failure = find_failure(error.value)
            assert failure is not None
            assert failure.remedy == UNTRUSTED_REMEDY
        trusting = ssl.create_default_context(cafile=str(tmp_path / "both.pem"))
        trusting.check_hostname = False  # the test's certificate has no alternative name
        monkeypatch.setattr(persistent_client, "build_ssl_context", lambda: trusting)
        async with open_client() as client:
            for _ in range(2):
                assert await fetch(client, server.url) == b"ok"
    assert [len(heads) for heads in server.heads if heads] == [2]


async def test_the_egress_proxy_opens_the_connection(settings: Settings):
    async with FakeProxy().run() as proxy:
        settings.BONOBOT_EGRESS_PROXY = proxy.url
        async with open_client(allow_private=False) as client:
            assert await fetch(client, "http://mcp.example.com:8080/a") == b"ok"
    connect, request = proxy.heads
    assert connect.startswith(b"CONNECT mcp.example.com:8080 HTTP/1.1")
    assert request.startswith(b"POST /a HTTP/1.1\r\nHost: mcp.example.com:8080\r\n")
    assert b"Proxy-Authorization" not in request
