"""REST of agents, their members, callable agents and workspaces."""

from typing import Any

import django_filters
from django.db import transaction
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.response import Response

from agents.assignments import list_callable_agents, set_callable_agents
from agents.builtin_tools.workspaces import MAX_WORKSPACE_MIB, clear_workspace, describe_workspace
from agents.models import Agent, ModelEndpoint
from agents.models.agents import MAX_WORKSPACE_FILES, build_agent_lookup, can_see_all_agents
from agents.services import AgentSpec, create_agent, delete_agent, set_agent_members, update_agent
from agents.sessions.output_schemas import MAX_OUTPUT_SCHEMA_SIZE
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import (
    READ,
    READ_OR_RUN,
    ResourceView,
    require_row,
    set_not_found_field,
)
from bonobot.accounts.models import Membership, User
from bonobot.accounts.roles import Action
from bonobot.core.api.filters import StrictBooleanFilter, StrictFilterSet
from bonobot.core.api.serializers import (
    StrictSerializer,
    VersionedBody,
    VersionedSerializer,
    VersionField,
)
from bonobot.core.db.transactions import lock_rows
from mcp_servers.api.serializers import JSON_OBJECT
from mcp_servers.flow_labels import LABEL_BITS

MAX_LIMIT = 2**31 - 1
OUTPUT_SCHEMA_HELP = (
    "JSON Schema of an object that the answer must match, with at most "
    f"{MAX_OUTPUT_SCHEMA_SIZE:,} characters."
)


@extend_schema_field({"type": "object", "nullable": True, "additionalProperties": True})
class OutputSchemaField(serializers.DictField):
    """An output schema; null and an empty one mean none."""

    def __init__(self, **options: Any) -> None:
        """Allow null."""
        options.setdefault("help_text", OUTPUT_SCHEMA_HELP)
        super().__init__(allow_null=True, **options)

    def to_internal_value(self, data: Any) -> Any:
        """Return the schema unchanged, as an object; its parts are checked by the service."""
        if not isinstance(data, dict):
            self.fail("not_a_dict", input_type=type(data).__name__)
        return data

    def to_representation(self, value: Any) -> Any:
        return value or None


@extend_schema_field({**JSON_OBJECT, "description": "Toolsets by name, with their options."})
class ToolsetsField(serializers.DictField):
    """Built-in tools: toolsets by name, each with its options."""


class AgentRowFilter(StrictFilterSet):
    """The filter of rows that belong to an agent."""

    agent = django_filters.CharFilter(method="filter_by_agent", label="ID or slug of the agent")

    def filter_by_agent(self, rows: Any, name: str, value: str) -> Any:
        return rows.filter(
            **{f"agent__{field}": lookup for field, lookup in build_agent_lookup(value).items()}
        )


class AgentFilter(StrictFilterSet):
    """Filters for the list of agents."""

    slug = django_filters.CharFilter()
    enabled = StrictBooleanFilter()
    q = django_filters.CharFilter(
        field_name="name", lookup_expr="icontains", label="Part of the name"
    )


class AgentBody(VersionedBody):
    """An agent to create or update; omitted fields are unchanged or get their default."""

    name = serializers.CharField(max_length=255)
    slug = serializers.SlugField(max_length=64, required=False)
    description = serializers.CharField(required=False, allow_blank=True, max_length=500)
    instructions = serializers.CharField(required=False, allow_blank=True, max_length=100_000)
    model_endpoint = serializers.UUIDField(
        required=False, help_text="Default: the organization's first model endpoint."
    )
    enabled = serializers.BooleanField(required=False)
    max_turns = serializers.IntegerField(required=False, min_value=1, max_value=MAX_LIMIT)
    max_calls = serializers.IntegerField(required=False, min_value=0, max_value=MAX_LIMIT)
    max_run_s = serializers.IntegerField(required=False, min_value=1, max_value=MAX_LIMIT)
    calls_per_minute = serializers.IntegerField(required=False, min_value=1, max_value=MAX_LIMIT)
    tool_search_above = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=MAX_LIMIT,
        help_text=(
            "If the servers have more tools than this, the model searches for tools. 0: the "
            "model gets all tools."
        ),
    )
    tools_in_prompt = serializers.BooleanField(
        required=False,
        help_text=(
            "Whether the system prompt lists the servers' tools with description and parameters. "
            "Models with tool calls also get them separately."
        ),
    )
    output_schema = OutputSchemaField(required=False)
    builtin_tools = ToolsetsField(
        required=False,
        help_text=(
            'The built-in toolsets and their non-default options: `{"filesystem": '
            '{"read_only": true}, "search": {}}`. Replaces the stored value.'
        ),
    )
    workspace_folder = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=1024,
        help_text=(
            "An attached folder of the host, used instead of the agent's own folder. Only a "
            "platform administrator can set it. Empty: the agent's own folder."
        ),
    )
    workspace_mib = serializers.IntegerField(
        required=False, min_value=1, max_value=MAX_WORKSPACE_MIB
    )
    workspace_files = serializers.IntegerField(
        required=False, min_value=1, max_value=MAX_WORKSPACE_FILES
    )


