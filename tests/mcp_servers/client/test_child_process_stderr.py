"""Last words: handed on while a child writes and once more at its end, without a secret."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers, lists, sampled_from

from mcp_servers.client import child_process, extension_points
from mcp_servers.client.child_process import (
    CLOSED_BY_BONOBOT,
    MAX_STDERR_BYTES,
    StderrSnapshot,
    StderrTail,
)
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import HOLDER, call, failure, scripted, stdio, until

SECRET = "tok-0123456789-abcdef"


class Book:
    """Keeps what it is handed, as rows would be."""

    def __init__(self) -> None:
        self.words: list[StderrSnapshot] = []
        self.failing = False

    async def __call__(self, words: StderrSnapshot) -> None:
        if self.failing:
            raise OSError("the database is away")
        self.words.append(words)


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
async def connections(book: Book) -> AsyncIterator[ConnectionPool]:
    made = ConnectionPool(stderr_sink=book)
    yield made
    await made.close()


async def test_stderr_is_saved_regularly_and_at_the_end(
    connections: ConnectionPool, book: Book, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(child_process, "REPORT_INTERVAL_S", 0.01)
    endpoint = scripted()
    await call(connections, endpoint, "echo")
    await until(lambda: book.words)
    assert (book.words[0].text, book.words[0].ended) == ("started both\n", "")
    await call(connections, endpoint, "complain", size=3, end="\n")
    await until(lambda: book.words[-1].text == "started both\neee\n")
    await connections.release(HOLDER)
    assert (book.words[-1].text, book.words[-1].ended) == ("started both\neee\n", CLOSED_BY_BONOBOT)
    assert {words.child_id for words in book.words} == {book.words[0].child_id}
    assert {words.server_id for words in book.words} == {endpoint.server_id}


async def test_a_flood_of_stderr_is_saved_in_few_writes(connections: ConnectionPool, book: Book):
    endpoint = scripted()
    for _ in range(20):
        await call(connections, endpoint, "complain", size=100_000)
    await connections.release(HOLDER)
    assert len(book.words) == 1
    assert len(book.words[0].text) == MAX_STDERR_BYTES


async def test_a_crash_is_saved_with_its_exit_status(connections: ConnectionPool, book: Book):
    await failure(call(connections, scripted(), "crash"))
    await connections.release(HOLDER)
    assert "out of cheese" in book.words[-1].text
    assert "exited with status 3" in book.words[-1].ended


async def test_a_child_that_didnt_start_saves_the_reason(connections: ConnectionPool, book: Book):
    await failure(connections.perform_handshake(stdio("no-such-command"), holder=HOLDER))
    await connections.close()
    [words] = book.words
    assert words.text == ""
    assert "no-such-command" in words.ended


async def test_a_failure_to_save_stderr_doesnt_affect_the_child(
    connections: ConnectionPool, book: Book, caplog: pytest.LogCaptureFixture
):
    book.failing = True
    await call(connections, scripted(), "echo")
    async with asyncio.timeout(5):
        await connections.release(HOLDER)
    assert "keep stderr" in caplog.text


def test_the_function_that_saves_stderr_is_set_once():
    before = extension_points.find_stderr_sink()
    assert before is not None
    extension_points.set_stderr_sink(before)
    assert extension_points.find_stderr_sink() is before


# --- what is shown of it


@settings(deadline=None, max_examples=40)  # output by the tens of KiB
@given(
    lists(sampled_from([SECRET, SECRET[:9], "x" * 20_000, "y", "\n"]), max_size=12),
    integers(3_000, 30_000),
)
def test_truncated_output_shows_no_part_of_a_secret(said: list[str], size: int):
    tail = StderrTail((SECRET,))
    data = "".join(said).encode()
    for start in range(0, len(data), size):
        tail.add(data[start : start + size])
        shown = tail.get_text()
        assert len(shown) <= MAX_STDERR_BYTES
        assert SECRET not in shown
        assert SECRET[-8:] not in shown
        assert not shown.endswith(SECRET[:9])


def test_terminal_sequences_are_removed_and_hidden_characters_shown():
    tail = StderrTail()
    tail.add(b"\x1b[31mred\x1b[0m \x1b]0;title\x07\xe2\x80\xae 10%\r100%\r\n\x00")
    assert tail.get_text() == "red ⟨U+202E⟩ 10%\n100%\n⟨U+0000⟩"


def test_a_secret_behind_a_terminal_sequence_is_masked():
    tail = StderrTail((SECRET,))
    tail.add(f"{SECRET[:5]}\x1b[0m{SECRET[5:]}\n".encode())
    assert "tok-" not in tail.get_text()
