"""REST of attached servers: /agents/{id}/mcp-servers.

Private servers belong to the agent; pool servers are attached to it and changed elsewhere.
"""

from typing import Any

from django.db import transaction
from django.db.models import F, Q
from drf_spectacular.utils import (
    OpenApiExample,
    PolymorphicProxySerializer,
    extend_schema_field,
    extend_schema_serializer,
)
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentView
from agents.models import Agent, Binding
from agents.policies.rules import EVERYTHING, choose
from agents.services import bind, bound_server, require_private_server, unbind
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, set_not_found_field
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import VersionedBody
from mcp_servers.api.presets import add_from_preset
from mcp_servers.api.serializers import (
    TO_ADD,
    CreateServerBody,
    PresetServerBody,
    ServerDetailSerializer,
    ServerTestSerializer,
    build_spec,
)
from mcp_servers.api.servers import add_server_annotations, discover_server
from mcp_servers.models import Server
from mcp_servers.openapi.select_operations import complete_spec
from mcp_servers.services import add, update_server

FROM_POOL = OpenApiExample(
    "Two tools of a pool server",
    {
        "server_id": "b1c84d5e-5c0b-4c55-9d3a-0a7c1c1f2d3e",
        "allowed_tools": ["get_current_time", "convert_*"],
    },
    request_only=True,
)


CHOICE = (
    "Globs over the server's own tool names: at least one, or `*` for everything that it offers, "
    "also what comes later."
)


def _build_globs_field(
    about: str = "Globs over the server's own tool names.",
) -> serializers.ListField:
    return serializers.ListField(
        child=serializers.CharField(max_length=512),
        required=False,
        max_length=1_000,
        help_text=about,
    )


@extend_schema_serializer(
    examples=[
        OpenApiExample("Disconnect it for this agent", {"enabled": False}, request_only=True),
        OpenApiExample("Two of its tools", {"allowed_tools": ["add", "get_*"]}, request_only=True),
        OpenApiExample("Everything, also later", {"allowed_tools": ["*"]}, request_only=True),
    ]
)
class AgentServerBody(VersionedBody):
    """How much of a server an agent gets; what is left out stays as it is."""

    enabled = serializers.BooleanField(required=False)
    allowed_tools = _build_globs_field(CHOICE)
    denied_tools = _build_globs_field()
    allowed_resources = _build_globs_field(
        "Globs over URIs and URI templates; `*` ticks all. One over the URI itself, such as "
        "`file:///srv/docs/*`, lets a template's variables span a `/` there."
    )
    allowed_prompts = _build_globs_field("Globs over the names of its prompts; `*` ticks all.")


@extend_schema_serializer(examples=[])
class AttachServerBody(AgentServerBody):
    """A pool server for an agent; sent again, it changes how much of it the agent gets."""

    server_id = serializers.UUIDField()


class AgentServerSerializer(ServerDetailSerializer):
    """A server as an agent has it."""

    written_as = (CreateServerBody, AgentServerBody)

    agent_id = serializers.SerializerMethodField(help_text="The agent that was asked for.")
    enabled = serializers.SerializerMethodField(  # type: ignore[assignment]  # more is known here
        help_text="On for this agent, and on at all."
    )
    allowed_tools = serializers.SerializerMethodField(
        help_text="`*`: everything that it offers, also later."
    )
    denied_tools = serializers.SerializerMethodField()
    allowed_resources = serializers.SerializerMethodField(help_text="Empty: none.")
    allowed_prompts = serializers.SerializerMethodField(help_text="Empty: none.")
    installation = None  # type: ignore[assignment]  # likewise
    stderr = None  # type: ignore[assignment]  # shown with the server itself

    @extend_schema_field({"type": "string", "format": "uuid"})
    def get_agent_id(self, server: Server) -> str:
        """Return the agent that was asked for."""
        return str(self._binding(server).agent_id)

    def get_enabled(self, server: Server) -> bool:
        """Tell whether the agent can use it."""
        return server.enabled and self._binding(server).enabled

    def get_allowed_tools(self, server: Server) -> list[str]:
        """Return the globs of the tools that the agent gets."""
        return self._binding(server).allowed_tools or [EVERYTHING]

    def get_denied_tools(self, server: Server) -> list[str]:
        """Return the globs of the tools that it never gets."""
        return self._binding(server).denied_tools

    def get_allowed_resources(self, server: Server) -> list[str]:
        """Return the globs of the resources and templates that are ticked."""
        return self._binding(server).allowed_resources

    def get_allowed_prompts(self, server: Server) -> list[str]:
        """Return the globs of the prompts that are ticked."""
        return self._binding(server).allowed_prompts

    def _binding(self, server: Server) -> Binding:
        found: Binding = self.context["bindings"][server.pk]
        return found


ADDED = PolymorphicProxySerializer(
    component_name="AgentServerToAdd",
    serializers=[CreateServerBody, PresetServerBody, AttachServerBody],
    resource_type_field_name=None,
)


class AgentServerView(AgentView):
    """A resource below the servers of one agent."""

    def bound(self, agent: Agent, server_id: str) -> Server:
        """Return a server that is attached to the agent; raises `NotFound`."""
        with set_not_found_field("server_id"):
            return bound_server(agent, server_id)

    def give(self, agent: Agent, server: Server, old: Binding | None, body: dict[str, Any]) -> None:
        """Attach the server, or update the attachment with the values in the body."""
        if "allowed_tools" in body:
            offered = set(server.definitions.tools().values_list("name", flat=True))
            body["allowed_tools"] = choose(body["allowed_tools"], offered)
        kept = {} if old is None else _to_dict(old)
        bind(self.principal, agent, server, **(kept | body))

    def answer(self, agent: Agent, server: Server, *, status: int = 200) -> Response:
        """Return the response with the server as it is attached now."""
        rows = add_server_annotations(Server.objects.filter(pk=server.pk), tools=True)
        bindings = {row.server_id: row for row in agent.bindings.filter(server=server)}
        return self.shown(rows.get(), AgentServerSerializer, status=status, bindings=bindings)


