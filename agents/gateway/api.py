"""Client configuration snippets over REST."""

from django.conf import settings
from django.urls import path
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentView
from agents.gateway.client_config_snippets import (
    build_agent_path,
    build_server_path,
    build_snippets,
    build_target,
)
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, READ_OR_RUN
from bonobot.core.api.serializers import StrictSerializer
from bonobot.core.problems import NotFound
from mcp_servers.api.servers import ServerView


class ClientConfigSnippetSerializer(StrictSerializer):
    """What one program is told, with a placeholder for the token.

    Where people let programs in (`BONOBOT_OAUTH`) there is none: the address is enough.
    """

    client = serializers.CharField(help_text="Its name for programs.")
    title = serializers.CharField()
    text = serializers.CharField()
    language = serializers.ChoiceField(["json", "toml", "sh"])
    file = serializers.CharField(help_text="Where it goes; blank for a command.")
    note = serializers.CharField()


class GatewaySnippetsSerializer(StrictSerializer):
    """An address of the gateway, and what programs are told to reach it."""

    url = serializers.CharField()
    snippets = ClientConfigSnippetSerializer(many=True)


class AgentSnippetsView(AgentView):
    """How programs reach an agent's tools."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)

    @describe_operation("list_agent_snippets", answer=GatewaySnippetsSerializer)
    def get(self, request: object, agent_id: str) -> Response:
        """List configurations for common programs to reach the agent's tools over MCP."""
        return _build_response(build_agent_path(self.get_agent(agent_id).slug))


class ServerSnippetsView(ServerView):
    """How programs reach a server of the pool."""

    rules = {"GET": READ}

    @describe_operation("list_server_snippets", answer=GatewaySnippetsSerializer)
    def get(self, request: object, server_id: str) -> Response:
        """List configurations for common programs to reach a server of the pool over MCP."""
        server = self.get_server(server_id)
        if server.scope_id != server.organization_id:
            raise NotFound(
                "A private server is reached by its agent's address only.",
                code="private_server",
                field="server_id",
                remedy="Ask for the snippets of the agent that has it.",
            )
        return _build_response(build_server_path(server.slug))


def _build_response(endpoint_path: str) -> Response:
    target = build_target(settings.BONOBOT_URL, endpoint_path, uses_oauth=settings.BONOBOT_OAUTH)
    snippets = ClientConfigSnippetSerializer(build_snippets(target), many=True).data
    return Response({"url": target.url, "snippets": snippets})


urlpatterns = [
    path("agents/<str:agent_id>/snippets", AgentSnippetsView.as_view(), name="agent-snippets"),
    path(
        "mcp-servers/<str:server_id>/snippets", ServerSnippetsView.as_view(), name="server-snippets"
    ),
]
