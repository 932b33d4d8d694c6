"""Agents: make, read, change, remove."""

from typing import Any

import django_filters
from drf_spectacular.utils import OpenApiExample, extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from agents.governance.kits import MOST_FILES
from agents.models import Agent, ModelEndpoint
from agents.models.reach import sees_every_agent
from agents.registration import AgentSpec, add_agent, alter_agent, remove_agent
from agents.toolboxes import LARGEST_MIB
from bonobot.tenancy.api.filters import Filters, FlagFilter
from bonobot.tenancy.api.resources import READ_OR_RUN, Resource, found_or_404, named_in_path
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import VersionedBody, VersionedShape
from bonobot.tenancy.roles import Action
from mcp_servers.api.configurations import JSON_OBJECT

LARGEST_BOUND = 2**31 - 1


@extend_schema_field({**JSON_OBJECT, "description": "Kits by name, with their options."})
class Kits(serializers.DictField):
    """Built-in tools by the name of their kit, each with its options."""


class AgentFilter(Filters):
    """What agents are looked for by."""

    slug = django_filters.CharFilter()
    enabled = FlagFilter()
    q = django_filters.CharFilter(
        field_name="name", lookup_expr="icontains", label="Part of the name"
    )


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "An agent",
            {
                "name": "Release helper",
                "slug": "release-helper",
                "instructions": "You prepare releases. Use the git tools to see what changed.",
                "max_turns": 20,
            },
            request_only=True,
        )
    ]
)
class AgentBody(VersionedBody):
    """An agent as it is written; what is left out stays, or is at its default."""

    name = serializers.CharField(max_length=255)
    slug = serializers.SlugField(max_length=64, required=False)
    description = serializers.CharField(required=False, allow_blank=True, max_length=500)
    instructions = serializers.CharField(required=False, allow_blank=True, max_length=100_000)
    model_endpoint = serializers.UUIDField(
        required=False, help_text="Left out: the organization's first one."
    )
    enabled = serializers.BooleanField(required=False)
    max_turns = serializers.IntegerField(required=False, min_value=1, max_value=LARGEST_BOUND)
    max_calls = serializers.IntegerField(required=False, min_value=0, max_value=LARGEST_BOUND)
    max_run_s = serializers.IntegerField(required=False, min_value=1, max_value=LARGEST_BOUND)
    calls_per_minute = serializers.IntegerField(
        required=False, min_value=1, max_value=LARGEST_BOUND
    )
    tool_search_above = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=LARGEST_BOUND,
        help_text="With more tools of servers its model searches for them; 0: it is shown all.",
    )
    builtin_tools = Kits(
        required=False,
        help_text="What it has of the built-in tools, each with the options that aren't the usual "
        'ones: `{"filesystem": {"read_only": true}, "search": {}}`. Replaced as a whole.',
    )
    workspace_folder = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=1024,
        help_text="A folder of the host, attached in place of its own one; a platform "
        "administrator's to say. Blank: its own.",
    )
    workspace_mib = serializers.IntegerField(required=False, min_value=1, max_value=LARGEST_MIB)
    workspace_files = serializers.IntegerField(required=False, min_value=1, max_value=MOST_FILES)


class AgentShape(VersionedShape):
    """An agent; its bounds are per message: model turns, calls, seconds of running."""

    written_as = (AgentBody,)

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
    builtin_tools = Kits()
    workspace_folder = serializers.CharField(help_text="Attached; blank: its own.")
    workspace_mib = serializers.IntegerField(help_text="What its own folder may hold.")
    workspace_files = serializers.IntegerField(help_text="Files and folders in its own one.")
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


