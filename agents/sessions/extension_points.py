"""The function that executes a session's workflow; the workflows are a package above this one."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from bonobot.core.extension_points import ExtensionPoint

if TYPE_CHECKING:
    from agents.models import Step
    from agents.sessions.leases import SessionLease

MakeCalls = Callable[[Sequence["Step"]], Awaitable[None]]
WorkflowExecutor = Callable[["SessionLease", MakeCalls], Awaitable[str]]
_workflow_executor = ExtensionPoint[WorkflowExecutor]("workflow executor", registered_by="agents")


def register_workflow_executor(execute: WorkflowExecutor) -> None:
    """Register the function that executes a session's workflow, replacing an earlier one."""
    _workflow_executor.register(execute)


def get_workflow_executor() -> WorkflowExecutor:
    """Return the function; raises `ImproperlyConfigured` if none is registered."""
    return _workflow_executor.get()
