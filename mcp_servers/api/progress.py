"""How far servers are that were added together: who was asked, and what came of it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from bonobot.lib.nudges import nudge
from bonobot.tenancy.api.resources import found_or_404
from bonobot.tenancy.api.shapes import Shape
from mcp_servers.api.servers import readable_servers
from mcp_servers.models import Server

CHECK_DUE = "mcp_servers.tasks.check_due"
STATES = ("asking", "connected", "error", "needs_reauth", "disabled")


class ProgressedShape(Shape):
    """One server, as far as it is."""

    server_id = serializers.UUIDField()
    name = serializers.CharField()
    state = serializers.ChoiceField(
        STATES, help_text="`asking` until it has answered, or failed to, for the first time."
    )
    code = serializers.CharField(help_text="Of the failure, blank if none.")
    detail = serializers.CharField(help_text="What failed and what to do.")
    tools = serializers.IntegerField(help_text="How many it offers.")
    waiting = serializers.IntegerField(help_text="How many definitions wait for approval.")


@extend_schema_field({"type": "object", "additionalProperties": {"type": "integer"}})
class Counts(serializers.DictField):
    """How many servers are in each state."""


class ProgressShape(Shape):
    """How far all of them are."""

    done = serializers.BooleanField(help_text="Every one was asked, or isn't to be asked.")
    total = serializers.IntegerField()
    counts = Counts()
    servers = ProgressedShape(many=True)


def ask_soon() -> None:
    """Have a worker ask what is due, which new servers are; without one the sweep does."""
    nudge(CHECK_DUE)


def progress(organization_id: UUID, ids: Sequence[UUID]) -> dict[str, Any]:
    """Return how far these servers are, in a fixed number of queries; raises `NotFound`."""
    mine = Server.objects.for_organization(organization_id).filter(pk__in=ids)
    rows = {one.pk: one for one in readable_servers(mine)}
    servers = [_progressed(found_or_404(rows.get(pk), "MCP server", pk)) for pk in ids]
    counts = Counter(str(one["state"]) for one in servers)
    return {
        "done": not counts["asking"],
        "total": len(servers),
        "counts": {state: counts[state] for state in STATES},
        "servers": servers,
    }


def _progressed(server: Any) -> dict[str, Any]:
    return {
        "server_id": str(server.pk),
        "name": server.name,
        "state": _state(server),
        "code": server.status_code,
        "detail": server.status_detail,
        "tools": server.tool_count,
        "waiting": server.waiting_count,
    }


def _state(server: Server) -> str:
    if not server.enabled:
        return "disabled"
    unasked = (Server.Status.DISCONNECTED, Server.Status.CONNECTING)
    return "asking" if server.status in unasked else server.status
