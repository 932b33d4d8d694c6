"""Malformed requests are parsed strictly, within limits, and never as two requests."""

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
MALFORMED = {
    "a header of a mebibyte": HEAD + b"X: " + b"a" * MIB + b"\r\n" + ENDS,
    "fifty thousand headers": HEAD + b"X: 1\r\n" * 50_000 + ENDS,
    "no host": b"GET /healthz HTTP/1.1\r\n" + ENDS,
    "two hosts": HEAD + b"Host: elsewhere\r\n" + ENDS,
    "two lengths": POST + b"Content-Length: 4\r\nContent-Length: 5\r\n" + ENDS + b"abcde",
    "an unknown coding": POST + b"Transfer-Encoding: identity, chunked\r\n" + ENDS + b"0\r\n\r\n",
    "a space before the colon": HEAD + b"X : a\r\n" + ENDS,
}


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


def test_a_request_with_two_lengths_closes_the_connection(
    send_request: Callable[[bytes], bytes],
) -> None:
    request = POST + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    response = send_request(request + HEAD + b"\r\n")
    assert response.startswith(b"HTTP/1.1 400")
    assert response.count(b"HTTP/1.1") == 1


def test_the_parser_is_h11_whatever_else_is_installed() -> None:
    command = " ".join(program("127.0.0.1", 1).command)
    assert f"--http {HTTP_PROTOCOL}" in command
    assert issubclass(Protocol, H11Protocol)
