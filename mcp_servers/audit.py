"""Record changes of servers in the audit log."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from bonobot.accounts.principals import Principal
from bonobot.ledger.audit.admin_changes import (
    AdminChange,
    ChangeEvent,
    describe_row,
    record_change,
)
from bonobot.ledger.types import Actor
from mcp_servers.models import Server


def build_server_event(server: Server) -> ChangeEvent:
    """Return the event of a change, with the server by which the audit log is filtered."""
    return ChangeEvent("change", server_id=server.pk, server_name=server.name)


def record_server_change(
    server: Server,
    actor: Actor,
    action: str,
    details: Mapping[str, Any] | None = None,
    *,
    governed: bool = True,
) -> AbstractContextManager[AdminChange]:
    """Record the change of a server made inside the block, which may add to `details`."""
    return record_change(
        **describe_row("mcp_server", server),
        actor=actor,
        action=action,
        details=details,
        governed=governed,
        event=build_server_event(server),
    )


def update_server_columns(
    principal: Principal, server: Server, action: str, columns: Mapping[str, Any]
) -> None:
    """Update columns and record it; do nothing if no value differs."""
    if all(getattr(server, name) == value for name, value in columns.items()):
        return
    with record_server_change(server, principal.actor, action, columns):
        Server.objects.filter(pk=server.pk).update(**columns)
    server.refresh_from_db()
