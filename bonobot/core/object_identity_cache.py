"""Results cached by object identity."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ObjectIdentityCache(Generic[T]):
    """A bounded cache of one result per object, for objects that no longer change.

    Keeps the objects alive, so that their ids aren't reused.
    """

    def __init__(self, work_out: Callable[[Any], T], *, most: int = 512) -> None:
        self._work_out = work_out
        self._most = most
        self._known: dict[int, tuple[Any, T]] = {}

    def of(self, value: Any) -> T:
        """Return the cached result for this object; compute it if needed."""
        found = self._known.get(id(value))
        if found is None or found[0] is not value:
            if len(self._known) >= self._most:
                self._known.clear()
            found = self._known[id(value)] = (value, self._work_out(value))
        return found[1]
