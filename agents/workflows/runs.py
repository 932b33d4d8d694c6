"""Runs of workflows: start them, execute their steps, and serialize them.

The session handles leases and fences, calls that a dead worker had started, pending approvals and
cancellation. The progress of a run is derived from its steps.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from agents.flow_labels.session_labels import label_session
from agents.flow_labels.text_labels import label_session_with_texts
from agents.llm.result_frames import apply_frame, build_frame
from agents.models import Agent, Session, Step, Trigger, Workflow, WorkflowRun
from agents.policies.effective_policies import require_enabled
from agents.sessions import step_store
from agents.sessions.ask_agent_tool import build_tool_name
from agents.sessions.extension_points import MakeCalls
from agents.sessions.leases import SessionLease
from agents.sessions.services import require_run_permission
from agents.wakeups import notify_worker
from agents.workflows.definitions import StepDefinition, WorkflowDefinition, parse_workflow
from agents.workflows.references import fill_references, resolve_pointer
from agents.workflows.services import build_definition
from bonobot.accounts.principals import Principal
from bonobot.core.crypto.organization_secrets import mask_organization_secrets
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput, Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_storable
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from bonobot.ledger.types import Actor
from mcp_servers.schemas import (
    SubprocessNeeded,
    check_arguments,
    classify_schema,
    is_valid_for_schema,
)


class StepFailed(Problem):
    """A step failed, which ends the workflow."""

    code = "step_failed"
    status = 422


@dataclass(frozen=True)
class WorkflowStepResult:
    """The result of a step: done, failed, unknown or skipped, with its output."""

    state: str
    text: str = ""
    output: Any = None
    code: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as references see it; skipped steps have no text."""
        text = None if self.state == "skipped" else self.text
        return {"state": self.state, "text": text, "output": self.output, "code": self.code}


@dataclass(frozen=True)
class WorkflowCall:
    """A call to make now."""

    number: int
    step: str
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class SkippedStep:
    """A step whose conditions aren't met."""

    number: int
    step: str
    cause: str


@dataclass(frozen=True)
class WorkflowEnd:
    """The end of a run, with its outputs."""

    outputs: dict[str, Any]


@dataclass(frozen=True)
class WorkflowProgress:
    """The progress of a run: its workflow, inputs and step results."""

    workflow: WorkflowDefinition
    inputs: Mapping[str, Any]
    results: Mapping[str, WorkflowStepResult]
    has_inputs_step: bool


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


def get_next_action(
    workflow: WorkflowDefinition,
    inputs: Mapping[str, Any],
    results: Mapping[str, WorkflowStepResult],
) -> WorkflowCall | SkippedStep | WorkflowEnd:
    """Return the next action; raises `StepFailed` or `UnresolvedReference`."""
    values = {
        "inputs": inputs,
        "steps": {name: result.to_dict() for name, result in results.items()},
    }
    for number, step in enumerate(workflow.steps, start=1):
        if (step_result := results.get(step.id)) is None:
            return _build_action(number, step, values)
        if step_result.state not in ("done", "skipped") and step.on_error == "stop":
            raise StepFailed(
                format_message(
                    "The step `{step_id}` failed: {text}",
                    step_id=step.id,
                    text=step_result.text[:500],
                ),
                code=step_result.code or StepFailed.code,
                field=f"steps.{step.id}",
                remedy="Open the step's page to see its request and response.",
            )
    outputs: dict[str, Any] = fill_references(dict(workflow.outputs), values)
    return WorkflowEnd(outputs)


def _build_action(
    number: int, step: StepDefinition, values: Mapping[str, Any]
) -> WorkflowCall | SkippedStep:
    for pointer, schema in step.when.items():
        if not is_condition_met(values, pointer, schema):
            return SkippedStep(number, step.id, f"the condition on {pointer} isn't met")
    if step.agent:
        # Values are framed, because they may be untrusted.
        message = fill_references(step.message, values, _frame_text)
        text = message if isinstance(message, str) else str(message)
        return WorkflowCall(number, step.id, build_tool_name("ask", step.agent), {"message": text})
    return WorkflowCall(number, step.id, step.call, fill_references(dict(step.arguments), values))


def is_condition_met(values: Mapping[str, Any], pointer: str, schema: Any) -> bool:
    """Return whether a pointer's value is valid for a schema; a missing one isn't."""
    exists, value = resolve_pointer(values, pointer)
    try:
        return exists and is_valid_for_schema({"properties": {"it": schema}}, {"it": value})
    except SubprocessNeeded:
        raise InvalidInput(
            format_message("The value at {pointer} is too large for a condition.", pointer=pointer),
            code="condition_too_large",
            field=pointer,
            remedy="Use a pointer to a smaller part of the value.",
        ) from None


def _frame_text(pointer: str, text: str) -> str:
    return apply_frame(text, build_frame(pointer, flagged={}, sanitized={}))


async def execute_workflow(lease: SessionLease, make_calls: MakeCalls) -> str:
    """Run the remaining steps and return the outputs as text; raises what the session loop does."""
    orm = get_runtime().run_orm
    while True:
        progress = await orm(_load_progress, lease.session_id)
        if not progress.has_inputs_step:
            await orm(_append_inputs_step, lease)
        action = get_next_action(progress.workflow, progress.inputs, progress.results)
        if isinstance(action, WorkflowEnd):
            return await orm(_save_outputs, lease, action)
        if isinstance(action, SkippedStep):
            text = f"The step `{action.step}` was skipped: {action.cause}."
            payload = {"code": "step_skipped", "step": action.step, "text": text}
            await orm(step_store.append_step, lease, Step.Kind.NOTICE, payload)
        else:
            await make_calls([await orm(_append_call_step, lease, action)])


def _load_progress(session_id: UUID) -> WorkflowProgress:
    run = WorkflowRun.objects.get(session_id=session_id)
    results: dict[str, WorkflowStepResult] = {}
    has_inputs_step = False
    for step in Step.objects.filter(session_id=session_id).order_by("seq"):
        has_inputs_step = has_inputs_step or step.kind == Step.Kind.MESSAGE
        if (name := step.payload.get("step")) and step.state != Step.State.INTENT:
            results[name] = _build_step_result(step)
    return WorkflowProgress(parse_workflow(run.definition), run.inputs, results, has_inputs_step)


def _build_step_result(step: Step) -> WorkflowStepResult:
    payload = step.payload
    if step.kind == Step.Kind.NOTICE:
        return WorkflowStepResult("skipped")
    return WorkflowStepResult(
        step.state, payload.get("text", ""), payload.get("output"), payload.get("code", "")
    )


def _append_inputs_step(lease: SessionLease) -> None:
    run = WorkflowRun.objects.select_related("session").get(session_id=lease.session_id)
    text = json.dumps(run.inputs, indent=2, ensure_ascii=False)
    step_store.append_step(lease, Step.Kind.MESSAGE, {"text": text, "by": run.session.started_by})


def _append_call_step(lease: SessionLease, call: WorkflowCall) -> Step:
    payload = {
        "name": call.tool,
        "arguments": call.arguments,
        "raw": "",
        "step": call.step,
    }
    step = step_store.append_step(
        lease,
        Step.Kind.CALL,
        payload,
        state=Step.State.INTENT,
        turn=call.number,
        call_id=uuid4(),
    )
    step_store.check_not_stopped(lease)
    return step


def _save_outputs(lease: SessionLease, end: WorkflowEnd) -> str:
    outputs = make_storable(end.outputs)
    WorkflowRun.objects.filter(session_id=lease.session_id).update(outputs=outputs)
    return json.dumps(outputs, indent=2, ensure_ascii=False)
