"""Snippets over REST: what other programs are told to reach an agent's tools, or a server."""

from django.conf import settings
from django.urls import path
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentResource
from bonobot.gateway.snippets import agent_path, server_path, snippets, target
from bonobot.lib.problems import NotFound
from bonobot.tenancy.api.resources import READ, READ_OR_RUN
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from mcp_servers.api.servers import ServerResource


class SnippetShape(Shape):
    """What one program is told, with a placeholder for the token.

    Where people let programs in (`BONOBOT_OAUTH`) there is none: the address is enough.
    """

    client = serializers.CharField(help_text="Its name for programs.")
    title = serializers.CharField()
    text = serializers.CharField()
    language = serializers.ChoiceField(["json", "toml", "sh"])
    file = serializers.CharField(help_text="Where it goes; blank for a command.")
    note = serializers.CharField()


class SnippetsShape(Shape):
    """An address of the gateway, and what programs are told to reach it."""

    url = serializers.CharField()
    snippets = SnippetShape(many=True)


class AgentSnippets(AgentResource):
    """How programs reach an agent's tools."""

    rules = {"GET": READ_OR_RUN}
    narrowed = ("GET",)

    @operation("list_agent_snippets", answer=SnippetsShape)
    def get(self, request: object, agent_id: str) -> Response:
        """List configurations for common programs to reach the agent's tools over MCP."""
        return _answer(agent_path(self.agent(agent_id).slug))


class ServerSnippets(ServerResource):
    """How programs reach a server of the pool."""

    rules = {"GET": READ}

    @operation("list_server_snippets", answer=SnippetsShape)
    def get(self, request: object, server_id: str) -> Response:
        """List configurations for common programs to reach a server of the pool over MCP."""
        server = self.server(server_id)
        if server.scope_id != server.organization_id:
            raise NotFound(
                "A private server is reached by its agent's address only.",
                code="private_server",
                field="server_id",
                remedy="Ask for the snippets of the agent that has it.",
            )
        return _answer(server_path(server.slug))


def _answer(where: str) -> Response:
    about = target(settings.BONOBOT_URL, where, signs_in=settings.BONOBOT_OAUTH)
    found = SnippetShape(snippets(about), many=True).data
    return Response({"url": about.url, "snippets": found})


urlpatterns = [
    path("agents/<str:agent_id>/snippets", AgentSnippets.as_view(), name="agent-snippets"),
    path("mcp-servers/<str:server_id>/snippets", ServerSnippets.as_view(), name="server-snippets"),
]
