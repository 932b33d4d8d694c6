"""Preconditions of a change, checked in its transaction.

An interface that receives a version adds a check; the first change of the request runs it inside
its transaction, before it writes. So of two saves with the same version only one succeeds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Check = Callable[[], None]

_pending_checks: ContextVar[list[Check] | None] = ContextVar("preconditions", default=None)


@contextmanager
def open_scope() -> Iterator[None]:
    """Limit the preconditions that are added inside to the changes made inside."""
    token = _pending_checks.set([])
    try:
        yield
    finally:
        _pending_checks.reset(token)


def add_precondition(check: Check) -> None:
    """Run `check` when the first change of this scope begins; it raises to refuse the change."""
    checks = _pending_checks.get()
    if checks is None:
        raise RuntimeError("There is no scope to require anything in.")
    checks.append(check)


def run_checks() -> None:
    """Run the pending checks once; call it inside the transaction of a change."""
    checks = _pending_checks.get()
    while checks:
        checks.pop()()
