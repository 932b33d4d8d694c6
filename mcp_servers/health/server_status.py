"""Record whether servers answer: their status, checks and connection events."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from bonobot.core.db.transactions import lock_rows
from bonobot.core.problems import Problem
from bonobot.core.text.masking import mask_value
from bonobot.ledger.audit.admin_changes import (
    ChangeEvent,
    describe_row,
    record_changes_at_end,
    record_finished_change,
)
from bonobot.ledger.types import Actor
from mcp_servers.client.errors import ConnectionClosed
from mcp_servers.client.list_definitions import ServerDeclarations
from mcp_servers.health.check_delays import compute_check_delay
from mcp_servers.health.outages import end_outages, extend_outage, record_unmonitored_period
from mcp_servers.models import HealthCheck, Outage, Server
from mcp_servers.subscriptions import leases

# Error codes of calls that change the status of a server.
STATUS_BY_CODE: dict[str, Server.Status] = {
    "needs_reauth": Server.Status.NEEDS_REAUTH,
    "server_unreachable": Server.Status.ERROR,
}
FAILING_STATES = (Server.Status.ERROR, Server.Status.NEEDS_REAUTH)
# The code of a server whose package is being installed.
INSTALLING = "server_installing"
CONNECTIONS = Actor(kind="system", id="connections", label="connections")


@dataclass(frozen=True, kw_only=True)
class ServerConnectionStatus:
    """A server's status, with its last connection, outage, check and error."""

    status: str
    connected_at: datetime | None
    disconnected_at: datetime | None
    pinged_at: datetime | None
    error_code: str
    error: str
    error_at: datetime | None
    failures: int
    next_check_at: datetime | None


def record_attempt(server: Server) -> None:
    """Set the status of a server that isn't connected to connecting."""
    disconnected_servers = (
        Server.objects.enabled().filter(pk=server.pk).exclude(status=Server.Status.CONNECTED)
    )
    disconnected_servers.update(status=Server.Status.CONNECTING)


def undo_attempt(server: Server) -> None:
    """Undo `record_attempt`: a missing login of one person does not affect the server."""
    previous_status = (
        server.status if server.status != Server.Status.CONNECTING else Server.Status.DISCONNECTED
    )
    rows = Server.objects.enabled().filter(pk=server.pk, status=Server.Status.CONNECTING)
    rows.update(status=previous_status)


@record_changes_at_end()
def record_success(server: Server, kind: str, declarations: ServerDeclarations) -> None:
    """Record a successful discovery; store era and discovery for the next call."""
    lock_rows(Server.objects.filter(pk=server.pk))
    columns: dict[str, Any] = {
        "discovered_at": timezone.now(),
        "server_info": declarations.server_info,
    }
    if (server.era, server.discovery) != (declarations.era, declarations.discovery):
        # Calls depend on these columns, so policy snapshots must be reloaded.
        Server.objects.filter(pk=server.pk).update(
            era=declarations.era, discovery=declarations.discovery
        )
    leases.store_change_topics(server, declarations.capabilities)
    record_contact(server, kind, declarations.latency_ms, **columns)


@transaction.atomic
def record_contact(server: Server, kind: str, latency_ms: int, **columns: Any) -> None:
    lock_rows(Server.objects.filter(pk=server.pk))
    now = timezone.now()
    record_unmonitored_period(server, now)
    disconnected = (
        Server.objects.enabled().filter(pk=server.pk).exclude(status=Server.Status.CONNECTED)
    )
    reconnected = disconnected.update(status=Server.Status.CONNECTED)  # only one contact records it
    Server.objects.filter(pk=server.pk).update(
        status=Server.Status.CONNECTED if server.enabled else Server.Status.DISABLED,
        status_code="",
        status_detail="",
        checked_at=now,
        last_connected_at=now,
        latency_ms=latency_ms,
        failures=0,
        next_check_at=now + compute_check_delay(server, 0),
        **columns,
    )
    _create_check(server, kind, ok=True, latency_ms=latency_ms)
    if server.failures:
        end_outages(server, now)
    if reconnected:
        details = {"found_by": kind, "era": server.era, "latency_ms": latency_ms}
        _record_event(server, "server_connected", details)


