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
    """The configuration of one MCP client, with a placeholder for the token.

    With OAuth (`BONOBOT_OAUTH`), the URL is enough and there is no placeholder.
    """

    client = serializers.CharField(help_text="Name of the client, for programs.")
    title = serializers.CharField()
    text = serializers.CharField()
    language = serializers.ChoiceField(["json", "toml", "sh"])
    file = serializers.CharField(help_text="Where to save it; empty for a command.")
    note = serializers.CharField()
    link = serializers.CharField(
        help_text="Opens the client and asks its user to add the server; never contains a token. "
        "Empty for clients without such links."
    )


class GatewaySnippetsSerializer(StrictSerializer):
    """A gateway URL, and MCP client configurations to connect to it."""

    url = serializers.CharField()
    snippets = ClientConfigSnippetSerializer(many=True)


class AgentSnippetsView(AgentView):
    """MCP client configurations for an agent."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)

    @describe_operation("list_agent_snippets", answer=GatewaySnippetsSerializer)
    def get(self, request: object, agent_id: str) -> Response:
        """List MCP client configurations for an agent's tools."""
        return _build_response(build_agent_path(self.get_agent(agent_id).slug))


class ServerSnippetsView(ServerView):
    """MCP client configurations for a pool server."""

    rules = {"GET": READ}

    @describe_operation("list_server_snippets", answer=GatewaySnippetsSerializer)
    def get(self, request: object, server_id: str) -> Response:
        """List MCP client configurations for a pool server."""
        server = self.get_server(server_id)
        if server.scope_id != server.organization_id:
            raise NotFound(
                "A private server can only be reached at its agent's URL.",
                code="private_server",
                field="server_id",
                remedy="Get the snippets of the agent that the server is attached to.",
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
