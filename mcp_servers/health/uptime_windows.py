"""Uptime, latency and calls of servers in the last day, week and month.

The number of queries does not depend on the length of the history: outages are separate rows, and
contacts are counted by latency, which gives every percentile.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Prefetch, Q
from django.utils import timezone

from bonobot.ledger.usage.aggregation import truncate_time
from bonobot.ledger.usage.query_rollups import ReportSpan as Reported
from bonobot.ledger.usage.query_rollups import open_reader, to_utc
from mcp_servers.health.outages import (
    build_outage_condition,
    list_unmonitored_periods,
    list_unmonitored_spans,
    to_spans,
)
from mcp_servers.health.uptime import (
    DAY,
    LONGEST_WINDOW,
    WINDOWS,
    TimeSpan,
    UptimeSegment,
    UptimeWindow,
    build_uptime_segments,
    compute_percentile,
    compute_uptime_percent,
)
from mcp_servers.models import HealthCheck, Outage, Server, UnmonitoredPeriod

HOURS = 24


def prefetch_last_day() -> tuple[Prefetch, Prefetch]:
    """Prefetch what `build_last_day` needs, in two queries for all servers."""
    since = timezone.now() - DAY
    outages = Outage.objects.filter(build_outage_condition(since))
    unmonitored = UnmonitoredPeriod.objects.filter(ended_at__gt=since)
    return (
        Prefetch("outages", outages, to_attr="latest_outages"),
        Prefetch("unasked", unmonitored, to_attr="latest_gaps"),
    )


def build_last_day(server: Any) -> list[UptimeSegment]:
    """Return the uptime of each of the last 24 hours (no query, after `prefetch_last_day`)."""
    now = timezone.now()
    spans = to_spans(server.latest_outages)
    return build_uptime_segments(
        spans,
        now - DAY,
        now,
        HOURS,
        known_since=find_first_check(server, spans),
        unmonitored=list_unmonitored_spans(server, now, server.latest_gaps),
    )


def load_uptime_windows(server: Server, outages: list[Outage], now: datetime) -> list[UptimeWindow]:
    """Return the windows of the last day, week and month (seven queries).

    Calls are counted by whole hours for the day, and by whole days for the others.
    """
    spans = to_spans(outages)
    known_since = find_first_check(server, spans)
    unmonitored = list_unmonitored_spans(server, now, list_unmonitored_periods(server, now))
    check_counts = _load_check_counts(server, now)
    call_counts = _load_call_counts(server, now)
    windows = []
    for name, period in WINDOWS:
        since = now - period
        latencies, failures = check_counts[name]
        windows.append(
            UptimeWindow(
                name=name,
                since=since,
                uptime=compute_uptime_percent(
                    spans, since, now, known_since=known_since, unmonitored=unmonitored
                ),
                checks=sum(latencies.values()) + failures,
                failures=failures,
                outages=sum(
                    outage.ended_at is None or outage.ended_at > since for outage in outages
                ),
                calls=call_counts[name],
                p50=compute_percentile(latencies, 50),
                p95=compute_percentile(latencies, 95),
            )
        )
    return windows


def find_first_check(server: Server, spans: Sequence[TimeSpan]) -> datetime | None:
    """Return since when the server is monitored; None if it was never checked.

    A server that never connected is monitored since its first failed check.
    """
    if server.last_connected_at is None and spans:
        return min(span.begins for span in spans)
    return server.created_at if server.checked_at else None


def _load_check_counts(server: Server, now: datetime) -> dict[str, tuple[dict[int, int], int]]:
    """Return contacts by latency, and failures, for each window (one query)."""
    rows = HealthCheck.objects.filter(
        server=server, created_at__gte=now - LONGEST_WINDOW
    ).order_by()
    latencies: dict[str, dict[int, int]] = {name: {} for name, _back in WINDOWS}
    failed = dict.fromkeys(latencies, 0)
    groups: Any = rows.values("ok", "latency_ms").annotate(
        **{name: Count("pk", filter=Q(created_at__gte=now - window)) for name, window in WINDOWS}
    )
    for row in groups:
        for name in latencies:
            if row["ok"] and row[name]:
                latencies[name][row["latency_ms"] or 0] = row[name]
            elif not row["ok"]:
                failed[name] += row[name]
    return {name: (latencies[name], failed[name]) for name in latencies}


def _load_call_counts(server: Server, now: datetime) -> dict[str, int]:
    """Return the calls in each window, by whole hours and days (five queries)."""
    today, hour = truncate_time(to_utc(now), "day"), truncate_time(to_utc(now), "hour")
    since = {name: today - window + DAY for name, window in WINDOWS}
    filters: dict[str, Any] = {"server_id": server.pk, "event_type": "call"}
    reader = open_reader(server.organization_id, Reported(min(since.values()), None, "day"))
    days = reader.load_lines("begins", **filters)
    counts = {
        name: sum(line.calls for (begins,), line in days.items() if begins >= since[name])
        for name in since
    }
    hours = Reported(hour - DAY + timedelta(hours=1), None, "hour")
    return counts | {WINDOWS[0][0]: replace(reader, span=hours).load_total(**filters).calls}
