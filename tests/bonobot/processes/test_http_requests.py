"""Requests that no client should send: read strictly, within bounds, and never taken for others."""

import socket
from collections.abc import Callable
from contextlib import suppress

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from bonobot.processes.http_protocol import Protocol
from bonobot.processes.programs import HTTP_PROTOCOL
from bonobot.processes.programs import build_web_process as program
from tests.processes import Web

MIB = 1024 * 1024
HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = HEAD.replace(b"GET", b"POST")
ENDS = b"Connection: close\r\n\r\n"
UNFIT = {
    "a header of a mebibyte": HEAD + b"X: " + b"a" * MIB + b"\r\n" + ENDS,
    "fifty thousand headers": HEAD + b"X: 1\r\n" * 50_000 + ENDS,
    "no host": b"GET /healthz HTTP/1.1\r\n" + ENDS,
    "two hosts": HEAD + b"Host: elsewhere\r\n" + ENDS,
    "two lengths": POST + b"Content-Length: 4\r\nContent-Length: 5\r\n" + ENDS + b"abcde",
    "an unknown coding": POST + b"Transfer-Encoding: identity, chunked\r\n" + ENDS + b"0\r\n\r\n",
    "a space before the colon": HEAD + b"X : a\r\n" + ENDS,
}


@pytest.fixture
def answered(module_web: Web) -> Callable[[bytes], bytes]:
    """A function that sends bytes and returns what came until the end."""
    port = module_web.port

    def ask(sent: bytes) -> bytes:
        came = b""
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as link,
            suppress(ConnectionError),  # it may be closed before all is sent
        ):
            link.sendall(sent)
            while part := link.recv(65536):
                came += part
        return came

    return ask


def test_malformed_requests_are_refused(answered: Callable[[bytes], bytes]) -> None:
    assert answered(HEAD + ENDS).startswith(b"HTTP/1.1 200")
    for what, sent in UNFIT.items():
        came = answered(sent)
        assert not came or came.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431")), (what, came[:100])
    assert answered(HEAD + ENDS).startswith(b"HTTP/1.1 200")


def test_a_request_with_two_lengths_closes_the_connection(
    answered: Callable[[bytes], bytes],
) -> None:
    both = POST + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    came = answered(both + HEAD + b"\r\n")
    assert came.startswith(b"HTTP/1.1 400")
    assert came.count(b"HTTP/1.1") == 1


def test_the_parser_is_h11_whatever_else_is_installed() -> None:
    command = " ".join(program("127.0.0.1", 1).command)
    assert f"--http {HTTP_PROTOCOL}" in command
    assert issubclass(Protocol, H11Protocol)
