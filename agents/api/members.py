"""Members who may run an agent (DESIGN section 6: the role `member` runs agents given to them)."""

from typing import Any

from django.db import transaction
from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentResource
from agents.models import Agent
from agents.registration import give_to
from bonobot.lib.row_locks import lock
from bonobot.tenancy.api.resources import READ, found_or_404, named_in_path
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape, VersionedBody
from bonobot.tenancy.models import Membership, User
from bonobot.tenancy.roles import Action


@extend_schema_serializer(
    examples=[OpenApiExample("Two people", {"members": ["anna", "bert"]}, request_only=True)]
)
class AgentMembersBody(VersionedBody):
    """Everybody who may run the agent, by the names that they sign in with."""

    members = serializers.ListField(
        child=serializers.CharField(max_length=150), allow_empty=True, max_length=1_000
    )


class AgentMemberShape(Shape):
    """A person whom the agent was given to."""

    user_id = serializers.UUIDField(source="pk")
    username = serializers.CharField()
    name = serializers.CharField(source="get_full_name")
    email = serializers.CharField()


class AgentMemberResource(AgentResource):
    """A resource below the members of one agent."""

    def people(self, agent: Agent) -> Any:
        """Return whom the agent was given to, as far as they still belong to the organization."""
        here = {"memberships__organization": agent.organization_id}
        return User.objects.filter(pk__in=agent.members.values("pk"), **here).order_by("username")

    def give(self, agent: Agent, usernames: set[str]) -> Response:
        """Give the agent to exactly these people and show them."""
        give_to(self.principal, agent, usernames)
        return self.all(agent)

    def all(self, agent: Agent) -> Response:
        """Show whom the agent was given to; the version is that of all of them."""
        people = self.people(agent)
        self.shown_row = agent
        self.shown_parts = {"members": list(people.values_list("username", flat=True))}
        return self.listed(people, AgentMemberShape)


class AgentMembers(AgentMemberResource):
    """Who may run an agent, beside owners and operators, who may run every one."""

    rules = {
        "GET": READ,
        "PUT": Action.MANAGE_AGENTS,
        "DELETE": Action.MANAGE_AGENTS,
    }
    queryset = User.objects.none()
    ordering = ("username", "pk")
    orderings = ("username", "email")

    @operation("list_agent_members", answer=AgentMemberShape(many=True))
    def get(self, request: object, agent_id: str) -> Response:
        """List the members who may run an agent; owners and operators may run every agent."""
        return self.all(self.agent(agent_id))

    @operation("set_agent_members", body=AgentMembersBody, answer=AgentMemberShape(many=True))
    def put(self, request: object, agent_id: str) -> Response:
        """Give an agent to exactly these members of the organization."""
        agent = self.agent(agent_id)
        return self.give(agent, set(self.read(AgentMembersBody)["members"]))

    @operation("clear_agent_members", status=204)
    def delete(self, request: object, agent_id: str) -> Response:
        """Take an agent from all its members."""
        give_to(self.principal, self.agent(agent_id), ())
        return Response(status=204)


class AgentMember(AgentMemberResource):
    """One person and one agent."""

    rules = {"PUT": Action.MANAGE_AGENTS, "DELETE": Action.MANAGE_AGENTS}

    @operation("give_agent", answer=AgentMemberShape)
    def put(self, request: object, agent_id: str, user_id: str) -> Response:
        """Give an agent to one more member; again is harmless."""
        agent = self.agent(agent_id)
        with named_in_path("user_id"):
            member = Membership.objects.get_or_404(self.organization_id, user=user_id).user
        with transaction.atomic():
            lock(Agent.objects.filter(pk=agent.pk))  # nobody else is given it, or loses it, by this
            given = set(self.people(agent).values_list("username", flat=True))
            give_to(self.principal, agent, given | {member.username})
        return self.shown(member, AgentMemberShape)

    @operation("take_agent", status=204)
    def delete(self, request: object, agent_id: str, user_id: str) -> Response:
        """Take an agent from one member; it holds on the very next request."""
        agent = self.agent(agent_id)
        with transaction.atomic():
            lock(Agent.objects.filter(pk=agent.pk))
            given = {str(person.pk): person.username for person in self.people(agent)}
            username = found_or_404(given.get(user_id), "member", user_id, field="user_id")
            give_to(self.principal, agent, set(given.values()) - {username})
        return Response(status=204)
