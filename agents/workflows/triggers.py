"""Triggers of workflows: create, update and delete them, and start the runs that are due.

A webhook's secret is encrypted, since signatures are verified with it, and shown only once.

A sweep advances the trigger's due time by a conditional UPDATE and starts the run in the same
transaction, so concurrent sweeps don't start it twice and a crash does neither. Any number of
missed times leads to one run.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import OuterRef, QuerySet, Subquery
from django.utils import timezone

from agents.assignments import check_name, record_assignment_change, save_assignable
from agents.flow_labels.text_labels import label_text
from agents.models import Session, Trigger, Workflow, WorkflowRun
from agents.workflows.references import iterate_pointers
from agents.workflows.runs import RunOrigin, check_inputs, start_run
from agents.workflows.schedules import build_schedule
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.transactions import lock_row
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput, Problem
from bonobot.ledger.audit.admin_changes import describe_row, record_finished_change
from bonobot.ledger.types import Actor

MAX_RUNS_PER_SWEEP = 100

OPEN_STATUSES = (Session.Status.QUEUED, Session.Status.RUNNING, Session.Status.WAITING)

MAX_PER_MINUTE = 600
MAX_TRIGGERS = 50
_SCHEDULE_FIELDS = ("every_s", "cron", "time_zone")


@dataclass(frozen=True, kw_only=True)
class TriggerSpec:
    """Values to save in a trigger; None keeps the current value or default.

    `every_s` and `cron` replace each other. `per_minute` is a webhook's rate limit.
    """

    name: str
    kind: str | None = None
    enabled: bool | None = None
    inputs: Mapping[str, Any] | None = None
    every_s: int | None = None
    cron: str | None = None
    time_zone: str | None = None
    per_minute: int | None = None


TRIGGER_FIELDS = tuple(
    spec_field.name for spec_field in fields(TriggerSpec) if spec_field.name != "name"
)


def get_trigger(workflow: Workflow, name: str) -> Trigger:
    """Return the workflow's trigger with this id or name; raises `NotFound`."""
    rows = Trigger.objects.filter(workflow=workflow)
    try:
        lookup: dict[str, Any] = {"pk": UUID(name)}
    except ValueError:
        lookup = {"name": name}
    trigger: Trigger = rows.get_or_404(workflow.organization_id, **lookup)
    return trigger


def save_trigger(
    principal: Principal,
    workflow: Workflow,
    spec: TriggerSpec,
    trigger: Trigger | None = None,
    *,
    with_secret: bool = True,
) -> tuple[Trigger, str]:
    """Create or update a trigger; return it with the secret of a new webhook, else "".

    Raises `InvalidInput` with the field, `Conflict` (`name_taken`). A webhook created without a
    secret (`with_secret`) accepts no delivery until it has one.
    """
    principal.require(Action.MANAGE_WORKFLOWS)
    existing = trigger
    row = (
        Trigger.objects.get(pk=existing.pk)
        if existing
        else Trigger(organization_id=workflow.organization_id, workflow=workflow)
    )
    _apply_trigger_spec(row, spec)
    secret = ""
    if existing is None and row.kind == Trigger.Kind.WEBHOOK and with_secret:
        secret = _set_new_secret(row)
    details = {
        name: getattr(row, name) for name in ("kind", "enabled", *_SCHEDULE_FIELDS, "per_minute")
    }
    with _record_change(
        principal, row, "trigger_updated" if existing else "trigger_created", details
    ):
        if existing is None:
            lock_row(workflow)
            _check_trigger_limit(workflow)
        save_assignable(row)
        label_text(principal, row, is_changed=spec.inputs is not None)
    return row, secret


def replace_secret(principal: Principal, trigger: Trigger) -> str:
    """Replace a webhook's secret and return the new one; the old one stops working."""
    principal.require(Action.MANAGE_WORKFLOWS)
    if trigger.kind != Trigger.Kind.WEBHOOK:
        raise InvalidInput("A schedule has no secret.", field="kind", remedy="Choose a webhook.")
    with _record_change(principal, trigger, "trigger_secret_replaced", {}):
        secret = _set_new_secret(trigger)
        trigger.save(update_fields=["secret", "updated_at"])
    return secret


def delete_trigger(principal: Principal, trigger: Trigger) -> None:
    """Delete a trigger; its runs remain."""
    principal.require(Action.MANAGE_WORKFLOWS)
    with _record_change(principal, trigger, "trigger_deleted", {"kind": trigger.kind}):
        trigger.delete()


def set_triggers(principal: Principal, workflow: Workflow, specs: Sequence[TriggerSpec]) -> None:
    """Replace a workflow's triggers with these; new webhooks have no secret yet."""
    rows = {row.name: row for row in workflow.triggers.all()}
    with transaction.atomic():
        for name in sorted(rows.keys() - {spec.name for spec in specs}):
            delete_trigger(principal, rows[name])
        for spec in specs:
            save_trigger(principal, workflow, spec, rows.get(spec.name), with_secret=False)


