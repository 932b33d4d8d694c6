"""Create, update and delete triggers of workflows.

A webhook's secret is encrypted, since signatures are verified with it, and shown only once.
"""

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from agents.assignments import record_assignment_change, save_assignable
from agents.flow_labels.text_labels import label_text
from agents.models import Trigger, Workflow
from agents.workflows.references import iterate_pointers
from agents.workflows.schedules import build_schedule
from agents.workflows.services import check_inputs
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.transactions import lock_row
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput

MAX_PER_MINUTE = 600
MAX_TRIGGERS = 50
_NAME = re.compile(r"[-a-zA-Z0-9_]{1,64}")
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


def get_trigger(workflow: Workflow, name: str) -> Trigger:
    """Return the workflow's trigger with this id or name; raises `NotFound`."""
    rows: Any = Trigger.objects.filter(workflow=workflow)
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
    if not _NAME.fullmatch(spec.name):
        raise InvalidInput(
            format_message("{spec!r} isn't a valid trigger name.", spec=spec.name[:100]),
            field="name",
            remedy="Use at most 64 letters, digits, `-`, and `_`.",
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
