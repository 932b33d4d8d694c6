"""Make, change and remove agents and model endpoints: the one way for every surface, audited."""

from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import IntegrityError, models, transaction
from django.utils.text import slugify

from agents.builtin_tools.workspaces import remove_own_folder
from agents.endpoint_rules import EndpointSpec, check_endpoint
from agents.halting import end_sessions
from agents.models import Agent, Approval, ModelEndpoint, Question, ToolPolicy
from agents.toolboxes import checked_tools
from bonobot.ledger.changes import change
from bonobot.lib.masking import MASK
from bonobot.lib.problems import Conflict, Invalid
from bonobot.lib.row_locks import lock
from bonobot.lib.sayings import say
from bonobot.tenancy.models import User
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.models import Server
from mcp_servers.registration import lock_whole

__all__ = [
    "AgentSpec",
    "EndpointSpec",
    "add_agent",
    "alter_agent",
    "give_to",
    "remove_agent",
    "remove_endpoint",
    "save_endpoint",
]


@dataclass(frozen=True, kw_only=True)
class AgentSpec:
    """What a person says about an agent; what is None stays as it is (or at its default)."""

    name: str
    slug: str | None = None
    description: str | None = None
    instructions: str | None = None
    model_endpoint: ModelEndpoint | None = None
    enabled: bool | None = None
    max_turns: int | None = None
    max_calls: int | None = None
    max_run_s: int | None = None
    calls_per_minute: int | None = None
    tool_search_above: int | None = None
    builtin_tools: Any = None
    workspace_folder: str | None = None
    workspace_mib: int | None = None
    workspace_files: int | None = None


def add_agent(principal: Principal, spec: AgentSpec) -> Agent:
    """Make an agent with the policy mode `none`; raises `Conflict` (`name_taken`), `Invalid`."""
    principal.require(Action.MANAGE_AGENTS)
    agent = Agent(organization_id=principal.organization_id)
    agent.max_turns = settings.BONOBOT_TURNS_PER_MESSAGE
    agent.max_calls = settings.BONOBOT_CALLS_PER_MESSAGE
    agent.max_run_s = settings.BONOBOT_RUN_S
    agent.calls_per_minute = settings.BONOBOT_CALLS_PER_MINUTE
    _put(agent, checked_tools(principal, agent, spec))
    agent.slug = agent.slug or slugify(spec.name)[:64]
    if agent.model_endpoint_id is None:
        agent.model_endpoint = _default_endpoint(principal)
    with change(**_what(principal, agent, "agent_added")):
        _save(agent)
        ToolPolicy.objects.create(organization_id=agent.organization_id, agent=agent)
    return agent


def alter_agent(principal: Principal, agent: Agent, spec: AgentSpec) -> Agent:
    """Change an agent; it holds on the very next call and turn.

    Switching it off ends its sessions.
    """
    principal.require(Action.MANAGE_AGENTS)
    changed = _put(agent, checked_tools(principal, agent, spec))
    with change(**_what(principal, agent, "agent_changed", {"changed": changed})):
        _save(agent)
    if "enabled" in changed and not agent.enabled:
        end_sessions(principal, agent.sessions.all(), "The agent was switched off.")
    return agent


def give_to(principal: Principal, agent: Agent, usernames: Collection[str]) -> None:
    """Say which members of the organization may run the agent; raises `Invalid` for strangers."""
    principal.require(Action.MANAGE_AGENTS)
    people = User.objects.filter(
        memberships__organization=agent.organization_id, username__in=usernames
    )
    found = {user.username: user for user in people}
    if strangers := sorted(set(usernames) - found.keys()):
        raise Invalid(
            say("{strangers!r} is no member of this organization.", strangers=strangers[0]),
            field="members",
            remedy="Add them as a member first.",
        )
    with change(**_what(principal, agent, "agent_given", {"members": sorted(found)})):
        lock(Agent.objects.filter(pk=agent.pk))
        agent.members.set(found.values())


def remove_agent(principal: Principal, agent: Agent) -> None:
    """Delete an agent with its sessions, bindings, private servers and its own workspace.

    The audit stays.
    """
    principal.require(Action.MANAGE_AGENTS)
    forget = partial(remove_own_folder, agent.organization_id, agent.pk)
    with change(**_what(principal, agent, "agent_removed")):
        _lock_sessions(agent)
        lock_whole(own := Server.objects.in_scope(agent.pk))
        own.delete()
        agent.delete()
        transaction.on_commit(forget)


