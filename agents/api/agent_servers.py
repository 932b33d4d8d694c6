"""REST of attached servers: /agents/{id}/mcp-servers.

Private servers belong to the agent; pool servers are attached to it and changed elsewhere.
"""

from typing import Any

from django.db import transaction
from django.db.models import F, Q
from drf_spectacular.utils import (
    PolymorphicProxySerializer,
    extend_schema_field,
)
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentView
from agents.models import Agent, AgentServer
from agents.policies.rules import EVERYTHING, clean_patterns
from agents.services import (
    attach_server,
    detach_server,
    get_attached_server,
    require_private_server,
)
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, set_not_found_field
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import VersionedBody
from mcp_servers.api.presets import create_server_from_preset
from mcp_servers.api.serializers import (
    AddServerBody,
    CreateServerBody,
    PresetServerBody,
    ServerDetailSerializer,
    ServerTestSerializer,
    build_spec,
)
from mcp_servers.api.servers import (
    add_server_annotations,
    discover_and_approve,
    discover_server,
    take_approve_option,
)
from mcp_servers.models import Server
from mcp_servers.openapi.select_operations import complete_spec
from mcp_servers.services import create_server, update_server

ALLOWED_TOOLS_HELP = (
    "Glob patterns for the server's tool names: at least one, or `*` for all tools, "
    "including tools added later."
)


SHARE_FIELDS = ("allowed_tools", "denied_tools", "allowed_resources", "allowed_prompts")


def _build_globs_field(
    help_text: str = "Glob patterns for the server's tool names.",
) -> serializers.ListField:
    return serializers.ListField(
        child=serializers.CharField(max_length=512),
        required=False,
        max_length=1_000,
        help_text=help_text,
    )


class AgentServerBody(VersionedBody):
    """What an agent can use of a server; omitted fields are unchanged."""

    enabled = serializers.BooleanField(required=False)
    allowed_tools = _build_globs_field(ALLOWED_TOOLS_HELP)
    denied_tools = _build_globs_field()
    allowed_resources = _build_globs_field(
        "Glob patterns for URIs and URI templates; `*` selects all. A pattern for the URI "
        "itself, such as `file:///srv/docs/*`, lets the template's variables contain `/`."
    )
    allowed_prompts = _build_globs_field("Glob patterns for prompt names; `*` selects all.")


class ReplaceAgentServerBody(CreateServerBody):
    """The configuration of a private server, and what its agent can use of it."""

    allowed_tools = _build_globs_field(ALLOWED_TOOLS_HELP)
    denied_tools = _build_globs_field()
    allowed_resources = _build_globs_field("Glob patterns for URIs; `*` selects all.")
    allowed_prompts = _build_globs_field("Glob patterns for prompt names; `*` selects all.")


class AttachServerBody(AgentServerBody):
    """A pool server to attach to an agent; if it is already attached, the attachment is updated."""

    server_id = serializers.UUIDField()


class AgentServerSerializer(ServerDetailSerializer):
    """A server attached to an agent."""

    body_classes = (CreateServerBody, AgentServerBody)

    agent_id = serializers.SerializerMethodField(help_text="The agent in the request.")
    enabled = serializers.SerializerMethodField(  # type: ignore[assignment]  # more is known here
        help_text="True if the server is enabled, and enabled for this agent."
    )
    allowed_tools = serializers.SerializerMethodField(
        help_text="`*` means all tools, including tools added later."
    )
    denied_tools = serializers.SerializerMethodField(
        help_text="Glob patterns for the server's tool names. Empty: none."
    )
    allowed_resources = serializers.SerializerMethodField(help_text="Empty: none.")
    allowed_prompts = serializers.SerializerMethodField(help_text="Empty: none.")
    installation = None  # type: ignore[assignment]  # DRF moves it
    stderr = None  # type: ignore[assignment]  # shown with the server itself

    @extend_schema_field({"type": "string", "format": "uuid"})
    def get_agent_id(self, server: Server) -> str:
        """Return the agent that was asked for."""
        return str(self._get_agent_server(server).agent_id)

    def get_enabled(self, server: Server) -> bool:
        """Tell whether the agent can use it."""
        return server.enabled and self._get_agent_server(server).enabled

    def get_allowed_tools(self, server: Server) -> list[str]:
        """Return the glob patterns of allowed tools."""
        return self._get_agent_server(server).allowed_tools or [EVERYTHING]

    def get_denied_tools(self, server: Server) -> list[str]:
        return self._get_agent_server(server).denied_tools

    def get_allowed_resources(self, server: Server) -> list[str]:
        """Return the glob patterns of allowed resources and templates."""
        return self._get_agent_server(server).allowed_resources

    def get_allowed_prompts(self, server: Server) -> list[str]:
        """Return the glob patterns of allowed prompts."""
        return self._get_agent_server(server).allowed_prompts

    def _get_agent_server(self, server: Server) -> AgentServer:
        agent_server: AgentServer = self.context["agent_servers"][server.pk]
        return agent_server


