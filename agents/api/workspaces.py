"""An agent's workspace: what it is and holds, and emptying it."""

from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentResource
from agents.toolboxes import empty_workspace, workspace_shown
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from bonobot.tenancy.roles import Action
from mcp_servers.labels import BITS


class WorkspaceShape(Shape):
    """A workspace; of an attached folder nothing is counted, and it has no quota."""

    folder = serializers.CharField(help_text="The attached one; blank: the agent's own.")
    attached = serializers.BooleanField()
    bytes = serializers.IntegerField(allow_null=True)
    files = serializers.IntegerField(allow_null=True, help_text="And folders.")
    most_bytes = serializers.IntegerField(allow_null=True)
    most_files = serializers.IntegerField(allow_null=True)
    labels = serializers.ListField(
        child=serializers.ChoiceField([label.value for label in BITS]),
        help_text="What sessions that wrote here had seen; whoever reads here has seen it, too.",
    )


class AgentWorkspace(AgentResource):
    """The folder that an agent's tools work in."""

    rules = {"GET": Action.VIEW, "DELETE": Action.MANAGE_AGENTS}

    @operation("get_workspace", answer=WorkspaceShape)
    def get(self, request: object, agent_id: str) -> Response:
        """Show what an agent's workspace is and how much it holds."""
        return Response(workspace_shown(self.agent(agent_id)))

    @operation("empty_workspace", status=204)
    def delete(self, request: object, agent_id: str) -> Response:
        """Delete everything in an agent's own workspace, and forget what its sessions had seen.

        An attached folder is refused (`attached_folder`).
        """
        empty_workspace(self.principal, self.agent(agent_id))
        return Response(status=204)
