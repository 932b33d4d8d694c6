"""How long the health history of servers is kept: checks, outages and unmonitored periods."""

from datetime import datetime, timedelta

from django.utils import timezone

from mcp_servers.models import HealthCheck, Outage, UnmonitoredPeriod

HISTORY_RETENTION = timedelta(days=30)


def compute_oldest_kept() -> datetime:
    """Return the time before which history is deleted."""
    return timezone.now() - HISTORY_RETENTION


def delete_old_history() -> int:
    """Delete checks, outages and unmonitored periods older than that; return how many rows."""
    oldest_kept = compute_oldest_kept()
    old_rows = (
        HealthCheck.objects.filter(created_at__lt=oldest_kept),
        Outage.objects.filter(ended_at__lt=oldest_kept),
        UnmonitoredPeriod.objects.filter(ended_at__lt=oldest_kept),
    )
    return sum(int(rows.delete()[0]) for rows in old_rows)
