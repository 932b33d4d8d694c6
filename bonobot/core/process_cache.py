"""Values that a process computes on first use and shares between its threads.

`functools.cache` computes a value in each thread that asks before the first one has finished. That
wastes time, and fails where the computation isn't safe to run twice at once, such as the generation
of an OpenAPI document. `compute_once` lets the other threads wait for the first one.
"""

import functools
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, ParamSpec, TypeVar, cast

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
            pass  # computed below, so that an error of the function has no other one as its context
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


class ObjectIdentityCache(Generic[T]):
    """A bounded cache of one result per object, for objects that no longer change.

    Keeps the objects alive, so that their ids aren't reused.
    """

    def __init__(self, compute: Callable[[Any], T], *, max_size: int = 512) -> None:
        self._compute = compute
        self._max_size = max_size
        self._results: dict[int, tuple[Any, T]] = {}

    def get(self, value: Any) -> T:
        """Return the cached result for this object; compute it if needed."""
        cached = self._results.get(id(value))
        if cached is None or cached[0] is not value:
            if len(self._results) >= self._max_size:
                self._results.clear()
            cached = self._results[id(value)] = (value, self._compute(value))
        return cached[1]
