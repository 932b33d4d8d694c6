"""REST of skills and their versions."""

import django_filters
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentSlugs
from agents.api.sessions import SessionSerializer
from agents.models import Agent, AgentAssignment, Skill, SkillVersion
from agents.models.agents import filter_by_visible_agents
from agents.models.skills import SKILL_TEXTS, SkillQuerySet
from agents.sessions.services import run_skill
from agents.skills import (
    MAX_ARGUMENT_LENGTH,
    SkillSpec,
    build_template,
    delete_skill,
    get_skill,
    render_skill,
    save_skill,
)
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, READ_OR_RUN, ResourceView, set_not_found_field
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.roles import Action
from bonobot.core.api.filters import StrictBooleanFilter, StrictFilterSet
from bonobot.core.api.serializers import NumberedBody, StrictSerializer, VersionedSerializer


class SkillFilter(StrictFilterSet):
    """Filters for the list of skills."""

    name = django_filters.CharFilter()
    enabled = StrictBooleanFilter()
    agent = django_filters.CharFilter(
        method="filter_by_agent", label="Slug of an agent with the skill attached"
    )

    def filter_by_agent(self, rows: SkillQuerySet, name: str, value: str) -> SkillQuerySet:
        """Return the skills of an agent that is visible to the principal."""
        visible_assignments = filter_by_visible_agents(
            AgentAssignment.objects.all(), resolve_principal(self.request)
        )
        return rows.filter(assignments__in=visible_assignments.filter(agent__slug=value))


class SkillArgumentSerializer(StrictSerializer):
    """A declared argument; `${name}` in the text is replaced with its value."""

    name = serializers.CharField(max_length=64)
    description = serializers.CharField(required=False, allow_blank=True, max_length=500)
    required = serializers.BooleanField(required=False)  # type: ignore[assignment]  # DRF moves it
    default = serializers.CharField(required=False, allow_blank=True, max_length=500)
    choices = serializers.ListField(
        child=serializers.CharField(max_length=500),
        required=False,
        help_text="The allowed values; empty: any value.",
    )


class SkillBody(NumberedBody):
    """A skill to create or update; omitted fields are unchanged or get their default."""

    name = serializers.SlugField(max_length=64)
    title = serializers.CharField(required=False, allow_blank=True, max_length=SKILL_TEXTS["title"])
    description = serializers.CharField(
        required=False, allow_blank=True, max_length=SKILL_TEXTS["description"]
    )
    text = serializers.CharField(
        required=False, max_length=SKILL_TEXTS["text"], trim_whitespace=False
    )
    arguments = SkillArgumentSerializer(many=True, required=False)
    enabled = serializers.BooleanField(required=False)
    agents = serializers.ListField(
        child=serializers.CharField(max_length=64),
        required=False,
        help_text="Slugs of the agents that the skill is attached to.",
    )


class SkillSerializer(VersionedSerializer):
    """A skill."""

    body_classes = (SkillBody,)

    id = serializers.UUIDField()
    name = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField()
    text = serializers.CharField()
    arguments = SkillArgumentSerializer(many=True)
    enabled = serializers.BooleanField()
    version = serializers.IntegerField()  # type: ignore[assignment]  # it numbers what it says
    digest = serializers.CharField(help_text="SHA-256 digest of the whole definition.")
    agents = AgentSlugs()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class SkillVersionSerializer(StrictSerializer):
    """One version of a skill."""

    number = serializers.IntegerField()
    digest = serializers.CharField()
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    text = serializers.CharField(source="payload.text")
    title = serializers.CharField(source="payload.title")
    description = serializers.CharField(source="payload.description")
    arguments = SkillArgumentSerializer(source="payload.arguments", many=True)


class SkillValuesField(serializers.DictField):
    """Values of a skill's arguments, by name."""

    child = serializers.CharField(
        max_length=MAX_ARGUMENT_LENGTH, allow_blank=True, trim_whitespace=False
    )


class RenderSkillBody(StrictSerializer):
    """Values for a skill's arguments."""

    arguments = SkillValuesField(required=False)


class RenderedSkillSerializer(StrictSerializer):
    """A skill with its arguments filled in."""

    text = serializers.CharField()


class RunSkillBody(RenderSkillBody):
    """The agent that runs the skill, and the arguments."""

    agent = serializers.CharField(max_length=64, help_text="ID or slug.")


