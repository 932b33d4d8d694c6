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
from agents.sessions.loop import MakeCalls
from agents.workflows.definitions import WorkflowDefinition, read_workflow
from agents.workflows.next_step import (
    SkippedStep,
    WorkflowCall,
    WorkflowEnd,
    WorkflowStepResult,
    advance,
)
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_storable


@dataclass(frozen=True)
class WorkflowProgress:
    """The progress of a run: its workflow, inputs and step results."""

    workflow: WorkflowDefinition
    inputs: Mapping[str, Any]
    came: Mapping[str, WorkflowStepResult]
    told: bool


async def execute_workflow(hold: SessionLease, make_calls: MakeCalls) -> str:
    """Run the remaining steps and return the outputs as text; raises what the session loop does."""
    orm = get_runtime().orm
    while True:
        stands = await orm(_load_progress, hold.session_id)
        if not stands.told:
            await orm(_append_inputs, hold)
        found = advance(stands.workflow, stands.inputs, stands.came)
        if isinstance(found, WorkflowEnd):
            return await orm(_save_outputs, hold, found)
        if isinstance(found, SkippedStep):
            text = f"The step `{found.step}` was skipped: {found.why}."
            payload = {"code": "step_skipped", "step": found.step, "text": text}
            await orm(step_store.append, hold, Step.Kind.NOTICE, payload)
        else:
            await make_calls([await orm(_append_call_step, hold, found)])


def _load_progress(session_id: UUID) -> WorkflowProgress:
    run = WorkflowRun.objects.get(session_id=session_id)
    came: dict[str, WorkflowStepResult] = {}
    told = False
    for step in Step.objects.filter(session_id=session_id).order_by("seq"):
        told = told or step.kind == Step.Kind.MESSAGE
        if (name := step.payload.get("step")) and step.state != Step.State.INTENT:
            came[name] = _build_step_result(step)
    return WorkflowProgress(read_workflow(run.definition), run.inputs, came, told)


def _build_step_result(step: Step) -> WorkflowStepResult:
    said = step.payload
    if step.kind == Step.Kind.NOTICE:
        return WorkflowStepResult("skipped")
    return WorkflowStepResult(
        step.state, said.get("text", ""), said.get("output"), said.get("code", "")
    )


def _append_inputs(hold: SessionLease) -> None:
    run = WorkflowRun.objects.select_related("session").get(session_id=hold.session_id)
    text = json.dumps(run.inputs, indent=2, ensure_ascii=False)
    step_store.append(hold, Step.Kind.MESSAGE, {"text": text, "by": run.session.started_by})


def _append_call_step(hold: SessionLease, found: WorkflowCall) -> Step:
    payload = {
        "name": found.tool,
        "arguments": found.arguments,
        "raw": "",
        "step": found.step,
    }
    return step_store.append(
        hold,
        Step.Kind.CALL,
        payload,
        state=Step.State.INTENT,
        turn=found.number,
        call_id=uuid4(),
    )


def _save_outputs(hold: SessionLease, found: WorkflowEnd) -> str:
    outputs = make_storable(found.outputs)
    WorkflowRun.objects.filter(session_id=hold.session_id).update(outputs=outputs)
    return json.dumps(outputs, indent=2, ensure_ascii=False)
