"""Malformed requests are parsed strictly, within limits, and never as two requests."""

import asyncio
import random
import re
import socket
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h11
import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from bonobot.processes.http_protocol import MAX_PIPELINED, MAX_REQUESTS, Protocol
from bonobot.processes.run_web_process import HTTP_PROTOCOL, build_config
from tests.processes import Web

# Method, path, query, headers, body.
ParsedRequest = tuple[str, bytes, bytes, list[tuple[bytes, bytes]], bytes]

MIB = 1024 * 1024
HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = HEAD.replace(b"GET", b"POST")
ENDS = b"Connection: close\r\n\r\n"
MALFORMED = {
    "a header of a mebibyte": HEAD + b"X: " + b"a" * MIB + b"\r\n" + ENDS,
    "fifty thousand headers": HEAD + b"X: 1\r\n" * 50_000 + ENDS,
    "no host": b"GET /healthz HTTP/1.1\r\n" + ENDS,
    "two hosts": HEAD + b"Host: elsewhere\r\n" + ENDS,
    "two lengths": POST + b"Content-Length: 4\r\nContent-Length: 5\r\n" + ENDS + b"abcde",
    "an unknown coding": POST + b"Transfer-Encoding: identity, chunked\r\n" + ENDS + b"0\r\n\r\n",
    "a space before the colon": HEAD + b"X : a\r\n" + ENDS,
    "a folded header": HEAD + b"X: a\r\n b\r\n" + ENDS,
    "a line without a carriage return": HEAD + b"X: a\n" + ENDS,
    "an unknown method": HEAD.replace(b"GET", b"BREW") + ENDS,
    "a target with a host": HEAD.replace(b"/healthz", b"http://elsewhere/healthz") + ENDS,
    "a target with a fragment": HEAD.replace(b"/healthz", b"/healthz#a") + ENDS,
    "a tunnel": b"CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n" + ENDS,
    "an unknown version": HEAD.replace(b"1.1", b"2.0") + ENDS,
    "no version": b"GET /healthz\r\n\r\n",
    "a request of RTSP": b"DESCRIBE /healthz RTSP/1.0\r\nHost: 127.0.0.1\r\n" + ENDS,
    "RTSP with a method of HTTP": HEAD.replace(b"HTTP/1.1", b"RTSP/1.0") + ENDS,
    "a request of Icecast": b"SOURCE /healthz ICE/1.0\r\nHost: 127.0.0.1\r\n" + ENDS,
    "an asterisk that isn't of OPTIONS": HEAD.replace(b"/healthz", b"*") + ENDS,
    "two spaces": HEAD.replace(b"GET ", b"GET  ") + ENDS,
    "an endless trailer": POST.replace(b"/healthz", b"/api/agents")
    + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: "
    + b"a" * MIB
    + b"\r\n\r\n",
}
VALID = (
    b"GET /a?x=%20y HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /a HTTP/1.0\r\n\r\n",
    b"HEAD /z HTTP/1.1\r\nHost: a\r\nX: \xc3\xa9\r\n\r\n",
    b"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nT: r\r\n\r\n",
    b"POST /j HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"Content-Length: 3\r\n\r\nabc",
)
FRAGMENTS = (
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b",", b"#", b"?", b"/", b"+", b"-"),
    *(b"\x00", b"\x7f", b"\xff", b"abc", b"chunked", b"HTTP/1.1", b"HTTP/2.0", b"0\r\n\r\n"),
    *(b"Host: a\r\n", b"X: y\r\n", b"X:\r\n", b"Upgrade: websocket\r\n"),
    *(b"Content-Length: 3\r\n", b"Content-Length: 0\r\n", b"Expect: 100-continue\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n"),
    *(b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"3;x=y\r\nabc\r\n"),
    *(b"GET /a HTTP/1.1\r\n", b"POST /b?c HTTP/1.1\r\n", b"OPTIONS * HTTP/1.1\r\n"),
)
# What llhttp accepts and h11 does not: spaces around the target, empty lines before a request.
TOLERATED = re.compile(rb"[A-Z]  +[/*]|  +HTTP/|(^|abc|\r\n\r\n)[\r\n]+[A-Z]+ [/*]")


