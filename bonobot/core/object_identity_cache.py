"""Results kept by the object itself."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ObjectIdentityCache(Generic[T]):
    """A bounded memory of one result for each object; for such as nobody changes any more.

    It holds the objects too: as long as it does, no other one can have their id.
    """

    def __init__(self, work_out: Callable[[Any], T], *, most: int = 512) -> None:
        self._work_out = work_out
        self._most = most
        self._known: dict[int, tuple[Any, T]] = {}

    def of(self, value: Any) -> T:
        """Return what was worked out of this very object, now or before."""
        found = self._known.get(id(value))
        if found is None or found[0] is not value:
            if len(self._known) >= self._most:
                self._known.clear()
            found = self._known[id(value)] = (value, self._work_out(value))
        return found[1]
