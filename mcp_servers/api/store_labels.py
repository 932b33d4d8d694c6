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
    """Labels that one call left in a store."""

    labels = serializers.ListField(child=serializers.ChoiceField(TAINTING))
    call_id = serializers.UUIDField(help_text="The audit entry of the call that wrote.")
    session_id = serializers.UUIDField(allow_null=True)
    tool = serializers.CharField(help_text="Blank if the entry is no longer kept.")
    caller = serializers.CharField()
    created_at = serializers.DateTimeField()
    cleared_at = serializers.DateTimeField(allow_null=True)
    cleared_by = serializers.CharField()


class ServerStoreLabelsSerializer(StrictSerializer):
    """What reading from a server brings beside its tools' own labels."""

    labels = serializers.ListField(child=serializers.ChoiceField(TAINTING))
    written = WrittenLabelsSerializer(many=True, help_text=f"The latest {MAX_LISTED}.")


class ServerStoreLabelsView(ServerView):
    """The labels of what a server keeps."""

    rules = {"GET": READ, "DELETE": Action.APPROVE_DEFINITIONS}

    @describe_operation("get_server_store_labels", answer=ServerStoreLabelsSerializer)
    def get(self, request: object, server_id: str) -> Response:
        """Show which labels a server's data carries, and which calls left them there."""
        server = self.get_server(server_id)
        status = {"labels": get_store_labels(server), "written": list_written_labels(server)}
        return self.respond_row(status, ServerStoreLabelsSerializer)

    @describe_operation("clear_server_store_labels", status=204)
    def delete(self, request: object, server_id: str) -> Response:
        """Clear the labels of a server's data: effective for the very next call; audited."""
        clear_store_labels(self.principal, self.get_server(server_id))
        return Response(status=204)