@pytest.fixture
def send_request(module_web: Web) -> Callable[[bytes], bytes]:
    """A function that sends bytes and returns everything that is received."""
    port = module_web.port

    def send(request: bytes) -> bytes:
        response = b""
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as link,
            suppress(ConnectionError),  # the server can close it before everything is sent
        ):
            link.sendall(request)
            while part := link.recv(65536):
                response += part
        return response

    return send


def test_malformed_requests_are_refused(send_request: Callable[[bytes], bytes]) -> None:
    assert send_request(HEAD + ENDS).startswith(b"HTTP/1.1 200")
    for name, request in MALFORMED.items():
        response = send_request(request)
        assert not response or response.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431")), (
            name,
            response[:100],
        )
    assert send_request(HEAD + ENDS).startswith(b"HTTP/1.1 200")


def test_options_of_the_server_are_answered(send_request: Callable[[bytes], bytes]) -> None:
    request = HEAD.replace(b"GET /healthz", b"OPTIONS *") + ENDS
    assert send_request(request).startswith(b"HTTP/1.1 404")


def test_a_request_with_two_lengths_closes_the_connection(
    send_request: Callable[[bytes], bytes],
) -> None:
    request = POST + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    response = send_request(request + HEAD + b"\r\n")
    assert response.startswith(b"HTTP/1.1 400")
    assert response.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("seed", range(4))
def test_requests_are_read_as_h11_reads_them(seed: int) -> None:
    mutations = random.Random(seed)  # noqa: S311 - reproducible
    for _ in range(150):
        data = mutate_requests(mutations)
        parts = split_bytes(data, mutations)
        handled, response = asyncio.run(handle_bytes(parts))
        expected = read_with_h11(data)
        if not TOLERATED.search(data):
            assert handled == expected[: len(handled)], data
        assert response.count(b"HTTP/1.1 200") <= len(handled), data


@pytest.mark.parametrize("request_bytes", VALID)
def test_a_valid_request_is_handled_in_one_part_or_many(request_bytes: bytes) -> None:
    expected = read_with_h11(request_bytes)
    assert len(expected) == 1
    one_byte_each = [request_bytes[at : at + 1] for at in range(len(request_bytes))]
    for parts in ([request_bytes], one_byte_each):
        assert asyncio.run(handle_bytes(parts))[0] == expected


@pytest.mark.parametrize("invalid", [b"broken\r\n\r\n", b"GET /a RTSP/1.0\r\n\r\n"])
def test_pipelined_requests_are_answered_in_order_up_to_an_invalid_one(invalid: bytes) -> None:
    handled, response = asyncio.run(handle_bytes([VALID[0] + VALID[3] + invalid]))
    assert [request[1] for request in handled] == [b"/a", b"/b"]
    assert response.count(b"HTTP/1.1 ") == response.count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize("upgrade", [b"", b"Connection: upgrade\r\nUpgrade: h2c\r\n"])
