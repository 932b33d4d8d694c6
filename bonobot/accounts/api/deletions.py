"""REST API of recently deleted objects."""

from rest_framework import serializers
from rest_framework.response import Response

from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import ResourceView, set_not_found_field
from bonobot.accounts.deletions import get_deletion, list_deletions, restore_deletion
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer

# The list has only what the principal may restore.
RESTORERS = (Action.MANAGE_AGENTS, Action.MANAGE_SERVERS, Action.MANAGE_WORKFLOWS)


class DeletionSerializer(StrictSerializer):
    """A deleted object that can be restored."""

    id = serializers.UUIDField()
    kind = serializers.CharField(
        help_text="Type of the object: `agent`, `mcp_server`, `mcp_preset`, `skill`, `workflow`."
    )
    object_id = serializers.CharField(help_text="ID of the object, which it keeps when restored.")
    name = serializers.CharField()
    deleted_by = serializers.CharField()
    created_at = serializers.DateTimeField(help_text="When it was deleted.")
    expires_at = serializers.DateTimeField(help_text="Until when it can be restored.")


class DeletionListView(ResourceView):
    """Recently deleted objects."""

    rules = {"GET": RESTORERS}
    orderings = ("name", "created_at", "expires_at")

    @describe_operation("list_deletions", answer=DeletionSerializer(many=True))
    def get(self, request: object) -> Response:
        """List the deleted agents, servers, presets, skills, and workflows that you can restore.

        Deleted objects can be restored for ten minutes.
        """
        return self.respond_page(list_deletions(self.principal).defer("rows"), DeletionSerializer)


class RestoreDeletionView(ResourceView):
    """Restore a deleted object."""

    rules = {"POST": RESTORERS}

    @describe_operation("restore_deletion", status=204)
    def post(self, request: object, deletion_id: str) -> Response:
        """Restore a deleted object with its rows, under the same IDs.

        OAuth tokens of a server aren't restored, and sessions that weren't finished are canceled.
        """
        with set_not_found_field("deletion_id"):
            deletion = get_deletion(self.principal, deletion_id)
        restore_deletion(self.principal, deletion)
        return Response(status=204)
