"""The function that executes a session's workflow; the workflows are a package above this one."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from bonobot.core.extension_points import ExtensionPoint

if TYPE_CHECKING:
    from agents.models import Step
    from agents.sessions.leases import SessionLease

MakeCalls = Callable[[Sequence["Step"]], Awaitable[None]]
WorkflowExecutor = Callable[["SessionLease", MakeCalls], Awaitable[str]]
workflow_executor = ExtensionPoint[WorkflowExecutor]("workflow executor", registered_by="agents")
