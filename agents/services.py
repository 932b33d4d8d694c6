"""Create, update and delete agents and attach servers to them, audited; used by every surface."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.exceptions import ValidationError
from django.utils.text import slugify

from agents.approvals.ended_requests import Cancellation
from agents.approvals.services import cancel_pending_calls
from agents.builtin_tools.toolset_options import clean_toolset_spec
from agents.builtin_tools.workspaces import clean_workspace_spec, delete_own_folder
from agents.flow_labels.text_labels import label_text
from agents.models import (
    Agent,
    AgentServer,
    Approval,
    ElicitationRequest,
    ModelEndpoint,
    Session,
    ToolPolicy,
)
from agents.policies.decision_texts import explain_disabled_server
from agents.sessions.output_schemas import check_output_schema
from agents.sessions.services import cancel_sessions
from bonobot.accounts.deletions import keep_deleted_rows
from bonobot.accounts.models import Deletion, Invitation, User
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.changed_fields import save_validated
from bonobot.core.db.transactions import lock_rows
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput, NotFound
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from bonobot.ledger.types import Actor
from mcp_servers.audit import build_server_event
from mcp_servers.models import Server
from mcp_servers.services import delete_server, lock_server_rows

# What models and other agents read of an agent.
MODEL_TEXTS = frozenset({"name", "description", "instructions", "output_schema"})


@dataclass(frozen=True, kw_only=True)
class AgentSpec:
    """Values of an agent; None leaves a value unchanged (or at its default)."""

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
    tools_in_prompt: bool | None = None
    # An empty one deletes it.
    output_schema: Mapping[str, Any] | None = None
    builtin_tools: Any = None
    workspace_folder: str | None = None
    workspace_mib: int | None = None
    workspace_files: int | None = None


def create_agent(principal: Principal, spec: AgentSpec) -> Agent:
    """Create an agent with the policy mode `none`; raises `Conflict`, `InvalidInput`."""
    principal.require(Action.MANAGE_AGENTS)
    agent = Agent(organization_id=principal.organization_id)
    agent.max_turns = settings.BONOBOT_TURNS_PER_MESSAGE
    agent.max_calls = settings.BONOBOT_CALLS_PER_MESSAGE
    agent.max_run_s = settings.BONOBOT_RUN_S
    agent.calls_per_minute = settings.BONOBOT_CALLS_PER_MINUTE
    spec = clean_toolset_spec(principal, agent, spec)
    _apply_agent_spec(agent, clean_workspace_spec(principal, agent, spec))
    agent.slug = agent.slug or slugify(spec.name)[:64]
    if agent.model_endpoint_id is None:
        agent.model_endpoint = _get_default_endpoint(principal)
    with record_change(**_build_audit_fields(principal, agent, "agent_created")):
        save_validated(agent)
        ToolPolicy.objects.create(organization_id=agent.organization_id, agent=agent)
        label_text(principal, agent)
    return agent


def update_agent(principal: Principal, agent: Agent, spec: AgentSpec) -> Agent:
    """Update an agent; effective on the next call and turn.

    Disabling it ends its sessions.
    """
    principal.require(Action.MANAGE_AGENTS)
    spec = clean_toolset_spec(principal, agent, spec)
    changed_names = _apply_agent_spec(agent, clean_workspace_spec(principal, agent, spec))
    with record_change(
        **_build_audit_fields(principal, agent, "agent_updated", {"changed": changed_names})
    ):
        save_validated(agent)
        if MODEL_TEXTS & {*changed_names}:
            label_text(principal, agent, is_changed="instructions" in changed_names)
    if "enabled" in changed_names and not agent.enabled:
        cancel_sessions(principal, agent.sessions.all(), "The agent was disabled.")
    return agent


def set_agent_members(principal: Principal, agent: Agent, usernames: Collection[str]) -> None:
    """Set which members may run the agent; raises `InvalidInput` for non-members."""
    principal.require(Action.MANAGE_AGENTS)
    users = User.objects.filter(
        memberships__organization=agent.organization_id, username__in=usernames
    )
    users_by_name = {user.username: user for user in users}
    if unknown_names := sorted(set(usernames) - users_by_name.keys()):
        raise InvalidInput(
            format_message("{name!r} isn't a member of this organization.", name=unknown_names[0]),
            field="members",
            remedy="Add the person as a member first.",
        )
    with record_change(
        **_build_audit_fields(
            principal, agent, "agent_access_updated", {"members": sorted(users_by_name)}
        )
    ):
        lock_rows(Agent.objects.filter(pk=agent.pk))
        agent.members.set(users_by_name.values())


def delete_agent(principal: Principal, agent: Agent) -> Deletion | None:
    """Delete an agent with its sessions, private servers and own workspace.

    Its audit entries stay. Returns the deletion if the agent can be restored; its workspace is
    deleted when that is no longer possible.
    """
    principal.require(Action.MANAGE_AGENTS)
    with record_change(**_build_audit_fields(principal, agent, "agent_deleted")):
        _lock_sessions(agent)
        cancellation = Cancellation(principal.actor, "The agent was deleted.")
        cancel_pending_calls(Approval.objects.filter(agent=agent), cancellation)
        lock_server_rows(private_servers := Server.objects.in_scope(agent.pk))
        deletion = keep_deleted_rows(principal, "agent", agent, *private_servers)
        private_servers.delete()
        agent.delete()
    return deletion


def cancel_restored_sessions(principal: Principal, agent_id: str) -> None:
    """Cancel the sessions that weren't finished when their agent was deleted."""
    sessions = Session.objects.filter(agent=UUID(agent_id))
    cancel_sessions(principal, sessions, "The agent was deleted and restored.")