class AgentSerializer(VersionedSerializer):
    """An agent. Its limits apply per message: model turns, calls, and run time in seconds."""

    body_classes = (AgentBody,)

    id = serializers.UUIDField()
    name = serializers.CharField()
    slug = serializers.CharField()
    description = serializers.CharField()
    instructions = serializers.CharField()
    model_endpoint = serializers.UUIDField(source="model_endpoint_id")
    enabled = serializers.BooleanField()
    max_turns = serializers.IntegerField()
    max_calls = serializers.IntegerField()
    max_run_s = serializers.IntegerField()
    calls_per_minute = serializers.IntegerField()
    tool_search_above = serializers.IntegerField()
    tools_in_prompt = serializers.BooleanField()
    output_schema = OutputSchemaField()
    builtin_tools = ToolsetsField()
    workspace_folder = serializers.CharField(
        help_text="The attached folder; empty: the agent's own folder."
    )
    workspace_mib = serializers.IntegerField(help_text="Quota of the agent's own folder, in MiB.")
    workspace_files = serializers.IntegerField(
        help_text="Maximum number of files and folders in the agent's own folder."
    )
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


@extend_schema_field({"type": "array", "items": {"type": "string"}})
class AgentSlugs(serializers.Field):
    """The slugs of agents, limited to those that the caller can see."""

    def __init__(self, **options: Any) -> None:
        """Use the whole row as the source."""
        super().__init__(**options | {"source": "*", "read_only": True})

    def to_representation(self, value: Any) -> list[str]:
        """Return the visible slugs; the visible agents are loaded once per response."""
        context: Any = self.context
        if "visible_agents" not in context:
            principal = context["view"].principal
            visible_ids = None
            if not can_see_all_agents(principal):
                visible_ids = set(Agent.objects.visible_to(principal).values_list("pk", flat=True))
            context["visible_agents"] = visible_ids
        visible = context["visible_agents"]
        agents = (agent.agent for agent in value.assignments.all())
        return sorted(agent.slug for agent in agents if visible is None or agent.pk in visible)


class AgentView(ResourceView):
    """Base class of the views of one agent."""

    def get_agent(self, agent_id: str) -> Agent:
        """Return the visible agent with this id or slug; raises `NotFound`."""
        with set_not_found_field("agent_id"):
            agent = Agent.objects.get_by_name(self.principal, agent_id)
        if self.request.method == "GET":
            self.report_read([agent])
        return agent


class AgentListView(ResourceView):
    """All agents."""

    rules = {"GET": READ_OR_RUN, "POST": Action.MANAGE_AGENTS}
    agent_token_methods = ("GET",)
    queryset = Agent.objects.none()
    filterset_class = AgentFilter
    ordering = ("name", "pk")
    orderings = ("name", "slug", "created_at", "updated_at")

    @describe_operation("list_agents", answer=AgentSerializer(many=True))
    def get(self, request: object) -> Response:
        """List agents.

        A member sees the agents assigned to them; a token for one agent sees only that agent.
        """
        return self.respond_page(Agent.objects.visible_to(self.principal), AgentSerializer)

    @describe_operation("create_agent", body=AgentBody, answer=AgentSerializer, status=201)
    def post(self, request: object) -> Response:
        """Create an agent; its tool policy has the mode `none`, which denies all tools."""
        spec = build_spec(self, self.read_body(AgentBody))
        return self.respond_row(create_agent(self.principal, spec), AgentSerializer, status=201)


