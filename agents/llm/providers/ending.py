"""What a request has under way in threads ends with it: a thread itself can't be cancelled."""

import contextvars
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

_under_way: contextvars.ContextVar[set[Future[Any]] | None] = contextvars.ContextVar(
    "under_way", default=None
)


@contextmanager
def ending_with_us() -> Iterator[None]:
    """Cancel what is still under way at the end of the block."""
    mine: set[Future[Any]] = set()
    token = _under_way.set(mine)
    try:
        yield
    finally:
        _under_way.reset(token)
        for future in list(mine):
            future.cancel()


def under_way() -> set[Future[Any]] | None:
    """Return where to note what this request waits for; None outside of one."""
    return _under_way.get()