def test_pipelined_requests_take_little_memory(
    upgrade: bytes, send_request: Callable[[bytes], bytes]
) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + upgrade + b"\r\n"
    requests = request * (200_000 // len(request))
    waiting_count, peak = asyncio.run(receive_while_busy(requests))
    assert waiting_count == MAX_PIPELINED
    assert peak < MIB
    answers = send_request(requests)
    assert answers.count(b"HTTP/1.1 200") <= MAX_PIPELINED + 1
    assert answers.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_connection_is_closed_after_its_last_request(at_once: int) -> None:
    later_request = b"POST /late HTTP/1.1\r\nHost: a\r\n\r\n"
    requests = [VALID[3]] * (MAX_REQUESTS - at_once)
    last_requests = VALID[3] * at_once + later_request
    handled, response = asyncio.run(handle_bytes([*requests, last_requests]))
    assert len(handled) == MAX_REQUESTS
    assert {request[1] for request in handled} == {b"/b"}
    assert response.count(b"HTTP/1.1 200") == MAX_REQUESTS
    *others, last = response.lower().split(b"http/1.1 200")
    assert b"connection: close" in last
    assert not any(b"connection: close" in other for other in others)


def test_the_process_is_started_with_this_protocol() -> None:
    config = build_config("127.0.0.1", 1)
    assert (config.http, config.ws) == (HTTP_PROTOCOL, "none")


def mutate_requests(mutations: random.Random) -> bytes:
    """Return one to three requests with up to three changes."""
    data = b"".join(mutations.choices(VALID, k=mutations.choice([1, 1, 2, 3])))
    for _ in range(mutations.choice([0, 1, 1, 2, 3])):
        line_starts = [match.end() for match in re.finditer(b"\r\n", data)] or [0]
        at = mutations.choice([mutations.randrange(len(data) + 1), mutations.choice(line_starts)])
        fragment = mutations.choice([*FRAGMENTS, b"", bytes([mutations.randrange(256)])])
        data = data[:at] + fragment + data[at + mutations.choice([0, 0, 1, 3]) :]
    return data


def split_bytes(data: bytes, mutations: random.Random) -> list[bytes]:
    """Return the data as it may arrive: at once, or in small parts."""
    size = mutations.choice([len(data), 1, 2, 7, 30])
    return [data[at : at + size] for at in range(0, len(data), size or 1)]


async def handle_bytes(parts: list[bytes]) -> tuple[list[ParsedRequest], bytes]:
    """Send bytes to the protocol; return the requests that its application got, and the answer."""
    handled: list[ParsedRequest] = []

    async def record_request(scope: Any, receive: Any, send: Any) -> None:
        body, message = b"", {"more_body": True}
        while message["more_body"]:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
        path, query, headers = scope["raw_path"], scope["query_string"], scope["headers"]
        handled.append((scope["method"], path, query, drop_upgrade(headers), body))
        start = {"type": "http.response.start", "status": 200}
        await send(start | {"headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    config = Config(record_request, http=Protocol, ws="none", log_config=None, access_log=False)
    config.load()
    protocol = Protocol(config=config, server_state=ServerState(), app_state={})
    client, server = socket.socketpair()
    loop, answer = asyncio.get_running_loop(), b""
    with client:
        client.setblocking(False)
        await loop.connect_accepted_socket(lambda: protocol, server)
        with suppress(ConnectionError):  # the protocol closed the connection
            for part in parts:
                await loop.sock_sendall(client, part)
                await asyncio.sleep(0)  # so that it is received on its own
            client.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(10):
                while received := await loop.sock_recv(client, 65536):
                    answer += received
    return handled, answer


async def receive_while_busy(data: bytes) -> tuple[int, int]:
    """Let the protocol receive bytes before a request is answered; return how many wait for an
    earlier one, and the memory in bytes that it took at most."""

    async def wait_forever(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    config = Config(wait_forever, http=Protocol, ws="none", log_config=None)
    config.load()
    protocol = Protocol(config=config, server_state=ServerState(), app_state={})
    client, server = socket.socketpair()
    loop = asyncio.get_running_loop()
    with client:
        await loop.connect_accepted_socket(lambda: protocol, server)
        tracemalloc.start()
        protocol.data_received(data)
        _size, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        await asyncio.sleep(0)
        return len(protocol.pipeline), peak


def read_with_h11(data: bytes) -> list[ParsedRequest]:
    """Return the complete requests that h11 reads until it finds an invalid one."""
    connection, requests = h11.Connection(h11.SERVER), []
    connection.receive_data(data)
    request, body = h11.Request(method="GET", target="/", headers=[("host", "a")]), b""
    with suppress(h11.ProtocolError):
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                request, body = event, b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                path, _, query = request.target.partition(b"?")
                headers = drop_upgrade(list(request.headers))
                requests.append((request.method.decode(), path, query, headers, body))
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                connection.start_next_cycle()
            else:
                break
    return requests


def drop_upgrade(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return headers without one that applications don't get."""
    return [(name, value) for name, value in headers if name != b"upgrade"]
