"""Preconditions: what must still hold when a change begins, checked in the change's transaction.

An interface that was sent a version requires a check; the first change that is made for the request
runs it, after its transaction began and before it writes. So the check and the write are one, and
of two saves with the same version only one passes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Check = Callable[[], None]

_required: ContextVar[list[Check] | None] = ContextVar("preconditions", default=None)


@contextmanager
def scope() -> Iterator[None]:
    """Bound a request: what is required within holds for its changes alone."""
    token = _required.set([])
    try:
        yield
    finally:
        _required.reset(token)


def require(check: Check) -> None:
    """Have `check` run where the first change of this scope begins; it raises what it refuses."""
    required = _required.get()
    if required is None:
        raise RuntimeError("There is no scope to require anything in.")
    required.append(check)


def run_checks() -> None:
    """Run what is required, once; called within the transaction of a change that begins."""
    required = _required.get()
    while required:
        required.pop()()