def delete_workspace(organization_id: UUID, agent_id: str) -> None:
    delete_own_folder(organization_id, UUID(agent_id))


def _lock_sessions(agent: Agent) -> None:
    """Lock the rows that are deleted with an agent's sessions.

    Uses the lock order of other writers, requests before sessions, to avoid deadlocks (3 queries).
    """
    lock_rows(Approval.objects.filter(agent=agent))
    lock_rows(ElicitationRequest.objects.filter(agent=agent))
    lock_rows(agent.sessions.all(), deleting=True)


def _apply_agent_spec(agent: Agent, spec: AgentSpec) -> list[str]:
    """Apply the specification; return the names of the fields that changed."""
    values = {f.name: getattr(spec, f.name) for f in fields(spec)}
    if spec.output_schema:
        check_output_schema(spec.output_schema)
    changed_names = []
    for name, value in values.items():
        column = f"{name}_id" if name == "model_endpoint" else name
        new_value = value.pk if name == "model_endpoint" and value else value
        if value is not None and getattr(agent, column) != new_value:
            setattr(agent, name, value)
            changed_names.append(name)
    if agent.model_endpoint_id and agent.model_endpoint.organization_id != agent.organization_id:
        raise InvalidInput(
            "The model endpoint doesn't exist.",
            field="model_endpoint",
            remedy="Choose one of this organization's endpoints.",
        )
    return changed_names


def _get_default_endpoint(principal: Principal) -> ModelEndpoint:
    endpoints = ModelEndpoint.objects.for_organization(principal.organization_id)
    if endpoint := endpoints.order_by("created_at").first():
        return endpoint
    raise InvalidInput(
        "The agent needs a model endpoint, and the organization has none.",
        code="no_model_endpoint",
        field="model_endpoint",
        remedy="Create a model endpoint first. The kind `offline` needs no settings.",
    )


def _build_audit_fields(
    principal: Principal, row: Any, action: str, details: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "actor": principal.actor,
        "action": action,
        **describe_row(row._meta.model_name, row),
        "details": details or {},
    }


def attach_server(
    principal: Principal,
    agent: Agent,
    server: Server,
    *,
    enabled: bool = True,
    allowed_tools: Sequence[str] = (),
    denied_tools: Sequence[str] = (),
    allowed_resources: Sequence[str] | None = None,
    allowed_prompts: Sequence[str] | None = None,
    allows_disabled: bool = False,
) -> AgentServer:
    """Attach a server to an agent, or update what the agent gets of it; idempotent.

    Allowed resources and prompts stay unchanged if they are None. `allows_disabled` is for a
    server that the same file created disabled.
    Raises `NotFound` for another organization's server, `Conflict` (`server_disabled`) for a
    disabled one that isn't attached yet, `InvalidInput` for invalid lists.
    """
    principal.require(Action.MANAGE_AGENTS)
    if server.organization_id != agent.organization_id:
        raise NotFound(
            format_message("The server {name!r} doesn't exist.", name=str(server.pk)),
            field="server_id",
        )
    attached_server = agent.agent_servers.filter(server=server).first()
    if attached_server is None:
        if not allows_disabled:
            require_attachable(server)
        attached_server = AgentServer(
            organization_id=agent.organization_id, agent=agent, server=server
        )
    attached_server.enabled = enabled
    attached_server.allowed_tools = list(allowed_tools)
    attached_server.denied_tools = list(denied_tools)
    if allowed_resources is not None:
        attached_server.allowed_resources = list(allowed_resources)
    if allowed_prompts is not None:
        attached_server.allowed_prompts = list(allowed_prompts)
    _clean_attached_server(attached_server)
    details = {
        "server": server.name,
        "allowed": attached_server.allowed_tools,
        "denied": attached_server.denied_tools,
        "resources": attached_server.allowed_resources,
        "prompts": attached_server.allowed_prompts,
    }
    with record_change(
        **_build_server_audit_fields(principal, agent, server, "server_attached", details)
    ):
        attached_server.save()
    return attached_server


