"""Workflow definitions. Pure.

A workflow runs as an agent: its steps are calls of that agent's tools, in order. A step's arguments
may contain `${/pointer}` references to inputs and earlier steps; its conditions are JSON Schemas
for the same values.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agents.models.workflows import DEFAULT_RUN_S
from agents.workflows.references import iterate_references
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from mcp_servers.schemas import classify_schema

MAX_STEPS = 50
MAX_RUN_S = 86_400
WORKFLOW_FIELDS = ("description", "agent", "inputs", "steps", "outputs", "max_run_s")
_STEP_FIELDS = ("id", "call", "arguments", "agent", "message", "when", "on_error")
_ID = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SLUG = re.compile(r"[-a-zA-Z0-9_]{1,64}")
POINTER_ROOTS = ("inputs", "steps")
ANY_OBJECT_SCHEMA: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class StepDefinition:
    """A step: a call of a tool, or a message to an agent."""

    id: str
    call: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    agent: str = ""
    message: str = ""
    when: Mapping[str, Any] = field(default_factory=dict)
    on_error: Literal["stop", "continue"] = "stop"


@dataclass(frozen=True)
class WorkflowDefinition:
    """A parsed workflow; `agent` is the agent that it runs as."""

    agent: str
    steps: tuple[StepDefinition, ...]
    description: str = ""
    inputs: Mapping[str, Any] = field(default_factory=lambda: dict(ANY_OBJECT_SCHEMA))
    outputs: Mapping[str, Any] = field(default_factory=dict)
    max_run_s: int = DEFAULT_RUN_S


def parse_workflow(value: Any) -> WorkflowDefinition:
    """Parse a definition's plain values; raises `InvalidInput` with the path."""
    fields = _check_object(value, "")
    _check_known_fields(fields, WORKFLOW_FIELDS, "")
    inputs = fields.get("inputs", ANY_OBJECT_SCHEMA)
    _check_schema(inputs, "inputs")
    if not isinstance(inputs, dict) or inputs.get("type", "object") != "object":
        raise _build_definition_error(
            "inputs", "Inputs must be an object.", "Provide a JSON Schema of type object."
        )
    steps = _parse_steps(fields.get("steps"))
    known_names = {"inputs": True, **{step.id: True for step in steps}}
    _check_references(fields.get("outputs", {}), "outputs", known_names)
    return WorkflowDefinition(
        agent=_parse_text(fields, "agent", "", pattern=_SLUG),
        steps=steps,
        description=_parse_text(fields, "description", "", required=False),
        inputs=inputs,
        outputs=_check_object(fields.get("outputs", {}), "outputs"),
        max_run_s=_parse_max_run_s(fields.get("max_run_s", DEFAULT_RUN_S)),
    )


def _parse_steps(value: Any) -> tuple[StepDefinition, ...]:
    if not isinstance(value, list) or not value:
        raise _build_definition_error(
            "steps", "A workflow must have steps.", "Provide a list with at least one item."
        )
    if len(value) > MAX_STEPS:
        raise _build_definition_error(
            "steps",
            format_message("There are {count} steps.", count=len(value)),
            format_message("Use at most {most_steps} steps.", most_steps=MAX_STEPS),
        )
    steps: list[StepDefinition] = []
    for index, step_value in enumerate(value):
        steps.append(_parse_step(step_value, f"steps[{index}]", {step.id: True for step in steps}))
    return tuple(steps)


def _parse_step(value: Any, path: str, earlier_steps: Mapping[str, bool]) -> StepDefinition:
    fields = _check_object(value, path)
    _check_known_fields(fields, _STEP_FIELDS, path)
    name = _parse_text(fields, "id", path, pattern=_ID)
    if name in earlier_steps:
        raise _build_definition_error(
            f"{path}.id",
            format_message("Two steps have the ID `{name}`.", name=name),
            "Use a different ID for one of them.",
        )
    if ("call" in fields) == ("agent" in fields):
        raise _build_definition_error(
            path,
            "A step must either call a tool or message an agent.",
            "Provide `call` or `agent`.",
        )
    step_kind = ("call", "arguments") if "call" in fields else ("agent", "message")
    other_fields = {"arguments", "message"} - set(step_kind)
    if unexpected_fields := sorted(other_fields & fields.keys()):
        raise _build_definition_error(
            f"{path}.{unexpected_fields[0]}",
            format_message(
                "`{name}` can't be used with `{kind}`.",
                name=unexpected_fields[0],
                kind=step_kind[0],
            ),
            "Remove this field.",
        )
    for field_name in (step_kind[1], "when"):
        _check_references(fields.get(field_name), f"{path}.{field_name}", earlier_steps)
    return StepDefinition(
        id=name,
        call=_parse_text(fields, "call", path) if "call" in fields else "",
        arguments=_check_object(fields.get("arguments", {}), f"{path}.arguments"),
        agent=_parse_text(fields, "agent", path, pattern=_SLUG) if "agent" in fields else "",
        message=_parse_text(fields, "message", path) if "agent" in fields else "",
        when=_parse_conditions(fields.get("when", {}), f"{path}.when", earlier_steps),
        on_error=_parse_on_error(fields.get("on_error", "stop"), path),
    )


