"""Make a plan true: all of it in one transaction, through the same operations as every surface."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from django.db import transaction

from agents.bindings import bind, unbind
from agents.budgets import set_budgets
from agents.callees import set_callees
from agents.drafts import set_draft
from agents.models import Agent, ModelEndpoint
from agents.registration import (
    AgentSpec,
    EndpointSpec,
    add_agent,
    alter_agent,
    remove_agent,
    remove_endpoint,
    save_endpoint,
)
from agents.skills.keeping import remove_skill, save_skill
from agents.tool_policies import set_policy
from agents.workflows.keeping import remove_workflow, save_workflow
from agents.workflows.triggers import set_triggers
from bonobot.ledger.changes import change
from bonobot.lib.problems import Invalid, Problem
from bonobot.portability.documents import Wanted
from bonobot.portability.planning import Plan, Step, make_plan, server_spec
from bonobot.tenancy.principals import Principal
from mcp_servers.models import Server
from mcp_servers.registration import add, alter, remove

_KEPT_BY_ENDPOINTS = tuple(one.name for one in fields(EndpointSpec) if one.name != "api_key")


def apply(
    principal: Principal, wanted: Wanted, *, prune: bool = False, dry_run: bool = False
) -> Plan:
    """Plan and carry out in one transaction, and return the plan.

    A plan with problems is returned and nothing of it is done; so is one that fails on the way,
    with the problem that stopped it. A dry run does everything and takes it back, so that it finds
    the same problems. A plan without changes writes nothing at all.
    """
    with transaction.atomic():
        plan = make_plan(principal, wanted, prune=prune)
        if plan.problems or not plan.changes:
            return plan
        # A savepoint of its own: what fails leaves nothing behind.
        try:
            with transaction.atomic():
                _carry_out(principal, plan)
                transaction.set_rollback(dry_run)
        except _Stopped as stopped:
            return replace(plan, problems=(stopped.problem,))
    return plan


class _Stopped(Exception):
    """A step failed; the transaction is taken back."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def _carry_out(principal: Principal, plan: Plan) -> None:
    details = {"steps": [step.as_dict() for step in plan.changes]}
    with change(
        organization_id=principal.organization_id,
        actor=principal.actor,
        action="configuration_applied",
        resource_type="organization",
        resource_id=str(principal.organization_id),
        details=details,
    ):
        for step in plan.changes:
            try:
                _DOERS[step.kind](principal, step)
            except Problem as problem:
                raise _Stopped(_placed(step, problem)) from problem


def _placed(step: Step, problem: Problem) -> Problem:
    """Say in a problem which part of the file led to it."""
    wanted = step.wanted[1] if isinstance(step.wanted, tuple) else step.wanted
    if wanted is not None:
        placed: Problem = wanted.place.mark(problem)
        return placed
    problem.field = f"{step.kind} {step.name}"
    return problem


def _endpoint(principal: Principal, step: Step) -> None:
    if step.action == "remove":
        remove_endpoint(principal, step.row)
        return
    row: ModelEndpoint | None = step.row
    kept: dict[str, Any] = {name: getattr(row, name) for name in _KEPT_BY_ENDPOINTS} if row else {}
    said = dict(step.wanted.values)
    if (behind := said.get("fallback")) is not None:
        mine = ModelEndpoint.objects.for_organization(principal.organization_id)
        said["fallback"] = mine.filter(slug=behind).first() if behind else None
        if behind and said["fallback"] is None:
            raise Invalid(
                f"There is no model endpoint {behind!r}.",
                field="fallback",
                remedy="Write it under `model_endpoints`, or name one that is there.",
            )
    spec = EndpointSpec(**{"name": step.wanted.slug, **kept, **said})
    saved = save_endpoint(principal, spec, row)
    if saved.slug != step.name:
        saved.slug = step.name
        saved.save(update_fields=["slug"])


def _server(principal: Principal, step: Step) -> None:
    if step.action == "remove":
        remove(principal, step.row)
        return
    spec = server_spec(step.wanted, step.row)
    if step.row is None:
        add(principal, spec)
    else:
        alter(principal, step.row, spec)


def _agent(principal: Principal, step: Step) -> None:
    if step.action == "remove":
        remove_agent(principal, step.row)
        return
    wanted, mine = step.wanted, ModelEndpoint.objects.for_organization(principal.organization_id)
    values = {"name": step.row.name if step.row else wanted.slug, **wanted.values}
    model = mine.get(slug=wanted.model) if wanted.model is not None else None
    spec = AgentSpec(slug=wanted.slug, model_endpoint=model, **values)
    if step.row is None:
        add_agent(principal, spec)
    else:
        alter_agent(principal, step.row, spec)


def _binding(principal: Principal, step: Step) -> None:
    if step.action == "remove":
        unbind(principal, step.row.agent, step.row.server)
        return
    agent, one = step.wanted
    pool = Server.objects.for_organization(principal.organization_id).pool()
    bind(
        principal,
        _agent_row(principal, agent.slug),
        pool.get(name=one.server),
        enabled=one.enabled,
        allowed_tools=one.allowed_tools,
        denied_tools=one.denied_tools,
        allowed_resources=one.allowed_resources,
        allowed_prompts=one.allowed_prompts,
    )


def _callees(principal: Principal, step: Step) -> None:
    set_callees(principal, _agent_row(principal, step.wanted.slug), step.wanted.may_ask)


def _skill(principal: Principal, step: Step) -> None:
    if step.action == "remove":
        remove_skill(principal, step.row)
    else:
        save_skill(principal, step.wanted.spec, step.row)


def _workflow(principal: Principal, step: Step) -> None:
    if step.action == "remove":
        remove_workflow(principal, step.row)
    else:
        made = save_workflow(principal, step.wanted.spec, step.row)
        if step.wanted.triggers is not None:
            set_triggers(principal, made, step.wanted.triggers)


def _policy(principal: Principal, step: Step) -> None:
    set_policy(principal, _agent_row(principal, step.wanted.slug), step.wanted.policy)


def _own_policy(principal: Principal, step: Step) -> None:
    set_policy(principal, step.row, step.wanted.text)


def _policy_draft(principal: Principal, step: Step) -> None:
    set_draft(principal, _agent_row(principal, step.wanted.slug), step.wanted.draft)


def _own_draft(principal: Principal, step: Step) -> None:
    set_draft(principal, step.row, step.wanted.text)


def _own_budgets(principal: Principal, step: Step) -> None:
    set_budgets(principal, step.row, step.wanted.lines)


def _server_budgets(principal: Principal, step: Step) -> None:
    pool = Server.objects.for_organization(principal.organization_id).pool()
    set_budgets(principal, pool.get(name=step.wanted.server), step.wanted.lines)


def _budgets(principal: Principal, step: Step) -> None:
    set_budgets(principal, _agent_row(principal, step.wanted.slug), step.wanted.budgets)


def _agent_row(principal: Principal, slug: str) -> Agent:
    found: Agent = Agent.objects.for_organization(principal.organization_id).get(slug=slug)
    return found


_DOERS: dict[str, Callable[[Principal, Step], None]] = {
    "model_endpoint": _endpoint,
    "server": _server,
    "agent": _agent,
    "binding": _binding,
    "callees": _callees,
    "skill": _skill,
    "workflow": _workflow,
    "policy": _policy,
    "organization_policy": _own_policy,
    "policy_draft": _policy_draft,
    "organization_policy_draft": _own_draft,
    "organization_budgets": _own_budgets,
    "server_budgets": _server_budgets,
    "budgets": _budgets,
}
