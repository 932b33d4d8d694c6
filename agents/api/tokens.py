"""Tokens: made, listed, revoked. They live here because one may be narrowed to an agent."""

from datetime import datetime

from django.utils import timezone
from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from agents.models import Agent
from bonobot.lib.problems import Invalid
from bonobot.tenancy.api.resources import Resource, named_in_path
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from bonobot.tenancy.models import Token
from bonobot.tenancy.roles import Action, Role
from bonobot.tenancy.tokens import issue, revoke

ROLES = [role.value for role in Role]
MOST_CALLS = 1_000_000


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "For one agent",
            {"name": "release pipeline", "role": "member", "agent": "release-helper"},
            request_only=True,
        )
    ]
)
class TokenBody(Shape):
    """A token as it is made."""

    name = serializers.CharField(max_length=255)
    role = serializers.ChoiceField(ROLES)
    agent = serializers.CharField(
        required=False, max_length=64, help_text="Id or slug of the one agent that it is for."
    )
    expires_at = serializers.DateTimeField(required=False, allow_null=True)
    calls_per_minute = serializers.IntegerField(
        required=False, allow_null=True, min_value=1, max_value=MOST_CALLS
    )

    def validate_expires_at(self, value: datetime | None) -> datetime | None:
        """Refuse a time that has passed."""
        if value is not None and value <= timezone.now():
            raise Invalid(
                "The token would have expired already.",
                field="expires_at",
                remedy="Choose a time that is still to come, or leave it out.",
            )
        return value


class TokenShape(Shape):
    """A token as it is read; its text is known to nobody."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    key = serializers.CharField(help_text="The public part, for finding it again.")
    role = serializers.ChoiceField(ROLES)
    agent_id = serializers.UUIDField(allow_null=True)
    calls_per_minute = serializers.IntegerField(allow_null=True)
    expires_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()


class NewTokenShape(TokenShape):
    """A token that was just made."""

    token = serializers.SerializerMethodField(help_text="Its text: keep it, it isn't shown again.")

    def get_token(self, token: Token) -> str:
        """Return the text."""
        return str(self.context["text"])


class Tokens(Resource):
    """All tokens."""

    rules = {"GET": Action.MANAGE_TOKENS, "POST": Action.MANAGE_TOKENS}

    @operation("list_tokens", answer=TokenShape(many=True))
    def get(self, request: object) -> Response:
        """List the tokens, revoked and expired ones too."""
        return self.listed(Token.objects.for_organization(self.organization_id), TokenShape)

    @operation("create_token", body=TokenBody, answer=NewTokenShape, status=201)
    def post(self, request: object) -> Response:
        """Make a token; the answer is the only place where its text ever stands."""
        body = self.read(TokenBody)
        agent = body.pop("agent", None)
        if agent is not None:
            with named_in_path("agent"):
                body["agent_id"] = Agent.objects.named(self.principal, agent).pk
        token, text = issue(self.principal, **(body | {"role": Role(body["role"])}))
        answer = self.shown(token, NewTokenShape, status=201, text=text)
        answer["Cache-Control"] = "no-store"
        return answer


class TokenResource(Resource):
    """A resource below one token."""

    def token(self, token_id: str) -> Token:
        """Return the token; raises `NotFound`."""
        with named_in_path("token_id"):
            found: Token = Token.objects.get_or_404(self.organization_id, pk=token_id)
        return found


class OneToken(TokenResource):
    """One token."""

    rules = {"GET": Action.MANAGE_TOKENS, "DELETE": Action.MANAGE_TOKENS}

    @operation("get_token", answer=TokenShape)
    def get(self, request: object, token_id: str) -> Response:
        """Show a token, without its text."""
        return self.shown(self.token(token_id), TokenShape)

    @operation("revoke_token", status=204)
    def delete(self, request: object, token_id: str) -> Response:
        """Revoke a token at once; its row stays."""
        revoke(self.principal, self.token(token_id))
        return Response(status=204)
