"""Waiting for what another process or thread does, by looking until a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    predicate: Callable[[], T], *, within: float = 10.0, every: float = 0.05, what: str = ""
) -> T:
    """Return the first truthy answer of `predicate`; raise AssertionError after `within` s."""
    deadline = time.monotonic() + within
    while True:
        answer = predicate()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            sought = what or getattr(predicate, "__name__", "the condition")
            raise AssertionError(f"{sought} didn't come within {within:g} s; last: {answer!r}")
        time.sleep(every)
