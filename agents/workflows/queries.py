"""Runs, their steps and triggers, serialized for pages, the API and the CLI."""

from typing import Any

from django.conf import settings
from django.db.models import OuterRef, QuerySet, Subquery

from agents.models import Step, Trigger, Workflow, WorkflowRun
from agents.workflows.definitions import parse_workflow


def list_steps(run: WorkflowRun) -> list[dict[str, Any]]:
    """Return a run's steps in order, including those that haven't started (one query)."""
    rows = Step.objects.filter(session_id=run.session_id).order_by("seq")
    rows_by_step = {row.payload["step"]: row for row in rows if "step" in row.payload}
    return [
        _serialize_step(step.id, rows_by_step.get(step.id))
        for step in parse_workflow(run.definition).steps
    ]


def serialize_run(run: WorkflowRun) -> dict[str, Any]:
    session = run.session
    return {
        "id": str(run.pk),
        "workflow": run.name,
        "version": run.version,
        "via": run.via,
        "started_by": session.started_by,
        "status": session.status,
        "error": {"code": session.error_code, "detail": session.error_detail}
        if session.error_code
        else None,
        "inputs": run.inputs,
        "outputs": run.outputs,
        "session_id": str(session.pk),
        "created_at": run.created_at,
        "finished_at": session.finished_at,
    }


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


def _serialize_step(name: str, row: Step | None) -> dict[str, Any]:
    payload = row.payload if row else {}
    is_skipped = row is not None and row.kind == Step.Kind.NOTICE
    state = "waiting" if row is None else "skipped" if is_skipped else row.state
    return {
        "id": name,
        "state": "running" if state == Step.State.INTENT else state,
        "tool": payload.get("name", ""),
        "text": payload.get("text", ""),
        "code": payload.get("code", ""),
        "call_id": row.call_id if row else None,
        "duration_ms": payload.get("duration_ms"),
        "approval": payload.get("approval"),
    }
