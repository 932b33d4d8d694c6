"""Recording: what is done to a server, written down in one transaction with the deed."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from bonobot.ledger.actors import Actor
from bonobot.ledger.changes import Change, change
from bonobot.tenancy.principals import Principal
from mcp_servers.models import Server


def changing(
    server: Server,
    actor: Actor,
    action: str,
    details: Mapping[str, Any] | None = None,
    *,
    governed: bool = True,
) -> AbstractContextManager[Change]:
    """Record what is done to a server inside the block, which may complete `details`."""
    return change(
        organization_id=server.organization_id,
        actor=actor,
        action=action,
        resource_type="mcp_server",
        resource_id=str(server.pk),
        resource_name=server.name,
        details=details,
        governed=governed,
    )


def set_columns(
    principal: Principal, server: Server, action: str, columns: Mapping[str, Any]
) -> None:
    """Change columns that calls are decided by; nothing is written where none differs."""
    if all(getattr(server, name) == value for name, value in columns.items()):
        return
    with changing(server, principal.actor, action, columns):
        Server.objects.filter(pk=server.pk).update(**columns)
    server.refresh_from_db()