def _lock_sessions(agent: Agent) -> None:
    """Have those wait who write what is deleted with an agent's sessions, in their order.

    That is: who answers locks the question and then the session, its holder the session and then
    what belongs to it (3 queries).
    """
    lock(Approval.objects.filter(agent=agent))
    lock(Question.objects.filter(agent=agent))
    lock(agent.sessions.all(), deleting=True)


def save_endpoint(
    principal: Principal, spec: EndpointSpec, endpoint: ModelEndpoint | None = None
) -> ModelEndpoint:
    """Make or change a model endpoint, checked by the rules of its kind.

    Raises `Invalid`, `Conflict` (`name_taken`), `Forbidden`, `EgressDenied`.
    """
    principal.require(Action.MANAGE_AGENTS)
    check_endpoint(principal, spec, endpoint)
    action = "model_endpoint_changed" if endpoint else "model_endpoint_added"
    endpoint = endpoint or ModelEndpoint(organization_id=principal.organization_id)
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.name != "api_key":
            setattr(endpoint, field.name, value)
        elif value != MASK:
            endpoint.api_key = value
    endpoint.slug = endpoint.slug or slugify(spec.name)[:64]
    with change(**_what(principal, endpoint, action)):
        _save(endpoint)
    return endpoint


def remove_endpoint(principal: Principal, endpoint: ModelEndpoint) -> None:
    """Delete a model endpoint; raises `Conflict` (code `in_use`) while something thinks with it."""
    principal.require(Action.MANAGE_AGENTS)
    users = [*endpoint.agents.values_list("name", flat=True)[:5]]
    users += endpoint.fallback_of.values_list("name", flat=True)[:5]
    if users:
        raise Conflict(
            say("The model endpoint is used by: {users}.", users=", ".join(users)),
            code="in_use",
            remedy="Give these another model endpoint first.",
        )
    with change(**_what(principal, endpoint, "model_endpoint_removed")):
        endpoint.delete()


def _put(agent: Agent, spec: AgentSpec) -> list[str]:
    """Set what the specification says; return the names of the fields that changed."""
    said = {f.name: getattr(spec, f.name) for f in fields(spec)}
    changed = []
    for name, value in said.items():
        column = f"{name}_id" if name == "model_endpoint" else name
        given = value.pk if name == "model_endpoint" and value else value
        if value is not None and getattr(agent, column) != given:
            setattr(agent, name, value)
            changed.append(name)
    if agent.model_endpoint_id and agent.model_endpoint.organization_id != agent.organization_id:
        raise Invalid(
            "There is no such model endpoint here.",
            field="model_endpoint",
            remedy="Choose one of this organization's endpoints.",
        )
    return changed


def _default_endpoint(principal: Principal) -> ModelEndpoint:
    mine = ModelEndpoint.objects.for_organization(principal.organization_id)
    if found := mine.order_by("created_at").first():
        return found
    raise Invalid(
        "The agent needs a model endpoint, and the organization has none.",
        code="no_model_endpoint",
        field="model_endpoint",
        remedy="Make a model endpoint first; the kind `offline` needs nothing.",
    )


def _save(row: models.Model) -> None:
    """Validate and save; the first field that doesn't hold is named."""
    try:
        row.full_clean()
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        taken = "unique" in {e.code for e in error.error_dict.get(field, [])} or field == "__all__"
        problem = Conflict if taken else Invalid
        raise problem(
            f"{messages[0]}",
            code="name_taken" if taken else "invalid",
            field="name" if field == "__all__" else field,
            remedy="Change this field.",
        ) from None
    try:
        row.save()
    except IntegrityError:
        raise Conflict(
            "There is one of this name already.",
            code="name_taken",
            field="name",
            remedy="Choose another name.",
        ) from None


def _what(
    principal: Principal, row: Any, action: str, details: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "organization_id": row.organization_id,
        "actor": principal.actor,
        "action": action,
        "resource_type": row._meta.model_name,
        "resource_id": str(row.pk),
        "resource_name": row.name,
        "details": details or {},
    }
