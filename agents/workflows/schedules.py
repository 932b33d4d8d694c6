"""Schedules: the triggers that are due begin their runs, each once.

The row says when a trigger is due. Whoever moves that time on, by a conditional UPDATE, begins the
run in the same transaction: two sweeps don't begin it twice, and a process that dies between the
two has done neither. Times that were missed, however many, are made up for by one run.
"""

from datetime import datetime

from django.db import transaction
from django.utils import timezone

from agents.models import Session, Trigger, WorkflowRun
from agents.workflows.services import RunOrigin, begin
from agents.workflows.triggers import build_schedule
from agents.workflows.webhooks import build_trigger_actor, build_trigger_starter
from bonobot.core.problems import Conflict, Problem
from bonobot.ledger.audit.admin_changes import record

AT_ONCE = 100
OPEN = (Session.Status.QUEUED, Session.Status.RUNNING, Session.Status.WAITING)


def run_due() -> int:
    """Begin the runs that are due; return how many."""
    now = timezone.now()
    due = Trigger.objects.filter(enabled=True, next_at__lte=now).order_by("next_at")
    return sum(_run(trigger, now) for trigger in due.select_related("workflow")[:AT_ONCE])


def _run(trigger: Trigger, now: datetime) -> bool:
    """Begin one trigger's run; whatever forbids it is kept with the trigger, and in the audit."""
    try:
        with transaction.atomic():
            return _claim_trigger(trigger, now) and bool(_start_run(trigger))
    except Problem as problem:
        with transaction.atomic():
            if _claim_trigger(trigger, now, problem.code):
                _record_failure(trigger, problem)
        return False


def _claim_trigger(trigger: Trigger, now: datetime, code: str = "") -> bool:
    mine = Trigger.objects.filter(pk=trigger.pk, enabled=True, next_at=trigger.next_at)
    following = build_schedule(trigger).after(now, trigger.next_at)
    return bool(mine.update(next_at=following, last_at=now, last_code=code[:64]))


def _start_run(trigger: Trigger) -> WorkflowRun:
    if trigger.runs.filter(session__status__in=OPEN).exists():
        raise Conflict(
            "The run before it hasn't ended.",
            code="still_running",
            remedy="Let the schedule run less often, or see what its run waits for.",
        )
    origin = RunOrigin(via=WorkflowRun.Via.SCHEDULE, trigger=trigger)
    workflow, starter = trigger.workflow, build_trigger_starter(trigger)
    return begin(
        workflow, trigger.inputs, starter, actor=build_trigger_actor(trigger), origin=origin
    )


def _record_failure(trigger: Trigger, problem: Problem) -> None:
    record(
        organization_id=trigger.organization_id,
        actor=build_trigger_actor(trigger),
        action="trigger_not_run",
        resource_type="trigger",
        resource_id=str(trigger.pk),
        resource_name=trigger.name,
        details={"workflow": trigger.workflow.name, "code": problem.code, "detail": str(problem)},
        governed=False,
    )
