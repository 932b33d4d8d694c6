"""What the last contact with a server showed, and when to ask again (FEATURES A7, D12)."""

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from bonobot.lib.problems import Problem
from mcp_servers.connections.survey import Survey
from mcp_servers.models import Check, Server

# What a call can find out about a server, and what its status is then (FEATURES A7).
TROUBLES: dict[str, Server.Status] = {
    "needs_reauth": Server.Status.NEEDS_REAUTH,
    "server_unreachable": Server.Status.ERROR,
}
BACKOFF_LIMIT = timedelta(hours=1)


def pause(server: Server, failures: int) -> timedelta:
    """Return how long to wait: the regular period, doubled with each failure, up to an hour."""
    over_http = server.transport_type == Server.Transport.HTTP
    seconds = settings.BONOBOT_CHECK_EVERY_S if over_http else settings.BONOBOT_CHECK_STDIO_EVERY_S
    regular = timedelta(seconds=seconds)
    return min(regular * 2 ** min(failures, 10), max(regular, BACKOFF_LIMIT))


def record_attempt(server: Server) -> None:
    """Write that we are asking a server that didn't answer last time, or never did."""
    waiting = Server.objects.enabled().filter(pk=server.pk).exclude(status=Server.Status.CONNECTED)
    waiting.update(status=Server.Status.CONNECTING)


@transaction.atomic
def record_success(server: Server, kind: str, survey: Survey) -> None:
    """Write a successful survey: connected, era and discovery stored for the next call."""
    found: dict[str, Any] = {"discovered_at": timezone.now(), "server_info": survey.server_info}
    if (server.era, server.discovery) != (survey.era, survey.discovery):
        # Not observations: the next call is made by them, so snapshots must be read again.
        Server.objects.filter(pk=server.pk).update(era=survey.era, discovery=survey.discovery)
    record_contact(server, kind, survey.latency_ms, **found)


def record_contact(server: Server, kind: str, latency_ms: int, **found: Any) -> None:
    """Write that the server answered."""
    now = timezone.now()
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


def record_failure(server_id: Any, kind: str, problem: Problem) -> None:
    """Write that the server did not answer, and why; 401 and 403 ask for new credentials."""
    server = Server.objects.filter(pk=server_id).first()
    if server is None:
        return
    now = timezone.now()
    reauth = problem.code == "needs_reauth"
    Server.objects.filter(pk=server.pk).update(
        status=Server.Status.NEEDS_REAUTH if reauth else Server.Status.ERROR,
        status_code=problem.code,
        status_detail=f"{problem} {problem.remedy}".strip(),
        checked_at=now,
        failures=server.failures + 1,
        next_check_at=now + pause(server, server.failures + 1),
    )
    _history(server, kind, ok=False, code=problem.code, detail=str(problem))


def record_trouble(server_id: Any, problem: Problem) -> None:
    """Write that a call found the server away or closed to us, unless that is known already."""
    status = TROUBLES.get(problem.code)
    known = Server.objects.filter(pk=server_id, status=status)
    if status is not None and not known.exists():
        record_failure(server_id, Check.Kind.HEALTH, problem)


def _history(server: Server, kind: str, **found: Any) -> None:
    Check.objects.create(organization_id=server.organization_id, server=server, kind=kind, **found)
