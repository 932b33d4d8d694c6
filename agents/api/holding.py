"""What agents and tokens hold from calls without a session, and letting it go (FEATURES X9)."""

from django.utils import timezone
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentResource
from agents.api.tokens import TokenResource
from agents.holding import clear_agent, clear_token, held_by_agent, held_by_token
from bonobot.tenancy.api.resources import READ
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from bonobot.tenancy.roles import Action
from mcp_servers.labels import Label


class HeldShape(Shape):
    """Labels that are held now; with both of them, what sends out needs a person's yes."""

    held = serializers.ListField(
        child=serializers.ChoiceField([str(Label.PRIVATE_DATA), str(Label.UNTRUSTED_CONTENT)])
    )
    at = serializers.DateTimeField()


class AgentHeld(AgentResource):
    """What an agent holds."""

    rules = {"GET": READ, "DELETE": Action.MANAGE_AGENTS}

    @operation("get_agent_held", answer=HeldShape)
    def get(self, request: object, agent_id: str) -> Response:
        """Show which labels an agent holds from calls without a session (24 h idle ends it)."""
        held = held_by_agent(self.agent(agent_id))
        return self.shown({"held": held, "at": timezone.now()}, HeldShape)

    @operation("clear_agent_held", status=204)
    def delete(self, request: object, agent_id: str) -> Response:
        """Let go of what an agent and its tokens hold; audited."""
        clear_agent(self.principal, self.agent(agent_id))
        return Response(status=204)


class TokenHeld(TokenResource):
    """What a token holds."""

    rules = {"GET": Action.MANAGE_TOKENS, "DELETE": Action.MANAGE_AGENTS}

    @operation("get_token_held", answer=HeldShape)
    def get(self, request: object, token_id: str) -> Response:
        """Show which labels a token holds from calls without a session (24 h idle ends it)."""
        held = held_by_token(self.token(token_id))
        return self.shown({"held": held, "at": timezone.now()}, HeldShape)

    @operation("clear_token_held", status=204)
    def delete(self, request: object, token_id: str) -> Response:
        """Let go of what a token holds; audited."""
        clear_token(self.principal, self.token(token_id))
        return Response(status=204)
