"""Give servers to agents and take them away: the one way for every surface, audited (D2)."""

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ValidationError

from agents.models import Agent, Binding
from bonobot.ledger.changes import change
from bonobot.lib.problems import Conflict, Invalid, NotFound
from bonobot.lib.sayings import say
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.models import Server
from mcp_servers.registration import remove


def bind(
    principal: Principal,
    agent: Agent,
    server: Server,
    *,
    enabled: bool = True,
    allowed_tools: Sequence[str] = (),
    denied_tools: Sequence[str] = (),
    allowed_resources: Sequence[str] | None = None,
    allowed_prompts: Sequence[str] | None = None,
) -> Binding:
    """Give `agent` a server, or change how much of it; again is harmless.

    What is ticked of resources and prompts stays as it is where it isn't said.
    Raises `NotFound` for another organization's server, `Invalid` for lists that don't hold.
    """
    principal.require(Action.MANAGE_AGENTS)
    if server.organization_id != agent.organization_id:
        raise NotFound(
            say("There is no server {server_pk!r} here.", server_pk=str(server.pk)),
            field="server_id",
        )
    binding = agent.bindings.filter(server=server).first() or Binding(
        organization_id=agent.organization_id, agent=agent, server=server
    )
    binding.enabled = enabled
    binding.allowed_tools = list(allowed_tools)
    binding.denied_tools = list(denied_tools)
    if allowed_resources is not None:
        binding.allowed_resources = list(allowed_resources)
    if allowed_prompts is not None:
        binding.allowed_prompts = list(allowed_prompts)
    _clean(binding)
    details = {
        "server": server.name,
        "allowed": binding.allowed_tools,
        "denied": binding.denied_tools,
        "resources": binding.allowed_resources,
        "prompts": binding.allowed_prompts,
    }
    with change(**_what(principal, agent, server, "server_bound", details)):
        binding.save()
    return binding


def switch_binding(principal: Principal, agent: Agent, server: Server, *, enabled: bool) -> Binding:
    """Switch a server on or off for one agent, its lists kept; it holds on the very next call.

    Raises `NotFound` (code `not_bound`) when the agent doesn't have the server.
    """
    binding = agent.bindings.filter(server=server).first()
    if binding is None:
        raise NotFound(
            say(
                "The agent `{agent_slug}` does not have the server `{server}`.",
                agent_slug=agent.slug,
                server=server.name,
            ),
            code="not_bound",
            field="server_id",
            remedy="Bind it first.",
        )
    if binding.enabled == enabled:
        principal.require(Action.MANAGE_AGENTS)
        return binding
    return bind(
        principal,
        agent,
        server,
        enabled=enabled,
        allowed_tools=binding.allowed_tools,
        denied_tools=binding.denied_tools,
    )


def unbind(principal: Principal, agent: Agent, server: Server) -> None:
    """Take a server from an agent; a server private to the agent is removed with it."""
    principal.require(Action.MANAGE_AGENTS)
    bound = agent.bindings.filter(server=server)
    if not bound.exists():
        raise NotFound(
            say("The agent `{agent_slug}` does not have this server.", agent_slug=agent.slug),
            field="server_id",
            remedy="List the agent's servers.",
        )
    with change(**_what(principal, agent, server, "server_unbound")):
        bound.delete()
        if server.scope_id == agent.pk:
            remove(principal, server)


def bound_server(agent: Agent, server_id: Any) -> Server:
    """Return a server that `agent` has; raises `NotFound` for every other."""
    server: Server = Server.objects.get_or_404(agent.organization_id, pk=server_id)
    if not agent.bindings.filter(server=server).exists():
        raise NotFound(
            say(
                "The agent `{agent_slug}` does not have the server {server_id!r}.",
                agent_slug=agent.slug,
                server_id=str(server_id),
            ),
            field="server_id",
            remedy="List the agent's servers, or bind this one first.",
        )
    return server


def refuse_pool_write(server: Server) -> None:
    """Raise `Conflict` for a change of a pool server through an agent."""
    if not server.private_to_agent:
        raise Conflict(
            say("`{server}` belongs to the organization's pool.", server=server.name),
            code="pool_server",
            remedy=say("Change it at /api/mcp-servers/{server_pk}.", server_pk=server.pk),
        )


def _clean(binding: Binding) -> None:
    try:
        binding.clean()
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        raise Invalid(str(messages[0]), field=field) from None


def _what(
    principal: Principal,
    agent: Agent,
    server: Server,
    action: str,
    details: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "organization_id": agent.organization_id,
        "actor": principal.actor,
        "action": action,
        "resource_type": "agent",
        "resource_id": str(agent.pk),
        "resource_name": agent.name,
        "details": {"server_id": str(server.pk), "server": server.name} | (details or {}),
    }
