"""Rows that people name: agents found by slugs, a name that is taken, and the audit of both."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from django.db import IntegrityError, transaction

from agents.models import Agent, Skill, Trigger, Workflow
from bonobot.ledger.changes import change
from bonobot.lib.problems import Conflict, NotFound
from bonobot.lib.sayings import say
from bonobot.tenancy.principals import Principal

Named = Skill | Trigger | Workflow


def agents_named(principal: Principal, slugs: Sequence[str], field: str) -> list[Agent]:
    """Return the agents of these slugs; raises `NotFound` at `field` for one that isn't here."""
    rows = Agent.objects.visible_to(principal).filter(slug__in=list(slugs))
    found = {row.slug: row for row in rows}
    if strange := sorted(set(slugs) - found.keys()):
        raise NotFound(
            say("There is no agent {strange!r} here.", strange=strange[0][:100]),
            field=field,
            remedy="Name agents of this organization by their slugs.",
        )
    return list(found.values())


def agents_of(row: Skill | Workflow) -> list[str]:
    """Return the slugs of the agents that have a skill or workflow (a query)."""
    return list(row.given.order_by("agent__slug").values_list("agent__slug", flat=True))


def give(row: Skill | Workflow, agents: Sequence[Agent]) -> list[str]:
    """Let exactly these agents have a skill or workflow; return their slugs."""
    given: Any = row.given
    given.exclude(agent__in=agents).delete()
    there = set(given.values_list("agent_id", flat=True))
    mine = {given.field.name: row, "organization_id": row.organization_id}
    new = [given.model(agent=agent, **mine) for agent in agents if agent.pk not in there]
    given.model.objects.bulk_create(new)
    return sorted(agent.slug for agent in agents)


def store(row: Named) -> None:
    """Save a row; raises `Conflict` where another one has its name."""
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError:
        raise Conflict(
            say("There is a {kind} {name!r} already.", kind=_noun(row), name=row.name),
            code="name_taken",
            field="name",
            remedy="Choose another name.",
        ) from None


def recorded(
    principal: Principal,
    row: Named,
    action: str,
    details: Mapping[str, Any],
    *,
    governed: bool = True,
) -> AbstractContextManager[Any]:
    """Record what is done to a row inside the block; `governed` raises the generation."""
    return change(
        organization_id=row.organization_id,
        actor=principal.actor,
        action=action,
        resource_type=_noun(row),
        resource_id=str(row.pk),
        resource_name=row.name,
        details=dict(details),
        governed=governed,
    )


def _noun(row: Named) -> str:
    return str(row._meta.model_name)
