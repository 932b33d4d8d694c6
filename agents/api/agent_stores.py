"""The labels that an agent's notes and workspace carry, and clearing them."""

from rest_framework import serializers
from rest_framework.response import Response

from agents.agent_stores import clear_agent_stores, list_agent_stores
from agents.api.agents import AgentResource
from bonobot.tenancy.api.resources import READ
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from bonobot.tenancy.roles import Action
from mcp_servers.api.store_labels import TAINTING


class AgentStoreShape(Shape):
    """A store of an agent, and the labels that reading it can bring."""

    name = serializers.ChoiceField(["workspace", "notes"])
    labels = serializers.ListField(child=serializers.ChoiceField(TAINTING))


class AgentStoreLabelsShape(Shape):
    """What an agent's own stores carry from sessions that wrote there."""

    stores = AgentStoreShape(many=True)


class AgentStoreLabels(AgentResource):
    """The labels of an agent's notes and workspace."""

    rules = {"GET": READ, "DELETE": Action.APPROVE_DEFINITIONS}

    @operation("get_agent_store_labels", answer=AgentStoreLabelsShape)
    def get(self, request: object, agent_id: str) -> Response:
        """Show which labels an agent's notes and workspace carry."""
        stores = list_agent_stores(self.agent(agent_id))
        return self.shown({"stores": stores}, AgentStoreLabelsShape)

    @operation("clear_agent_store_labels", status=204)
    def delete(self, request: object, agent_id: str) -> Response:
        """Clear the labels of an agent's notes and workspace; audited."""
        clear_agent_stores(self.principal, self.agent(agent_id))
        return Response(status=204)