class SkillView(ResourceView):
    """Base class of the views of one skill."""

    def get_skill(self, skill_id: str) -> Skill:
        """Return the visible skill with this id or name; raises `NotFound`."""
        with set_not_found_field("skill_id"):
            return get_skill(self.principal, skill_id)


class SkillListView(ResourceView):
    """All skills."""

    rules = {"GET": READ_OR_RUN, "POST": Action.MANAGE_WORKFLOWS}
    agent_token_methods = ("GET",)
    queryset = Skill.objects.none()
    filterset_class = SkillFilter
    ordering = ("name", "pk")
    orderings = ("name", "title", "created_at", "updated_at")

    @describe_operation("list_skills", answer=SkillSerializer(many=True))
    def get(self, request: object) -> Response:
        """List skills; a member or a token for one agent sees the skills of their agents."""
        skills = Skill.objects.visible_to(self.principal)
        return self.respond_page(skills.prefetch_related("assignments__agent"), SkillSerializer)

    @describe_operation("create_skill", body=SkillBody, answer=SkillSerializer, status=201)
    def post(self, request: object) -> Response:
        """Create a skill."""
        skill = save_skill(self.principal, SkillSpec(**self.read_body(SkillBody)))
        return self.respond_row(skill, SkillSerializer, status=201)


class SkillDetailView(SkillView):
    """One skill."""

    rules = {
        "GET": READ_OR_RUN,
        "PATCH": Action.MANAGE_WORKFLOWS,
        "DELETE": Action.MANAGE_WORKFLOWS,
    }
    agent_token_methods = ("GET",)

    @describe_operation("get_skill", answer=SkillSerializer)
    def get(self, request: object, skill_id: str) -> Response:
        """Get a skill, by ID or name."""
        return self.respond_row(self.get_skill(skill_id), SkillSerializer)

    @describe_operation("update_skill", body=SkillBody, answer=SkillSerializer)
    def patch(self, request: object, skill_id: str) -> Response:
        """Update a skill; changing the text or the arguments creates a version."""
        skill = self.get_skill(skill_id)
        spec = SkillSpec(**({"name": skill.name} | self.read_body(SkillBody, partial=True)))
        return self.respond_row(save_skill(self.principal, spec, skill), SkillSerializer)

    @describe_operation("delete_skill", status=204)
    def delete(self, request: object, skill_id: str) -> Response:
        """Delete a skill with its versions."""
        delete_skill(self.principal, self.get_skill(skill_id))
        return Response(status=204)


class SkillVersionListView(SkillView):
    """The versions of a skill."""

    rules = {"GET": READ}
    queryset = SkillVersion.objects.none()
    ordering = ("-number", "-pk")
    orderings = ("number", "created_at")

    @describe_operation("list_skill_versions", answer=SkillVersionSerializer(many=True))
    def get(self, request: object, skill_id: str) -> Response:
        """List the versions of a skill, newest first."""
        return self.respond_page(self.get_skill(skill_id).versions.all(), SkillVersionSerializer)


class RenderSkillView(SkillView):
    """A skill with its arguments filled in."""

    rules = {"POST": READ_OR_RUN}
    agent_token_methods = ("POST",)

    @describe_operation("render_skill", body=RenderSkillBody, answer=RenderedSkillSerializer)
    def post(self, request: object, skill_id: str) -> Response:
        """Render a skill's text with its arguments filled in, without running it."""
        skill = self.get_skill(skill_id)
        arguments = self.read_body(RenderSkillBody).get("arguments", {})
        self.report_read([skill])
        return Response({"text": render_skill(build_template(skill), arguments)})


class RunSkillView(SkillView):
    """A run of a skill."""

    rules = {"POST": Action.RUN_AGENTS}
    agent_token_methods = ("POST",)

    @describe_operation("run_skill", body=RunSkillBody, answer=SessionSerializer, status=201)
    def post(self, request: object, skill_id: str) -> Response:
        """Run a skill: start a session with the skill's text as its first message."""
        skill, body = self.get_skill(skill_id), self.read_body(RunSkillBody)
        with set_not_found_field("agent"):
            agent = Agent.objects.get_by_name(self.principal, body["agent"])
        session = run_skill(self.principal, skill, agent, body.get("arguments", {}))
        return self.respond_row(session, SessionSerializer, status=201)
