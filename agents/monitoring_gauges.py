"""Monitoring gauges of sessions, workers and budgets, read from the database."""

from collections.abc import Iterator
from itertools import islice

from django.db.models import Count, Min, Q

from agents.budgets.services import load_budget_use
from agents.models import Approval, Budget, Inbox, Runner, Session
from agents.sessions import leases
from bonobot.monitoring.extension_points import (
    GaugeFamily,
    GaugeSample,
    ReadinessPart,
    RowGauges,
    build_backlog_samples,
    build_lease_samples,
)

SESSIONS = GaugeFamily("bonobot_sessions", "Unfinished sessions by status.", ("status",))
WORKERS = GaugeFamily(
    "bonobot_runners",
    "Session workers by state: alive, or lapsed (no heartbeat, not stopped).",
    ("state",),
)
BUDGETS = GaugeFamily(
    "bonobot_budgets", "Budgets by usage: below the warning, warned, spent.", ("state",)
)
UNFINISHED = ("queued", "running", "waiting")
STATES_BY_TONE = {"good": "below", "warn": "warned", "bad": "spent"}
BUDGET_BATCH = 500  # budgets per query


def build_row_gauges() -> RowGauges:
    """Return the gauges of sessions, workers and budgets."""
    return RowGauges((SESSIONS, WORKERS, BUDGETS), _collect_samples)


def probe_workers() -> ReadinessPart:
    """Return the readiness of the workers: ok if any is alive."""
    alive = Runner.objects.filter(
        stopped_at=None, heartbeat_at__gt=leases.get_heartbeat_deadline()
    ).count()
    return ReadinessPart("worker", "ok" if alive else "failed", f"{alive} alive")


def _collect_samples() -> Iterator[GaugeSample]:
    yield from _collect_backlogs()
    rows = Session.objects.filter(status__in=UNFINISHED).order_by().values_list("status")
    counts = dict(rows.annotate(number=Count("pk")))
    for status in UNFINISHED:
        yield GaugeSample(SESSIONS.name, (status,), counts.get(status, 0))
    yield from _collect_workers()
    without_runner = Q(runner=None) | Q(runner__heartbeat_at__lt=leases.get_heartbeat_deadline())
    running = Session.objects.filter(status=Session.Status.RUNNING)
    yield from build_lease_samples(
        "session", running.count(), running.filter(without_runner).count()
    )
    yield from _collect_budgets()


def _collect_backlogs() -> Iterator[GaugeSample]:
    queued = Session.objects.filter(status=Session.Status.QUEUED)
    unread = Inbox.objects.filter(processed_at=None, session__in=queued)
    oldest = unread.aggregate(at=Min("created_at"))
    yield from build_backlog_samples("sessions", queued.count(), oldest["at"])
    approvals = Approval.objects.filter(state=Approval.State.WAITING)
    oldest = approvals.aggregate(at=Min("created_at"))
    yield from build_backlog_samples("approvals", approvals.count(), oldest["at"])


def _collect_workers() -> Iterator[GaugeSample]:
    unstopped = Runner.objects.filter(stopped_at=None)
    alive = unstopped.filter(heartbeat_at__gt=leases.get_heartbeat_deadline()).count()
    yield GaugeSample(WORKERS.name, ("alive",), alive)
    yield GaugeSample(WORKERS.name, ("lapsed",), unstopped.count() - alive)


def _collect_budgets() -> Iterator[GaugeSample]:
    counts = dict.fromkeys(STATES_BY_TONE.values(), 0)
    budgets = Budget.objects.filter(each_session=False).iterator(BUDGET_BATCH)
    while batch := list(islice(budgets, BUDGET_BATCH)):
        for usage in load_budget_use(batch):
            counts[STATES_BY_TONE[usage.tone]] += 1
    for state, count in counts.items():
        yield GaugeSample(BUDGETS.name, (state,), count)
