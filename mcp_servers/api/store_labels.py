"""The flow labels of a server's stored data, and clearing them."""

from rest_framework import serializers
from rest_framework.response import Response

from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer
from mcp_servers.api.servers import ServerView
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.store_labels import (
    MAX_LISTED,
    clear_store_labels,
    get_store_labels,
    list_written_labels,
)

TAINTING = [str(FlowLabel.PRIVATE_DATA), str(FlowLabel.UNTRUSTED_CONTENT)]


class WrittenLabelsSerializer(StrictSerializer):
    """Flow labels that one call added to a server's data."""

    labels = serializers.ListField(child=serializers.ChoiceField(TAINTING))
    call_id = serializers.UUIDField(help_text="Audit entry of the call.")
    session_id = serializers.UUIDField(allow_null=True)
    tool = serializers.CharField(help_text="Empty if the audit entry was deleted.")
    caller = serializers.CharField()
    created_at = serializers.DateTimeField()
    cleared_at = serializers.DateTimeField(allow_null=True)
    cleared_by = serializers.CharField()


class ServerStoreLabelsSerializer(StrictSerializer):
    """Flow labels that reading from a server adds to its tools' labels."""

    labels = serializers.ListField(child=serializers.ChoiceField(TAINTING))
    written = WrittenLabelsSerializer(many=True, help_text=f"The latest {MAX_LISTED}.")


class ServerStoreLabelsView(ServerView):
    """The flow labels of a server's data."""

    rules = {"GET": READ, "DELETE": Action.APPROVE_DEFINITIONS}

    @describe_operation("get_server_store_labels", answer=ServerStoreLabelsSerializer)
    def get(self, request: object, server_id: str) -> Response:
        """Get the flow labels of a server's data, and the calls that added them."""
        server = self.get_server(server_id)
        status = {"labels": get_store_labels(server), "written": list_written_labels(server)}
        return self.respond_row(status, ServerStoreLabelsSerializer)

    @describe_operation("clear_server_store_labels", status=204)
    def delete(self, request: object, server_id: str) -> Response:
        """Clear the flow labels of a server's data; effective on the next call."""
        clear_store_labels(self.principal, self.get_server(server_id))
        return Response(status=204)
