"""Skills: named instructions, written, rendered and run."""

from typing import Any

import django_filters
from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentSlugs
from agents.api.sessions import SessionShape
from agents.models import Agent, Given, Skill, SkillVersion
from agents.models.reach import of_visible_agents
from agents.models.skills import LONGEST_SKILL, SkillQuerySet
from agents.skills.keeping import SkillSpec, named, remove_skill, run_skill, save_skill
from agents.skills.rendering import LONGEST_ARGUMENT, render, text_of
from bonobot.tenancy.active import principal_of
from bonobot.tenancy.api.filters import Filters, FlagFilter
from bonobot.tenancy.api.resources import READ, READ_OR_RUN, Resource, named_in_path
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import NumberedBody, Shape, VersionedShape
from bonobot.tenancy.roles import Action


class SkillFilter(Filters):
    """What skills are looked for by."""

    name = django_filters.CharFilter()
    enabled = FlagFilter()
    agent = django_filters.CharFilter(method="by_agent", label="Slug of an agent that has it")

    def by_agent(self, rows: SkillQuerySet, name: str, value: str) -> SkillQuerySet:
        """Keep what an agent has that who asks sees."""
        seen = of_visible_agents(Given.objects.all(), principal_of(self.request))
        return rows.filter(given__in=seen.filter(agent__slug=value))


class SkillArgument(Shape):
    """A declared argument; it stands in the text as `${name}`."""

    name = serializers.CharField(max_length=64)
    description = serializers.CharField(required=False, allow_blank=True, max_length=500)
    required = serializers.BooleanField(required=False)  # type: ignore[assignment]  # DRF moves it
    default = serializers.CharField(required=False, allow_blank=True, max_length=500)
    choices = serializers.ListField(
        child=serializers.CharField(max_length=500),
        required=False,
        help_text="Nothing else is taken.",
    )


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "A skill",
            {
                "name": "release-notes",
                "description": "Writes the notes of a release",
                "text": "Write release notes for ${version}: what is new, what was fixed.",
                "arguments": [{"name": "version", "required": True}],
                "agents": ["helper"],
            },
            request_only=True,
        )
    ]
)
class SkillBody(NumberedBody):
    """A skill as it is written; what is left out stays, or is at its default."""

    name = serializers.SlugField(max_length=64)
    title = serializers.CharField(required=False, allow_blank=True, max_length=255)
    description = serializers.CharField(required=False, allow_blank=True, max_length=500)
    text = serializers.CharField(required=False, max_length=LONGEST_SKILL, trim_whitespace=False)
    arguments = SkillArgument(many=True, required=False)
    enabled = serializers.BooleanField(required=False)
    agents = serializers.ListField(
        child=serializers.CharField(max_length=64),
        required=False,
        help_text="Slugs of the agents that have it.",
    )


class SkillShape(VersionedShape):
    """A skill."""

    written_as = (SkillBody,)

    id = serializers.UUIDField()
    name = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField()
    text = serializers.CharField()
    arguments = SkillArgument(many=True)
    enabled = serializers.BooleanField()
    version = serializers.IntegerField()  # type: ignore[assignment]  # it numbers what it says
    digest = serializers.CharField(help_text="SHA-256 over all that it says.")
    agents = AgentSlugs()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class SkillVersionShape(Shape):
    """What a skill said in one of its versions."""

    number = serializers.IntegerField()
    digest = serializers.CharField()
    made_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    text = serializers.CharField(source="payload.text")
    title = serializers.CharField(source="payload.title")
    description = serializers.CharField(source="payload.description")
    arguments = SkillArgument(source="payload.arguments", many=True)


class SkillValues(serializers.DictField):
    """Values of a skill's arguments, by their names."""

    child = serializers.CharField(
        max_length=LONGEST_ARGUMENT, allow_blank=True, trim_whitespace=False
    )


@extend_schema_serializer(
    examples=[OpenApiExample("Values", {"arguments": {"version": "1.4"}}, request_only=True)]
)
class RenderSkillBody(Shape):
    """Values for a skill's arguments."""

    arguments = SkillValues(required=False)