def require_attachable(server: Server) -> None:
    """Raise `Conflict` for a disabled pool server: its tools would appear when it is enabled.

    A private server can be created disabled, which attaches it.
    """
    if not server.enabled and not server.private_to_agent:
        raise Conflict(
            explain_disabled_server(server.name).reason,
            code="server_disabled",
            field="server_id",
            remedy="Disabled servers can't be attached. Enable it first.",
        )


def set_attachment_enabled(
    principal: Principal, agent: Agent, server: Server, *, enabled: bool
) -> AgentServer:
    """Enable or disable a server for one agent, keeping its lists; effective on the next call.

    Raises `NotFound` (code `not_attached`) when the agent doesn't have the server.
    """
    attached_server = agent.agent_servers.filter(server=server).first()
    if attached_server is None:
        raise NotFound(
            format_message(
                "The server `{server}` isn't attached to the agent `{agent_slug}`.",
                agent_slug=agent.slug,
                server=server.name,
            ),
            code="not_attached",
            field="server_id",
            remedy="Attach the server first.",
        )
    if attached_server.enabled == enabled:
        principal.require(Action.MANAGE_AGENTS)
        return attached_server
    return attach_server(
        principal,
        agent,
        server,
        enabled=enabled,
        allowed_tools=attached_server.allowed_tools,
        denied_tools=attached_server.denied_tools,
    )


def detach_server(principal: Principal, agent: Agent, server: Server) -> Deletion | None:
    """Detach a server from an agent; a server private to the agent is deleted.

    Returns the deletion if it can be restored.
    """
    principal.require(Action.MANAGE_AGENTS)
    attached_server = agent.agent_servers.filter(server=server).first()
    if attached_server is None:
        raise NotFound(
            format_message(
                "This server isn't attached to the agent `{agent_slug}`.", agent_slug=agent.slug
            ),
            field="server_id",
            remedy="List the agent's servers.",
        )
    with record_change(**_build_server_audit_fields(principal, agent, server, "server_detached")):
        if server.scope_id == agent.pk:
            return delete_server(principal, server)
        deletion = keep_deleted_rows(principal, "agent_server", attached_server)
        attached_server.delete()
    return deletion


def get_attached_server(agent: Agent, server_id: Any) -> Server:
    """Return a server that is attached to `agent`; raises `NotFound`."""
    server: Server = Server.objects.get_or_404(agent.organization_id, pk=server_id)
    if not agent.agent_servers.filter(server=server).exists():
        raise NotFound(
            format_message(
                "The server {server_id!r} isn't attached to the agent `{agent_slug}`.",
                agent_slug=agent.slug,
                server_id=str(server_id),
            ),
            field="server_id",
            remedy="List the agent's servers, or attach this one first.",
        )
    return server


def require_private_server(server: Server) -> None:
    """Raise `Conflict` for a pool server, which can't be changed through an agent."""
    if not server.private_to_agent:
        raise Conflict(
            format_message(
                "`{server}` is a shared server of the organization.", server=server.name
            ),
            code="pool_server",
            remedy=format_message(
                "Change it at /api/mcp-servers/{server_pk}.", server_pk=server.pk
            ),
        )


def _clean_attached_server(attached_server: AgentServer) -> None:
    try:
        attached_server.clean()
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        raise InvalidInput(str(messages[0]), field=field) from None


def _build_server_audit_fields(
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
        "event": build_server_event(server),
    }


def grant_invited_agents(invitation: Invitation, user: User) -> None:
    """Add a new member to the agents of their invitation, if those still exist."""
    agents = Agent.objects.for_organization(invitation.organization_id)
    for agent in agents.filter(pk__in=invitation.agent_ids):
        with record_change(
            **describe_row("agent", agent),
            actor=Actor(kind="user", id=str(user.pk), label=user.get_username()),
            action="agent_access_updated",
            details={"joined": user.get_username(), "invited_by": invitation.invited_by},
        ):
            agent.members.add(user)