class AgentDetailView(AgentView):
    """One agent."""

    rules = {
        "GET": READ_OR_RUN,
        "PUT": Action.MANAGE_AGENTS,
        "PATCH": Action.MANAGE_AGENTS,
        "DELETE": Action.MANAGE_AGENTS,
    }
    agent_token_methods = ("GET",)

    @describe_operation("get_agent", answer=AgentSerializer)
    def get(self, request: object, agent_id: str) -> Response:
        """Get an agent, by ID or slug."""
        return self.respond_row(self.get_agent(agent_id), AgentSerializer)

    @describe_operation("replace_agent", body=AgentBody, answer=AgentSerializer)
    def put(self, request: object, agent_id: str) -> Response:
        """Replace an agent; effective on the next call and model turn."""
        return self._update_agent(agent_id, partial=False)

    @describe_operation("update_agent", body=AgentBody, answer=AgentSerializer)
    def patch(self, request: object, agent_id: str) -> Response:
        """Update an agent."""
        return self._update_agent(agent_id, partial=True)

    @describe_operation("delete_agent", status=204)
    def delete(self, request: object, agent_id: str) -> Response:
        """Delete an agent.

        Its sessions, server attachments, and private servers are deleted. The audit log is kept.
        """
        delete_agent(self.principal, self.get_agent(agent_id))
        return Response(status=204)

    def _update_agent(self, agent_id: str, *, partial: bool) -> Response:
        agent = self.get_agent(agent_id)
        body = {"name": agent.name} | self.read_body(AgentBody, partial=partial)
        return self.respond_row(
            update_agent(self.principal, agent, build_spec(self, body)), AgentSerializer
        )


def build_spec(view: ResourceView, body: dict[str, Any]) -> AgentSpec:
    """Return the specification of a body; raises `NotFound` for an unknown endpoint."""
    if "output_schema" in body:
        body["output_schema"] = body["output_schema"] or {}
    endpoint_id = body.pop("model_endpoint", None)
    if endpoint_id is None:
        return AgentSpec(**body)
    endpoints = ModelEndpoint.objects.for_organization(view.organization_id)
    row = endpoints.filter(pk=endpoint_id).first()
    model_endpoint = require_row(row, "model endpoint", str(endpoint_id), field="model_endpoint")
    return AgentSpec(**body, model_endpoint=model_endpoint)


class AgentMembersBody(VersionedBody):
    """All members who can run the agent, by username."""

    members = serializers.ListField(
        child=serializers.CharField(max_length=150), allow_empty=True, max_length=1_000
    )


class AgentMemberSerializer(StrictSerializer):
    """A member who can run the agent."""

    user_id = serializers.UUIDField(source="pk")
    username = serializers.CharField()
    name = serializers.CharField(source="get_full_name")
    email = serializers.CharField()


class AgentMemberView(AgentView):
    """Base class for the members of one agent."""

    def list_members(self, agent: Agent) -> Any:
        """Return the users who may run the agent and are still members of the organization."""
        in_organization = {"memberships__organization": agent.organization_id}
        return User.objects.filter(pk__in=agent.members.values("pk"), **in_organization).order_by(
            "username"
        )

    def set_members(self, agent: Agent, usernames: set[str]) -> Response:
        """Set exactly these users as members of the agent and list them."""
        set_agent_members(self.principal, agent, usernames)
        return self.show_members(agent)

    def show_members(self, agent: Agent) -> Response:
        """List the members of the agent, with one version for the whole list."""
        members = self.list_members(agent)
        self.shown_row = agent
        self.shown_parts = {"members": list(members.values_list("username", flat=True))}
        return self.respond_page(members, AgentMemberSerializer)


class AgentMemberListView(AgentMemberView):
    """The members who can run an agent; owners and operators can run all agents."""

    rules = {
        "GET": READ,
        "PUT": Action.MANAGE_AGENTS,
        "DELETE": Action.MANAGE_AGENTS,
    }
    queryset = User.objects.none()
    ordering = ("username", "pk")
    orderings = ("username", "email")

    @describe_operation("list_agent_members", answer=AgentMemberSerializer(many=True))
    def get(self, request: object, agent_id: str) -> Response:
        """List the members who can run an agent; owners and operators can run all agents."""
        return self.show_members(self.get_agent(agent_id))

    @describe_operation(
        "set_agent_members", body=AgentMembersBody, answer=AgentMemberSerializer(many=True)
    )
    def put(self, request: object, agent_id: str) -> Response:
        """Replace the members who can run an agent."""
        agent = self.get_agent(agent_id)
        return self.set_members(agent, set(self.read_body(AgentMembersBody)["members"]))

    @describe_operation("clear_agent_members", status=204)
    def delete(self, request: object, agent_id: str) -> Response:
        """Remove all members of an agent."""
        set_agent_members(self.principal, self.get_agent(agent_id), ())
        return Response(status=204)


