"""Execute the steps of a workflow run, and decide which step is next.

The session handles leases and fences, calls that a dead worker had started, pending approvals and
cancellation. The progress of a run is derived from its steps.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from agents.llm.result_frames import apply_frame, build_frame
from agents.models import Step, WorkflowRun
from agents.sessions import step_store
from agents.sessions.ask_agent_tool import build_tool_name
from agents.sessions.extension_points import MakeCalls
from agents.sessions.leases import SessionLease
from agents.workflows.definitions import StepDefinition, WorkflowDefinition, parse_workflow
from agents.workflows.references import fill_references, resolve_pointer
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_storable
from mcp_servers.schemas import SubprocessNeeded, is_valid_for_schema


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
