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
from typing import Any, ParamSpec, Self, TypeVar

from django.db import connections

from bonobot.core.telemetry import metrics

ORM_THREADS = 8
BACKGROUND_THREADS = 4
TICK_INTERVAL_S = 1.0
CLOSE_TIMEOUT_S = 10.0
MIN_WAIT_S = 0.2
SIGNAL_POLL_S = 0.5
# SQLite connections are reopened after this time: the file may have been restored from a backup.
SQLITE_CONNECTION_TTL_S = 60.0

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
        # Objects that belong to this loop, by type; the functions that return them create them.
        self.services: dict[type[Any], Any] = {}
        self._thread = thread
        self._accepting = True
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closers: list[Callable[[], Awaitable[object]]] = []
        self._orm_threads = concurrent.futures.ThreadPoolExecutor(
            ORM_THREADS, thread_name_prefix="orm"
        )
        self._background_threads = concurrent.futures.ThreadPoolExecutor(
            BACKGROUND_THREADS, thread_name_prefix="aside"
        )
        # SQLite connections that the ORM threads keep open.
        self._sqlite_connections: dict[tuple[int, str], Any] = {}
        self._tick_future = asyncio.run_coroutine_threadsafe(self._measure_loop_lag(), loop)

    @classmethod
    def adopt(cls) -> "Runtime":
        """Make the running loop this process's runtime; called when the web process starts."""
        loop = asyncio.get_running_loop()
        with _state.lock:
            runtime = _state.runtime
            if runtime is None:
                runtime = _state.runtime = cls(loop, thread=None)
            elif runtime.loop is not loop:
                raise RuntimeError("This process has a runtime already: close it before adopting.")
            return runtime

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
        if self._is_on_loop():
            raise RuntimeError("`call` would wait for its own loop: await the coroutine instead.")
        future = self._start_task(
            _run_with_timeout(timeout_s, fn, args, kwargs), name=fn.__qualname__
        )
        try:
            return _wait_for_result(future)
        finally:
            future.cancel()  # Ctrl-C in the waiting thread also cancels the work

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop from any thread, without waiting; failures are logged."""
        future = self._start_task(coro, name=name)
        future.add_done_callback(functools.partial(_log_failure, name))
        return future

    def create_task(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a coroutine as a task; call on the loop only. Failures are logged.

        Unlike a future of `spawn`, which completes one loop iteration later, the task is done as
        soon as the coroutine ends: while it isn't done, it still picks up added work.
        """
        task = self.loop.create_task(coro, name=name)
        self._tasks.add(task)  # the loop holds only a weak reference
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(functools.partial(_log_failure, name))
        return task

    async def run_orm(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run synchronous database work in one of the ORM threads.

        A canceled caller stops waiting; the work itself runs to completion.
        """
        return await self._run_in_threads(self._orm_threads, fn, *args, **kwargs)

    async def run_background_orm(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run database work that no session waits for in a separate thread pool."""
        return await self._run_in_threads(self._background_threads, fn, *args, **kwargs)

    async def _run_in_threads(
        self,
        threads: concurrent.futures.Executor,
        fn: Callable[P, T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        if not self._is_on_loop():
            raise RuntimeError("`orm` belongs to the runtime's loop: elsewhere, call directly.")
        work = functools.partial(
            contextvars.copy_context().run, self._run_with_usable_connections, fn, *args, **kwargs
        )
        future: DirectFuture[T] = DirectFuture(loop=self.loop)
        outcome = self._submit(threads, work, functools.partial(_resume_with_outcome, future))
        try:
            return await future
        except asyncio.CancelledError:
            outcome.cancel()  # without effect if it has started
            raise

    def submit_orm(
        self,
        fn: Callable[[], T],
        on_done: Callable[[concurrent.futures.Future[T]], object],
    ) -> None:
        """Run database work in one of the ORM threads, then `on_done` as a callback of the loop.

        Raises RuntimeError if the threads have stopped.
        """
        work = functools.partial(self._run_with_usable_connections, fn)
        self._submit(self._orm_threads, work, on_done)

    def _submit(
        self,
        threads: concurrent.futures.Executor,
        work: Callable[[], T],
        on_done: Callable[[concurrent.futures.Future[T]], object],
    ) -> concurrent.futures.Future[T]:
        """Run work in a thread; `run_in_executor` takes two more turns of the loop."""
        outcome = threads.submit(work)
        outcome.add_done_callback(functools.partial(self._call_on_loop, on_done))
        return outcome

    def _call_on_loop(
        self,
        on_done: Callable[[concurrent.futures.Future[T]], object],
        outcome: concurrent.futures.Future[T],
    ) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(on_done, outcome)

    def on_close(self, closer: Callable[[], Awaitable[object]]) -> None:
        """Register an async function to await when the runtime closes; last in, first out."""
        self._closers.append(closer)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close from another thread within `timeout_s`; stop the loop if the runtime started it."""
        if self._is_on_loop():
            raise RuntimeError("`close` would wait for its own loop: await `aclose` instead.")
        if self.loop.is_running():
            asyncio.run_coroutine_threadsafe(self.aclose(timeout_s), self.loop).result()
        _state.forget(self)
        if self._thread is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout_s)

    async def aclose(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close on the loop: await the closers, cancel running tasks, stop the ORM threads."""
        if self.closing:
            return
        self.closing = True
        deadline = self.loop.time() + timeout_s
        try:
            await self._run_closers(deadline)
            await self._cancel_tasks(deadline)
            shutdowns = (
                functools.partial(threads.shutdown, wait=True, cancel_futures=True)
                for threads in (self._orm_threads, self._background_threads)
            )
            shutdown_futures = [self.loop.run_in_executor(None, shutdown) for shutdown in shutdowns]
            await self._wait_until(deadline, *shutdown_futures)
            for connection in self._sqlite_connections.values():
                connection.close()
        finally:
            self._tick_future.cancel()
            _state.forget(self)

    async def _run_closers(self, deadline: float) -> None:
        for closer in reversed(self._closers):
            task = self.loop.create_task(_wrap_awaitable(closer()))
            await self._wait_until(deadline, task)
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
        await self._wait_until(deadline, *tasks)
        for task in tasks & self._tasks:
            logger.error("A task ignored its cancellation: %s", task.get_name())

    async def _wait_until(self, deadline: float, *futures: asyncio.Future[Any]) -> None:
        if futures:
            # Wait briefly even past the deadline, so that canceled tasks can clean up.
            await asyncio.wait(futures, timeout=max(MIN_WAIT_S, deadline - self.loop.time()))

    def _start_task(
        self, coro: Coroutine[Any, Any, T], *, name: str
    ) -> concurrent.futures.Future[T]:
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

        def create_and_track() -> None:
            task = self.loop.create_task(coro, name=name)
            self._tasks.add(task)  # the loop holds only a weak reference
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(functools.partial(_copy_result, outcome))
            outcome.add_done_callback(functools.partial(self._cancel_task, task))

        try:
            if not self._accepting:
                raise RuntimeError(f"The runtime is closed: `{name}` can't start.")
            # Keeps the caller's context variables, so that log records carry the ids of the
            # request or call that started the task.
            self.loop.call_soon_threadsafe(create_and_track)
        except RuntimeError:
            coro.close()
            raise
        return outcome

    def _cancel_task(
        self, task: asyncio.Task[Any], outcome: concurrent.futures.Future[Any]
    ) -> None:
        if outcome.cancelled() and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(task.cancel)

    async def _measure_loop_lag(self) -> None:
        while True:
            self.ticked_at = time.monotonic()
            await asyncio.sleep(TICK_INTERVAL_S)
            metrics.loop_lag.observe(time.monotonic() - self.ticked_at - TICK_INTERVAL_S)

    def _run_with_usable_connections(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self._release_connections()
        try:
            return fn(*args, **kwargs)
        finally:
            self._release_connections()

    def _release_connections(self) -> None:
        """Return this thread's connections to their pool; keep SQLite connections for a while.

        Opening a SQLite file with its pragmas and functions costs more than most queries, and the
        number of these threads bounds the number of open connections.
        """
        for connection in connections.all(initialized_only=True):
            raw_connection = connection.connection
            if connection.vendor == "sqlite" and raw_connection is not None:
                key = threading.get_ident(), connection.alias
                if self._sqlite_connections.get(key) is not raw_connection:
                    self._sqlite_connections[key] = raw_connection
                    connection.close_at = time.monotonic() + SQLITE_CONNECTION_TTL_S
            connection.close_if_unusable_or_obsolete()

    def _is_on_loop(self) -> bool:
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
    runtime = _state.runtime
    if runtime is not None:
        return runtime
    with _state.lock:
        if _state.runtime is None:
            _state.runtime = _start_runtime()
        return _state.runtime


class DirectFuture(asyncio.Future[T]):
    """A future that one task awaits, and that can let this task run on at once.

    Otherwise a task runs on in the loop's next turn, which costs about as much as a stage of a
    call. All methods of `asyncio.Future` do what they do there.
    """

    _wake_up: Callable[[Any], object] | None = None
    _context: contextvars.Context | None = None

    def resume_with(self, result: T) -> None:
        """Set the result and run the task until it waits again.

        Call it as the last step of a callback of the loop or of a protocol: not from a task, and
        not while the caller's own state is incomplete, which the task may use.
        """
        wake_up, context = self._wake_up, self._context
        self._wake_up = self._context = None
        super().set_result(result)
        if wake_up is not None and context is not None:
            context.run(wake_up, self)

    def add_done_callback(
        self,
        fn: Callable[[Self], object],
        /,
        *,
        context: contextvars.Context | None = None,
    ) -> None:
        """Keep the callback of the task, which is the first with its context; add any other."""
        if self._wake_up is None and context is not None and not self.done():
            self._wake_up, self._context = fn, context
        else:
            super().add_done_callback(fn, context=context)

    def set_result(self, result: T, /) -> None:
        self._schedule_task()
        super().set_result(result)

    def set_exception(self, exception: type | BaseException, /) -> None:
        self._schedule_task()
        super().set_exception(exception)

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel; returns False if it is done."""
        self._schedule_task()
        return super().cancel(msg)

    def _schedule_task(self) -> None:
        """Have the task run on in the loop's next turn, once this is done."""
        if self._wake_up is not None:
            super().add_done_callback(self._wake_up, context=self._context)
            self._wake_up = self._context = None


def _resume_with_outcome(future: DirectFuture[T], outcome: concurrent.futures.Future[T]) -> None:
    """Run the task that waits for the outcome of a thread."""
    if future.done():
        return
    if outcome.cancelled():
        future.cancel()
    elif (error := outcome.exception()) is not None:
        future.set_exception(error)
    else:
        future.resume_with(outcome.result())


def find_runtime() -> Runtime | None:
    """Return this process's runtime, or None if none was started."""
    return _state.runtime


def close_runtime(timeout_s: float = CLOSE_TIMEOUT_S) -> None:
    if (runtime := _state.runtime) is not None:
        runtime.close(timeout_s)


def _start_runtime() -> Runtime:
    loop = asyncio.new_event_loop()
    started_event = threading.Event()
    thread = threading.Thread(
        target=_run_loop, args=(loop, started_event), name="runtime", daemon=True
    )
    thread.start()
    started_event.wait()
    return Runtime(loop, thread)


def _run_loop(loop: asyncio.AbstractEventLoop, started_event: threading.Event) -> None:
    asyncio.set_event_loop(loop)
    loop.call_soon(started_event.set)
    try:
        loop.run_forever()
    finally:
        # Tasks that libraries started; `asyncio.run` cancels them, too.
        if remaining_tasks := asyncio.all_tasks(loop):
            for task in remaining_tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(remaining_tasks, timeout=CLOSE_TIMEOUT_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _wait_for_result(future: concurrent.futures.Future[T]) -> T:
    """Return a future's result. The main thread polls: a signal delivered to another thread
    doesn't wake it, but signal handlers run in the main thread only."""
    if threading.current_thread() is threading.main_thread():
        while not future.done():
            concurrent.futures.wait((future,), SIGNAL_POLL_S)
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


def _copy_result(future: concurrent.futures.Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        future.cancel()
    error = None if task.cancelled() else task.exception()
    if not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())


def _log_failure(name: str, future: concurrent.futures.Future[Any] | asyncio.Future[Any]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        logger.error("The task `%s` failed", name, exc_info=error)
