"""Deadlines that share one timer of the event loop."""

import asyncio
from math import inf

import pytest

from mcp_servers.client.deadlines import Deadline


async def test_a_block_is_canceled_when_its_deadline_passes() -> None:
    with pytest.raises(TimeoutError), Deadline(0.01) as deadline:
        await asyncio.Event().wait()
    assert deadline.has_passed
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_each_of_many_deadlines_passes_at_its_own_time() -> None:
    loop, ended = asyncio.get_running_loop(), list[float]()
    started_at = loop.time()

    async def wait(seconds: float) -> None:
        with pytest.raises(TimeoutError), Deadline(seconds):
            await asyncio.Event().wait()
        ended.append(seconds)
        assert loop.time() >= started_at + seconds

    with Deadline(60):
        await asyncio.gather(*map(wait, (0.06, 0.02, 0.04, 0.01)))
    assert ended == [0.01, 0.02, 0.04, 0.06]


async def test_deadlines_that_pass_while_the_loop_is_busy_end_the_earliest_block_first() -> None:
    ended = list[float]()

    async def wait(seconds: float) -> None:
        with pytest.raises(TimeoutError), Deadline(seconds) as deadline:
            await asyncio.Event().wait()
        ended.append(deadline.ends_at)

    blocks = asyncio.gather(*(wait(number / 10_000) for number in range(20, 0, -1)))
    await asyncio.sleep(0)
    busy_until = asyncio.get_running_loop().time() + 0.01
    while asyncio.get_running_loop().time() < busy_until:
        pass
    await blocks
    assert ended == sorted(ended)
    assert len(ended) == 20


async def test_a_block_that_ends_in_time_isn_t_canceled() -> None:
    with Deadline(0.01) as deadline:
        pass
    with pytest.raises(TimeoutError), Deadline(0.02):  # the timer looks again meanwhile
        await asyncio.Event().wait()
    assert not deadline.has_passed


async def test_a_cancellation_by_another_task_stays_one() -> None:
    async def wait() -> None:
        with Deadline(60):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_together_with_the_deadline_stays_one() -> None:
    async def wait() -> None:
        with Deadline(60) as deadline:
            deadline.expire()
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(wait())


async def test_another_error_is_raised_when_the_deadline_has_passed() -> None:
    async def fail() -> None:
        with Deadline(60) as deadline:
            deadline.expire()
            raise ValueError("other")

    with pytest.raises(ValueError, match="other"):
        await fail()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_paused_deadline_doesn_t_pass_and_a_moved_one_passes_then() -> None:
    loop = asyncio.get_running_loop()

    async def pause() -> None:
        with Deadline(0.02) as deadline:
            deadline.move(inf)
            with pytest.raises(TimeoutError), Deadline(0.04):
                await asyncio.Event().wait()
            assert not deadline.has_passed
            deadline.move(loop.time() + 0.01)
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await pause()


def test_a_deadline_needs_a_task() -> None:
    with pytest.raises(RuntimeError), Deadline(1):
        pass
