"""Apply a configuration plan in one transaction."""

from collections.abc import Callable
from dataclasses import replace

from django.db import transaction

from agents.assignments import set_callable_agents
from agents.budgets.services import set_budgets
from agents.config_file.plan_changes import (
    ConfigPlan,
    ConfigPlanStep,
    build_plan,
    build_server_spec,
)
from agents.config_file.read_config import WantedConfig
from agents.model_endpoints.services import (
    ModelEndpointSpec,
    build_spec,
    delete_endpoint,
    save_endpoint,
)
from agents.models import Agent, ModelEndpoint
from agents.policies.services import set_policy
from agents.policies.shadow_mode import set_draft
from agents.services import (
    AgentSpec,
    attach_server,
    create_agent,
    delete_agent,
    detach_server,
    update_agent,
)
from agents.skills import delete_skill, save_skill
from agents.workflows.services import delete_workflow, save_workflow
from agents.workflows.triggers import set_triggers
from bonobot.accounts.principals import Principal
from bonobot.core.problems import Conflict, InvalidInput, Problem
from bonobot.ledger.audit.admin_changes import record_change
from mcp_servers.models import Server
from mcp_servers.presets.services import link_preset
from mcp_servers.services import create_server, delete_server, update_server


def apply_config(
    principal: Principal,
    config: WantedConfig,
    *,
    prune: bool = False,
    dry_run: bool = False,
    confirmed: ConfigPlan | None = None,
) -> ConfigPlan:
    """Plan and apply a configuration in one transaction, and return the plan.

    A plan with problems changes nothing, nor does one that fails; its problem is in the returned
    plan. A dry run applies the plan and rolls back, to find the same problems. A plan without
    changes writes nothing. A plan that differs from the `confirmed` one has the problem
    `plan_changed`.
    """
    with transaction.atomic():
        plan = build_plan(principal, config, prune=prune)
        if confirmed is not None and not _is_same_plan(plan, confirmed):
            return replace(plan, problems=(*plan.problems, _build_plan_changed_error()))
        if plan.problems or not plan.changes:
            return plan
        # A savepoint, so that a failed step rolls everything back.
        try:
            with transaction.atomic():
                _apply_plan(principal, plan)
                transaction.set_rollback(dry_run)
        except _ApplyFailed as failure:
            return replace(plan, problems=(failure.problem,))
    return plan


def _is_same_plan(plan: ConfigPlan, confirmed: ConfigPlan) -> bool:
    """Return whether a plan makes the confirmed changes, with policies and servers as then."""
    return (plan.generation, plan.as_dict()) == (confirmed.generation, confirmed.as_dict())


def _build_plan_changed_error() -> Conflict:
    return Conflict(
        "The organization was changed while you read the plan. Nothing was applied.",
        code="plan_changed",
        remedy="Run the command again and check the new plan.",
    )


