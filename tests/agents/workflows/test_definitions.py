"""Parsing workflows, and choosing the next action."""

import pytest

from agents.workflows.definitions import MAX_STEPS, parse_workflow
from agents.workflows.runs import (
    SkippedStep,
    StepFailed,
    WorkflowCall,
    WorkflowEnd,
    WorkflowStepResult,
    get_next_action,
)
from agents.workflows.services import parse_source
from bonobot.core.problems import InvalidInput

TRIAGE = """\
description: Looks into an alert
agent: helper
inputs:
  type: object
  properties:
    title: {type: string}
    severity: {enum: [low, high]}
  required: [title]
  additionalProperties: false
steps:
  - id: look
    call: mcp_logs_search
    arguments: {query: "alert ${/inputs/title}", limit: 5}
    on_error: continue
  - id: think
    agent: writer
    message: "Sum up: ${/steps/look/text}"
    when:
      /inputs/severity: {const: high}
      /steps/look/output/hits: {minimum: 1}
outputs:
  summary: ${/steps/think/text:-nothing to say}
  hits: ${/steps/look/output/hits:-0}
"""


def parse_triage():
    return parse_workflow(parse_source(TRIAGE))


def test_a_run_executes_its_steps_and_ends_with_outputs():
    workflow, inputs = parse_triage(), {"title": "disk", "severity": "high"}
    first = get_next_action(workflow, inputs, {})
    assert first == WorkflowCall(1, "look", "mcp_logs_search", {"query": "alert disk", "limit": 5})
    results = {"look": WorkflowStepResult("done", "3 lines", {"hits": 3})}
    second = get_next_action(workflow, inputs, results)
    assert isinstance(second, WorkflowCall)
    assert (second.number, second.tool) == (2, "ask_writer")
    lines = second.arguments["message"].splitlines()
    assert lines[0].startswith("Sum up: [data ")
    assert (lines[1], lines[2][:12]) == ("3 lines", "[end of data")
    results["think"] = WorkflowStepResult("done", "Full.")
    assert get_next_action(workflow, inputs, results) == WorkflowEnd(
        {"summary": "Full.", "hits": 3}
    )


@pytest.mark.parametrize(
    ("inputs", "look_result"),
    [
        ({"title": "x", "severity": "low"}, WorkflowStepResult("done", "", {"hits": 3})),
        ({"title": "x", "severity": "high"}, WorkflowStepResult("done", "", {"hits": 0})),
        (
            {"title": "x", "severity": "high"},
            WorkflowStepResult("failed", "away", None, "call_timeout"),
        ),
        ({"title": "x"}, WorkflowStepResult("done", "", {"hits": 3})),
    ],
)
def test_a_step_whose_conditions_are_false_is_skipped(inputs, look_result):
    action = get_next_action(parse_triage(), inputs, {"look": look_result})
    assert isinstance(action, SkippedStep)
    results = {"look": look_result, "think": WorkflowStepResult("skipped")}
    end = get_next_action(parse_triage(), inputs, results)
    assert isinstance(end, WorkflowEnd)
    assert end.outputs["summary"] == "nothing to say"


def test_a_failed_step_ends_the_run_unless_it_may_continue():
    results = {
        "look": WorkflowStepResult("done", "", {"hits": 1}),
        "think": WorkflowStepResult("failed", "No.", None, "denied"),
    }
    with pytest.raises(StepFailed) as caught:
        get_next_action(parse_triage(), {"title": "x", "severity": "high"}, results)
    assert (caught.value.code, caught.value.field) == ("denied", "steps.think")


STEP = {"id": "a", "call": "echo"}


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"agent": ""}, "agent"),
        ({"steps": []}, "steps"),
        ({"steps": [STEP] * (MAX_STEPS + 1)}, "steps"),
        ({"steps": [STEP, STEP]}, "steps[1].id"),
        ({"steps": [{**STEP, "id": "No"}]}, "steps[0].id"),
        ({"steps": [{"id": "a"}]}, "steps[0]"),
        ({"steps": [{**STEP, "agent": "b"}]}, "steps[0]"),
        ({"steps": [{**STEP, "message": "b"}]}, "steps[0].message"),
        ({"steps": [{**STEP, "retry": 1}]}, "steps[0].retry"),
        ({"steps": [{**STEP, "arguments": []}]}, "steps[0].arguments"),
        (
            {"steps": [{**STEP, "arguments": {"x": ["${/steps/a}"]}}]},
            "steps[0].arguments.x[0]",
        ),
        ({"steps": [{**STEP, "arguments": {"x": "${name}"}}]}, "steps[0].arguments.x"),
        ({"steps": [{**STEP, "when": {"/inputs/x": {"type": 1}}}]}, "steps[0].when./inputs/x"),
        ({"steps": [{**STEP, "when": {"inputs": {}}}]}, "steps[0].when.inputs"),
        ({"steps": [{**STEP, "on_error": "retry"}]}, "steps[0].on_error"),
        ({"inputs": {"type": "array"}}, "inputs"),
        ({"inputs": {"$ref": "https://example.com/x"}}, "inputs"),
        ({"outputs": {"x": "${/steps/b/text}"}}, "outputs.x"),
        ({"max_run_s": 0}, "max_run_s"),
        ({"extra": 1}, "extra"),
    ],
)
def test_errors_are_reported_with_their_path(change, path):
    with pytest.raises(InvalidInput) as caught:
        parse_workflow({"agent": "helper", "steps": [STEP], **change})
    assert caught.value.field == path
    assert caught.value.remedy


def test_invalid_yaml_is_reported_with_its_line():
    for source in ("steps: [", "agent: a\n  b: c", "{", "a: &x 1\nb: *x"):
        with pytest.raises(InvalidInput) as caught:
            parse_source(source)
        assert caught.value.field
