"""Execute the steps of a workflow run.

The session handles leases and fences, calls that a dead worker had started, pending approvals and
cancellation. The progress of a run is derived from its steps.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from agents.models import Step, WorkflowRun
from agents.sessions import step_store
from agents.sessions.leases import SessionLease
from agents.sessions.workflow_executor import MakeCalls
from agents.workflows.definitions import WorkflowDefinition, parse_workflow
from agents.workflows.next_step import (
    SkippedStep,
    WorkflowCall,
    WorkflowEnd,
    WorkflowStepResult,
    get_next_action,
)
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_storable


@dataclass(frozen=True)
class WorkflowProgress:
    """The progress of a run: its workflow, inputs and step results."""

    workflow: WorkflowDefinition
    inputs: Mapping[str, Any]
    results: Mapping[str, WorkflowStepResult]
    has_inputs_step: bool


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
    return step_store.append_step(
        lease,
        Step.Kind.CALL,
        payload,
        state=Step.State.INTENT,
        turn=call.number,
        call_id=uuid4(),
    )


def _save_outputs(lease: SessionLease, end: WorkflowEnd) -> str:
    outputs = make_storable(end.outputs)
    WorkflowRun.objects.filter(session_id=lease.session_id).update(outputs=outputs)
    return json.dumps(outputs, indent=2, ensure_ascii=False)
