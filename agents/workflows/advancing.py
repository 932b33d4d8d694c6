"""What a run of a workflow does next: decided from what has come of its steps alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agents.builtin_tools.asking import tool_name
from agents.llm.framing import frame_for, framed
from agents.workflows.definitions import StepText, WorkflowText
from agents.workflows.references import filled, look
from bonobot.lib.problems import Invalid, Problem
from bonobot.lib.sayings import say
from mcp_servers.schemas import NeedsConfinement, fit


class StepFailed(Problem):
    """A step failed, and the workflow ends with it."""

    code = "step_failed"
    status = 422


@dataclass(frozen=True)
class Came:
    """What came of a step: done, failed, unknown or skipped, with what it gave."""

    state: str
    text: str = ""
    output: Any = None
    code: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as references see it: what was skipped gave nothing."""
        text = None if self.state == "skipped" else self.text
        return {"state": self.state, "text": text, "output": self.output, "code": self.code}


@dataclass(frozen=True)
class Call:
    """A step that is made now."""

    number: int
    step: str
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Skip:
    """A step whose conditions don't hold."""

    number: int
    step: str
    why: str


@dataclass(frozen=True)
class End:
    """The run is over, with these outputs."""

    outputs: dict[str, Any]


def advance(
    workflow: WorkflowText, inputs: Mapping[str, Any], came: Mapping[str, Came]
) -> Call | Skip | End:
    """Return what is next; raises `StepFailed`, or `Unresolved` naming the reference."""
    values = {"inputs": inputs, "steps": {name: one.as_dict() for name, one in came.items()}}
    for number, step in enumerate(workflow.steps, start=1):
        if (found := came.get(step.id)) is None:
            return _begin(number, step, values)
        if found.state not in ("done", "skipped") and step.on_error == "stop":
            raise StepFailed(
                say("The step `{step_id}` failed: {text}", step_id=step.id, text=found.text[:500]),
                code=found.code or StepFailed.code,
                field=f"steps.{step.id}",
                remedy="Its page shows what was asked and answered.",
            )
    outputs: dict[str, Any] = filled(dict(workflow.outputs), values)
    return End(outputs)


def _begin(number: int, step: StepText, values: Mapping[str, Any]) -> Call | Skip:
    for pointer, schema in step.when.items():
        if not holds(values, pointer, schema):
            return Skip(number, step.id, f"what {pointer} asks for doesn't hold")
    if step.agent:
        # What others wrote stands between lines that it can't write itself.
        message = filled(step.message, values, _as_data)
        text = message if isinstance(message, str) else str(message)
        return Call(number, step.id, tool_name("ask", step.agent), {"message": text})
    return Call(number, step.id, step.call, filled(dict(step.arguments), values))


def holds(values: Mapping[str, Any], pointer: str, schema: Any) -> bool:
    """Tell whether what a pointer means fits a schema; what isn't there doesn't."""
    there, found = look(values, pointer)
    try:
        return there and fit({"properties": {"it": schema}}, {"it": found})
    except NeedsConfinement:
        raise Invalid(
            say("What {pointer} means is too large for a condition.", pointer=pointer),
            code="condition_too_large",
            field=pointer,
            remedy="Ask something of a smaller part.",
        ) from None


def _as_data(pointer: str, text: str) -> str:
    return framed(text, frame_for(pointer, flagged={}, sanitized={}))
