"""Start the runs of schedules that are due, each once.

A sweep advances the trigger's due time by a conditional UPDATE and starts the run in the same
transaction, so concurrent sweeps don't start it twice and a crash does neither. Any number of
missed times leads to one run.
"""

from datetime import datetime

from django.db import transaction
from django.utils import timezone

from agents.models import Session, Trigger, WorkflowRun
from agents.workflows.services import RunOrigin, start_run
from agents.workflows.triggers import build_schedule
from agents.workflows.webhook_triggers import build_trigger_actor, build_trigger_starter
from bonobot.core.problems import Conflict, Problem
from bonobot.ledger.audit.admin_changes import describe_row, record_finished_change

MAX_RUNS_PER_SWEEP = 100
OPEN_STATUSES = (Session.Status.QUEUED, Session.Status.RUNNING, Session.Status.WAITING)


def start_due_runs() -> int:
    """Start the runs that are due; return how many."""
    now = timezone.now()
    due_triggers = Trigger.objects.filter(enabled=True, next_at__lte=now).order_by("next_at")
    return sum(
        _start_due_run(trigger, now)
        for trigger in due_triggers.select_related("workflow")[:MAX_RUNS_PER_SWEEP]
    )


def _start_due_run(trigger: Trigger, now: datetime) -> bool:
    """Start a trigger's run; errors are saved with the trigger and in the audit log."""
    try:
        with transaction.atomic():
            return _claim_trigger(trigger, now) and bool(_start_trigger_run(trigger))
    except Problem as problem:
        with transaction.atomic():
            if _claim_trigger(trigger, now, problem.code):
                _record_failure(trigger, problem)
        return False


def _claim_trigger(trigger: Trigger, now: datetime, code: str = "") -> bool:
    claimable = Trigger.objects.filter(pk=trigger.pk, enabled=True, next_at=trigger.next_at)
    next_at = build_schedule(trigger).compute_next_due(now, trigger.next_at)
    return bool(claimable.update(next_at=next_at, last_at=now, last_code=code[:64]))


def _start_trigger_run(trigger: Trigger) -> WorkflowRun:
    if trigger.runs.filter(session__status__in=OPEN_STATUSES).exists():
        raise Conflict(
            "The previous run hasn't ended.",
            code="still_running",
            remedy="Use a longer interval, or check why the previous run is still open.",
        )
    origin = RunOrigin(via=WorkflowRun.Via.SCHEDULE, trigger=trigger)
    workflow, starter = trigger.workflow, build_trigger_starter(trigger)
    return start_run(
        workflow, trigger.inputs, starter, actor=build_trigger_actor(trigger), origin=origin
    )


def _record_failure(trigger: Trigger, problem: Problem) -> None:
    record_finished_change(
        **describe_row("trigger", trigger),
        actor=build_trigger_actor(trigger),
        action="trigger_not_run",
        details={"workflow": trigger.workflow.name, "code": problem.code, "detail": str(problem)},
        governed=False,
    )
