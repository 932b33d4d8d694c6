"""Save, approve and delete workflows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agents.assignments import (
    check_name,
    delete_assignable,
    get_agents_by_slug,
    get_assignable,
    record_assignment_change,
    save_with_version,
)
from agents.flow_labels.text_labels import label_text
from agents.models import Agent, Workflow
from agents.models.workflows import MAX_SOURCE_LENGTH
from agents.workflows.definitions import WorkflowDefinition, parse_workflow
from bonobot.accounts.models import Deletion
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.core.text.json_reader import read_json
from bonobot.core.text.yaml_reader import is_yaml, read_yaml


@dataclass(frozen=True, kw_only=True)
class WorkflowSpec:
    """Values to save in a workflow; None keeps the current value.

    `source` is the definition as YAML or JSON. `agents` are the slugs of the agents that have it as
    a tool.
    """

    name: str
    source: str | None = None
    enabled: bool | None = None
    agents: Sequence[str] | None = None


def parse_source(source: str) -> Any:
    """Parse a definition's text to plain values; raises `InvalidInput` with the line."""
    if len(source) > MAX_SOURCE_LENGTH:
        raise InvalidInput(
            format_message("The definition has {count} characters.", count=len(source)),
            field="source",
            remedy=format_message("Use at most {limit} characters.", limit=MAX_SOURCE_LENGTH),
        )
    try:
        reading = read_yaml(source) if is_yaml(source) else read_json(source)
    except InvalidInput as problem:
        problem.field = problem.field or "source"
        raise
    return reading.root.to_python()


def build_definition(workflow: Workflow) -> WorkflowDefinition:
    return parse_workflow(workflow.definition)


def get_workflow(principal: Principal, name: str) -> Workflow:
    """Return the workflow with this id or name if visible to the principal; raises `NotFound`."""
    workflow: Workflow = get_assignable(Workflow.objects, principal, name)
    return workflow


def save_workflow(
    principal: Principal, spec: WorkflowSpec, workflow: Workflow | None = None
) -> Workflow:
    """Create or update a workflow; raises `InvalidInput`, `Conflict` (`name_taken`).

    A changed definition is a new version, which agents can use as a tool once it is approved.
    """
    principal.require(Action.MANAGE_WORKFLOWS)
    workflow = (
        Workflow.objects.get(pk=workflow.pk)
        if workflow
        else Workflow(organization_id=principal.organization_id)
    )
    _apply_workflow_spec(principal, workflow, spec)
    with save_with_version(
        principal,
        workflow,
        spec.agents,
        action="workflow_created" if workflow._state.adding else "workflow_updated",
        content=workflow.definition,
        version_values={"source": workflow.source},
        details={},
    ) as is_new_version:
        label_text(principal, workflow, is_changed=is_new_version)
    return workflow


def approve_workflow(principal: Principal, workflow: Workflow, seen_digest: str = "") -> Workflow:
    """Approve a workflow's definition, so that other agents may call it as a tool.

    Raises `Conflict` (`definition_changed`) if its digest isn't `seen_digest`.
    """
    principal.require(Action.APPROVE_DEFINITIONS)
    unchanged = Workflow.objects.filter(pk=workflow.pk, digest=seen_digest or workflow.digest)
    details = {"version": workflow.version, "digest": seen_digest or workflow.digest}
    with record_assignment_change(principal, workflow, "workflow_approved", details):
        if not unchanged.update(approved_digest=seen_digest or workflow.digest):
            raise Conflict(
                format_message(
                    "The workflow `{workflow}` was changed in the meantime.", workflow=workflow.name
                ),
                code="definition_changed",
                field="digest",
                remedy="Review the current version, then approve it.",
            )
    workflow.refresh_from_db()
    return workflow


def delete_workflow(principal: Principal, workflow: Workflow) -> Deletion | None:
    """Delete a workflow with its versions and triggers; its runs remain as sessions.

    Returns the deletion, which can be restored.
    """
    return delete_assignable(principal, workflow, action="workflow_deleted")


def _apply_workflow_spec(principal: Principal, workflow: Workflow, spec: WorkflowSpec) -> None:
    check_name(
        spec.name, format_message("{spec!r} isn't a valid workflow name.", spec=spec.name[:100])
    )
    workflow.name = spec.name
    if spec.enabled is not None:
        workflow.enabled = spec.enabled
    if spec.source is None and workflow._state.adding:
        raise InvalidInput(
            "The workflow has no definition.", field="source", remedy="Provide a definition."
        )
    if spec.source is not None:
        definition = parse_source(spec.source)
        parsed = parse_workflow(definition)
        visible_agents = Agent.objects.visible_to(principal)
        workflow.agent = get_agents_by_slug(visible_agents, [parsed.agent], "agent")[0]
        workflow.source, workflow.definition = spec.source, definition
        workflow.description = parsed.description[:500]
