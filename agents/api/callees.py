"""Which agents an agent may ask."""

from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentResource
from agents.callees import callees_of, set_callees
from agents.models import Agent
from bonobot.tenancy.api.resources import READ
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import VersionedShape, VersionField
from bonobot.tenancy.roles import Action


@extend_schema_serializer(
    examples=[OpenApiExample("One", {"may_ask": ["researcher"]}, request_only=True)]
)
class CalleesShape(VersionedShape):
    """The agents that an agent may ask, each by a tool `ask_{slug}` under its policy."""

    version = VersionField(required=False)
    may_ask = serializers.ListField(child=serializers.CharField(max_length=64))


class AgentCallees(AgentResource):
    """The agents that an agent may ask."""

    rules = {"GET": READ, "PUT": Action.MANAGE_AGENTS}
    narrowed = ("GET",)

    @operation("get_callees", answer=CalleesShape)
    def get(self, request: object, agent_id: str) -> Response:
        """Show which agents an agent may ask."""
        return self._answer(self.agent(agent_id))

    @operation("set_callees", body=CalleesShape, answer=CalleesShape)
    def put(self, request: object, agent_id: str) -> Response:
        """Say which agents an agent may ask; the root of the tree of sessions pays."""
        agent = self.agent(agent_id)
        set_callees(self.principal, agent, self.read(CalleesShape)["may_ask"])
        return self._answer(agent)

    def _answer(self, agent: Agent) -> Response:
        return self.shown({"may_ask": callees_of(agent)}, CalleesShape, owner=agent)
