"""The one loop of a process: who may wait for it, what it carries, how it ends."""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar

import pytest

from bonobot.core import runtime as module
from bonobot.core.runtime import Runtime, close_runtime, get_runtime

WAIT_S = 5


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    close_runtime()
    yield
    close_runtime()


def wait_for(condition: Callable[[], bool]) -> None:
    """Give threads their turn until something holds."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "it never came true"
        threading.Event().wait(0.005)


async def answer(value: object) -> object:
    await asyncio.sleep(0)
    return value


async def for_ever(began: threading.Event, ended: threading.Event) -> None:
    began.set()
    try:
        await asyncio.Event().wait()
    finally:
        ended.set()


def test_call_returns_what_the_coroutine_returns() -> None:
    assert get_runtime().call(answer, 42) == 42


def test_call_raises_what_the_coroutine_raises() -> None:
    async def fail() -> None:
        raise LookupError("nothing here")

    with pytest.raises(LookupError, match="nothing here"):
        get_runtime().call(fail)


def test_call_cancels_the_coroutine_after_its_timeout() -> None:
    began, ended = threading.Event(), threading.Event()
    with pytest.raises(TimeoutError):
        get_runtime().call(for_ever, began, ended, timeout_s=0.01)
    assert ended.wait(WAIT_S)


def test_an_interrupted_caller_cancels_its_coroutine() -> None:
    """Also where the system gives the signal to a thread that isn't the waiting, main one."""
    began, left_alone = threading.Event(), threading.Event()

    async def wait() -> None:
        began.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), WAIT_S)
        left_alone.set()

    def interrupt() -> None:
        began.wait(WAIT_S)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        get_runtime().call(wait)
    thread.join()
    assert not left_alone.is_set()


def test_call_on_the_event_loop_itself_is_refused() -> None:
    async def wait_for_myself() -> None:
        get_runtime().call(answer, 1)

    with pytest.raises(RuntimeError, match="await the coroutine"):
        get_runtime().call(wait_for_myself)


