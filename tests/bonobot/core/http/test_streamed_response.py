"""Responses that are parsed while they arrive: what is read, and what is refused."""

import asyncio
from collections.abc import Sequence

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as some

from bonobot.core.http.connection_errors import NO_HTTP, find_failure
from bonobot.core.http.egress import BodyAllowance, EgressDenied
from bonobot.core.http.persistent_client import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    READ_BUFFER_BYTES,
    StreamedResponse,
)

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE = HEAD + b"Content-Length: 2\r\n\r\nok"


class RecordingTransport(asyncio.Transport):
    """Records whether reading is paused."""

    is_paused = False

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


async def read_response(
    received: Sequence[bytes], *, is_closed: bool = False, limit: int = 1000
) -> tuple[StreamedResponse, bytes]:
    """Return a response that arrives in these parts, and its body."""
    response = StreamedResponse(RecordingTransport(), BodyAllowance(limit))
    for part in filter(None, received):
        response.feed(part)
    if is_closed:
        response.end(None)
    async with asyncio.timeout(1):
        await response.wait_for_head()
        return response, b"".join([part async for part in response.aiter_raw()])


READABLE = [
    (WHOLE, 200, b"ok", True),
    (CHUNKED + b"2;name=value\r\nok\r\n1\r\n!\r\n0\r\nTrailer: x\r\n\r\n", 200, b"ok!", True),
    (
        b"HTTP/1.1 102 Processing\r\nX: y\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + WHOLE,
        200,
        b"ok",
        True,
    ),
    (HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
    (b"HTTP/1.1 202\r\nContent-Length: 0\r\n\r\n", 202, b"", True),
    (b"HTTP/1.1 204 None\r\nContent-Length: 9\r\n\r\n", 204, b"", True),
    (b"HTTP/1.1 101 Other\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nother", 101, b"", False),
    # The rest is no response to a request.
    (WHOLE + WHOLE, 200, b"ok", False),
    (WHOLE + b"H", 200, b"ok", False),
    (WHOLE + b"\x00", 200, b"ok", False),
]


@pytest.mark.parametrize(("raw", "status", "body", "keeps_alive"), READABLE)
async def test_a_response_is_read_in_any_parts(
    raw: bytes, status: int, body: bytes, keeps_alive: bool
):
    for received in ([raw], [raw[i : i + 1] for i in range(len(raw))]):
        response, read = await read_response(received)
        assert (response.status_code, read, response.keeps_alive) == (status, body, keeps_alive)
    assert "x" not in response.headers  # of an interim response
    assert "trailer" not in response.headers


@given(some.data())
def test_parts_dont_change_the_response(data: some.DataObject):
    raw = data.draw(some.sampled_from([raw for raw, *_ in READABLE]))
    cuts = sorted(data.draw(some.lists(some.integers(0, len(raw)), max_size=5)))
    received = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    split, split_body = asyncio.run(read_response(received))
    whole, whole_body = asyncio.run(read_response([raw]))
    assert (split.status_code, split.headers, split_body) == (
        (whole.status_code, whole.headers, whole_body)
    )
    assert split.keeps_alive == whole.keeps_alive


async def test_a_body_without_length_ends_with_the_connection():
    response, body = await read_response(
        [HEAD + b"X-Key: a\r\nx-key:  b \r\n\r\nok"], is_closed=True
    )
    assert (body, response.headers, response.keeps_alive) == (b"ok", {"x-key": "a, b"}, False)


@pytest.mark.parametrize(
    "raw",
    [
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        HEAD + b"Content-Length: 2, 3\r\n\r\nok",
        HEAD + b"Content-Length: -2\r\n\r\nok",
        HEAD + b"Content-Length: +2\r\n\r\nok",
        HEAD + b"Content-Length: 0x2\r\n\r\nok",
        HEAD + b"Content-Length: 99999999999999999999\r\n\r\nok",
        HEAD + b"Content-Length : 2\r\n\r\nok",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: identity, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\nok",
        HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\nok",
        HEAD + b"Transfer-Encoding: identity\r\n\r\nok",
        CHUNKED.replace(b"1.1", b"1.0") + b"2\r\nok\r\n0\r\n\r\n",
        CHUNKED + b"zz\r\nok\r\n0\r\n\r\n",
        CHUNKED + b"-2\r\nok\r\n0\r\n\r\n",
        CHUNKED + b"ffffffffffffffffff\r\nok",
        CHUNKED + b"2\r\nokay\r\n0\r\n\r\n",
        CHUNKED + b"2\nok\n0\n\n",
        HEAD.replace(b"\r", b"") + b"Content-Length: 2\n\nok",
        HEAD + b"X: y\nContent-Length: 2\r\n\r\nok",
        HEAD + b"X: y\rz\r\nContent-Length: 2\r\n\r\nok",
        HEAD + b"X: y\r\n folded\r\nContent-Length: 2\r\n\r\nok",
        HEAD + b"X: a\x00b\r\nContent-Length: 2\r\n\r\nok",
        HEAD + b"no colon\r\nContent-Length: 2\r\n\r\nok",
        b"\r\n" + WHOLE,
        b" " + WHOLE,
        b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/0.9 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.2 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"RTSP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/1.1 099 Low\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 20 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 2x0 OK\r\nContent-Length: 2\r\n\r\nok",
        b"SSH-2.0-OpenSSH\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
    ],
)
async def test_what_can_be_read_in_two_ways_is_refused(raw: bytes):
    for received in ([raw], [raw[i : i + 1] for i in range(len(raw))]):
        with pytest.raises(httpx2.RemoteProtocolError) as error:
            await read_response(received)
        assert find_failure(error.value) is NO_HTTP


@pytest.mark.parametrize(
    "raw",
    [
        HEAD + b"X: y\r\n" * (MAX_HEADERS + 1) + b"Content-Length: 2\r\n\r\nok",
        HEAD + b"X: " + b"y" * MAX_HEAD_BYTES + b"\r\nContent-Length: 2\r\n\r\nok",
        HEAD + b"X: " + b"y" * MAX_HEAD_BYTES,
        b"HTTP/1.1 200 " + b"y" * MAX_HEAD_BYTES,
        CHUNKED + b"2;" + b"y" * MAX_HEAD_BYTES,
        CHUNKED + b"2\r\nok\r\n0\r\n" + b"X: y\r\n" * MAX_HEADERS + b"\r\n",
        CHUNKED + b"0\r\nX: " + b"y" * MAX_HEAD_BYTES,
    ],
)
async def test_headers_and_framing_are_bounded(raw: bytes):
    with pytest.raises(httpx2.RemoteProtocolError, match="exceed"):
        await read_response([raw])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "without sending a response"),
        (HEAD[:10], "without sending a response"),
        (HEAD + b"Content-Length: 3\r\n\r\nok", "complete message body"),
        (CHUNKED + b"2\r\nok\r\n", "complete message body"),
        (CHUNKED, "complete message body"),
    ],
)
async def test_a_response_that_is_cut_off_is_an_error(raw: bytes, message: str):
    with pytest.raises(httpx2.RemoteProtocolError, match=message):
        await read_response([raw], is_closed=True)


