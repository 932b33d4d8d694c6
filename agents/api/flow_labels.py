"""REST of the flow labels that agents and tokens carry."""

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentView
from agents.flow_labels.services import (
    build_store_version_parts,
    clear_agent_labels,
    clear_agent_stores,
    clear_token_labels,
    list_agent_labels,
    list_agent_stores,
    list_token_labels,
)
from agents.models import Agent
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, ResourceView, set_not_found_field
from bonobot.accounts.models import Token
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer, VersionedSerializer
from mcp_servers.api.servers import LABELS_VERSION_HELP, TAINTING, WRITTEN_AT_HELP
from mcp_servers.flow_labels import FlowLabel


class FlowLabelsSerializer(StrictSerializer):
    """Current flow labels; with both, calls with an external effect require approval."""

    flow_labels = serializers.ListField(
        child=serializers.ChoiceField(
            [str(FlowLabel.PRIVATE_DATA), str(FlowLabel.UNTRUSTED_CONTENT)]
        )
    )
    at = serializers.DateTimeField()


class AgentFlowLabelsView(AgentView):
    """The flow labels of an agent."""

    rules = {"GET": READ, "DELETE": Action.MANAGE_AGENTS}

    @describe_operation("get_agent_flow_labels", answer=FlowLabelsSerializer)
    def get(self, request: object, agent_id: str) -> Response:
        """Get an agent's flow labels from calls without a session; they expire after 24 hours."""
        current_labels = list_agent_labels(self.get_agent(agent_id))
        return self.respond_row(
            {"flow_labels": current_labels, "at": timezone.now()}, FlowLabelsSerializer
        )

    @describe_operation("clear_agent_flow_labels", status=204)
    def delete(self, request: object, agent_id: str) -> Response:
        """Clear the flow labels of an agent and its tokens; recorded in the audit log."""
        clear_agent_labels(self.principal, self.get_agent(agent_id))
        return Response(status=204)


class TokenFlowLabelsView(ResourceView):
    """The flow labels of a token."""

    rules = {"GET": Action.MANAGE_TOKENS, "DELETE": Action.MANAGE_AGENTS}

    @describe_operation("get_token_flow_labels", answer=FlowLabelsSerializer)
    def get(self, request: object, token_id: str) -> Response:
        """Get a token's flow labels from calls without a session; they expire after 24 hours."""
        current_labels = list_token_labels(self.get_row(Token, token_id=token_id))
        return self.respond_row(
            {"flow_labels": current_labels, "at": timezone.now()}, FlowLabelsSerializer
        )

    @describe_operation("clear_token_flow_labels", status=204)
    def delete(self, request: object, token_id: str) -> Response:
        """Clear the flow labels of a token; recorded in the audit log."""
        clear_token_labels(self.principal, self.get_row(Token, token_id=token_id))
        return Response(status=204)


class AgentStoreSerializer(StrictSerializer):
    """A data store of an agent, and the flow labels that reading it adds."""

    name = serializers.ChoiceField(["workspace", "notes", "instructions"])
    labels = serializers.ListField(child=serializers.ChoiceField(TAINTING))
    written_at = serializers.DateTimeField(allow_null=True, help_text=WRITTEN_AT_HELP)


class AgentStoreLabelsSerializer(VersionedSerializer):
    """The flow labels of an agent's data stores, set by sessions that wrote to them."""

    stores = AgentStoreSerializer(many=True)
    version = serializers.CharField(read_only=True, help_text=LABELS_VERSION_HELP)

    def build_parts(self, instance: Any, representation: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parts that each labeled write changes."""
        return dict(build_store_version_parts(instance["stores"]))


class AgentStoreLabelsView(AgentView):
    """The flow labels of an agent's notes, workspace and instructions."""

    rules = {"GET": READ, "DELETE": Action.APPROVE_DEFINITIONS}

    @describe_operation("get_agent_store_labels", answer=AgentStoreLabelsSerializer)
    def get(self, request: object, agent_id: str) -> Response:
        """Get the flow labels of an agent's notes, workspace, and instructions."""
        stores = list_agent_stores(self.get_agent(agent_id))
        return self.respond_row({"stores": stores}, AgentStoreLabelsSerializer)

    @describe_operation("clear_agent_store_labels", status=204)
    def delete(self, request: object, agent_id: str) -> Response:
        """Clear the flow labels of an agent's notes, workspace, and instructions.

        The audit log records it.
        """
        clear_agent_stores(self.principal, self.get_agent(agent_id))
        return Response(status=204)

    def get_agent(self, agent_id: str) -> Agent:
        """Return the visible agent; raises `NotFound`.

        It isn't reported as read: responses have no texts of it, and a token that holds their
        labels couldn't clear them.
        """
        with set_not_found_field("agent_id"):
            return Agent.objects.get_by_name(self.principal, agent_id)

    def query_rows_to_lock(self) -> QuerySet[Agent]:
        """Return the agent."""
        return Agent.objects.filter(pk=self.get_agent(self.kwargs["agent_id"]).pk)
