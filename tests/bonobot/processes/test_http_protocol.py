"""The real web process closes connections of clients that send or read too slowly."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from agents.sessions.services import start_session
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.ledger.writer.writer_thread import get_writer
from tests import factories
from tests.processes import Web, is_healthy
from tests.wait import eventually

pytestmark = pytest.mark.worker
HEAD_S, BODY_S = 1, 2
RESPONSE_S = 1
WEB_SETTINGS = {
    "BONOBOT_REQUEST_HEAD_S": str(HEAD_S),
    "BONOBOT_REQUEST_BODY_S": str(BODY_S),
    "BONOBOT_RESPONSE_S": str(RESPONSE_S),
}
TIMEOUT_S = 8.0  # long enough for a busy machine; without a timeout nothing is ever closed
HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = b"POST /api/agents HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
LONG = POST + b"Content-Length: 100000\r\n\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
GATEWAY = POST.replace(b"/api/agents", b"/mcp") + b"Content-Length: 100000\r\n\r\n"


@pytest.fixture
def connect(module_web: Web) -> Iterator[Callable[[], socket.socket]]:
    """A function that opens a connection to the web process."""
    sockets: list[socket.socket] = []

    def open_socket() -> socket.socket:
        sockets.append(socket.create_connection(("127.0.0.1", module_web.port), timeout=0.1))
        return sockets[-1]

    yield open_socket
    for client in sockets:
        client.close()


def wait_for_close(client: socket.socket, begin: bytes, drip: bytes) -> tuple[float, bytes]:
    """Send `begin`, then `drip` ten times a second; return the seconds until the server closed the
    connection, and what it sent."""
    started, received = time.monotonic(), b""
    client.sendall(begin)
    while time.monotonic() - started < TIMEOUT_S:
        try:
            if not (part := client.recv(65536)):
                break
            received += part
        except TimeoutError:
            with suppress(OSError):
                client.sendall(drip)
        except OSError:
            break
    return time.monotonic() - started, received


@pytest.mark.parametrize(
    ("begin", "drip"),
    [
        (HEAD, b"X: 1\r\n"),
        (b"G", b""),
        (b"", b""),
        (HEAD + b"\r\n" + HEAD, b"X"),  # after a response, on the same connection
    ],
    ids=["head", "one byte", "nothing", "second head"],
)
def test_an_incomplete_request_head_times_out(
    connect: Callable[[], socket.socket], begin: bytes, drip: bytes
) -> None:
    seconds, received = wait_for_close(connect(), begin, drip)
    assert HEAD_S * 0.9 <= seconds < TIMEOUT_S
    assert (b" 408 " in received) == bool(begin)
    assert b"x-content-type-options" in received or not begin


@pytest.mark.parametrize(
    ("begin", "drip"),
    [(LONG, b"a"), (LONG, b""), (CHUNKED, b"1\r\na\r\n"), (GATEWAY, b"a")],
    ids=["trickled", "withheld", "chunked", "gateway"],
)
def test_a_body_that_arrives_too_slowly_times_out(
    connect: Callable[[], socket.socket], begin: bytes, drip: bytes
) -> None:
    seconds, _ = wait_for_close(connect(), begin, drip)
    assert seconds < TIMEOUT_S


def test_hundreds_of_slow_clients_dont_block_others(
    connect: Callable[[], socket.socket], module_web: Web
) -> None:
    slow = [connect() for _ in range(300)]
    for client in slow:
        client.sendall(HEAD)
    assert is_healthy(module_web.port)
    until = time.monotonic() + TIMEOUT_S
    for client in slow:
        client.settimeout(max(0.1, until - time.monotonic()))
        assert b" 408 " in client.recv(65536)


def test_a_steady_body_is_accepted_however_long_it_takes(
    connect: Callable[[], socket.socket],
) -> None:
    client = connect()
    client.sendall(POST + b"Content-Length: 40960\r\nConnection: close\r\n\r\n")
    started = time.monotonic()
    sent_bytes = 0
    while sent_bytes < 40960:  # 10 KiB a second, beyond the first seconds
        client.sendall(b" " * 1024)
        sent_bytes += 1024
        with suppress(TimeoutError):
            assert not client.recv(65536).startswith(b"HTTP/1.1 408")
            break  # refused before the end of its body: not signed in
    assert time.monotonic() - started < 60


# More than the buffers of both ends of a connection take.
MANY_RESPONSES = 90
LARGE_FILE = (
    b"GET /static/unfold/fonts/material-symbols/Material-Symbols-Outlined.woff2 HTTP/1.1\r\n"
)


@pytest.fixture
def pipelined_client(module_web: Web) -> Iterator[socket.socket]:
    """A client that requested a large file many times and has read nothing yet."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", module_web.port))
        client.sendall((LARGE_FILE + b"Host: 127.0.0.1\r\n\r\n") * MANY_RESPONSES)
        yield client


def is_disconnected(client: socket.socket, bytes_read: int) -> bool:
    """Read some bytes, and send line ends, which a closed connection answers with a reset."""
    try:
        if bytes_read:
            client.recv(bytes_read)
        client.send(b"\r\n")
    except ConnectionError:
        return True
    return client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0


@pytest.mark.parametrize("bytes_read", [0, 1], ids=["nothing", "a byte at a time"])
def test_a_client_that_doesnt_read_a_response_is_disconnected(
    pipelined_client: socket.socket, bytes_read: int
) -> None:
    eventually(lambda: is_disconnected(pipelined_client, bytes_read), within=TIMEOUT_S * 2)


def test_a_client_that_reads_steadily_isnt_disconnected(pipelined_client: socket.socket) -> None:
    started = time.monotonic()

    def read_part() -> bool:
        assert pipelined_client.recv(16384)
        return time.monotonic() - started > 3 * RESPONSE_S

    eventually(read_part, within=TIMEOUT_S * 2)
    assert not is_disconnected(pipelined_client, 1)


def test_a_slow_reader_of_events_isnt_disconnected(
    connect: Callable[[], socket.socket], module_web: Web
) -> None:
    organization = factories.create_organization()
    # No worker runs, so the session stays queued and its stream open.
    session = start_session(
        factories.build_administrator(organization), factories.create_agent(organization), "Hello"
    )
    _, token = create_token(factories.build_administrator(organization), name="s", role=Role.OWNER)
    get_writer().close()
    client = connect()
    client.sendall(
        f"GET /api/sessions/{session.pk}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {token}\r\nAccept: text/event-stream\r\n\r\n".encode()
    )
    received, until = b"", time.monotonic() + HEAD_S + BODY_S + 2
    while time.monotonic() < until:
        with suppress(TimeoutError):
            part = client.recv(16)
            assert part, received
            received += part
    assert received.startswith(b"HTTP/1.1 200")