CREATE_BODIES = PolymorphicProxySerializer(
    component_name="AgentServerToAdd",
    serializers=[AddServerBody, PresetServerBody, AttachServerBody],
    resource_type_field_name=None,
)


class AgentServerView(AgentView):
    """Base class for the servers attached to an agent."""

    def get_attached_server(self, agent: Agent, server_id: str) -> Server:
        """Return a server that is attached to the agent; raises `NotFound`."""
        with set_not_found_field("server_id"):
            return get_attached_server(agent, server_id)

    def save_attachment(
        self, agent: Agent, server: Server, existing: AgentServer | None, body: dict[str, Any]
    ) -> None:
        """Attach the server, or update the attachment with the values in the body."""
        if "allowed_tools" in body:
            tool_names = set(server.definitions.tools().values_list("name", flat=True))
            body["allowed_tools"] = clean_patterns(body["allowed_tools"], tool_names)
        stored_values = {} if existing is None else _to_dict(existing)
        attach_server(self.principal, agent, server, **(stored_values | body))

    def show_server(self, agent: Agent, server: Server, *, status: int = 200) -> Response:
        """Return the response with the server as it is attached now."""
        self.report_read([agent])  # the patterns of an attachment have the agent's labels
        rows = add_server_annotations(Server.objects.filter(pk=server.pk), tools=True)
        attached_by_server = {
            row.server_id: row for row in agent.agent_servers.filter(server=server)
        }
        return self.respond_row(
            rows.get(), AgentServerSerializer, status=status, agent_servers=attached_by_server
        )


class AgentServerListView(AgentServerView):
    """All servers of an agent."""

    rules = {"GET": READ, "POST": Action.MANAGE_AGENTS}
    agent_token_methods = ("GET",)
    queryset = Server.objects.none()
    ordering = ("name", "pk")
    orderings = ("name", "slug", "status", "created_at", "updated_at")

    @describe_operation("list_agent_servers", answer=AgentServerSerializer(many=True))
    def get(self, request: object, agent_id: str) -> Response:
        """List an agent's servers: its private servers and attached pool servers."""
        agent = self.get_agent(agent_id)
        self.report_read([agent])
        attached_by_server = {row.server_id: row for row in agent.agent_servers.all()}
        rows = add_server_annotations(Server.objects.filter(pk__in=attached_by_server), tools=True)
        return self.respond_page(rows, AgentServerSerializer, agent_servers=attached_by_server)

    @describe_operation(
        "attach_server",
        body=CREATE_BODIES,
        answer=AgentServerSerializer,
        status=(200, 201),
        asks=True,
    )
    def post(self, request: object, agent_id: str) -> Response:
        """Attach a server to an agent.

        With `server_id`, attach a pool server. If it is already attached, the attachment is updated
        and the status is 200. With a configuration or a `preset`, create a server that is private
        to the agent. For a pool server, `allowed_tools` selects the agent's tools; if it is
        omitted, the agent gets all tools. With `approve`, a created server is discovered at once
        and its definitions are approved, except suspicious ones.
        """
        agent = self.get_agent(agent_id)
        if "server_id" in self.list_body_fields():
            return self._attach_pool_server(agent, self.read_body(AttachServerBody))
        is_preset = "preset" in self.list_body_fields()
        body = self.read_body(PresetServerBody if is_preset else AddServerBody)
        approves = take_approve_option(self.principal, body)
        with transaction.atomic():
            if is_preset:
                server = create_server_from_preset(self.principal, body, scope_id=agent.pk)
            else:
                spec = complete_spec(self.principal, build_spec(body))
                server = create_server(self.principal, spec, scope_id=agent.pk)
            attach_server(self.principal, agent, server)
        if approves:
            discover_and_approve(self.principal, server)
        return self.show_server(agent, server, status=201)

    def _attach_pool_server(self, agent: Agent, body: dict[str, Any]) -> Response:
        server_id = body.pop("server_id")
        is_available = Q(scope_id=F("organization_id")) | Q(scope_id=agent.pk)
        # Another agent's private server is not found.
        server = self.get_row(Server, Server.objects.filter(is_available), server_id=server_id)
        existing = agent.agent_servers.filter(server=server).first()
        self.save_attachment(agent, server, existing, body)
        return self.show_server(agent, server, status=201 if existing is None else 200)