@extend_schema_field({"type": "array", "items": {"type": "string"}})
class AgentSlugs(serializers.Field):
    """The agents that have something, as far as who asks sees them."""

    def __init__(self, **options: Any) -> None:
        """Read the whole row."""
        super().__init__(**options | {"source": "*", "read_only": True})

    def to_representation(self, value: Any) -> list[str]:
        """Return their slugs; which agents are seen is asked once an answer."""
        context: Any = self.context
        if "visible_agents" not in context:
            principal = context["view"].principal
            mine = None
            if not sees_every_agent(principal):
                mine = set(Agent.objects.visible_to(principal).values_list("pk", flat=True))
            context["visible_agents"] = mine
        visible = context["visible_agents"]
        had_by = (one.agent for one in value.given.all())
        return sorted(one.slug for one in had_by if visible is None or one.pk in visible)


class AgentResource(Resource):
    """A resource below one agent."""

    def agent(self, agent_id: str) -> Agent:
        """Return the agent with this id or slug, if it may be seen; raises `NotFound`."""
        with named_in_path("agent_id"):
            return Agent.objects.named(self.principal, agent_id)


class Agents(Resource):
    """All agents."""

    rules = {"GET": READ_OR_RUN, "POST": Action.MANAGE_AGENTS}
    narrowed = ("GET",)
    queryset = Agent.objects.none()
    filterset_class = AgentFilter
    ordering = ("name", "pk")
    orderings = ("name", "slug", "created_at", "updated_at")

    @operation("list_agents", answer=AgentShape(many=True))
    def get(self, request: object) -> Response:
        """List the agents.

        A member sees those that were given to them; a token for one agent sees that one.
        """
        return self.listed(Agent.objects.visible_to(self.principal), AgentShape)

    @operation("add_agent", body=AgentBody, answer=AgentShape, status=201)
    def post(self, request: object) -> Response:
        """Make an agent; its tool policy begins with the mode `none`: every tool is blocked."""
        spec = spec_of(self, self.read(AgentBody))
        return self.shown(add_agent(self.principal, spec), AgentShape, status=201)


class OneAgent(AgentResource):
    """One agent."""

    rules = {
        "GET": READ_OR_RUN,
        "PUT": Action.MANAGE_AGENTS,
        "PATCH": Action.MANAGE_AGENTS,
        "DELETE": Action.MANAGE_AGENTS,
    }
    narrowed = ("GET",)

    @operation("get_agent", answer=AgentShape)
    def get(self, request: object, agent_id: str) -> Response:
        """Show an agent, by id or slug."""
        return self.shown(self.agent(agent_id), AgentShape)

    @operation("replace_agent", body=AgentBody, answer=AgentShape)
    def put(self, request: object, agent_id: str) -> Response:
        """Change an agent; it holds on the very next call and turn."""
        return self._alter(agent_id, partial=False)

    @operation("change_agent", body=AgentBody, answer=AgentShape)
    def patch(self, request: object, agent_id: str) -> Response:
        """Change parts of an agent."""
        return self._alter(agent_id, partial=True)

    @operation("remove_agent", status=204)
    def delete(self, request: object, agent_id: str) -> Response:
        """Remove an agent with its sessions, bindings and private servers; the audit stays."""
        remove_agent(self.principal, self.agent(agent_id))
        return Response(status=204)

    def _alter(self, agent_id: str, *, partial: bool) -> Response:
        agent = self.agent(agent_id)
        body = {"name": agent.name} | self.read(AgentBody, partial=partial)
        return self.shown(alter_agent(self.principal, agent, spec_of(self, body)), AgentShape)


def spec_of(view: Resource, body: dict[str, Any]) -> AgentSpec:
    """Return what was written as a specification; raises `NotFound` for a strange endpoint."""
    wanted = body.pop("model_endpoint", None)
    if wanted is None:
        return AgentSpec(**body)
    mine = ModelEndpoint.objects.for_organization(view.organization_id)
    endpoint = mine.filter(pk=wanted).first()
    found = found_or_404(endpoint, "model endpoint", str(wanted), field="model_endpoint")
    return AgentSpec(**body, model_endpoint=found)
