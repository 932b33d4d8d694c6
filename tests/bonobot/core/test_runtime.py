"""The event loop of a process: calls, tasks, and shutdown."""

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
def _close_runtime() -> Iterator[None]:
    close_runtime()
    yield
    close_runtime()


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "the condition never became true"
        threading.Event().wait(0.005)


async def echo(value: object) -> object:
    await asyncio.sleep(0)
    return value


async def run_forever(started: threading.Event, ended: threading.Event) -> None:
    started.set()
    try:
        await asyncio.Event().wait()
    finally:
        ended.set()


def test_call_returns_what_the_coroutine_returns() -> None:
    assert get_runtime().call(echo, 42) == 42


def test_call_raises_what_the_coroutine_raises() -> None:
    async def fail() -> None:
        raise LookupError("nothing here")

    with pytest.raises(LookupError, match="nothing here"):
        get_runtime().call(fail)


def test_call_cancels_the_coroutine_after_its_timeout() -> None:
    started, ended = threading.Event(), threading.Event()
    with pytest.raises(TimeoutError):
        get_runtime().call(run_forever, started, ended, timeout_s=0.01)
    assert ended.wait(WAIT_S)


def test_an_interrupted_caller_cancels_its_coroutine() -> None:
    """Also if the system delivers the signal to a thread other than the waiting main thread."""
    started, completed = threading.Event(), threading.Event()

    async def wait() -> None:
        started.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), WAIT_S)
        completed.set()

    def interrupt() -> None:
        started.wait(WAIT_S)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        get_runtime().call(wait)
    thread.join()
    assert not completed.is_set()


def test_call_on_the_event_loop_itself_is_refused() -> None:
    async def wait_for_myself() -> None:
        get_runtime().call(echo, 1)

    with pytest.raises(RuntimeError, match="await the coroutine"):
        get_runtime().call(wait_for_myself)


def test_all_threads_of_a_process_share_one_runtime() -> None:
    runtimes: list[Runtime] = []
    threads = [threading.Thread(target=lambda: runtimes.append(get_runtime())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runtimes) == 20
    assert len(set(runtimes)) == 1


def test_a_spawned_task_runs_without_a_reference() -> None:
    started, ended = threading.Event(), threading.Event()
    get_runtime().spawn(run_forever(started, ended), name="never")
    assert started.wait(WAIT_S)
    assert not ended.is_set()


def test_a_spawned_task_can_be_cancelled_through_its_future() -> None:
    started, ended = threading.Event(), threading.Event()
    future = get_runtime().spawn(run_forever(started, ended), name="never")
    assert started.wait(WAIT_S)
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
    runtime = get_runtime()
    before = runtime.ticked_at
    wait_for(lambda: runtime.ticked_at > before)

    release = threading.Event()
    blocked = threading.Event()

    async def block() -> None:
        blocked.set()
        release.wait(WAIT_S)

    runtime.spawn(block(), name="block")
    assert blocked.wait(WAIT_S)
    last_tick = runtime.ticked_at
    threading.Event().wait(0.05)
    assert runtime.ticked_at == last_tick
    release.set()
    wait_for(lambda: runtime.ticked_at > last_tick)


def test_closing_awaits_the_closers_in_reverse_order_and_then_cancels_tasks() -> None:
    order: list[str] = []

    async def close_pool() -> None:
        order.append("pool")

    async def drain_sessions() -> None:
        order.append("sessions")

    async def work(started: threading.Event) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            order.append("task")

    runtime, started = get_runtime(), threading.Event()
    runtime.on_close(close_pool)
    runtime.on_close(drain_sessions)
    future = runtime.spawn(work(started), name="work")
    assert started.wait(WAIT_S)
    runtime.close()
    assert order == ["sessions", "pool", "task"]
    assert future.cancelled()
    assert not runtime.loop.is_running()


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
    async def fail_or_hang() -> None:
        if behaviour == "fails":
            raise LookupError("can't")
        await asyncio.Event().wait()

    closed = threading.Event()

    async def close_cleanly() -> None:
        closed.set()

    runtime = get_runtime()
    runtime.on_close(close_cleanly)
    runtime.on_close(fail_or_hang)
    runtime.close(timeout_s=0.05)
    assert closed.is_set()
    assert "Clos" in caplog.text


def test_a_closed_runtime_refuses_work_and_the_next_caller_gets_a_new_one() -> None:
    first = get_runtime()
    first.close()
    with pytest.raises(RuntimeError, match="closed"):
        first.spawn(echo(1), name="late")
    second = get_runtime()
    assert second is not first
    assert second.call(echo, 2) == 2


def test_closing_twice_is_harmless() -> None:
    runtime = get_runtime()
    runtime.close()
    close_runtime()


def test_a_task_that_ignores_cancellation_is_logged_and_abandoned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    started = threading.Event()
    release: list[asyncio.Event] = []

    async def stubborn() -> None:
        release.append(asyncio.Event())
        started.set()
        for _ in range(2):
            try:
                await release[0].wait()
            except asyncio.CancelledError:
                asyncio.get_running_loop().call_later(0.3, release[0].set)

    get_runtime().spawn(stubborn(), name="stubborn")
    assert started.wait(WAIT_S)
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
        assert await asyncio.to_thread(adopted.call, echo, "over here") == "over here"
        await adopted.aclose()
        assert module._state.runtime is None

    asyncio.run(serve())


def test_a_second_loop_cannot_be_adopted_beside_a_running_one() -> None:
    get_runtime()

    async def serve() -> None:
        Runtime.adopt()

    with pytest.raises(RuntimeError, match="close it"):
        asyncio.run(serve())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # forking is what is tested
def test_a_forked_child_gets_its_own_runtime() -> None:
    before = get_runtime()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:  # no assertion here: a child must not unwind into pytest
        try:
            own_runtime = get_runtime()
            is_own = own_runtime is not before and own_runtime.call(echo, 7, timeout_s=WAIT_S) == 7
            os.write(write_end, b"own" if is_own else b"shared")
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    assert os.read(read_end, 10) == b"own"
    os.close(read_end)
    assert before.call(echo, 8) == 8