class AgentMemberDetailView(AgentMemberView):
    """One member of one agent."""

    rules = {"PUT": Action.MANAGE_AGENTS, "DELETE": Action.MANAGE_AGENTS}

    @describe_operation("add_agent_member", answer=AgentMemberSerializer)
    def put(self, request: object, agent_id: str, user_id: str) -> Response:
        """Let a member run an agent; repeating the request has no effect."""
        agent = self.get_agent(agent_id)
        with set_not_found_field("user_id"):
            member = Membership.objects.get_or_404(self.organization_id, user=user_id).user
        with transaction.atomic():
            lock_rows(Agent.objects.filter(pk=agent.pk))  # against lost updates
            usernames = set(self.list_members(agent).values_list("username", flat=True))
            set_agent_members(self.principal, agent, usernames | {member.username})
        return self.respond_row(member, AgentMemberSerializer)

    @describe_operation("remove_agent_member", status=204)
    def delete(self, request: object, agent_id: str, user_id: str) -> Response:
        """Remove a member from an agent; effective on the next request."""
        agent = self.get_agent(agent_id)
        with transaction.atomic():
            lock_rows(Agent.objects.filter(pk=agent.pk))
            usernames_by_id = {
                str(person.pk): person.username for person in self.list_members(agent)
            }
            username = require_row(usernames_by_id.get(user_id), "member", user_id, field="user_id")
            set_agent_members(self.principal, agent, set(usernames_by_id.values()) - {username})
        return Response(status=204)


class WorkspaceSerializer(StrictSerializer):
    """A workspace. An attached folder has no quota, and its size isn't measured."""

    folder = serializers.CharField(help_text="The attached folder; empty: the agent's own folder.")
    attached = serializers.BooleanField()
    bytes = serializers.IntegerField(allow_null=True)
    files = serializers.IntegerField(allow_null=True, help_text="Includes folders.")
    max_bytes = serializers.IntegerField(allow_null=True)
    max_files = serializers.IntegerField(allow_null=True)
    labels = serializers.ListField(
        child=serializers.ChoiceField([label.value for label in LABEL_BITS]),
        help_text="Flow labels of sessions that wrote here; reading the workspace adds them.",
    )


class AgentWorkspaceView(AgentView):
    """The folder that an agent's tools use."""

    rules = {"GET": Action.VIEW, "DELETE": Action.MANAGE_AGENTS}

    @describe_operation("get_workspace", answer=WorkspaceSerializer)
    def get(self, request: object, agent_id: str) -> Response:
        """Get an agent's workspace with its usage."""
        return Response(describe_workspace(self.get_agent(agent_id)))

    @describe_operation("empty_workspace", status=204)
    def delete(self, request: object, agent_id: str) -> Response:
        """Delete all files in an agent's own workspace, and clear its flow labels.

        Not supported for an attached folder (`attached_folder`).
        """
        clear_workspace(self.principal, self.get_agent(agent_id))
        return Response(status=204)


class CallableAgentsSerializer(VersionedSerializer):
    """The agents that an agent can call, each as the tool `ask_{slug}` under its policy."""

    version = VersionField(required=False)
    callable_agents = serializers.ListField(child=serializers.CharField(max_length=64))


class CallableAgentsView(AgentView):
    """The agents that an agent can call."""

    rules = {"GET": READ, "PUT": Action.MANAGE_AGENTS}
    agent_token_methods = ("GET",)

    @describe_operation("get_callable_agents", answer=CallableAgentsSerializer)
    def get(self, request: object, agent_id: str) -> Response:
        """List the agents that an agent can call."""
        return self._show_callable_agents(self.get_agent(agent_id))

    @describe_operation(
        "set_callable_agents", body=CallableAgentsSerializer, answer=CallableAgentsSerializer
    )
    def put(self, request: object, agent_id: str) -> Response:
        """Replace the agents that an agent can call; usage counts toward the root session."""
        agent = self.get_agent(agent_id)
        set_callable_agents(
            self.principal, agent, self.read_body(CallableAgentsSerializer)["callable_agents"]
        )
        return self._show_callable_agents(agent)

    def _show_callable_agents(self, agent: Agent) -> Response:
        return self.respond_row(
            {"callable_agents": list_callable_agents(agent)}, CallableAgentsSerializer, owner=agent
        )