def _parse_conditions(
    value: Any, path: str, earlier_steps: Mapping[str, bool]
) -> Mapping[str, Any]:
    conditions = _check_object(value, path)
    for pointer, schema in conditions.items():
        condition_path = f"{path}.{pointer[:100]}"
        _check_pointer(pointer, condition_path, earlier_steps)
        _check_schema(schema, condition_path)
    return conditions


def _check_references(value: Any, path: str, earlier_steps: Mapping[str, bool]) -> None:
    """Raise `InvalidInput` for a `${…}` that isn't an input or an earlier step."""
    for reference_path, pointer in iterate_references(value, path):
        _check_pointer(pointer, reference_path, earlier_steps)


def _check_pointer(pointer: str, path: str, earlier_steps: Mapping[str, bool]) -> None:
    parts = pointer.split("/")
    if not pointer.startswith("/") or parts[1] not in POINTER_ROOTS:
        raise _build_definition_error(
            path,
            format_message("`{pointer}` isn't a valid reference.", pointer=pointer[:100]),
            "Start with /inputs/… or /steps/ID/…, such as /steps/fetch/text.",
            code="bad_reference",
        )
    if parts[1] == "steps" and (len(parts) < 3 or parts[2] not in earlier_steps):
        raise _build_definition_error(
            path,
            format_message("`{pointer}` doesn't refer to an earlier step.", pointer=pointer[:100]),
            format_message(
                "Earlier steps: {before}.",
                before=", ".join(name for name in earlier_steps if name != "inputs") or "none",
            ),
            code="bad_reference",
        )


def _check_schema(schema: Any, path: str) -> None:
    schema_verdict = classify_schema(schema)
    if schema_verdict.verdict != "inline":
        raise _build_definition_error(
            path,
            f"This JSON Schema can't be used. {schema_verdict.reason}".strip(),
            "Provide a small JSON Schema without recursion.",
            code="unusable_schema",
        )


def _check_object(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise _build_definition_error(path, "Must be an object.", "Use the form `name: value`.")
    return value


def _parse_text(
    fields: Mapping[str, Any],
    name: str,
    path: str,
    *,
    required: bool = True,
    pattern: re.Pattern[str] | None = None,
) -> str:
    field_path = f"{path}.{name}".lstrip(".")
    text = fields.get(name, "")
    if not isinstance(text, str) or (required and not text.strip()):
        raise _build_definition_error(
            field_path,
            format_message("`{name}` must be a string.", name=name),
            format_message("Provide the {name}.", name=name),
        )
    if pattern and not pattern.fullmatch(text):
        raise _build_definition_error(
            field_path,
            format_message("{value!r} isn't a valid {name}.", value=text[:100], name=name),
            "Use letters, digits, and `_`.",
        )
    return text


def _parse_on_error(value: Any, path: str) -> Literal["stop", "continue"]:
    if value == "continue":
        return "continue"
    if value == "stop":
        return "stop"
    raise _build_definition_error(
        f"{path}.on_error",
        format_message("{value!r} isn't a valid value.", value=str(value)[:100]),
        "Use stop or continue.",
    )


def _parse_max_run_s(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_RUN_S:
        raise _build_definition_error(
            "max_run_s",
            "Must be a whole number of seconds.",
            format_message("Use a value from 1 to {longest_run_s}.", longest_run_s=MAX_RUN_S),
        )
    return value


def _check_known_fields(
    fields: Mapping[str, Any], known_fields: tuple[str, ...], path: str
) -> None:
    if unknown_fields := sorted(set(fields) - set(known_fields)):
        field_path = f"{path}.{unknown_fields[0][:100]}".lstrip(".")
        raise _build_definition_error(
            field_path,
            format_message("Unknown field `{name}`.", name=unknown_fields[0][:100]),
            format_message("Supported fields: {fields}.", fields=", ".join(known_fields)),
            code="unknown_field",
        )


def _build_definition_error(
    path: str, detail: str, remedy: str, code: str = "bad_workflow"
) -> InvalidInput:
    return InvalidInput(detail, code=code, field=path, remedy=remedy)