async def test_a_reset_connection_is_a_read_error():
    response = StreamedResponse(RecordingTransport(), BodyAllowance(10))
    response.end(ConnectionResetError(104, "reset"))
    with pytest.raises(httpx2.ReadError, match="interrupted"):
        await response.wait_for_head()


async def test_a_body_over_the_limit_is_refused_after_the_parts_before():
    chunks = [CHUNKED, b"4\r\nabcd\r\n", b"4\r\nefgh\r\n", b"4\r\nijkl\r\n"]
    response = StreamedResponse(RecordingTransport(), BodyAllowance(10))
    for chunk in chunks:
        response.feed(chunk)
    parts = response.aiter_raw()
    assert await anext(parts) == b"abcdefgh"
    with pytest.raises(EgressDenied) as error:
        await anext(parts)
    assert error.value.code == "response_too_large"
    assert not response.keeps_alive


async def test_reading_pauses_while_much_is_unread():
    transport = RecordingTransport()
    response = StreamedResponse(transport, BodyAllowance(10 * READ_BUFFER_BYTES))
    body = bytes(READ_BUFFER_BYTES)
    response.feed(HEAD + b"Content-Length: %d\r\n\r\n" % (2 * len(body)))
    response.feed(body)
    assert transport.is_paused
    assert await anext(response.aiter_raw()) == body
    assert not transport.is_paused
    response.feed(body)
    assert transport.is_paused
    response.discard(0)
    assert not transport.is_paused
    assert response.is_complete
