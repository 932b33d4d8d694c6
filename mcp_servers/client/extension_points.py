"""What other packages register for this one: storage of stderr, listeners and checks.

Apart from the modules that call these functions, because they are registered at the start of every
process, most of which open no connection.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from mcp_servers.client.change_notifications import ChangeNotification, LogNotification
    from mcp_servers.client.child_process import StderrSnapshot

StderrSink = Callable[["StderrSnapshot"], Awaitable[None]]
# Returns what changes with the configuration of each server that may have connections; None if that
# can't be read now.
ServerVersionsLoader = Callable[[Collection[UUID]], Awaitable[Mapping[UUID, str] | None]]
# Called on the loop and must return at once.
OnServerNotification = Callable[[UUID, "ChangeNotification"], None]
OnServerLog = Callable[[UUID, "LogNotification"], None]

_stderr_sinks: list[StderrSink] = []
_server_versions_loaders: list[ServerVersionsLoader] = []
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


def set_server_versions_loader(loader: ServerVersionsLoader) -> None:
    """Register the function that returns the versions of the open servers that may stay open."""
    _server_versions_loaders[:] = [loader]


def find_server_versions_loader() -> ServerVersionsLoader | None:
    """Return the registered function, if any."""
    return _server_versions_loaders[0] if _server_versions_loaders else None


def set_change_notification_listeners(*listeners: OnServerNotification) -> None:
    """Set the listeners for change notifications of this process's connections."""
    change_notification_listeners[:] = listeners
