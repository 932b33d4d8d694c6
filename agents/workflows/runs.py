"""Runs of workflows: start them, check their inputs, and serialize them with their steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from agents.flow_labels.session_labels import label_session
from agents.flow_labels.text_labels import label_session_with_texts
from agents.models import Agent, Session, Step, Trigger, Workflow, WorkflowRun
from agents.policies.effective_policies import require_enabled
from agents.sessions.services import require_run_permission
from agents.wakeups import notify_worker
from agents.workflows.definitions import WorkflowDefinition, parse_workflow
from agents.workflows.services import build_definition
from bonobot.accounts.principals import Principal
from bonobot.core.crypto.organization_secrets import mask_organization_secrets
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.core.text.untrusted_text import make_storable
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from bonobot.ledger.types import Actor
from mcp_servers.schemas import SubprocessNeeded, check_arguments, classify_schema


@dataclass(frozen=True, kw_only=True)
class RunOrigin:
    """What started a run: a person, agent or trigger, and the delivery id of a webhook.

    `session_id` is the id of the session to create.
    """

    via: str = WorkflowRun.Via.PERSON
    trigger: Trigger | None = None
    delivery: str = ""
    session_id: UUID = field(default_factory=uuid4)


def run_workflow(
    principal: Principal, workflow: Workflow, inputs: Mapping[str, Any]
) -> WorkflowRun:
    """Start a run for a principal that may run the workflow's agent.

    Raises `Forbidden`, `InvalidArguments` naming the input, `Conflict` (`workflow_disabled`,
    `agent_disabled`, `kill_switch_enabled`).
    """
    require_run_permission(principal, workflow.agent)
    starter = {
        "title": workflow.name,
        "started_by_kind": principal.kind,
        "started_by_id": principal.id,
        "started_by": principal.label,
        "token_id": principal.token_id,
        "token_calls_per_minute": principal.calls_per_minute,
    }
    origin = RunOrigin()
    session = Session(
        id=origin.session_id, organization_id=workflow.organization_id, agent_id=workflow.agent_id
    )
    label_session(principal, session)
    return start_run(workflow, inputs, starter, actor=principal.actor, origin=origin)


def start_run(
    workflow: Workflow,
    inputs: Mapping[str, Any],
    starter: Mapping[str, Any],
    *,
    actor: Actor,
    origin: RunOrigin | None = None,
) -> WorkflowRun:
    """Start a run without checking the caller's permission; otherwise like `run_workflow`.

    `starter` has the session's title, and the fields that say who started it.
    """
    origin = origin or RunOrigin()
    agent = require_startable(workflow, inputs)
    session = Session(
        id=origin.session_id,
        organization_id=workflow.organization_id,
        agent=agent,
        **starter,
    )
    details = {"session_id": str(session.pk), "version": workflow.version, "via": str(origin.via)}
    with record_change(
        **describe_row("workflow", workflow),
        actor=actor,
        action="workflow_started",
        details=details | ({"trigger": origin.trigger.name} if origin.trigger else {}),
        governed=False,
    ):
        session.save(force_insert=True)
        run = create_run(session, workflow, inputs, origin)
        label_session_with_texts(actor, session, workflow, origin.trigger)
    notify_worker(session.pk)
    return run


def require_startable(workflow: Workflow, inputs: Mapping[str, Any]) -> Agent:
    """Return the agent of a run; raises what `run_workflow` does, except `Forbidden`."""
    check_run_inputs(workflow, inputs)
    agent = Agent.objects.select_related("organization").get(pk=workflow.agent_id)
    require_enabled(agent)
    return agent


def create_run(
    session: Session, workflow: Workflow, inputs: Mapping[str, Any], origin: RunOrigin
) -> WorkflowRun:
    run: WorkflowRun = WorkflowRun.objects.create(
        organization_id=session.organization_id,
        session=session,
        workflow=workflow,
        name=workflow.name,
        version=workflow.version,
        definition=workflow.definition,
        inputs=_mask_inputs(inputs, session),
        via=origin.via,
        trigger=origin.trigger,
        delivery=origin.delivery,
    )
    return run


def check_run_inputs(workflow: Workflow, inputs: Mapping[str, Any]) -> WorkflowDefinition:
    """Return the definition; raises if the inputs are invalid or the workflow is disabled."""
    if not workflow.enabled:
        raise Conflict(
            format_message("The workflow `{workflow}` is disabled.", workflow=workflow.name),
            code="workflow_disabled",
            remedy="An operator or owner can enable it.",
        )
    return check_inputs(workflow, inputs)


def check_inputs(workflow: Workflow, inputs: Mapping[str, Any]) -> WorkflowDefinition:
    """Return the definition; raises if the inputs are invalid."""
    definition = build_definition(workflow)
    try:
        check_arguments(
            dict(definition.inputs), dict(inputs), classify_schema(dict(definition.inputs))
        )
    except SubprocessNeeded:
        raise InvalidInput(
            "The inputs are too large.",
            code="inputs_too_large",
            field="inputs",
            remedy="Send at most 16 KiB and 1,000 values. For more data, send a reference and "
            "read it in a step.",
        ) from None
    return definition


def _mask_inputs(node: Any, session: Session) -> Any:
    """Return inputs for storage: stored secrets masked, strings made storable."""
    if isinstance(node, str):
        return make_storable(mask_organization_secrets(node, session.organization_id))
    if isinstance(node, Mapping):
        return {
            str(make_storable(key)): _mask_inputs(value, session) for key, value in node.items()
        }
    if isinstance(node, list):
        return [_mask_inputs(value, session) for value in node]
    return node


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
