"""Start runs of workflows: each is a session of the agent that the workflow runs as."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from agents.governance.rulings import require_on
from agents.models import Agent, Session, Trigger, Workflow, WorkflowRun
from agents.session_labels import label_session
from agents.sessions.nudges import nudge
from agents.sessions.requests import require_run
from agents.workflows.definitions import WorkflowText
from agents.workflows.keeping import text_of
from bonobot.ledger.actors import Actor
from bonobot.ledger.changes import change
from bonobot.lib.known_secrets import without_secrets
from bonobot.lib.problems import Conflict, Invalid
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import storable
from bonobot.tenancy.principals import Principal
from mcp_servers.schemas import NeedsConfinement, check_arguments, judge


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What started a run: by what way, by which trigger, and what its sender called the delivery.

    `session_id` is what the run's session is going to have as its id.
    """

    via: str = WorkflowRun.Via.PERSON
    trigger: Trigger | None = None
    delivery: str = ""
    session_id: UUID = field(default_factory=uuid4)


def run_workflow(
    principal: Principal, workflow: Workflow, inputs: Mapping[str, Any]
) -> WorkflowRun:
    """Start a run for a person or program that may run the workflow's agent.

    Raises `Forbidden`, `InvalidArguments` naming the input, `Conflict` (`workflow_disabled`,
    `agent_disabled`, `organization_halted`).
    """
    require_run(principal, workflow.agent)
    starter = {
        "started_by_kind": principal.kind,
        "started_by_id": principal.id,
        "started_by": principal.label,
        "token_id": principal.token_id,
    }
    origin = Origin()
    session = Session(
        id=origin.session_id, organization_id=workflow.organization_id, agent_id=workflow.agent_id
    )
    label_session(principal, session)
    return begin(workflow, inputs, starter, actor=principal.actor, origin=origin)


def begin(
    workflow: Workflow,
    inputs: Mapping[str, Any],
    starter: Mapping[str, Any],
    *,
    actor: Actor,
    origin: Origin | None = None,
) -> WorkflowRun:
    """Start a run for whoever may start it; the rest is as `run_workflow`."""
    origin = origin or Origin()
    agent = require_startable(workflow, inputs)
    session = Session(
        id=origin.session_id,
        organization_id=workflow.organization_id,
        agent=agent,
        title=workflow.name,
        **starter,
    )
    details = {"session_id": str(session.pk), "version": workflow.version, "via": str(origin.via)}
    with change(
        organization_id=workflow.organization_id,
        actor=actor,
        action="workflow_started",
        resource_type="workflow",
        resource_id=str(workflow.pk),
        resource_name=workflow.name,
        details=details | ({"trigger": origin.trigger.name} if origin.trigger else {}),
        governed=False,
    ):
        session.save(force_insert=True)
        run = add_run(session, workflow, inputs, origin)
    nudge(session.pk)
    return run


def require_startable(workflow: Workflow, inputs: Mapping[str, Any]) -> Agent:
    """Return the agent of a run that may begin; raises what `run_workflow` does but `Forbidden`."""
    checked(workflow, inputs)
    agent = Agent.objects.select_related("organization").get(pk=workflow.agent_id)
    require_on(agent)
    return agent


def add_run(
    session: Session, workflow: Workflow, inputs: Mapping[str, Any], origin: Origin
) -> WorkflowRun:
    """Write what a new session is to follow."""
    found: WorkflowRun = WorkflowRun.objects.create(
        organization_id=session.organization_id,
        session=session,
        workflow=workflow,
        name=workflow.name,
        version=workflow.version,
        definition=workflow.definition,
        inputs=_kept(inputs, session),
        via=origin.via,
        trigger=origin.trigger,
        delivery=origin.delivery,
    )
    return found


def checked(workflow: Workflow, inputs: Mapping[str, Any]) -> WorkflowText:
    """Return what a workflow says; raises for inputs that don't fit, or where it is off."""
    if not workflow.enabled:
        raise Conflict(
            say("The workflow `{workflow}` is switched off.", workflow=workflow.name),
            code="workflow_disabled",
            remedy="An operator or owner can switch it on.",
        )
    return check_inputs(workflow, inputs)


def check_inputs(workflow: Workflow, inputs: Mapping[str, Any]) -> WorkflowText:
    """Return what a workflow says; raises for inputs that don't fit."""
    text = text_of(workflow)
    try:
        check_arguments(dict(text.inputs), dict(inputs), judge(dict(text.inputs)))
    except NeedsConfinement:
        raise Invalid(
            "The inputs are too large.",
            code="inputs_too_large",
            field="inputs",
            remedy="Send 16 KiB and 1,000 values at most; name the rest, and let a step read it.",
        ) from None
    return text


def _kept(said: Any, session: Session) -> Any:
    """Return inputs as they are kept: without stored secrets, in texts that rows can hold."""
    if isinstance(said, str):
        return storable(without_secrets(said, session.organization_id))
    if isinstance(said, Mapping):
        return {str(storable(key)): _kept(value, session) for key, value in said.items()}
    if isinstance(said, list):
        return [_kept(value, session) for value in said]
    return said
