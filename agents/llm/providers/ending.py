"""What a request has under way in threads ends with it: a thread itself can't be cancelled."""

import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from threading import Lock
from typing import Any


class UnderWay:
    """What the threads of one request wait for; once it is over they wait for nothing more."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._futures: set[Future[Any]] = set()
        self._closers: list[Callable[[], object]] = []
        self._is_over = False
        self._lock = Lock()

    @contextmanager
    def waiting(self, future: Future[Any]) -> Iterator[None]:
        """Note what a thread waits for; raises `CancelledError` where the request is over."""
        with self._lock:
            if not self._is_over:
                self._futures.add(future)
        if self._is_over:
            future.cancel()
            raise CancelledError
        try:
            yield
        finally:
            with self._lock:
                self._futures.discard(future)

    def at_end(self, closer: Callable[[], object]) -> None:
        """Have a function called when the request is over; at once where it is."""
        with self._lock:
            if not self._is_over:
                self._closers.append(closer)
        if self._is_over:
            closer()

    def end(self) -> None:
        """Cancel what is under way, and what a thread that is just between two waits begins."""
        with self._lock:
            self._is_over = True
            futures, closers = list(self._futures), self._closers
        for future in futures:
            future.cancel()
        for closer in closers:
            closer()


_under_way: contextvars.ContextVar[UnderWay | None] = contextvars.ContextVar(
    "under_way", default=None
)


@contextmanager
def ending_with_us() -> Iterator[None]:
    """Cancel what is still under way at the end of the block."""
    mine = UnderWay()
    token = _under_way.set(mine)
    try:
        yield
    finally:
        _under_way.reset(token)
        mine.end()


def under_way() -> UnderWay | None:
    """Return where to note what this request waits for; None outside of one."""
    return _under_way.get()
