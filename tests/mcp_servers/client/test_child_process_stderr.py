"""Stderr of child processes is saved while they write and at their end, without secrets."""

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
from tests.mcp_servers.client.endpoints import HOLDER, call, failure, faulty_stdio, stdio, until

SECRET = "tok-0123456789-abcdef"


class SnapshotRecorder:
    """Records the saved snapshots."""

    def __init__(self) -> None:
        self.snapshots: list[StderrSnapshot] = []
        self.failing = False

    async def __call__(self, snapshot: StderrSnapshot) -> None:
        if self.failing:
            raise OSError("the database is away")
        self.snapshots.append(snapshot)


@pytest.fixture
def snapshot_recorder() -> SnapshotRecorder:
    return SnapshotRecorder()


@pytest.fixture
async def connections(snapshot_recorder: SnapshotRecorder) -> AsyncIterator[ConnectionPool]:
    pool = ConnectionPool(stderr_sink=snapshot_recorder)
    yield pool
    await pool.close()


async def test_stderr_is_saved_regularly_and_at_the_end(
    connections: ConnectionPool,
    snapshot_recorder: SnapshotRecorder,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(child_process, "REPORT_INTERVAL_S", 0.01)
    endpoint = faulty_stdio()
    await call(connections, endpoint, "echo")
    await until(lambda: snapshot_recorder.snapshots)
    assert (snapshot_recorder.snapshots[0].text, snapshot_recorder.snapshots[0].ended) == (
        "started both\n",
        "",
    )
    await call(connections, endpoint, "complain", size=3, end="\n")
    await until(lambda: snapshot_recorder.snapshots[-1].text == "started both\neee\n")
    await connections.release(HOLDER)
    assert (snapshot_recorder.snapshots[-1].text, snapshot_recorder.snapshots[-1].ended) == (
        "started both\neee\n",
        CLOSED_BY_BONOBOT,
    )
    assert {snapshot.child_id for snapshot in snapshot_recorder.snapshots} == {
        snapshot_recorder.snapshots[0].child_id
    }
    assert {snapshot.server_id for snapshot in snapshot_recorder.snapshots} == {endpoint.server_id}


async def test_a_flood_of_stderr_is_saved_in_few_writes(
    connections: ConnectionPool, snapshot_recorder: SnapshotRecorder
):
    endpoint = faulty_stdio()
    for _ in range(20):
        await call(connections, endpoint, "complain", size=100_000)
    await connections.release(HOLDER)
    assert len(snapshot_recorder.snapshots) == 1
    assert len(snapshot_recorder.snapshots[0].text) == MAX_STDERR_BYTES


async def test_a_crash_is_saved_with_its_exit_status(
    connections: ConnectionPool, snapshot_recorder: SnapshotRecorder
):
    await failure(call(connections, faulty_stdio(), "crash"))
    await connections.release(HOLDER)
    assert "out of cheese" in snapshot_recorder.snapshots[-1].text
    assert "exited with status 3" in snapshot_recorder.snapshots[-1].ended


async def test_a_child_that_didnt_start_saves_the_reason(
    connections: ConnectionPool, snapshot_recorder: SnapshotRecorder
):
    await failure(connections.perform_handshake(stdio("no-such-command"), holder=HOLDER))
    await connections.close()
    [snapshot] = snapshot_recorder.snapshots
    assert snapshot.text == ""
    assert "no-such-command" in snapshot.ended


async def test_a_failure_to_save_stderr_doesnt_affect_the_child(
    connections: ConnectionPool,
    snapshot_recorder: SnapshotRecorder,
    caplog: pytest.LogCaptureFixture,
):
    snapshot_recorder.failing = True
    await call(connections, faulty_stdio(), "echo")
    async with asyncio.timeout(5):
        await connections.release(HOLDER)
    assert "keep stderr" in caplog.text


def test_the_function_that_saves_stderr_is_set_once():
    before = extension_points.find_stderr_sink()
    assert before is not None
    extension_points.set_stderr_sink(before)
    assert extension_points.find_stderr_sink() is before


# --- shown output


@settings(deadline=None, max_examples=40)  # tens of KiB of output
@given(
    lists(sampled_from([SECRET, SECRET[:9], "x" * 20_000, "y", "\n"]), max_size=12),
    integers(3_000, 30_000),
)
def test_truncated_output_shows_no_part_of_a_secret(parts: list[str], size: int):
    tail = StderrTail((SECRET,))
    data = "".join(parts).encode()
    for start in range(0, len(data), size):
        tail.add(data[start : start + size])
        text = tail.get_text()
        assert len(text) <= MAX_STDERR_BYTES
        assert SECRET not in text
        assert SECRET[-8:] not in text
        assert not text.endswith(SECRET[:9])


def test_terminal_sequences_are_removed_and_hidden_characters_shown():
    tail = StderrTail()
    tail.add(b"\x1b[31mred\x1b[0m \x1b]0;title\x07\xe2\x80\xae 10%\r100%\r\n\x00")
    assert tail.get_text() == "red ⟨U+202E⟩ 10%\n100%\n⟨U+0000⟩"


def test_a_secret_behind_a_terminal_sequence_is_masked():
    tail = StderrTail((SECRET,))
    tail.add(f"{SECRET[:5]}\x1b[0m{SECRET[5:]}\n".encode())
    assert "tok-" not in tail.get_text()
