"""Record contacts, outages and unmonitored periods of servers."""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.urls import reverse_lazy
from django.utils import timezone

from bonobot.core.db.transactions import lock_rows
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.text.masking import mask_value
from bonobot.core.text.untrusted_text import make_storable
from bonobot.ledger.audit.admin_changes import (
    ChangeEvent,
    record_changes_at_end,
    record_finished_change,
)
from bonobot.ledger.types import Actor
from bonobot.notifications.notify import NotificationSubject, notify, notify_recovery
from mcp_servers.client.list_definitions import ServerDeclarations
from mcp_servers.models import HealthCheck, Outage, Server, UnmonitoredPeriod
from mcp_servers.subscriptions import leases

NEEDS_REAUTH = "needs_reauth"


def extend_outage(server: Server, problem: Problem, now: datetime) -> None:
    """Record a failed contact: start or extend the outage, and notify if it lasts."""
    columns = {"code": problem.code[:64], "detail": make_storable(str(problem))}
    open_outages = Outage.objects.filter(server=server, ended_at=None)
    if not open_outages.update(failures=F("failures") + 1, **columns):
        new_outage = Outage(
            organization_id=server.organization_id, server=server, began_at=now, **columns
        )
        # If two contacts fail at once, the second uses the first one's row.
        Outage.objects.bulk_create([new_outage], ignore_conflicts=True)
    outage = open_outages.first()
    if outage is not None:
        _notify_outage(server, outage, problem)


def end_outages(server: Server, now: datetime) -> None:
    """End the server's outages, and send recovery notifications."""
    for outage in Outage.objects.filter(server=server, ended_at=None):
        if Outage.objects.filter(pk=outage.pk, ended_at=None).update(ended_at=now):
            text = format_message(
                "{server} is responding again after {lasted} ({code}).",
                server=server.name,
                lasted=_format_duration(now - outage.began_at),
                code=outage.code,
            )
            notify_recovery(
                server.organization_id,
                build_server_subject(server),
                text,
                topic=_build_topic(outage),
            )


def _format_duration(time: timedelta) -> str:
    """Return a duration with unit symbols of all languages."""
    minutes = max(1, round(time.total_seconds() / 60))
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 2 * 24 * 60 else f"{minutes // (24 * 60)} d"


def close_outages(server: Server) -> None:
    """End the outages of a server that is no longer checked, without notification."""
    Outage.objects.filter(server=server, ended_at=None).update(ended_at=timezone.now())


def prune_outages(older_than: timedelta) -> int:
    """Delete old outages; return the number of rows."""
    return int(Outage.objects.filter(ended_at__lt=timezone.now() - older_than).delete()[0])


def build_server_subject(server: Server, page: str = "change") -> NotificationSubject:
    """Return the server as the subject of notifications; its URL is resolved lazily."""
    link = reverse_lazy(f"admin:mcp_servers_server_{page}", args=[server.pk])
    return NotificationSubject("mcp_server", str(server.pk), server.name, link)


def _notify_outage(server: Server, outage: Outage, problem: Problem) -> None:
    reason = f"{problem} {problem.remedy}".strip()
    if problem.code == NEEDS_REAUTH:
        event, text = (
            NEEDS_REAUTH,
            format_message("{server} needs new credentials.", server=server.name),
        )
    elif outage.failures >= settings.BONOBOT_DOWN_AFTER:
        event = "server_down"
        text = format_message(
            "{server} hasn't responded since {since} UTC ({n} failed attempts).",
            server=server.name,
            since=f"{outage.began_at:%Y-%m-%d %H:%M}",
            n=outage.failures,
        )
    else:
        return
    notify(
        server.organization_id,
        event,
        build_server_subject(server),
        f"{text} {reason}",
        topic=_build_topic(outage),
    )


def _build_topic(outage: Outage) -> str:
    return f"outage:{outage.pk}"


def record_unmonitored_period(server: Server, now: datetime) -> None:
    """Record the unmonitored period that ends now, if there is one."""
    since = find_unmonitored_since(server, now)
    if since is not None and since < now:
        gap = UnmonitoredPeriod(
            organization_id=server.organization_id, server=server, began_at=since, ended_at=now
        )
        # Two contacts at once have the same start: one row is enough.
        UnmonitoredPeriod.objects.bulk_create([gap], ignore_conflicts=True)


