"""A task that awaits a `DirectFuture` runs on without another turn of the loop."""

import asyncio

import pytest

from bonobot.core.runtime import DirectFuture


async def _start_waiting(future: DirectFuture[int], results: list[int]) -> asyncio.Task[int]:
    async def wait() -> int:
        result = await future
        results.append(result)
        return result

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    return task


async def test_the_task_runs_on_at_once_when_it_is_resumed() -> None:
    future, results = DirectFuture[int](), list[int]()
    task = await _start_waiting(future, results)
    observed: list[list[int]] = []

    def resume() -> None:
        future.resume_with(7)
        observed.append(list(results))

    asyncio.get_running_loop().call_soon(resume)
    assert await task == 7
    assert observed == [[7]]


async def test_the_task_waits_again_when_it_awaits_something_else() -> None:
    first, second = DirectFuture[int](), DirectFuture[int]()

    async def add() -> int:
        return await first + await second

    task = asyncio.create_task(add())
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    loop.call_soon(first.resume_with, 1)
    loop.call_soon(second.resume_with, 2)
    assert await task == 3


async def test_a_result_that_is_there_before_the_task_waits_is_returned() -> None:
    future = DirectFuture[int]()
    future.resume_with(7)
    assert await future == 7


async def test_a_result_or_an_error_that_is_only_set_arrives_in_the_next_turn() -> None:
    future, results = DirectFuture[int](), list[int]()
    task = await _start_waiting(future, results)
    future.set_result(7)
    assert not results
    assert await task == 7

    failing = DirectFuture[int]()
    task = await _start_waiting(failing, results)
    failing.set_exception(LookupError("missing"))
    with pytest.raises(LookupError, match="missing"):
        await task


async def test_the_task_is_canceled_while_it_waits() -> None:
    future, results = DirectFuture[int](), list[int]()
    task = await _start_waiting(future, results)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert future.cancelled()
    assert not results


async def test_an_error_of_the_task_stays_in_it() -> None:
    future = DirectFuture[int]()

    async def fail() -> None:
        raise LookupError(await future)

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(future.resume_with, 7)
    with pytest.raises(LookupError, match="7"):
        await task


async def test_several_waiters_get_the_result() -> None:
    future = DirectFuture[int]()
    tasks = [asyncio.ensure_future(asyncio.wait_for(future, 5)) for _ in range(2)]
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(future.resume_with, 7)
    assert await asyncio.gather(*tasks, return_exceptions=True) == [7, 7]
