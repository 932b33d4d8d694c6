"""Results cached by object identity."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


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
