"""Values that a process computes on first use and shares between its threads.

`functools.cache` computes a value in each thread that asks before the first one has finished. That
wastes time, and fails where the computation isn't safe to run twice at once, such as the generation
of an OpenAPI document. `compute_once` lets the other threads wait for the first one.
"""

import functools
import threading
from collections.abc import Callable, Hashable
from typing import Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


class SharedFunction(Generic[P, T]):
    """A function whose results are kept; each is computed by one thread."""

    def __init__(self, function: Callable[P, T]) -> None:
        self._function = function
        # Reentrant, so that a value can depend on another one of the same function.
        self._lock = threading.RLock()
        self._results: dict[tuple[Hashable, ...], T] = {}
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result for these arguments; an exception isn't kept."""
        key = cast("tuple[Hashable, ...]", (*args, *sorted(kwargs.items())) if kwargs else args)
        try:
            return self._results[key]
        except KeyError:
            with self._lock:
                if key not in self._results:
                    self._results[key] = self._function(*args, **kwargs)
                return self._results[key]

    def cache_clear(self) -> None:
        """Forget all results."""
        with self._lock:
            self._results.clear()


def compute_once(function: Callable[P, T]) -> SharedFunction[P, T]:
    """Keep a function's results; calls while the first result is computed wait for it."""
    return SharedFunction(function)
