"""Preconditions of a change, checked in its transaction.

An interface that receives a version adds a check; the first change of the request runs it inside
its transaction, before it writes. So of two saves with the same version only one succeeds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Check = Callable[[], None]

_required: ContextVar[list[Check] | None] = ContextVar("preconditions", default=None)


@contextmanager
def scope() -> Iterator[None]:
    """Limit the preconditions that are added inside to the changes made inside."""
    token = _required.set([])
    try:
        yield
    finally:
        _required.reset(token)


def require(check: Check) -> None:
    """Run `check` when the first change of this scope begins; it raises to refuse the change."""
    required = _required.get()
    if required is None:
        raise RuntimeError("There is no scope to require anything in.")
    required.append(check)


def run_checks() -> None:
    """Run the pending checks once; call it inside the transaction of a change."""
    required = _required.get()
    while required:
        required.pop()()
