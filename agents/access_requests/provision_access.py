"""Set up what an approved access request asks for, and nothing else.

What is there already isn't created or changed again.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from agents.agent_tools.services import list_settable_tools, save_settings
from agents.agent_tools.settings import (
    Setting,
    find_inherited_setting,
    get_tool_key,
    read_tool_setting,
)
from agents.calls.snapshots import SnapshotTool, get_snapshot_cache
from agents.models import AccessRequest, Agent
from agents.services import (
    AgentSpec,
    attach_server,
    create_agent,
    set_agent_members,
    set_attachment_enabled,
)
from bonobot.accounts.models import Membership
from bonobot.accounts.principals import Principal
from bonobot.core.db.transactions import lock_rows
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, NotFound
from mcp_servers.models import Preset, Server
from mcp_servers.presets.services import build_server_spec
from mcp_servers.services import create_server

MAX_NAMES_SHOWN = 5


def provision_access(principal: Principal, access_request: AccessRequest) -> str:
    """Attach the server, allow the tool, or give the requester the agent; return its name.

    Raises what the same change by hand raises, `NotFound` (`unknown_target`), and
    `Conflict` (`ambiguous_target`, `tool_is_off`).
    """
    if access_request.kind == AccessRequest.Kind.AGENT or access_request.agent is None:
        return _provision_agent(principal, access_request)
    if access_request.kind == AccessRequest.Kind.SERVER:
        return _provision_server(principal, access_request.agent, access_request)
    return _provision_tool(principal, access_request.agent, access_request)


def find_server(access_request: AccessRequest) -> Server | None:
    """Return the server of the organization that a request names, by slug or name."""
    pool = Server.objects.for_organization(access_request.organization_id).in_organization_pool()
    server: Server | None = _find_by_name(access_request, pool)
    return server


def find_preset(access_request: AccessRequest) -> Preset | None:
    """Return the preset that a request names, by slug or name."""
    organization_id, target = access_request.organization_id, access_request.target
    by_slug: Preset | None = Preset.objects.find_by_slug(organization_id, target.lower())
    available = Preset.objects.available_to(organization_id)
    return by_slug or _find_by_name(access_request, available)


def find_agent(access_request: AccessRequest) -> Agent | None:
    """Return the agent that a request names, by slug or name."""
    agents = Agent.objects.for_organization(access_request.organization_id)
    agent: Agent | None = _find_by_name(access_request, agents)
    return agent


def find_tool(access_request: AccessRequest, agent: Agent) -> SnapshotTool | None:
    """Return the agent's tool that a request names; a server's own name if only one has it."""
    target = access_request.target
    tools = list_settable_tools(get_snapshot_cache().load_current("agent", agent.pk))
    by_name = [tool for tool in tools if tool.name == target]
    matches = by_name or [tool for tool in tools if tool.facts.own_name == target]
    return _get_only_match(access_request, [(tool.name, tool) for tool in matches])


def _find_by_name(access_request: AccessRequest, rows: Any) -> Any:
    """Return the row with this slug, else the only one with this name; None if there is none.

    Raises `Conflict` if several have the name: the approver must know which one is meant.
    """
    target = access_request.target
    matches = list(rows.filter(slug=target.lower())[:1])
    matches = matches or list(rows.filter(name__iexact=target).order_by("slug"))
    return _get_only_match(access_request, [(row.slug, row) for row in matches])


def _get_only_match(access_request: AccessRequest, matches: Sequence[tuple[str, Any]]) -> Any:
    if len(matches) > 1:
        names = ", ".join(name for name, _match in matches[:MAX_NAMES_SHOWN])
        raise Conflict(
            format_message("Several are named {target!r}.", target=access_request.target),
            code="ambiguous_target",
            remedy=format_message(
                "Deny the request, and tell the requester to use one of: {names}.", names=names
            ),
        )
    return matches[0][1] if matches else None


def _provision_server(principal: Principal, agent: Agent, access_request: AccessRequest) -> str:
    server = find_server(access_request)
    if server is None:
        preset = find_preset(access_request)
        if preset is None:
            raise _build_unknown_error(
                access_request, "Add the server or a preset with this name, then approve."
            )
        server = create_server(principal, build_server_spec(principal, preset, {}), preset=preset)
    attached_server = agent.agent_servers.filter(server=server).first()
    if attached_server is None:
        attach_server(principal, agent, server)
    elif not attached_server.enabled:
        set_attachment_enabled(principal, agent, server, enabled=True)
    return server.name


def _provision_tool(principal: Principal, agent: Agent, access_request: AccessRequest) -> str:
    """Allow a tool unless its setting is ask or allow already.

    An explicit *Off* stays: an approval is about the request, not about that decision.
    """
    tool = find_tool(access_request, agent)
    if tool is None:
        raise _build_unknown_error(
            access_request, "Attach the tool's server to the agent, then approve."
        )
    stored = get_snapshot_cache().load_current("agent", agent.pk).effective_policy
    key = get_tool_key(tool.facts)
    own_setting = read_tool_setting(key, stored)
    if own_setting is Setting.OFF:
        raise Conflict(
            format_message("{tool!r} is set to off for {agent}.", tool=tool.name, agent=agent.slug),
            code="tool_is_off",
            remedy="Set it to ask or allow on the agent's page, or deny the request.",
        )
    setting = own_setting or find_inherited_setting(key, stored.policy)
    if setting not in (Setting.ASK, Setting.ALLOW):
        save_settings(principal, agent, {key: Setting.ALLOW}, {})
    return tool.name


def _provision_agent(principal: Principal, access_request: AccessRequest) -> str:
    """Give a person the agent, which is created if there is none with this name."""
    agent = find_agent(access_request)
    if agent is None:
        agent = create_agent(principal, AgentSpec(name=access_request.target))
    lock_rows(Agent.objects.filter(pk=agent.pk))  # the members must not change in between
    members = set(agent.members.values_list("username", flat=True))
    if access_request.requested_by_kind == "user":
        requester = Membership.objects.filter(
            organization_id=access_request.organization_id,
            user=UUID(access_request.requested_by_id),
        ).values_list("user__username", flat=True)
        if not members.issuperset(requester):
            set_agent_members(principal, agent, members.union(requester))
    return agent.slug


def _build_unknown_error(access_request: AccessRequest, remedy: str) -> NotFound:
    return NotFound(
        format_message(
            "No {kind} is named {target!r}.",
            kind=access_request.kind,
            target=access_request.target,
        ),
        code="unknown_target",
        remedy=remedy,
    )