def _apply_trigger_spec(row: Trigger, spec: TriggerSpec) -> None:
    check_name(
        spec.name, format_message("{spec!r} isn't a valid trigger name.", spec=spec.name[:100])
    )
    row.name = spec.name
    if not row._state.adding and spec.kind not in (None, row.kind):
        raise InvalidInput(
            format_message("The trigger is a {kind}.", kind=row.kind),
            field="kind",
            remedy="Delete the trigger and create a new one.",
        )
    row.kind = spec.kind or row.kind
    if row.kind not in Trigger.Kind.values:
        raise InvalidInput("Unknown trigger kind.", field="kind", remedy="Use schedule or webhook.")
    was_off = row._state.adding or not row.enabled
    for name in ("enabled", "per_minute", "time_zone"):
        if (value := getattr(spec, name)) is not None:
            setattr(row, name, value)
    if not 1 <= row.per_minute <= MAX_PER_MINUTE:
        raise InvalidInput(
            format_message(
                "{per_minute} runs per minute isn't a valid limit.", per_minute=row.per_minute
            ),
            field="per_minute",
            remedy=format_message(
                "Use a whole number from 1 to {most_per_minute}.", most_per_minute=MAX_PER_MINUTE
            ),
        )
    if spec.inputs is not None:
        row.inputs = dict(spec.inputs)
    if row.kind == Trigger.Kind.SCHEDULE:
        _apply_schedule(row, spec, was_off)
        check_inputs(row.workflow, row.inputs)
    elif spec.every_s is not None or spec.cron:
        raise InvalidInput(
            "A webhook has no schedule.", field="every_s", remedy="Remove `every_s` and `cron`."
        )
    _check_references(row)


def _apply_schedule(row: Trigger, spec: TriggerSpec, was_off: bool) -> None:
    old_values = [getattr(row, name) for name in _SCHEDULE_FIELDS]
    if spec.every_s is not None:
        row.every_s, row.cron = spec.every_s, spec.cron or ""
    elif spec.cron:
        row.every_s, row.cron = None, " ".join(spec.cron.split())
    due_at = build_schedule(row).compute_next_due(timezone.now())
    # A re-enabled schedule doesn't run for times at which it was disabled.
    if (
        was_off
        or row.next_at is None
        or old_values != [getattr(row, name) for name in _SCHEDULE_FIELDS]
    ):
        row.next_at = due_at


def _check_references(row: Trigger) -> None:
    """Raise `InvalidInput` for an invalid `${…}`; a schedule may have none."""
    pointer_root = "/body" if row.kind == Trigger.Kind.WEBHOOK else ""
    for pointer in _iterate_pointers(row.inputs):
        if not pointer_root or pointer.split("/")[:2] != ["", "body"]:
            raise InvalidInput(
                format_message("`{pointer}` isn't a valid reference.", pointer=pointer[:100]),
                code="bad_reference",
                field="inputs",
                remedy="Start with /body, such as ${/body/alerts/0/status}."
                if pointer_root
                else "Use literal values for the inputs of a schedule.",
            )


def _iterate_pointers(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield from iterate_pointers(node)
    elif isinstance(node, Mapping):
        for value in node.values():
            yield from _iterate_pointers(value)
    elif isinstance(node, list):
        for value in node:
            yield from _iterate_pointers(value)


def _check_trigger_limit(workflow: Workflow) -> None:
    if workflow.triggers.count() >= MAX_TRIGGERS:
        raise Conflict(
            format_message(
                "The workflow has {most_triggers} triggers.", most_triggers=MAX_TRIGGERS
            ),
            code="too_many_triggers",
            remedy="Delete a trigger you no longer need.",
        )


def _set_new_secret(row: Trigger) -> str:
    secret = f"whs_{secrets.token_urlsafe(32)}"
    row.secret = secret  # type: ignore[assignment]  # what sealed fields take
    return secret


def _record_change(
    principal: Principal, row: Trigger, action: str, details: dict[str, Any]
) -> AbstractContextManager[Any]:
    all_details = {"workflow": row.workflow.name, **details}
    return record_assignment_change(principal, row, action, all_details, governed=False)


def build_trigger_starter(trigger: Trigger) -> Mapping[str, str]:
    """Return the title of a session that the trigger starts, and the fields of its starter."""
    actor = build_trigger_actor(trigger)
    return {
        "title": trigger.workflow.name,
        "started_by_kind": actor.kind,
        "started_by_id": actor.id,
        "started_by": actor.label,
    }


def build_trigger_actor(trigger: Trigger) -> Actor:
    """Return the actor of a trigger for the audit log."""
    return Actor("system", str(trigger.pk), trigger.label)


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


def list_triggers(workflow: Workflow) -> "QuerySet[Trigger]":
    """Return a workflow's triggers, each with its last run's id and status (one query)."""
    latest = WorkflowRun.objects.filter(trigger=OuterRef("pk")).order_by("-created_at")
    triggers: QuerySet[Trigger] = workflow.triggers.annotate(
        last_run_id=Subquery(latest.values("pk")[:1]),
        last_status=Subquery(latest.values("session__status")[:1]),
    )
    return triggers


def build_webhook_url(trigger: Trigger) -> str:
    """Return the URL of a webhook; "" for a schedule."""
    if trigger.kind != Trigger.Kind.WEBHOOK:
        return ""
    return f"{settings.BONOBOT_URL}/api/hooks/{trigger.pk}"


def serialize_trigger(trigger: Any) -> dict[str, Any]:
    """Return a trigger of `list_triggers` as JSON values, without its secret."""
    names = ("name", "kind", "enabled", "inputs", "every_s", "cron", "time_zone", "per_minute")
    return {
        "id": str(trigger.pk),
        **{name: getattr(trigger, name) for name in names},
        "next_at": trigger.next_at,
        "last_at": trigger.last_at,
        "last_code": trigger.last_code,
        "last_run_id": trigger.last_run_id and str(trigger.last_run_id),
        "last_status": trigger.last_status,
        "has_secret": bool(trigger.secret),
        "url": build_webhook_url(trigger),
    }