def prune_unmonitored_periods(older_than: timedelta) -> int:
    """Delete old unmonitored periods; return the number of rows."""
    return int(
        UnmonitoredPeriod.objects.filter(ended_at__lt=timezone.now() - older_than).delete()[0]
    )


# Error codes of calls that change the status of a server.
STATUS_BY_CODE: dict[str, Server.Status] = {
    "needs_reauth": Server.Status.NEEDS_REAUTH,
    "server_unreachable": Server.Status.ERROR,
}
CONNECTIONS = Actor(kind="system", id="connections", label="connections")


def record_attempt(server: Server) -> None:
    """Set the status of a server that isn't connected to connecting."""
    waiting = Server.objects.enabled().filter(pk=server.pk).exclude(status=Server.Status.CONNECTED)
    waiting.update(status=Server.Status.CONNECTING)


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
    """Record that the server answered."""
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
    """Record that the server did not answer; 401 and 403 mean that credentials are needed."""
    lock_rows(rows := Server.objects.filter(pk=server_id))
    server = rows.first()
    if server is None:
        return
    now = timezone.now()
    record_unmonitored_period(server, now)
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


def record_call_contact(server_id: Any, latency_ms: int) -> None:
    """Record that a call reached a server that had failed, unless that is known.

    If each person signs in separately, their calls say nothing about missing logins of others.
    """
    failed = (Server.Status.ERROR, Server.Status.NEEDS_REAUTH)
    server = Server.objects.enabled().filter(pk=server_id, status__in=failed).first()
    if server is None or (server.by_person and server.status == Server.Status.NEEDS_REAUTH):
        return
    record_contact(server, HealthCheck.Kind.HEALTH, latency_ms)


def record_call_failure(server_id: Any, problem: Problem) -> None:
    """Record that a call could not reach or use the server, unless that is known.

    If each person signs in separately, a missing login does not affect the server.
    """
    status = STATUS_BY_CODE.get(problem.code)
    server = Server.objects.filter(pk=server_id).exclude(status=status).first() if status else None
    if server is None or (server.by_person and status == Server.Status.NEEDS_REAUTH):
        return
    record_failure(server_id, HealthCheck.Kind.HEALTH, problem)


def _record_event(server: Server, action: str, details: dict[str, Any], code: str = "") -> None:
    """Record a change of a server's connection in the audit log, as not governed."""
    shown_details = {name: str(value) for name, value in details.items() if value not in ("", None)}
    record_finished_change(
        organization_id=server.organization_id,
        actor=CONNECTIONS,
        action=action,
        resource_type="mcp_server",
        resource_id=str(server.pk),
        resource_name=server.name,
        details=mask_value({**shown_details, "transport": server.transport_type}),
        governed=False,
        event=ChangeEvent("connection", "error" if code else "ok", code, server.pk, server.name),
    )


def _create_check(server: Server, kind: str, **columns: Any) -> None:
    HealthCheck.objects.create(
        organization_id=server.organization_id, server=server, kind=kind, **columns
    )


BACKOFF_LIMIT = timedelta(hours=1)
# A check may be late by its own pause, and by delays of a busy or restarted worker.
MIN_LATE = timedelta(minutes=10)


def compute_check_delay(server: Server, failures: int) -> timedelta:
    """Return the time until the next check, doubled with each failure up to an hour."""
    over_http = server.transport_type != Server.Transport.STDIO
    seconds = settings.BONOBOT_CHECK_EVERY_S if over_http else settings.BONOBOT_CHECK_STDIO_EVERY_S
    regular = timedelta(seconds=seconds)
    return min(regular * 2 ** min(failures, 10), max(regular, BACKOFF_LIMIT))


def find_unmonitored_since(server: Server, now: datetime) -> datetime | None:
    """Return since when the server is unmonitored; None if its checks are on time."""
    last_check: datetime = server.checked_at or server.created_at
    if not server.enabled:
        return last_check
    allowed_delay = max(2 * compute_check_delay(server, server.failures), MIN_LATE)
    return last_check if now - last_check > allowed_delay else None
