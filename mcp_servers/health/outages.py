"""Outages and unmonitored periods of servers: recorded, notified and listed."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import F, Q
from django.urls import reverse_lazy
from django.utils import timezone

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.text.untrusted_text import make_storable
from bonobot.notifications.notify import NotificationSubject, notify, notify_recovery
from mcp_servers.health.check_delays import compute_check_delay
from mcp_servers.health.uptime import LONGEST_WINDOW, TimeSpan
from mcp_servers.models import Outage, Server, UnmonitoredPeriod

NEEDS_REAUTH = "needs_reauth"
# A check may be late by its own pause, and by delays of a busy or restarted worker.
MIN_LATE = timedelta(minutes=10)
OUTAGES_SHOWN = 50


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


def find_unmonitored_since(server: Server, now: datetime) -> datetime | None:
    """Return since when the server is unmonitored; None if its checks are on time."""
    last_check: datetime = server.checked_at or server.created_at
    if not server.enabled:
        return last_check
    allowed_delay = max(2 * compute_check_delay(server, server.failures), MIN_LATE)
    return last_check if now - last_check > allowed_delay else None


def list_recent_outages(server: Server, now: datetime) -> list[Outage]:
    """Return the outages within the longest window, the latest first (one query)."""
    return list(server.outages.filter(build_outage_condition(now - LONGEST_WINDOW)))


def build_outage_condition(since: datetime) -> Q:
    """Return the condition for outages that did not end before `since`."""
    return Q(ended_at__isnull=True) | Q(ended_at__gt=since)


def to_spans(outages: Iterable[Outage]) -> list[TimeSpan]:
    return [TimeSpan(outage.began_at, outage.ended_at) for outage in outages]


def list_unmonitored_periods(server: Server, now: datetime) -> list[UnmonitoredPeriod]:
    """Return the unmonitored periods within the longest window (one query)."""
    return list(server.unasked.filter(ended_at__gt=now - LONGEST_WINDOW))


def list_unmonitored_spans(
    server: Server, now: datetime, gaps: Iterable[UnmonitoredPeriod]
) -> list[TimeSpan]:
    since = find_unmonitored_since(server, now)
    current = [TimeSpan(since)] if since is not None else []
    return [TimeSpan(gap.began_at, gap.ended_at) for gap in gaps] + current


def get_outage_duration(outage: Outage) -> timedelta:
    """Return how long an outage lasted, or has lasted so far."""
    return (outage.ended_at or timezone.now()) - outage.began_at