@transaction.atomic
def record_failure(server_id: Any, kind: str, problem: Problem) -> None:
    """Record that the server did not answer; 401 and 403 mean that credentials are needed.

    A server whose package is being installed has not failed: it is connecting.
    """
    lock_rows(rows := Server.objects.filter(pk=server_id))
    server = rows.first()
    if server is None:
        return
    now = timezone.now()
    record_unmonitored_period(server, now)
    if problem.code == INSTALLING:
        _record_installation(server, problem, now)
        return
    needs_reauth = problem.code == "needs_reauth"
    was_connected = bool(server.last_connected_at) and not server.failures
    known_failure = {"failures__gt": 0, "status_code": problem.code}
    is_new = (
        Server.objects.filter(pk=server.pk)
        .exclude(**known_failure)
        .update(status_code=problem.code)
    )
    Server.objects.filter(pk=server.pk).update(
        status=Server.Status.NEEDS_REAUTH if needs_reauth else Server.Status.ERROR,
        status_code=problem.code,
        status_detail=f"{problem} {problem.remedy}".strip(),
        checked_at=now,
        failures=server.failures + 1,
        next_check_at=now + compute_check_delay(server, server.failures + 1),
    )
    _create_check(server, kind, ok=False, code=problem.code, detail=str(problem))
    if server.enabled:
        extend_outage(server, problem, now)
    if is_new:
        action = "server_connection_lost" if was_connected else "server_connection_failed"
        details = {"found_by": kind, "last_connected_at": server.last_connected_at, "why": problem}
        _record_event(
            server, "server_credentials_rejected" if needs_reauth else action, details, problem.code
        )


def _record_installation(server: Server, problem: Problem, now: datetime) -> None:
    """Record that the server's package is being installed; its end starts a discovery."""
    Server.objects.filter(pk=server.pk).update(
        status=Server.Status.CONNECTING if server.enabled else Server.Status.DISABLED,
        status_code=problem.code,
        status_detail=f"{problem} {problem.remedy}".strip(),
        checked_at=now,
        next_check_at=now + compute_check_delay(server, 0),
    )


def record_call_contact(server_id: Any, latency_ms: int) -> None:
    """Record that a call reached a server that had failed, unless that is known.

    If each person signs in separately, their calls say nothing about missing logins of others.
    """
    server = Server.objects.enabled().filter(pk=server_id, status__in=FAILING_STATES).first()
    if server is None or (server.by_person and server.status == Server.Status.NEEDS_REAUTH):
        return
    record_contact(server, HealthCheck.Kind.HEALTH, latency_ms)


def record_call_failure(server_id: Any, problem: Problem) -> None:
    """Record that a call could not reach or use the server, unless that is known.

    If each person signs in separately, a missing login does not affect the server. Neither does
    the end of a connection that Bonobot closed, for example because its session ended.
    """
    status = None if isinstance(problem, ConnectionClosed) else STATUS_BY_CODE.get(problem.code)
    server = Server.objects.filter(pk=server_id).exclude(status=status).first() if status else None
    if server is None or (server.by_person and status == Server.Status.NEEDS_REAUTH):
        return
    record_failure(server_id, HealthCheck.Kind.HEALTH, problem)


def _record_event(server: Server, action: str, details: dict[str, Any], code: str = "") -> None:
    """Record a change of a server's connection in the audit log, as not governed."""
    shown_details = {name: str(value) for name, value in details.items() if value not in ("", None)}
    record_finished_change(
        **describe_row("mcp_server", server),
        actor=CONNECTIONS,
        action=action,
        details=mask_value({**shown_details, "transport": server.transport_type}),
        governed=False,
        event=ChangeEvent(
            "connection",
            outcome="error" if code else "ok",
            code=code,
            server_id=server.pk,
            server_name=server.name,
        ),
    )


def _create_check(server: Server, kind: str, **columns: Any) -> None:
    HealthCheck.objects.create(
        organization_id=server.organization_id, server=server, kind=kind, **columns
    )


def build_connection_status(server: Server, outages: list[Outage]) -> ServerConnectionStatus:
    """Return the connection status of the server (no query)."""
    last = outages[0] if outages else None
    return ServerConnectionStatus(
        status=server.status,
        connected_at=server.last_connected_at,
        disconnected_at=last.began_at if last and server.last_connected_at else None,
        pinged_at=server.checked_at,
        error_code=last.code if last else "",
        error=last.detail if last else "",
        error_at=(last.ended_at or server.checked_at) if last else None,
        failures=server.failures,
        next_check_at=server.next_check_at if server.enabled else None,
    )