class RenderedSkillShape(Shape):
    """A skill with its arguments filled in."""

    text = serializers.CharField()


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "A run", {"agent": "helper", "arguments": {"version": "1.4"}}, request_only=True
        )
    ]
)
class RunSkillBody(RenderSkillBody):
    """Which agent runs a skill, and with which arguments."""

    agent = serializers.CharField(max_length=64, help_text="Id or slug.")


class SkillResource(Resource):
    """A resource of one skill."""

    def skill(self, skill_id: str) -> Skill:
        """Return the skill with this id or name, if it may be seen; raises `NotFound`."""
        with named_in_path("skill_id"):
            return named(self.principal, skill_id)


class Skills(Resource):
    """All skills."""

    rules = {"GET": READ_OR_RUN, "POST": Action.MANAGE_WORKFLOWS}
    narrowed = ("GET",)
    queryset = Skill.objects.none()
    filterset_class = SkillFilter
    ordering = ("name", "pk")
    orderings = ("name", "title", "created_at", "updated_at")

    @operation("list_skills", answer=SkillShape(many=True))
    def get(self, request: object) -> Response:
        """List the skills; a member and a token for one agent see what their agents have."""
        rows: Any = Skill.objects.visible_to(self.principal)
        return self.listed(rows.prefetch_related("given__agent"), SkillShape)

    @operation("add_skill", body=SkillBody, answer=SkillShape, status=201)
    def post(self, request: object) -> Response:
        """Write a skill."""
        made = save_skill(self.principal, SkillSpec(**self.read(SkillBody)))
        return self.shown(made, SkillShape, status=201)


class OneSkill(SkillResource):
    """One skill."""

    rules = {
        "GET": READ_OR_RUN,
        "PATCH": Action.MANAGE_WORKFLOWS,
        "DELETE": Action.MANAGE_WORKFLOWS,
    }
    narrowed = ("GET",)

    @operation("get_skill", answer=SkillShape)
    def get(self, request: object, skill_id: str) -> Response:
        """Show a skill, by id or name."""
        return self.shown(self.skill(skill_id), SkillShape)

    @operation("change_skill", body=SkillBody, answer=SkillShape)
    def patch(self, request: object, skill_id: str) -> Response:
        """Change parts of a skill; another text or other arguments are a new version."""
        skill = self.skill(skill_id)
        spec = SkillSpec(**({"name": skill.name} | self.read(SkillBody, partial=True)))
        return self.shown(save_skill(self.principal, spec, skill), SkillShape)

    @operation("remove_skill", status=204)
    def delete(self, request: object, skill_id: str) -> Response:
        """Remove a skill with its versions."""
        remove_skill(self.principal, self.skill(skill_id))
        return Response(status=204)


class SkillVersions(SkillResource):
    """The versions of a skill."""

    rules = {"GET": READ}
    queryset = SkillVersion.objects.none()
    ordering = ("-number", "-pk")
    orderings = ("number", "created_at")

    @operation("list_skill_versions", answer=SkillVersionShape(many=True))
    def get(self, request: object, skill_id: str) -> Response:
        """List what a skill said in its versions, the newest first."""
        return self.listed(self.skill(skill_id).versions.all(), SkillVersionShape)


class RenderSkill(SkillResource):
    """A skill with arguments."""

    rules = {"POST": READ_OR_RUN}
    narrowed = ("POST",)

    @operation("render_skill", body=RenderSkillBody, answer=RenderedSkillShape)
    def post(self, request: object, skill_id: str) -> Response:
        """Return a skill's text with its arguments filled in; nothing is run."""
        skill = self.skill(skill_id)
        given = self.read(RenderSkillBody).get("arguments", {})
        return Response({"text": render(text_of(skill), given)})


class RunSkill(SkillResource):
    """A run of a skill."""

    rules = {"POST": Action.RUN_AGENTS}
    narrowed = ("POST",)

    @operation("run_skill", body=RunSkillBody, answer=SessionShape, status=201)
    def post(self, request: object, skill_id: str) -> Response:
        """Start a session of an agent that has the skill, with its text as the first message."""
        skill, body = self.skill(skill_id), self.read(RunSkillBody)
        with named_in_path("agent"):
            agent = Agent.objects.named(self.principal, body["agent"])
        session = run_skill(self.principal, skill, agent, body.get("arguments", {}))
        return self.shown(session, SessionShape, status=201)
