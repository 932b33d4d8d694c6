"""What other packages register for this one: storage of stderr, listeners and checks.

Apart from the modules that call these functions, because they are registered at the start of every
process, most of which open no connection.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from mcp_servers.client.change_notifications import ChangeNotification, LogNotification
    from mcp_servers.client.child_process import StderrSnapshot

StderrSink = Callable[["StderrSnapshot"], Awaitable[None]]
StoppedServersCheck = Callable[[Collection[UUID]], Awaitable[set[UUID]]]
# Called on the loop and must return at once.
OnServerNotification = Callable[[UUID, "ChangeNotification"], None]
OnServerLog = Callable[[UUID, "LogNotification"], None]

_stderr_sinks: list[StderrSink] = []
_stopped_servers_checks: list[StoppedServersCheck] = []
change_notification_listeners: list[OnServerNotification] = []
# Called with the log messages of shared streams, by server.
log_listeners: list[OnServerLog] = []
# Called when a package is installed that a start couldn't wait for.
late_installation_listeners: list[Callable[[UUID], None]] = []


def set_stderr_sink(sink: StderrSink) -> None:
    """Register the function that stores the stderr of children."""
    _stderr_sinks[:] = [sink]


def find_stderr_sink() -> StderrSink | None:
    """Return the registered function, if any."""
    return _stderr_sinks[-1] if _stderr_sinks else None


def set_stopped_servers_check(check: StoppedServersCheck) -> None:
    """Register the function that returns which of the open servers must be closed."""
    _stopped_servers_checks[:] = [check]


def find_stopped_servers_check() -> StoppedServersCheck | None:
    """Return the registered function, if any."""
    return _stopped_servers_checks[0] if _stopped_servers_checks else None


def set_change_notification_listeners(*listeners: OnServerNotification) -> None:
    """Set the listeners for change notifications of this process's connections."""
    change_notification_listeners[:] = listeners