class AgentServerDetailView(AgentServerView):
    """One server of an agent."""

    rules = {
        "GET": READ,
        "PUT": Action.MANAGE_AGENTS,
        "PATCH": Action.MANAGE_AGENTS,
        "DELETE": Action.MANAGE_AGENTS,
    }
    agent_token_methods = ("GET",)

    @describe_operation("get_agent_server", answer=AgentServerSerializer)
    def get(self, request: object, agent_id: str, server_id: str) -> Response:
        """Get a server of an agent with its tools; secrets are masked."""
        agent = self.get_agent(agent_id)
        return self.show_server(agent, self.get_attached_server(agent, server_id))

    @describe_operation(
        "replace_agent_server", body=ReplaceAgentServerBody, answer=AgentServerSerializer, asks=True
    )
    def put(self, request: object, agent_id: str, server_id: str) -> Response:
        """Replace the configuration of an agent's private server.

        A response of GET can be sent back: read-only fields are ignored. To change a pool server,
        use `/mcp-servers`.
        """
        agent = self.get_agent(agent_id)
        server = self.get_attached_server(agent, server_id)
        require_private_server(server)
        body = self.read_body(ReplaceAgentServerBody)
        shares = {name: body.pop(name) for name in SHARE_FIELDS if name in body}
        spec = build_spec(body, server)
        update_server(self.principal, server, complete_spec(self.principal, spec, server))
        if shares:
            self.save_attachment(agent, server, agent.agent_servers.get(server=server), shares)
        return self.show_server(agent, server)

    @describe_operation("update_agent_server", body=AgentServerBody, answer=AgentServerSerializer)
    def patch(self, request: object, agent_id: str, server_id: str) -> Response:
        """Update an attached server: enable or disable it, or select its tools.

        Effective on the next call, including in running sessions.
        """
        agent = self.get_agent(agent_id)
        server = self.get_attached_server(agent, server_id)
        existing = agent.agent_servers.get(server=server)
        self.save_attachment(agent, server, existing, self.read_body(AgentServerBody, partial=True))
        return self.show_server(agent, server)

    @describe_operation("detach_server", status=204)
    def delete(self, request: object, agent_id: str, server_id: str) -> Response:
        """Detach a server from an agent; a private server is deleted."""
        agent = self.get_agent(agent_id)
        detach_server(self.principal, agent, self.get_attached_server(agent, server_id))
        return Response(status=204)


class TestAgentServerView(AgentServerView):
    """Connection test of an agent's server."""

    __test__ = False
    rules = {"POST": (Action.MANAGE_AGENTS, Action.MANAGE_SERVERS)}

    @describe_operation("test_agent_server", answer=ServerTestSerializer)
    def post(self, request: object, agent_id: str, server_id: str) -> Response:
        """Test the connection to a server of an agent.

        If the server doesn't respond, the status code is still 200. The response has the status
        `error` or `needs_reauth`, a code, and a remedy.
        """
        server = self.get_attached_server(self.get_agent(agent_id), server_id)
        return Response(discover_server(self.principal, server))


def _to_dict(agent_server: AgentServer) -> dict[str, Any]:
    return {
        "enabled": agent_server.enabled,
        "allowed_tools": agent_server.allowed_tools,
        "denied_tools": agent_server.denied_tools,
        "allowed_resources": agent_server.allowed_resources,
        "allowed_prompts": agent_server.allowed_prompts,
    }
