"""What the last contact with a server showed, and when to ask again (FEATURES A7, D12)."""

from typing import Any

from django.db import transaction
from django.utils import timezone

from bonobot.ledger.actors import Actor
from bonobot.ledger.changes import Event, record, written_last
from bonobot.lib.masking import mask
from bonobot.lib.problems import Problem
from bonobot.lib.row_locks import lock
from mcp_servers import outages, watch_leases
from mcp_servers.asking import end_unasked, pause
from mcp_servers.connections.survey import Survey
from mcp_servers.models import Check, Server

# What a call can find out about a server, and what its status is then (FEATURES A7).
TROUBLES: dict[str, Server.Status] = {
    "needs_reauth": Server.Status.NEEDS_REAUTH,
    "server_unreachable": Server.Status.ERROR,
}
CONNECTIONS = Actor(kind="system", id="connections", label="connections")


def record_attempt(server: Server) -> None:
    """Write that we are asking a server that didn't answer last time, or never did."""
    waiting = Server.objects.enabled().filter(pk=server.pk).exclude(status=Server.Status.CONNECTED)
    waiting.update(status=Server.Status.CONNECTING)


def forget_attempt(server: Server) -> None:
    """Take `record_attempt` back: what one person lacks says nothing about the server."""
    was = server.status if server.status != Server.Status.CONNECTING else Server.Status.DISCONNECTED
    asked = Server.objects.enabled().filter(pk=server.pk, status=Server.Status.CONNECTING)
    asked.update(status=was)


@written_last()
def record_success(server: Server, kind: str, survey: Survey) -> None:
    """Write a successful survey: connected, era and discovery stored for the next call."""
    lock(Server.objects.filter(pk=server.pk))
    found: dict[str, Any] = {"discovered_at": timezone.now(), "server_info": survey.server_info}
    if (server.era, server.discovery) != (survey.era, survey.discovery):
        # Not observations: the next call is made by them, so snapshots must be read again.
        Server.objects.filter(pk=server.pk).update(era=survey.era, discovery=survey.discovery)
    watch_leases.declare(server, survey.capabilities)
    record_contact(server, kind, survey.latency_ms, **found)


@transaction.atomic
def record_contact(server: Server, kind: str, latency_ms: int, **found: Any) -> None:
    """Write that the server answered."""
    lock(Server.objects.filter(pk=server.pk))
    now = timezone.now()
    end_unasked(server, now)
    away = Server.objects.enabled().filter(pk=server.pk).exclude(status=Server.Status.CONNECTED)
    came = away.update(status=Server.Status.CONNECTED)  # by whoever is first: one event
    Server.objects.filter(pk=server.pk).update(
        status=Server.Status.CONNECTED if server.enabled else Server.Status.DISABLED,
        status_code="",
        status_detail="",
        checked_at=now,
        last_connected_at=now,
        latency_ms=latency_ms,
        failures=0,
        next_check_at=now + pause(server, 0),
        **found,
    )
    _history(server, kind, ok=True, latency_ms=latency_ms)
    if server.failures:
        outages.end(server, now)
    if came:
        details = {"found_by": kind, "era": server.era, "latency_ms": latency_ms}
        _event(server, "server_connected", details)


@transaction.atomic
def record_failure(server_id: Any, kind: str, problem: Problem) -> None:
    """Write that the server did not answer, and why; 401 and 403 ask for new credentials."""
    lock(rows := Server.objects.filter(pk=server_id))
    server = rows.first()
    if server is None:
        return
    now = timezone.now()
    end_unasked(server, now)
    reauth = problem.code == "needs_reauth"
    lost = bool(server.last_connected_at) and not server.failures
    known = {"failures__gt": 0, "status_code": problem.code}
    news = Server.objects.filter(pk=server.pk).exclude(**known).update(status_code=problem.code)
    Server.objects.filter(pk=server.pk).update(
        status=Server.Status.NEEDS_REAUTH if reauth else Server.Status.ERROR,
        status_code=problem.code,
        status_detail=f"{problem} {problem.remedy}".strip(),
        checked_at=now,
        failures=server.failures + 1,
        next_check_at=now + pause(server, server.failures + 1),
    )
    _history(server, kind, ok=False, code=problem.code, detail=str(problem))
    if server.enabled:
        outages.go_on(server, problem, now)
    if news:
        action = "server_lost" if lost else "server_connection_failed"
        details = {"found_by": kind, "last_connected_at": server.last_connected_at, "why": problem}
        _event(server, "server_credentials_refused" if reauth else action, details, problem.code)


def record_trouble(server_id: Any, problem: Problem) -> None:
    """Write that a call found the server away or closed to us, unless that is known already.

    Where each person signs in, one person's login is their own task and no trouble of the server's.
    """
    status = TROUBLES.get(problem.code)
    server = Server.objects.filter(pk=server_id).exclude(status=status).first() if status else None
    if server is None or (server.by_person and status == Server.Status.NEEDS_REAUTH):
        return
    record_failure(server_id, Check.Kind.HEALTH, problem)


def _event(server: Server, action: str, details: dict[str, Any], code: str = "") -> None:
    """Write a turn in a server's connection into the audit (FEATURES D12); it governs nothing."""
    told = {name: str(value) for name, value in details.items() if value not in ("", None)}
    record(
        organization_id=server.organization_id,
        actor=CONNECTIONS,
        action=action,
        resource_type="mcp_server",
        resource_id=str(server.pk),
        resource_name=server.name,
        details=mask({**told, "transport": server.transport_type}),
        governed=False,
        event=Event("connection", "error" if code else "ok", code, server.pk, server.name),
    )


def _history(server: Server, kind: str, **found: Any) -> None:
    Check.objects.create(organization_id=server.organization_id, server=server, kind=kind, **found)
