"""REST of the flow labels of an agent's notes and workspace."""

from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentView
from agents.flow_labels.store_labels import clear_agent_stores, list_agent_stores
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer
from mcp_servers.api.store_labels import TAINTING


class AgentStoreSerializer(StrictSerializer):
    """A data store of an agent, and the flow labels that reading it adds."""

    name = serializers.ChoiceField(["workspace", "notes"])
    labels = serializers.ListField(child=serializers.ChoiceField(TAINTING))


class AgentStoreLabelsSerializer(StrictSerializer):
    """The flow labels of an agent's data stores, set by sessions that wrote to them."""

    stores = AgentStoreSerializer(many=True)


class AgentStoreLabelsView(AgentView):
    """The flow labels of an agent's notes and workspace."""

    rules = {"GET": READ, "DELETE": Action.APPROVE_DEFINITIONS}

    @describe_operation("get_agent_store_labels", answer=AgentStoreLabelsSerializer)
    def get(self, request: object, agent_id: str) -> Response:
        """Get the flow labels of an agent's notes and workspace."""
        stores = list_agent_stores(self.get_agent(agent_id))
        return self.respond_row({"stores": stores}, AgentStoreLabelsSerializer)

    @describe_operation("clear_agent_store_labels", status=204)
    def delete(self, request: object, agent_id: str) -> Response:
        """Clear the flow labels of an agent's notes and workspace; recorded in the audit log."""
        clear_agent_stores(self.principal, self.get_agent(agent_id))
        return Response(status=204)
