"""Extension points: implementations that upper packages register for lower ones.

Imports run one way, so a lower package declares an extension point, and the upper package registers
its implementation in `AppConfig.ready`. Registered callables import what they need when called,
which keeps startup fast.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

T = TypeVar("T")


class ExtensionPoint(Generic[T]):
    """One implementation that another package registers; the last registration wins."""

    def __init__(self, name: str, *, registered_by: str) -> None:
        """`name` and `registered_by` (a package) appear in the error of `get`."""
        self._name = name
        self._registered_by = registered_by
        self._implementation: T | None = None

    def register(self, implementation: T) -> None:
        self._implementation = implementation

    def get(self) -> T:
        """Return the implementation; raises `ImproperlyConfigured` if none is registered."""
        if self._implementation is None:
            raise ImproperlyConfigured(
                f"No {self._name} is registered: {self._registered_by} registers it in"
                " AppConfig.ready and must be among INSTALLED_APPS."
            )
        return self._implementation


class ExtensionList(Generic[T]):
    """Implementations that other packages register, in order and without duplicates."""

    def __init__(self) -> None:
        """Create an empty list."""
        self._implementations: list[T] = []

    def register(self, implementation: T) -> None:
        """Add an implementation unless it is already registered."""
        if implementation not in self._implementations:
            self._implementations.append(implementation)

    def __iter__(self) -> Iterator[T]:
        """Yield the implementations in registration order."""
        return iter(tuple(self._implementations))


@dataclass(frozen=True, slots=True)
class LazyFunction:
    """A function given by its dotted path, imported on call."""

    path: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return import_string(self.path)(*args, **kwargs)
