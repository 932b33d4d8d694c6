"""Wait for another process or thread by polling until a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    predicate: Callable[[], T | None], *, within: float = 10.0, every: float = 0.05, what: str = ""
) -> T:
    """Return the first truthy result of `predicate`; raise AssertionError after `within` s."""
    deadline = time.monotonic() + within
    while True:
        result = predicate()
        if result:
            return result
        if time.monotonic() >= deadline:
            subject = what or getattr(predicate, "__name__", "the condition")
            raise AssertionError(f"{subject} didn't happen within {within:g} s; last: {result!r}")
        time.sleep(every)
