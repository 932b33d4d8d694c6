"""Make, change, approve, give and remove workflows: the one way for every surface, audited."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agents.models import Workflow, WorkflowVersion
from agents.models.agents import named as by_id_or_slug
from agents.models.workflows import LONGEST_SOURCE
from agents.named import agents_named, give, recorded, store
from agents.workflows.definitions import WorkflowText, read_workflow
from bonobot.lib.problems import Conflict, Invalid
from bonobot.lib.sayings import say
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.digests import digest
from mcp_servers.portability.reader import read
from mcp_servers.portability.yaml_reader import is_yaml, read_yaml

_NAME = re.compile(r"[-a-zA-Z0-9_]{1,64}")


@dataclass(frozen=True, kw_only=True)
class WorkflowSpec:
    """What a person says of a workflow; what is None stays as it is.

    `source` is its definition as YAML or JSON. `agents` are the slugs of those that have it as a
    tool.
    """

    name: str
    source: str | None = None
    enabled: bool | None = None
    agents: Sequence[str] | None = None


def plain(source: str) -> Any:
    """Return what a definition's text holds as plain values; raises `Invalid` with the line."""
    if len(source) > LONGEST_SOURCE:
        raise Invalid(
            say("The definition has {count} characters.", count=len(source)),
            field="source",
            remedy=say("At most {longest_source} are taken.", longest_source=LONGEST_SOURCE),
        )
    try:
        reading = read_yaml(source) if is_yaml(source) else read(source)
    except Invalid as problem:
        problem.field = problem.field or "source"
        raise
    return reading.root.plain()


def text_of(workflow: Workflow) -> WorkflowText:
    """Return what a stored workflow says."""
    return read_workflow(workflow.definition)


def named(principal: Principal, name: str) -> Workflow:
    """Return the workflow with this id or name that a principal may see; raises `NotFound`."""
    lookup = by_id_or_slug(name)
    lookup = {"name": lookup["slug"]} if "slug" in lookup else lookup
    found: Workflow = Workflow.objects.visible_to(principal).get_or_404(
        principal.organization_id, **lookup
    )
    return found


def save_workflow(
    principal: Principal, spec: WorkflowSpec, workflow: Workflow | None = None
) -> Workflow:
    """Make or change a workflow; raises `Invalid` naming the path, `Conflict` (`name_taken`).

    A change of what it says is a new version, which other agents get as a tool once it is approved.
    """
    principal.require(Action.MANAGE_WORKFLOWS)
    old, owner = workflow, principal.organization_id
    workflow = Workflow.objects.get(pk=old.pk) if old else Workflow(organization_id=owner)
    _put(principal, workflow, spec)
    agents = None if spec.agents is None else agents_named(principal, spec.agents, "agents")
    said = digest(workflow.definition)
    is_new = old is None or said != workflow.digest
    if is_new:
        workflow.version, workflow.digest = (workflow.version + 1 if old else 1), said
    details: dict[str, Any] = {"version": workflow.version, "digest": workflow.digest}
    with recorded(principal, workflow, "workflow_changed" if old else "workflow_added", details):
        store(workflow)
        if is_new:
            WorkflowVersion.objects.create(
                organization_id=owner,
                workflow=workflow,
                number=workflow.version,
                digest=workflow.digest,
                source=workflow.source,
                made_by=principal.label,
            )
        if agents is not None:
            details["agents"] = give(workflow, agents)
    return workflow


def approve_workflow(principal: Principal, workflow: Workflow, seen: str = "") -> Workflow:
    """Approve a workflow as it stands, so that other agents may call it as a tool.

    Raises `Conflict` (code `definition_changed`) where it is another one than was `seen`, a digest.
    """
    principal.require(Action.APPROVE_DEFINITIONS)
    mine = Workflow.objects.filter(pk=workflow.pk, digest=seen or workflow.digest)
    details = {"version": workflow.version, "digest": seen or workflow.digest}
    with recorded(principal, workflow, "workflow_approved", details):
        if not mine.update(approved_digest=seen or workflow.digest):
            raise Conflict(
                say("The workflow `{workflow}` was changed meanwhile.", workflow=workflow.name),
                code="definition_changed",
                field="digest",
                remedy="Look at it as it is now, and approve that.",
            )
    workflow.refresh_from_db()
    return workflow


def remove_workflow(principal: Principal, workflow: Workflow) -> None:
    """Remove a workflow with its versions and triggers; its runs stay as sessions."""
    principal.require(Action.MANAGE_WORKFLOWS)
    with recorded(principal, workflow, "workflow_removed", {"digest": workflow.digest}):
        workflow.delete()


def _put(principal: Principal, workflow: Workflow, spec: WorkflowSpec) -> None:
    if not _NAME.fullmatch(spec.name):
        raise Invalid(
            say("{spec!r} is no name for a workflow.", spec=spec.name[:100]),
            field="name",
            remedy="Use letters, digits, `-` and `_`; at most 64.",
        )
    workflow.name = spec.name
    if spec.enabled is not None:
        workflow.enabled = spec.enabled
    if spec.source is None and workflow._state.adding:
        raise Invalid("The workflow has no definition.", field="source", remedy="Write one.")
    if spec.source is not None:
        said = plain(spec.source)
        found = read_workflow(said)
        workflow.agent = agents_named(principal, [found.agent], "agent")[0]
        workflow.source, workflow.definition = spec.source, said
        workflow.description = found.description[:500]