def test_all_threads_of_a_process_share_one_runtime() -> None:
    found: list[Runtime] = []
    threads = [threading.Thread(target=lambda: found.append(get_runtime())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert len(set(found)) == 1


def test_a_spawned_task_runs_without_a_reference() -> None:
    began, ended = threading.Event(), threading.Event()
    get_runtime().spawn(for_ever(began, ended), name="never")
    assert began.wait(WAIT_S)
    assert not ended.is_set()


def test_a_spawned_task_can_be_cancelled_through_its_future() -> None:
    began, ended = threading.Event(), threading.Event()
    future = get_runtime().spawn(for_ever(began, ended), name="never")
    assert began.wait(WAIT_S)
    future.cancel()
    assert ended.wait(WAIT_S)


def test_the_failure_of_a_spawned_task_is_logged_by_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise LookupError("gone")

    future = get_runtime().spawn(fail(), name="look for it")
    with pytest.raises(LookupError):
        future.result(WAIT_S)
    wait_for(lambda: "look for it" in caplog.text)


def test_the_starter_of_a_task_sees_its_end_immediately(caplog: pytest.LogCaptureFixture) -> None:
    async def both() -> bool:
        ended = asyncio.Event()

        async def end() -> None:
            ended.set()

        async def fail() -> None:
            raise ValueError("broken")

        task = get_runtime().create_task(end(), name="short")
        await asyncio.wait({get_runtime().create_task(fail(), name="breaks")})
        return ended.is_set() and task.done()

    assert get_runtime().call(both)
    assert [record.getMessage() for record in caplog.records] == ["The task `breaks` failed"]


def test_tasks_inherit_the_context_of_their_starter() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="nobody")
    variable.set("caller")

    async def read() -> str:
        return variable.get()

    assert get_runtime().call(read) == "caller"
    assert get_runtime().spawn(read(), name="read").result(WAIT_S) == "caller"


def test_the_heartbeat_runs_only_while_the_loop_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_INTERVAL_S", 0.01)
    found = get_runtime()
    before = found.ticked_at
    wait_for(lambda: found.ticked_at > before)

    release = threading.Event()
    blocked = threading.Event()

    async def block() -> None:
        blocked.set()
        release.wait(WAIT_S)

    found.spawn(block(), name="block")
    assert blocked.wait(WAIT_S)
    stuck = found.ticked_at
    threading.Event().wait(0.05)
    assert found.ticked_at == stuck
    release.set()
    wait_for(lambda: found.ticked_at > stuck)


def test_closing_awaits_the_closers_in_reverse_order_and_then_cancels_tasks() -> None:
    order: list[str] = []

    async def close_pool() -> None:
        order.append("pool")

    async def drain_sessions() -> None:
        order.append("sessions")

    async def work(began: threading.Event) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            order.append("task")

    found, began = get_runtime(), threading.Event()
    found.on_close(close_pool)
    found.on_close(drain_sessions)
    future = found.spawn(work(began), name="work")
    assert began.wait(WAIT_S)
    found.close()
    assert order == ["sessions", "pool", "task"]
    assert future.cancelled()
    assert not found.loop.is_running()


def test_tasks_of_libraries_end_with_the_loop() -> None:
    async def begin() -> "asyncio.Task[object]":
        return asyncio.get_running_loop().create_task(asyncio.Event().wait())

    left = get_runtime().call(begin)
    close_runtime()
    assert left.cancelled()


@pytest.mark.parametrize("behaviour", ["fails", "hangs"])
def test_a_closer_that_fails_or_hangs_doesnt_block_the_others(
    behaviour: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def awkward() -> None:
        if behaviour == "fails":
            raise LookupError("can't")
        await asyncio.Event().wait()

    closed = threading.Event()

    async def good() -> None:
        closed.set()

    found = get_runtime()
    found.on_close(good)
    found.on_close(awkward)
    found.close(timeout_s=0.05)
    assert closed.is_set()
    assert "Clos" in caplog.text


def test_a_closed_runtime_refuses_work_and_the_next_caller_gets_a_new_one() -> None:
    first = get_runtime()
    first.close()
    with pytest.raises(RuntimeError, match="closed"):
        first.spawn(answer(1), name="late")
    second = get_runtime()
    assert second is not first
    assert second.call(answer, 2) == 2


def test_closing_twice_is_harmless() -> None:
    found = get_runtime()
    found.close()
    close_runtime()


def test_a_task_that_ignores_cancellation_is_logged_and_abandoned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    began = threading.Event()
    release: list[asyncio.Event] = []

    async def stubborn() -> None:
        release.append(asyncio.Event())
        began.set()
        for _ in range(2):
            try:
                await release[0].wait()
            except asyncio.CancelledError:
                asyncio.get_running_loop().call_later(0.3, release[0].set)

    get_runtime().spawn(stubborn(), name="stubborn")
    assert began.wait(WAIT_S)
    with caplog.at_level(logging.ERROR):
        asyncio.run_coroutine_threadsafe(get_runtime().aclose(0.01), get_runtime().loop).result(
            WAIT_S
        )
    assert "stubborn" in caplog.text


def test_the_web_process_adopts_its_existing_loop() -> None:
    async def serve() -> None:
        adopted = Runtime.adopt()
        assert adopted.loop is asyncio.get_running_loop()
        assert Runtime.adopt() is get_runtime() is adopted
        assert await asyncio.to_thread(adopted.call, answer, "over here") == "over here"
        await adopted.aclose()
        assert module._state.runtime is None

    asyncio.run(serve())


def test_a_second_loop_cannot_be_adopted_beside_a_running_one() -> None:
    get_runtime()

    async def serve() -> None:
        Runtime.adopt()

    with pytest.raises(RuntimeError, match="close it"):
        asyncio.run(serve())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # that it works is the point
def test_a_forked_child_gets_its_own_runtime() -> None:
    before = get_runtime()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # no assertion here: a child must not unwind into pytest
        try:
            own = get_runtime()
            fine = own is not before and own.call(answer, 7, timeout_s=WAIT_S) == 7
            os.write(writing, b"own" if fine else b"shared")
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    assert os.read(reading, 10) == b"own"
    os.close(reading)
    assert before.call(answer, 8) == 8
