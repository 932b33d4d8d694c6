"""Schedules of periodic tasks: sync with the code and edit.

The code defines the entries; a row sets how often an entry runs and whether it is enabled. A row
follows the code's default until it is edited. Entries that sessions, servers and notifications
depend on can't be disabled and have a maximum period.
"""

import json
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext_lazy as _
from django_celery_beat.models import IntervalSchedule, PeriodicTask, PeriodicTasks

from bonobot.accounts.principals import Principal, require_platform_admin
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.ledger.audit.admin_changes import record_change

# Entries that can't be disabled, with their maximum period in seconds.
MAX_ESSENTIAL_PERIODS = {"sweep": 60, "check due servers": 60, "deliver notifications": 60}
MAX_PERIOD_S = 31 * 86_400
TASK_PREFIXES = ("agents.", "bonobot.", "mcp_servers.")
DEFAULT_PERIOD_HEADER = "default_s"
HEARTBEAT = "sweep"
# A message expires before the next one is sent, so that they don't pile up without a worker.
EXPIRES_PERCENT = 90

Entries = Mapping[str, Mapping[str, Any]]


# Labels of schedules by the name in the database and the command line.
SCHEDULE_LABELS = {
    "check due servers": _("Check due servers"),
    "sweep": _("Recover stalled sessions and calls"),
    "deliver notifications": _("Deliver notifications"),
    "send account emails": _("Send account emails"),
    "run due workflows": _("Run due workflows"),
    "count usage": _("Count usage"),
    "export audit checkpoints": _("Export audit checkpoints"),
    "watch budgets": _("Watch budgets"),
    "delete tokens of former members": _("Delete tokens of former members"),
    "rescan definitions": _("Rescan definitions"),
    "prune health history": _("Delete old health history"),
    "prune notifications": _("Delete old notifications"),
    "delete expired data": _("Delete expired data"),
    "prune audit log": _("Delete old audit entries"),
    "delete unrestored objects": _("Delete unrestored objects"),
    "prune OAuth clients": _("Delete unused OAuth clients"),
}


def get_scheduled_entries() -> Entries:
    """Return the entries defined in code."""
    entries: Entries = settings.CELERY_BEAT_SCHEDULE
    return entries


@transaction.atomic
def sync_schedules(entries: Entries) -> None:
    """Sync the rows with the code: create missing, delete obsolete and repair invalid ones.

    Keeps an administrator's changes (period, enabled) within the entry's limits.
    """
    rows = {row.name: row for row in PeriodicTask.objects.select_related("interval")}
    has_changes = False
    for name, entry in entries.items():
        row = rows.get(name)
        if row is None:
            PeriodicTask.objects.create(**_build_columns(name, entry))
        elif repairs := _compute_repairs(row, entry):
            PeriodicTask.objects.filter(pk=row.pk).update(**repairs)
            has_changes = True
    obsolete = [row.pk for name, row in rows.items() if name not in entries and _is_own_task(row)]
    if obsolete:
        PeriodicTask.objects.filter(pk__in=obsolete).delete()
    if has_changes:
        PeriodicTasks.update_changed()


def save_schedule(principal: Principal, row: PeriodicTask, *, period_s: int, enabled: bool) -> None:
    """Set an entry's period (seconds) and whether it is enabled.

    Raises `Forbidden`, `InvalidInput` and `Conflict`.
    """
    require_platform_admin(
        principal, format_message("Only a platform administrator can change schedules.")
    )
    max_period_s = MAX_ESSENTIAL_PERIODS.get(row.name)
    if max_period_s and not enabled:
        raise Conflict(
            format_message(
                "The schedule {name!r} is required and can't be disabled.", name=row.name
            ),
            code="schedule_essential",
            field="enabled",
            remedy="Keep it enabled. You can use a longer interval.",
        )
    if not 1 <= period_s <= (max_period_s or MAX_PERIOD_S):
        raise InvalidInput(
            format_message("The interval is {seconds} s.", seconds=period_s),
            field="every",
            remedy=format_message(
                "Use a whole number of seconds from 1 to {longest}.",
                longest=max_period_s or MAX_PERIOD_S,
            ),
        )
    with record_change(
        organization_id=principal.organization_id,
        actor=principal.actor,
        action="schedule_updated",
        resource_type="schedule",
        resource_id=str(row.pk),
        resource_name=row.name,
        details={"every_s": period_s, "enabled": enabled},
        governed=False,
    ):
        row.interval = _ensure_interval(period_s)
        row.expire_seconds = _compute_expiry_s(period_s, get_scheduled_entries().get(row.name, {}))
        row.enabled = enabled
        # The scheduler writes the same row: don't overwrite its last run.
        row.save(update_fields=["interval", "expire_seconds", "enabled", "date_changed"])


def compute_period_s(row: PeriodicTask) -> int:
    """Return a row's period in seconds; 0 if it has another kind of schedule."""
    return int(row.interval.schedule.run_every.total_seconds()) if row.interval else 0


def read_default_period_s(row: PeriodicTask) -> int:
    """Return the row's default period in seconds, as stored from the code."""
    try:
        return int(json.loads(row.headers or "{}").get(DEFAULT_PERIOD_HEADER, 0))
    except (ValueError, RecursionError, TypeError, AttributeError):
        return 0


def _build_columns(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    period_s = int(entry["schedule"])
    return {
        "name": name,
        "task": entry["task"],
        "interval": _ensure_interval(period_s),
        "expire_seconds": _compute_expiry_s(period_s, entry),
        "headers": json.dumps({DEFAULT_PERIOD_HEADER: period_s}),
    }


def _compute_repairs(row: PeriodicTask, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the corrected values of a row's invalid columns."""
    default, period_s = int(entry["schedule"]), compute_period_s(row)
    max_period_s = MAX_ESSENTIAL_PERIODS.get(row.name, MAX_PERIOD_S)
    is_unedited = period_s == read_default_period_s(row)
    if not 1 <= period_s <= max_period_s or is_unedited:
        period_s = default
    expected: dict[str, Any] = {
        "task": entry["task"],
        "crontab_id": None,
        "solar_id": None,
        "clocked_id": None,
        "one_off": False,
        "start_time": None,
        "expires": None,
        "expire_seconds": _compute_expiry_s(period_s, entry),
        "args": "[]",
        "kwargs": "{}",
        "headers": json.dumps({DEFAULT_PERIOD_HEADER: default}),
    }
    if row.name in MAX_ESSENTIAL_PERIODS:
        expected["enabled"] = True
    repairs = {name: value for name, value in expected.items() if getattr(row, name) != value}
    if period_s != compute_period_s(row):
        repairs["interval"] = _ensure_interval(period_s)
    return repairs


def _ensure_interval(period_s: int) -> IntervalSchedule:
    values = {"every": period_s, "period": IntervalSchedule.SECONDS}
    return IntervalSchedule.objects.filter(**values).first() or IntervalSchedule.objects.create(
        **values
    )


def _compute_expiry_s(period_s: int, entry: Mapping[str, Any]) -> int:
    expires: int = entry.get("options", {}).get("expires", period_s)
    return max(min(expires, period_s * EXPIRES_PERCENT // 100), 1)


def _is_own_task(row: PeriodicTask) -> bool:
    return bool(row.task.startswith(TASK_PREFIXES))
