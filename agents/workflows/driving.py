"""Drive a run: what the definition says is next, through the door, each effect between two rows.

The session's own machinery does the rest: lease and fence, what becomes of calls that a dead holder
had begun, parking for a person, cancelling. Where the run stands is read from its steps alone.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from agents.models import Step, WorkflowRun
from agents.sessions import rows
from agents.sessions.runners import Hold
from agents.workflows.advancing import Call, Came, End, Skip, advance
from agents.workflows.definitions import WorkflowText, read_workflow
from bonobot.lib.canonical import canonical
from bonobot.lib.runtime import runtime
from bonobot.lib.untrusted import storable

# Of what a tool gave as values, kept for the steps after it.
LARGEST_OUTPUT = 256 * 1024

MakeCalls = Callable[[Sequence[Step]], Awaitable[None]]


@dataclass(frozen=True)
class Standing:
    """Where a run stands: what it follows, and what has come of its steps."""

    workflow: WorkflowText
    inputs: Mapping[str, Any]
    came: Mapping[str, Came]
    told: bool


async def drive(hold: Hold, make_calls: MakeCalls) -> str:
    """Make the steps that are left and return the outputs as text; raises as a session's loop."""
    orm = runtime().orm
    while True:
        stands = await orm(_standing, hold.session_id)
        if not stands.told:
            await orm(_tell_inputs, hold)
        found = advance(stands.workflow, stands.inputs, stands.came)
        if isinstance(found, End):
            return await orm(_ended, hold, found)
        if isinstance(found, Skip):
            text = f"The step `{found.step}` was skipped: {found.why}."
            payload = {"code": "step_skipped", "step": found.step, "text": text}
            await orm(rows.append, hold, Step.Kind.NOTICE, payload)
        else:
            await make_calls([await orm(_begun, hold, found)])


def output_of(result: Mapping[str, Any], text: str) -> Any:
    """Return what a tool gave as values: its structured content, or a text that is JSON."""
    found = result.get("structuredContent")
    if found is None:
        try:
            found = json.loads(text)
        except ValueError:
            return None
    try:
        return storable(found) if len(canonical(found)) <= LARGEST_OUTPUT else None
    except ValueError:
        return None  # a number that JSON has no word for


def _standing(session_id: UUID) -> Standing:
    run = WorkflowRun.objects.get(session_id=session_id)
    came: dict[str, Came] = {}
    told = False
    for step in Step.objects.filter(session_id=session_id).order_by("seq"):
        told = told or step.kind == Step.Kind.MESSAGE
        if (name := step.payload.get("step")) and step.state != Step.State.INTENT:
            came[name] = _came(step)
    return Standing(read_workflow(run.definition), run.inputs, came, told)


def _came(step: Step) -> Came:
    said = step.payload
    if step.kind == Step.Kind.NOTICE:
        return Came("skipped")
    return Came(step.state, said.get("text", ""), said.get("output"), said.get("code", ""))


def _tell_inputs(hold: Hold) -> None:
    run = WorkflowRun.objects.select_related("session").get(session_id=hold.session_id)
    text = json.dumps(run.inputs, indent=2, ensure_ascii=False)
    rows.append(hold, Step.Kind.MESSAGE, {"text": text, "by": run.session.started_by})


def _begun(hold: Hold, found: Call) -> Step:
    payload = {
        "name": found.tool,
        "arguments": found.arguments,
        "raw": "",
        "step": found.step,
    }
    return rows.append(
        hold,
        Step.Kind.CALL,
        payload,
        state=Step.State.INTENT,
        turn=found.number,
        call_id=uuid4(),
    )


def _ended(hold: Hold, found: End) -> str:
    outputs = storable(found.outputs)
    WorkflowRun.objects.filter(session_id=hold.session_id).update(outputs=outputs)
    return json.dumps(outputs, indent=2, ensure_ascii=False)
