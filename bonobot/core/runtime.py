"""The process's event loop.

In a worker or a command the loop runs in its own thread, started on first use; the web process
adopts the server's loop. Synchronous callers use `call`, never `asyncio.run`. Coroutines run ORM
work in a small thread pool. A forked child gets its own runtime.
"""

import asyncio
import concurrent.futures
import contextvars
import functools
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from django.db import connections

from bonobot.core.telemetry import metrics

ORM_THREADS = 8
ASIDE_THREADS = 4
TICK_S = 1.0
CLOSE_S = 10.0
MOMENT_S = 0.2
SIGNAL_S = 0.5
# SQLite connections are reopened after this time: the file may have been restored from a backup.
KEPT_S = 60.0

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Runtime:
    """One event loop with its tasks, ORM threads and close callbacks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread | None) -> None:
        """Use a running loop; `thread` is set if the runtime has to stop the loop itself."""
        self.loop = loop
        self.ticked_at = time.monotonic()
        self.closing = False
        self._thread = thread
        self._accepting = True
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closers: list[Callable[[], Awaitable[object]]] = []
        self._orm = concurrent.futures.ThreadPoolExecutor(ORM_THREADS, thread_name_prefix="orm")
        self._aside = concurrent.futures.ThreadPoolExecutor(
            ASIDE_THREADS, thread_name_prefix="aside"
        )
        # SQLite connections that the ORM threads keep open.
        self._files: dict[tuple[int, str], Any] = {}
        self._ticking = asyncio.run_coroutine_threadsafe(self._tick(), loop)

    @classmethod
    def adopt(cls) -> "Runtime":
        """Make the running loop this process's runtime; called when the web process starts."""
        loop = asyncio.get_running_loop()
        with _state.lock:
            found = _state.runtime
            if found is None:
                found = _state.runtime = cls(loop, thread=None)
            elif found.loop is not loop:
                raise RuntimeError("This process has a runtime already: close it before adopting.")
            return found

    def call(
        self,
        fn: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> T:
        """Run a coroutine function on the loop and wait for it from another thread.

        Raises what it raises, or cancels it and raises TimeoutError after `timeout_s`.
        """
        if self._is_here():
            raise RuntimeError("`call` would wait for its own loop: await the coroutine instead.")
        future = self._start(_run_with_timeout(timeout_s, fn, args, kwargs), name=fn.__qualname__)
        try:
            return _wait_for_result(future)
        finally:
            future.cancel()  # Ctrl-C in the waiting thread also cancels the work

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop from any thread, without waiting; failures are logged."""
        future = self._start(coro, name=name)
        future.add_done_callback(functools.partial(_log_failure, name))
        return future

    def begin(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a coroutine as a task; call on the loop only. Failures are logged.

        Unlike a future of `spawn`, which completes one loop iteration later, the task is done as
        soon as the coroutine ends: while it isn't done, it still picks up added work.
        """
        task = self.loop.create_task(coro, name=name)
        self._tasks.add(task)  # the loop holds only a weak reference
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(functools.partial(_log_failure, name))
        return task

    async def orm(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run synchronous database work in one of the ORM threads.

        A canceled caller stops waiting; the work itself runs to completion.
        """
        return await self._beside(self._orm, fn, *args, **kwargs)

    async def aside(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run database work that no session waits for in a separate thread pool."""
        return await self._beside(self._aside, fn, *args, **kwargs)

    async def _beside(
        self,
        threads: concurrent.futures.Executor,
        fn: Callable[P, T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        if not self._is_here():
            raise RuntimeError("`orm` belongs to the runtime's loop: elsewhere, call directly.")
        work = functools.partial(
            contextvars.copy_context().run, self._with_usable_connections, fn, *args, **kwargs
        )
        return await self.loop.run_in_executor(threads, work)

    def on_close(self, closer: Callable[[], Awaitable[object]]) -> None:
        """Register an async function to await when the runtime closes; last in, first out."""
        self._closers.append(closer)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Close from another thread within `timeout_s`; stop the loop if the runtime started it."""
        if self._is_here():
            raise RuntimeError("`close` would wait for its own loop: await `aclose` instead.")
        if self.loop.is_running():
            asyncio.run_coroutine_threadsafe(self.aclose(timeout_s), self.loop).result()
        _state.forget(self)
        if self._thread is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout_s)

    async def aclose(self, timeout_s: float = CLOSE_S) -> None:
        """Close on the loop: await the closers, cancel running tasks, stop the ORM threads."""
        if self.closing:
            return
        self.closing = True
        deadline = self.loop.time() + timeout_s
        try:
            await self._await_closers(deadline)
            await self._cancel_tasks(deadline)
            endings = (
                functools.partial(threads.shutdown, wait=True, cancel_futures=True)
                for threads in (self._orm, self._aside)
            )
            ended = [self.loop.run_in_executor(None, ending) for ending in endings]
            await self._until(deadline, *ended)
            for kept in self._files.values():
                kept.close()
        finally:
            self._ticking.cancel()
            _state.forget(self)

    async def _await_closers(self, deadline: float) -> None:
        for closer in reversed(self._closers):
            task = self.loop.create_task(_wrap_awaitable(closer()))
            await self._until(deadline, task)
            if not task.done():
                logger.error("Closing took too long and was cut off: %r", closer)
                task.cancel()
            elif not task.cancelled() and (error := task.exception()):
                logger.error("Closing failed: %r", closer, exc_info=error)

    async def _cancel_tasks(self, deadline: float) -> None:
        self._accepting = False
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await self._until(deadline, *tasks)
        for task in tasks & self._tasks:
            logger.error("A task ignored its cancellation: %s", task.get_name())

    async def _until(self, deadline: float, *waited: asyncio.Future[Any]) -> None:
        if waited:
            # Wait briefly even past the deadline, so that canceled tasks can clean up.
            await asyncio.wait(waited, timeout=max(MOMENT_S, deadline - self.loop.time()))

    def _start(self, coro: Coroutine[Any, Any, T], *, name: str) -> concurrent.futures.Future[T]:
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

        def begin() -> None:
            task = self.loop.create_task(coro, name=name)
            self._tasks.add(task)  # the loop holds only a weak reference
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(functools.partial(_settle, outcome))
            outcome.add_done_callback(functools.partial(self._cancel_with, task))

        try:
            if not self._accepting:
                raise RuntimeError(f"The runtime is closed: `{name}` can't start.")
            # Keeps the caller's context variables, so that log records carry the ids of the
            # request or call that started the task.
            self.loop.call_soon_threadsafe(begin)
        except RuntimeError:
            coro.close()
            raise
        return outcome

    def _cancel_with(
        self, task: asyncio.Task[Any], outcome: concurrent.futures.Future[Any]
    ) -> None:
        if outcome.cancelled() and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(task.cancel)

    async def _tick(self) -> None:
        while True:
            self.ticked_at = time.monotonic()
            await asyncio.sleep(TICK_S)
            metrics.loop_lag.observe(time.monotonic() - self.ticked_at - TICK_S)

    def _with_usable_connections(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self._tidy_connections()
        try:
            return fn(*args, **kwargs)
        finally:
            self._tidy_connections()

    def _tidy_connections(self) -> None:
        """Return this thread's connections to their pool; keep SQLite connections for a while.

        Opening a SQLite file with its pragmas and functions costs more than most queries, and the
        number of these threads bounds the number of open connections.
        """
        for connection in connections.all(initialized_only=True):
            opened = connection.connection
            if connection.vendor == "sqlite" and opened is not None:
                key = threading.get_ident(), connection.alias
                if self._files.get(key) is not opened:
                    self._files[key] = opened
                    connection.close_at = time.monotonic() + KEPT_S
            connection.close_if_unusable_or_obsolete()

    def _is_here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False


class _RuntimeState:
    """The runtime of this process, if it has one."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Drop the runtime: in a forked child neither the lock nor the loop is usable."""
        self.lock = threading.Lock()
        self.runtime: Runtime | None = None

    def forget(self, runtime: Runtime) -> None:
        """Remove `runtime`; the next caller starts a new one."""
        with self.lock:
            if self.runtime is runtime:
                self.runtime = None


_state = _RuntimeState()
os.register_at_fork(after_in_child=_state.reset)


def get_runtime() -> Runtime:
    """Return this process's runtime; start it in its own thread if there is none."""
    found = _state.runtime
    if found is not None:
        return found
    with _state.lock:
        if _state.runtime is None:
            _state.runtime = _start_runtime()
        return _state.runtime


def close(timeout_s: float = CLOSE_S) -> None:
    """Close this process's runtime, if any."""
    if (found := _state.runtime) is not None:
        found.close(timeout_s)


def _start_runtime() -> Runtime:
    loop = asyncio.new_event_loop()
    running = threading.Event()
    thread = threading.Thread(target=_run, args=(loop, running), name="runtime", daemon=True)
    thread.start()
    running.wait()
    return Runtime(loop, thread)


def _run(loop: asyncio.AbstractEventLoop, running: threading.Event) -> None:
    asyncio.set_event_loop(loop)
    loop.call_soon(running.set)
    try:
        loop.run_forever()
    finally:
        # Tasks that libraries started; `asyncio.run` cancels them, too.
        if left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _wait_for_result(future: concurrent.futures.Future[T]) -> T:
    """Return a future's result. The main thread polls: a signal delivered to another thread
    doesn't wake it, but signal handlers run in the main thread only."""
    if threading.current_thread() is threading.main_thread():
        while not future.done():
            concurrent.futures.wait((future,), SIGNAL_S)
    return future.result()


async def _run_with_timeout(
    timeout_s: float | None,
    fn: Callable[..., Awaitable[T]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> T:
    async with asyncio.timeout(timeout_s):
        return await fn(*args, **kwargs)


async def _wrap_awaitable(awaitable: Awaitable[object]) -> None:
    await awaitable


def _settle(outcome: concurrent.futures.Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        outcome.cancel()
    error = None if task.cancelled() else task.exception()
    if not outcome.set_running_or_notify_cancel():
        return
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


def _log_failure(name: str, outcome: concurrent.futures.Future[Any] | asyncio.Future[Any]) -> None:
    if not outcome.cancelled() and (error := outcome.exception()) is not None:
        logger.error("The task `%s` failed", name, exc_info=error)
