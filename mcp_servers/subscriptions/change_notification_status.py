"""Status of change notifications, for display."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from bonobot.core.i18n.messages import format_message
from mcp_servers.models import ChangeSubscription, Server

State = Literal[
    "listening", "opening", "lost", "refused", "not_told", "while_running", "unwatched", "disabled"
]
STATES: dict[State, str] = {
    "listening": format_message("Listening for change notifications."),
    "opening": format_message("Opening a stream of change notifications."),
    "lost": format_message("The stream of change notifications was lost and is being reopened."),
    "refused": format_message(
        "The server has no stream of change notifications. Checked again after the next discovery."
    ),
    "not_told": format_message("No change notifications."),
    "while_running": format_message("Received while a session uses the server."),
    "unwatched": format_message(
        "No worker is listening. Either no worker is running, or all workers are at their limit."
    ),
    "disabled": format_message("The server is disabled."),
}


@dataclass(frozen=True)
class ChangeNotificationStatus:
    """Whether a server's change notifications are received, since when, or why not."""

    state: State
    text: str
    since: datetime | None = None
    last_notice_at: datetime | None = None
    code: str = ""
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "text": self.text,
            "since": self.since,
            "last_notice_at": self.last_notice_at,
            "code": self.code,
            "detail": self.detail,
        }


def load_change_notification_status(server: Server) -> ChangeNotificationStatus:
    """Return the status of a server's change notifications (one query unless joined)."""
    watch: ChangeSubscription | None = getattr(server, "change_subscription", None)
    state = _compute_state(server, watch)
    if watch is None:
        return ChangeNotificationStatus(state, STATES[state])
    failed_watch = watch if state in ("lost", "refused") else None
    return ChangeNotificationStatus(
        state,
        STATES[state],
        since=watch.listening_since if state == "listening" else None,
        last_notice_at=watch.notified_at,
        code=failed_watch.code if failed_watch else "",
        detail=failed_watch.detail if failed_watch else "",
    )


def _compute_state(server: Server, watch: ChangeSubscription | None) -> State:
    from mcp_servers.subscriptions.leases import compute_lease_deadline

    if not server.enabled:
        return "disabled"
    if server.transport_type == Server.Transport.STDIO:
        return "while_running"
    if watch is None or not watch.asks:
        return "not_told"
    if watch.refused_at is not None:
        return "refused"
    deadline = compute_lease_deadline()
    if watch.heartbeat_at is None and watch.created_at >= deadline:
        return "opening"  # a worker may still claim the new server
    if watch.holder is None or watch.heartbeat_at is None or watch.heartbeat_at < deadline:
        return "unwatched"
    if watch.listening_since is not None:
        return "listening"
    return "lost" if watch.code else "opening"
