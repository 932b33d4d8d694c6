"""Assignment of skills, workflows and callable agents to agents."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from agents.models import Agent, AgentAssignment, Skill, Trigger, Workflow
from agents.models.agents import build_agent_lookup
from bonobot.accounts.deletions import keep_deleted_rows
from bonobot.accounts.models import Deletion
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.transactions import lock_rows
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput, NotFound
from bonobot.core.text.canonical_json import compute_json_digest
from bonobot.ledger.audit.admin_changes import describe_row, record_change

AssignableRow = Skill | Trigger | Workflow
_NAME = re.compile(r"[-a-zA-Z0-9_]{1,64}")


def check_name(name: str, problem_text: str) -> None:
    """Raise `InvalidInput` with this text if it isn't a valid name."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            problem_text, field="name", remedy="Use at most 64 letters, digits, `-`, and `_`."
        )


def get_agents_by_slug(rows: QuerySet[Agent], slugs: Sequence[str], field: str) -> list[Agent]:
    """Return those of `rows` with these slugs; raises `NotFound` at `field` for unknown ones."""
    agents_by_slug = {row.slug: row for row in rows.filter(slug__in=list(slugs))}
    if unknown_slugs := sorted(set(slugs) - agents_by_slug.keys()):
        raise NotFound(
            format_message("The agent {name!r} doesn't exist.", name=unknown_slugs[0][:100]),
            field=field,
            remedy="Enter slugs of agents in this organization.",
        )
    return list(agents_by_slug.values())


def list_agent_slugs(row: Skill | Workflow) -> list[str]:
    """Return the slugs of the agents that have a skill or workflow (a query)."""
    return list(row.assignments.order_by("agent__slug").values_list("agent__slug", flat=True))


def set_agents(row: Skill | Workflow, agents: Sequence[Agent]) -> None:
    """Attach a skill or workflow to exactly these agents."""
    assignments: Any = row.assignments
    assignments.exclude(agent__in=agents).delete()
    assigned_ids = set(assignments.values_list("agent_id", flat=True))
    common_values = {assignments.field.name: row, "organization_id": row.organization_id}
    new_assignments = [
        assignments.model(agent=agent, **common_values)
        for agent in agents
        if agent.pk not in assigned_ids
    ]
    assignments.model.objects.bulk_create(new_assignments)


@contextmanager
def save_with_version(
    principal: Principal,
    row: Any,
    agent_slugs: Sequence[str] | None,
    *,
    action: str,
    content: Any,
    version_values: Mapping[str, Any],
    details: Mapping[str, Any],
) -> Iterator[bool]:
    """Save a skill or workflow, attach it to the agents (None: no change), and record it.

    Changed `content` creates a version, with `version_values`. Yields whether it did, within the
    transaction. Raises `NotFound`, `Conflict`.
    """
    agents = None
    if agent_slugs is not None:
        agents = get_agents_by_slug(Agent.objects.visible_to(principal), agent_slugs, "agents")
    is_new, digest = row._state.adding, compute_json_digest(content)
    is_new_version = is_new or digest != row.digest
    if is_new_version:
        row.version, row.digest = (1 if is_new else row.version + 1), digest
    details = {**details, "version": row.version, "digest": row.digest}
    if agents is not None:
        details["agents"] = sorted(agent.slug for agent in agents)
    with record_assignment_change(principal, row, action, details):
        save_assignable(row)
        if is_new_version:
            row.versions.create(
                organization_id=row.organization_id,
                number=row.version,
                digest=row.digest,
                created_by=principal.label,
                **version_values,
            )
        if agents is not None:
            set_agents(row, agents)
        yield is_new_version


def save_assignable(row: AssignableRow) -> None:
    """Save a row; raises `Conflict` if its name is taken."""
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError:
        raise Conflict(
            format_message(
                "A {kind} named {name!r} already exists.", kind=_get_noun(row), name=row.name
            ),
            code="name_taken",
            field="name",
            remedy="Choose another name.",
        ) from None


def get_assignable(rows: Any, principal: Principal, name: str) -> Any:
    """Return the visible one of `rows` with this ID or name; raises `NotFound`."""
    lookup = build_agent_lookup(name)
    lookup = {"name": lookup["slug"]} if "slug" in lookup else lookup
    return rows.visible_to(principal).get_or_404(principal.organization_id, **lookup)


def delete_assignable(
    principal: Principal, row: Skill | Workflow, *, action: str
) -> Deletion | None:
    """Delete a skill or workflow with its versions; return the deletion, which can be restored."""
    principal.require(Action.MANAGE_WORKFLOWS)
    with record_assignment_change(principal, row, action, {"digest": row.digest}):
        deletion = keep_deleted_rows(principal, _get_noun(row), row)
        row.delete()
    return deletion


def record_assignment_change(
    principal: Principal,
    row: AssignableRow,
    action: str,
    details: Mapping[str, Any],
    *,
    governed: bool = True,
) -> AbstractContextManager[Any]:
    """Record the change made inside the block; `governed` raises the generation."""
    return record_change(
        **describe_row(_get_noun(row), row),
        actor=principal.actor,
        action=action,
        details=dict(details),
        governed=governed,
    )


def _get_noun(row: AssignableRow) -> str:
    return str(row._meta.model_name)


def list_callable_agents(agent: Agent) -> list[str]:
    """Return the slugs of the agents that an agent may call (one query)."""
    assignments = agent.assignments.filter(callable_agent__isnull=False)
    return list(
        assignments.order_by("callable_agent__slug").values_list("callable_agent__slug", flat=True)
    )


def set_callable_agents(principal: Principal, agent: Agent, slugs: Sequence[str]) -> None:
    """Set which agents an agent may call; raises `NotFound` for an unknown one.

    The agent's policy still decides about the resulting tools.
    """
    principal.require(Action.MANAGE_AGENTS)
    rows = Agent.objects.for_organization(agent.organization_id)
    callable_agents = get_agents_by_slug(rows, slugs, "callable_agents")
    with record_change(
        **describe_row("agent", agent),
        actor=principal.actor,
        action="callable_agents_updated",
        details={"callable_agents": sorted(row.slug for row in callable_agents)},
    ):
        lock_rows(Agent.objects.filter(pk=agent.pk))
        agent.assignments.filter(callable_agent__isnull=False).delete()
        AgentAssignment.objects.bulk_create(
            AgentAssignment(organization_id=agent.organization_id, agent=agent, callable_agent=row)
            for row in callable_agents
        )