class AgentServerListView(AgentServerView):
    """All servers of an agent."""

    rules = {"GET": READ, "POST": Action.MANAGE_AGENTS}
    narrowed = ("GET",)
    queryset = Server.objects.none()
    ordering = ("name", "pk")
    orderings = ("name", "slug", "status", "created_at", "updated_at")

    @describe_operation("list_agent_servers", answer=AgentServerSerializer(many=True))
    def get(self, request: object, agent_id: str) -> Response:
        """List an agent's servers: its private ones and those of the pool that it has."""
        agent = self.agent(agent_id)
        bindings = {row.server_id: row for row in agent.bindings.all()}
        rows = add_server_annotations(Server.objects.filter(pk__in=bindings), tools=True)
        return self.listed(rows, AgentServerSerializer, bindings=bindings)

    @describe_operation(
        "add_agent_server",
        body=ADDED,
        answer=AgentServerSerializer,
        status=(200, 201),
        examples=[*TO_ADD, FROM_POOL],
        asks=True,
    )
    def post(self, request: object, agent_id: str) -> Response:
        """Give an agent a server.

        With `server_id` one of the pool's (sent again, the binding is changed, and the answer is
        200); with a configuration or a `preset` a new one that is private to the agent. Of a
        pool server the agent gets what `allowed_tools` names, and everything where it is left out.
        """
        agent = self.agent(agent_id)
        if "server_id" in self.members():
            return self._bind(agent, self.read(AttachServerBody))
        with transaction.atomic():
            server = self._added(agent)
            bind(self.principal, agent, server)
        return self.answer(agent, server, status=201)

    def _added(self, agent: Agent) -> Server:
        if "preset" in self.members():
            body = self.read(PresetServerBody)
            return add_from_preset(self.principal, body, scope_id=agent.pk)
        spec = complete_spec(self.principal, build_spec(self.read(CreateServerBody)))
        return add(self.principal, spec, scope_id=agent.pk)

    def _bind(self, agent: Agent, body: dict[str, Any]) -> Response:
        server_id = body.pop("server_id")
        given = Q(scope_id=F("organization_id")) | Q(scope_id=agent.pk)
        with set_not_found_field("server_id"):
            # Another agent's private server is not found.
            mine = Server.objects.filter(given)
            server: Server = mine.get_or_404(self.organization_id, pk=server_id)
        old = agent.bindings.filter(server=server).first()
        self.give(agent, server, old, body)
        return self.answer(agent, server, status=201 if old is None else 200)


class AgentServerDetailView(AgentServerView):
    """One server of an agent."""

    rules = {
        "GET": READ,
        "PUT": Action.MANAGE_AGENTS,
        "PATCH": Action.MANAGE_AGENTS,
        "DELETE": Action.MANAGE_AGENTS,
    }
    narrowed = ("GET",)

    @describe_operation("get_agent_server", answer=AgentServerSerializer)
    def get(self, request: object, agent_id: str, server_id: str) -> Response:
        """Show a server of an agent with its tools; secrets are masked."""
        agent = self.agent(agent_id)
        return self.answer(agent, self.bound(agent, server_id))

    @describe_operation(
        "replace_agent_server", body=CreateServerBody, answer=AgentServerSerializer, asks=True
    )
    def put(self, request: object, agent_id: str, server_id: str) -> Response:
        """Change a private server of an agent; one of the pool is changed at /mcp-servers."""
        agent = self.agent(agent_id)
        server = self.bound(agent, server_id)
        require_private_server(server)
        spec = build_spec(self.read(CreateServerBody), server)
        update_server(self.principal, server, complete_spec(self.principal, spec, server))
        return self.answer(agent, server)

    @describe_operation("change_agent_server", body=AgentServerBody, answer=AgentServerSerializer)
    def patch(self, request: object, agent_id: str, server_id: str) -> Response:
        """Connect or disconnect a server for this agent, or choose what the agent gets of it.

        It holds on the very next call, also in sessions that run.
        """
        agent = self.agent(agent_id)
        server = self.bound(agent, server_id)
        old = agent.bindings.get(server=server)
        self.give(agent, server, old, self.read(AgentServerBody, partial=True))
        return self.answer(agent, server)

    @describe_operation("remove_agent_server", status=204)
    def delete(self, request: object, agent_id: str, server_id: str) -> Response:
        """Take a server from an agent: a private one is removed, one of the pool is unbound."""
        agent = self.agent(agent_id)
        unbind(self.principal, agent, self.bound(agent, server_id))
        return Response(status=204)


class TestAgentServerView(AgentServerView):
    """A test of one server of an agent."""

    __test__ = False
    rules = {"POST": (Action.MANAGE_AGENTS, Action.MANAGE_SERVERS)}

    @describe_operation("test_agent_server", answer=ServerTestSerializer)
    def post(self, request: object, agent_id: str, server_id: str) -> Response:
        """Connect to a server of an agent now.

        A server that doesn't answer is no error of this request: the answer is 200 with the
        status `error` or `needs_reauth`, the code, and what to do.
        """
        server = self.bound(self.agent(agent_id), server_id)
        return Response(discover_server(self.principal, server))


def _to_dict(binding: Binding) -> dict[str, Any]:
    return {
        "enabled": binding.enabled,
        "allowed_tools": binding.allowed_tools,
        "denied_tools": binding.denied_tools,
        "allowed_resources": binding.allowed_resources,
        "allowed_prompts": binding.allowed_prompts,
    }
