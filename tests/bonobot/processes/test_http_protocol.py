"""The real web process closes connections of slow senders, and leaves slow readers alone."""

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
from tests.processes import Web, healthy

pytestmark = pytest.mark.worker
HEAD_S, BODY_S = 1, 2
WEB_SETTINGS = {"BONOBOT_REQUEST_HEAD_S": str(HEAD_S), "BONOBOT_REQUEST_BODY_S": str(BODY_S)}
BOUND_S = 8.0  # a busy machine is slow itself; without a deadline nothing is ever closed
HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = b"POST /api/agents HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
LONG = POST + b"Content-Length: 100000\r\n\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
GATEWAY = POST.replace(b"/api/agents", b"/mcp") + b"Content-Length: 100000\r\n\r\n"


@pytest.fixture
def connect(module_web: Web) -> Iterator[Callable[[], socket.socket]]:
    """A function that opens a connection to the web process."""
    made: list[socket.socket] = []

    def opened() -> socket.socket:
        made.append(socket.create_connection(("127.0.0.1", module_web.port), timeout=0.1))
        return made[-1]

    yield opened
    for client in made:
        client.close()


def closed_after(client: socket.socket, begin: bytes, drip: bytes) -> tuple[float, bytes]:
    """Send `begin`, then `drip` ten times a second; return when the other side closed, and what
    it said."""
    began, said = time.monotonic(), b""
    client.sendall(begin)
    while time.monotonic() - began < BOUND_S:
        try:
            if not (came := client.recv(65536)):
                break
            said += came
        except TimeoutError:
            with suppress(OSError):
                client.sendall(drip)
        except OSError:
            break
    return time.monotonic() - began, said


@pytest.mark.parametrize(
    ("begin", "drip"),
    [
        (HEAD, b"X: 1\r\n"),
        (b"G", b""),
        (b"", b""),
        (HEAD + b"\r\n" + HEAD, b"X"),  # after an answer, on the same connection
    ],
    ids=["head", "one byte", "nothing", "second head"],
)
def test_an_incomplete_request_head_times_out(
    connect: Callable[[], socket.socket], begin: bytes, drip: bytes
) -> None:
    seconds, said = closed_after(connect(), begin, drip)
    assert HEAD_S * 0.9 <= seconds < BOUND_S
    assert (b" 408 " in said) == bool(begin)
    assert b"x-content-type-options" in said or not begin


@pytest.mark.parametrize(
    ("begin", "drip"),
    [(LONG, b"a"), (LONG, b""), (CHUNKED, b"1\r\na\r\n"), (GATEWAY, b"a")],
    ids=["trickled", "withheld", "chunked", "gateway"],
)
def test_a_body_that_arrives_too_slowly_times_out(
    connect: Callable[[], socket.socket], begin: bytes, drip: bytes
) -> None:
    seconds, _ = closed_after(connect(), begin, drip)
    assert seconds < BOUND_S


def test_hundreds_of_slow_clients_dont_block_others(
    connect: Callable[[], socket.socket], module_web: Web
) -> None:
    slow = [connect() for _ in range(300)]
    for client in slow:
        client.sendall(HEAD)
    assert healthy(module_web.port)
    until = time.monotonic() + BOUND_S
    for client in slow:
        client.settimeout(max(0.1, until - time.monotonic()))
        assert b" 408 " in client.recv(65536)


def test_a_steady_body_is_accepted_however_long_it_takes(
    connect: Callable[[], socket.socket],
) -> None:
    client = connect()
    client.sendall(POST + b"Content-Length: 40960\r\nConnection: close\r\n\r\n")
    began = time.monotonic()
    sent = 0
    while sent < 40960:  # 10 KiB a second, beyond the first seconds
        client.sendall(b" " * 1024)
        sent += 1024
        with suppress(TimeoutError):
            assert not client.recv(65536).startswith(b"HTTP/1.1 408")
            break  # it was answered without its body: nobody is signed in
    assert time.monotonic() - began < 60


def test_a_slow_reader_of_events_isnt_disconnected(
    connect: Callable[[], socket.socket], module_web: Web
) -> None:
    organization = factories.create_organization()
    # No worker runs: the session waits for one, and its stream goes on.
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
    said, until = b"", time.monotonic() + HEAD_S + BODY_S + 2
    while time.monotonic() < until:
        with suppress(TimeoutError):
            came = client.recv(16)
            assert came, said
            said += came
    assert said.startswith(b"HTTP/1.1 200")
