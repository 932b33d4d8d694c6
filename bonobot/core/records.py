"""Immutable records that are created for every call.

A frozen dataclass stores each field with `object.__setattr__`, which takes five times as long as
an assignment. The fields of a record can't be assigned either, but type checkers ensure that, not
the class at run time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Return a decorator for a dataclass with slots that can be compared and hashed."""
    return dataclass(slots=True, unsafe_hash=True, kw_only=kw_only)