class _ApplyFailed(Exception):
    """A step failed; the transaction is rolled back."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def _apply_plan(principal: Principal, plan: ConfigPlan) -> None:
    details = {"steps": [step.as_dict() for step in plan.changes]}
    with record_change(
        organization_id=principal.organization_id,
        actor=principal.actor,
        action="configuration_applied",
        resource_type="organization",
        resource_id=str(principal.organization_id),
        details=details,
    ):
        for step in plan.changes:
            try:
                _APPLY_FUNCTIONS[step.kind](principal, step)
            except Problem as problem:
                raise _ApplyFailed(_mark_problem_location(step, problem)) from problem


def _mark_problem_location(step: ConfigPlanStep, problem: Problem) -> Problem:
    entry = step.wanted[1] if isinstance(step.wanted, tuple) else step.wanted
    if entry is not None:
        located: Problem = entry.place.mark(problem)
        return located
    problem.field = f"{step.kind} {step.name}"
    return problem


def _apply_model_endpoint(principal: Principal, step: ConfigPlanStep) -> None:
    if step.action == "remove":
        delete_endpoint(principal, step.row)
        return
    row: ModelEndpoint | None = step.row
    wanted_values = dict(step.wanted.values)
    if (fallback_slug := wanted_values.get("fallback")) is not None:
        endpoints = ModelEndpoint.objects.for_organization(principal.organization_id)
        wanted_values["fallback"] = (
            endpoints.filter(slug=fallback_slug).first() if fallback_slug else None
        )
        if fallback_slug and wanted_values["fallback"] is None:
            raise InvalidInput(
                f"The model endpoint {fallback_slug!r} doesn't exist.",
                field="fallback",
                remedy="Add it under `model_endpoints`, or use an existing model endpoint.",
            )
    stored_spec = build_spec(row) if row else ModelEndpointSpec(name=step.wanted.slug)
    saved_endpoint = save_endpoint(principal, replace(stored_spec, **wanted_values), row)
    if saved_endpoint.slug != step.name:
        saved_endpoint.slug = step.name
        saved_endpoint.save(update_fields=["slug"])


def _apply_server(principal: Principal, step: ConfigPlanStep) -> None:
    if step.action == "remove":
        delete_server(principal, step.row)
        return
    spec = build_server_spec(step.wanted, step.row)
    if step.row is None:
        server = create_server(principal, spec)
    else:
        server = update_server(principal, step.row, spec)
    link_preset(principal, server, step.wanted.preset)


def _apply_agent(principal: Principal, step: ConfigPlanStep) -> None:
    if step.action == "remove":
        delete_agent(principal, step.row)
        return
    agent_entry, endpoints = (
        step.wanted,
        ModelEndpoint.objects.for_organization(principal.organization_id),
    )
    values = {"name": step.row.name if step.row else agent_entry.slug, **agent_entry.values}
    model = endpoints.get(slug=agent_entry.model) if agent_entry.model is not None else None
    spec = AgentSpec(slug=agent_entry.slug, model_endpoint=model, **values)
    if step.row is None:
        create_agent(principal, spec)
    else:
        update_agent(principal, step.row, spec)


def _apply_agent_server(principal: Principal, step: ConfigPlanStep) -> None:
    if step.action == "remove":
        detach_server(principal, step.row.agent, step.row.server)
        return
    agent, agent_server, is_new_server = step.wanted
    pool = Server.objects.for_organization(principal.organization_id).in_organization_pool()
    attach_server(
        principal,
        _get_agent(principal, agent.slug),
        pool.get(name=agent_server.server),
        enabled=agent_server.enabled,
        allowed_tools=agent_server.allowed_tools,
        denied_tools=agent_server.denied_tools,
        allowed_resources=agent_server.allowed_resources,
        allowed_prompts=agent_server.allowed_prompts,
        allows_disabled=is_new_server,
    )


def _apply_callable_agents(principal: Principal, step: ConfigPlanStep) -> None:
    set_callable_agents(
        principal, _get_agent(principal, step.wanted.slug), step.wanted.callable_agents
    )


def _apply_skill(principal: Principal, step: ConfigPlanStep) -> None:
    if step.action == "remove":
        delete_skill(principal, step.row)
    else:
        save_skill(principal, step.wanted.spec, step.row)


def _apply_workflow(principal: Principal, step: ConfigPlanStep) -> None:
    if step.action == "remove":
        delete_workflow(principal, step.row)
    else:
        workflow = save_workflow(principal, step.wanted.spec, step.row)
        if step.wanted.triggers is not None:
            set_triggers(principal, workflow, step.wanted.triggers)


def _apply_agent_policy(principal: Principal, step: ConfigPlanStep) -> None:
    set_policy(principal, _get_agent(principal, step.wanted.slug), step.wanted.policy)


def _apply_organization_policy(principal: Principal, step: ConfigPlanStep) -> None:
    set_policy(principal, step.row, step.wanted.text)


def _apply_agent_draft(principal: Principal, step: ConfigPlanStep) -> None:
    set_draft(principal, _get_agent(principal, step.wanted.slug), step.wanted.draft)


def _apply_organization_draft(principal: Principal, step: ConfigPlanStep) -> None:
    set_draft(principal, step.row, step.wanted.text)


def _apply_organization_budgets(principal: Principal, step: ConfigPlanStep) -> None:
    set_budgets(principal, step.row, step.wanted.lines)


def _apply_server_budgets(principal: Principal, step: ConfigPlanStep) -> None:
    pool = Server.objects.for_organization(principal.organization_id).in_organization_pool()
    set_budgets(principal, pool.get(name=step.wanted.server), step.wanted.lines)


def _apply_agent_budgets(principal: Principal, step: ConfigPlanStep) -> None:
    set_budgets(principal, _get_agent(principal, step.wanted.slug), step.wanted.budgets)


def _get_agent(principal: Principal, slug: str) -> Agent:
    agent: Agent = Agent.objects.for_organization(principal.organization_id).get(slug=slug)
    return agent


_APPLY_FUNCTIONS: dict[str, Callable[[Principal, ConfigPlanStep], None]] = {
    "model_endpoint": _apply_model_endpoint,
    "server": _apply_server,
    "agent": _apply_agent,
    "agent_server": _apply_agent_server,
    "callable_agents": _apply_callable_agents,
    "skill": _apply_skill,
    "workflow": _apply_workflow,
    "policy": _apply_agent_policy,
    "organization_policy": _apply_organization_policy,
    "policy_draft": _apply_agent_draft,
    "organization_policy_draft": _apply_organization_draft,
    "organization_budgets": _apply_organization_budgets,
    "server_budgets": _apply_server_budgets,
    "budgets": _apply_agent_budgets,
}
