"""Extension points: what a lower package needs of an upper one, which the upper one registers.

Imports run one way, so a lower package declares what it needs and a function `register_…` beside
it; the upper package calls that function in `AppConfig.ready`, with callables that import what they
need when they are called, so that no process starts slower for what it doesn't use.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

T = TypeVar("T")


class ExtensionPoint(Generic[T]):
    """One implementation that another package registers; the last one that is registered counts."""

    def __init__(self, name: str, *, registered_by: str) -> None:
        """Begin without one; the texts say what it is, and which package registers it."""
        self._name = name
        self._registered_by = registered_by
        self._implementation: T | None = None

    def register(self, implementation: T) -> None:
        """Set the implementation."""
        self._implementation = implementation

    def get(self) -> T:
        """Return the implementation; raises `ImproperlyConfigured` where none is registered."""
        if self._implementation is None:
            raise ImproperlyConfigured(
                f"No {self._name} is registered: {self._registered_by} registers it in"
                " AppConfig.ready and must be among INSTALLED_APPS."
            )
        return self._implementation


class ExtensionList(Generic[T]):
    """Any number of implementations that other packages register, in that order, each once."""

    def __init__(self) -> None:
        """Begin without any."""
        self._implementations: list[T] = []

    def register(self, implementation: T) -> None:
        """Add an implementation unless it is there."""
        if implementation not in self._implementations:
            self._implementations.append(implementation)

    def __iter__(self) -> Iterator[T]:
        """Yield the implementations as they were registered."""
        return iter(tuple(self._implementations))


@dataclass(frozen=True, slots=True)
class LazyFunction:
    """A function by its dotted path, imported when it is called first."""

    path: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Import the function and call it."""
        return import_string(self.path)(*args, **kwargs)
