"""Save, approve and delete workflows, and start their runs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from agents.assignments import (
    delete_assignable,
    get_agents_by_slug,
    get_assignable,
    record_assignment_change,
    save_assignable,
    set_agents,
)
from agents.flow_labels.session_labels import label_session
from agents.flow_labels.text_labels import label_session_with_texts, label_text
from agents.models import Agent, Session, Trigger, Workflow, WorkflowRun, WorkflowVersion
from agents.models.workflows import MAX_SOURCE_LENGTH
from agents.policies.queries import require_enabled
from agents.sessions.services import require_run_permission
from agents.wakeups import notify_worker
from agents.workflows.definitions import WorkflowDefinition, parse_workflow
from bonobot.accounts.models import Deletion
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.crypto.organization_secrets import mask_organization_secrets
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.core.text.canonical_json import compute_json_digest
from bonobot.core.text.json_reader import read_json
from bonobot.core.text.untrusted_text import make_storable
from bonobot.core.text.yaml_reader import is_yaml, read_yaml
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from bonobot.ledger.types import Actor
from mcp_servers.schemas import SubprocessNeeded, check_arguments, classify_schema

_NAME = re.compile(r"[-a-zA-Z0-9_]{1,64}")


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
    existing, organization_id = workflow, principal.organization_id
    workflow = (
        Workflow.objects.get(pk=existing.pk)
        if existing
        else Workflow(organization_id=organization_id)
    )
    _apply_workflow_spec(principal, workflow, spec)
    agents = None if spec.agents is None else get_agents_by_slug(principal, spec.agents, "agents")
    digest = compute_json_digest(workflow.definition)
    is_new_version = existing is None or digest != workflow.digest
    if is_new_version:
        workflow.version, workflow.digest = (workflow.version + 1 if existing else 1), digest
    details: dict[str, Any] = {"version": workflow.version, "digest": workflow.digest}
    if agents is not None:
        details["agents"] = sorted(agent.slug for agent in agents)
    with record_assignment_change(
        principal, workflow, "workflow_updated" if existing else "workflow_created", details
    ):
        save_assignable(workflow)
        if is_new_version:
            WorkflowVersion.objects.create(
                organization_id=organization_id,
                workflow=workflow,
                number=workflow.version,
                digest=workflow.digest,
                source=workflow.source,
                created_by=principal.label,
            )
        if agents is not None:
            set_agents(workflow, agents)
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
    if not _NAME.fullmatch(spec.name):
        raise InvalidInput(
            format_message("{spec!r} isn't a valid workflow name.", spec=spec.name[:100]),
            field="name",
            remedy="Use at most 64 letters, digits, `-`, and `_`.",
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
        workflow.agent = get_agents_by_slug(principal, [parsed.agent], "agent")[0]
        workflow.source, workflow.definition = spec.source, definition
        workflow.description = parsed.description[:500]


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
    """Start a run without checking the caller's permission; otherwise like `run_workflow`."""
    origin = origin or RunOrigin()
    agent = require_startable(workflow, inputs)
    session = Session(
        id=origin.session_id,
        organization_id=workflow.organization_id,
        agent=agent,
        title=workflow.name,
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
