"""REST API of tokens and of authorized OAuth clients."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import timezone
from rest_framework import serializers
from rest_framework.response import Response

from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ_OR_RUN, ResourceView, set_not_found_field
from bonobot.accounts.extension_points import find_visible_agent_ids
from bonobot.accounts.models import Token, TokenQuerySet
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action, Role, TokenScope
from bonobot.accounts.tokens.constraints import (
    MAX_AGENTS,
    MAX_CALLS_PER_MINUTE,
    MAX_CLIENT_LENGTH,
    MAX_NETWORKS,
)
from bonobot.accounts.tokens.services import create_token, revoke_token, update_token
from bonobot.core.api.serializers import VersionedBody, VersionedSerializer
from bonobot.core.problems import InvalidInput

ROLES = [role.value for role in Role]
SCOPES = [scope.value for scope in TokenScope]


class TokenTermsBody(VersionedBody):
    """The settings of a token; an empty list means no restriction."""

    name = serializers.CharField(max_length=255)
    agents = serializers.ListField(
        child=serializers.CharField(max_length=64),
        required=False,
        max_length=MAX_AGENTS,
        help_text="IDs or slugs of the agents that the token can use.",
    )
    scopes = serializers.ListField(
        child=serializers.ChoiceField(SCOPES),
        required=False,
        max_length=len(SCOPES),
        help_text="Limits what the role allows; REST requires `api`.",
    )
    networks = serializers.ListField(
        child=serializers.CharField(max_length=64),
        required=False,
        max_length=MAX_NETWORKS,
        help_text="IP addresses or ranges (CIDR) that the token can be used from.",
    )
    client = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=MAX_CLIENT_LENGTH,
        help_text="Name of the client.",
    )
    expires_at = serializers.DateTimeField(required=False, allow_null=True)
    calls_per_minute = serializers.IntegerField(
        required=False, allow_null=True, min_value=1, max_value=MAX_CALLS_PER_MINUTE
    )

    def validate_expires_at(self, value: datetime | None) -> datetime | None:
        """Refuse a time that has passed."""
        if value is not None and value <= timezone.now():
            raise InvalidInput(
                "The expiration time is in the past.",
                field="expires_at",
                remedy="Enter a time in the future, or omit the field.",
            )
        return value


class TokenBody(TokenTermsBody):
    """A token to create."""

    role = serializers.ChoiceField(ROLES)
    agent = serializers.CharField(
        required=False, max_length=64, help_text="A single agent; use `agents` for several."
    )


class TokenSerializer(VersionedSerializer):
    """A token; its value isn't stored."""

    body_classes = (TokenTermsBody,)

    id = serializers.UUIDField()
    name = serializers.CharField()
    key = serializers.CharField(help_text="The public part, to identify the token.")
    kind = serializers.ChoiceField(
        ["token", "grant"],
        help_text="Created as a token, or authorized for an OAuth client by a person.",
    )
    authorized_by = serializers.CharField(
        source="user.username",
        default=None,
        allow_null=True,
        help_text="The person who authorized it.",
    )
    client_id = serializers.CharField(help_text="The OAuth client of a grant.")
    resource = serializers.CharField(
        help_text="The only URL that a grant is valid for; empty: all, including REST."
    )
    role = serializers.ChoiceField(ROLES)
    agents = serializers.ListField(
        child=serializers.UUIDField(),
        source="agent_ids",
        help_text="Empty: all agents of the role; for a member, none.",
    )
    agent_id = serializers.SerializerMethodField(help_text="The agent, if there is exactly one.")
    scopes = serializers.ListField(
        child=serializers.CharField(), help_text="Empty: everything that the role allows."
    )
    networks = serializers.ListField(child=serializers.CharField(), help_text="Empty: anywhere.")
    client = serializers.CharField()
    calls_per_minute = serializers.IntegerField(allow_null=True)
    expires_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()

    def get_agent_id(self, token: Token) -> UUID | None:
        """Return the one agent."""
        return UUID(token.agent_ids[0]) if len(token.agent_ids) == 1 else None


class NewTokenSerializer(TokenSerializer):
    """A token that was created."""

    token = serializers.SerializerMethodField(
        help_text="The token's value: store it, it isn't shown again."
    )

    def get_token(self, token: Token) -> str:
        """Return the text."""
        return str(self.context["text"])


class TokenListView(ResourceView):
    """All tokens."""

    rules = {"GET": Action.MANAGE_TOKENS, "POST": Action.MANAGE_TOKENS}
    orderings = ("name", "created_at")

    @describe_operation("list_tokens", answer=TokenSerializer(many=True))
    def get(self, request: object) -> Response:
        """List tokens, including revoked and expired ones."""
        rows = Token.objects.for_organization(self.organization_id).select_related("user")
        return self.respond_page(rows, TokenSerializer)

    @describe_operation("create_token", body=TokenBody, answer=NewTokenSerializer, status=201)
    def post(self, request: object) -> Response:
        """Create a token; only this response contains its value."""
        body = self.read_body(TokenBody)
        role = Role(body.pop("role"))
        token, text = create_token(self.principal, role=role, **build_terms(self.principal, body))
        response = self.respond_row(token, NewTokenSerializer, status=201, text=text)
        response["Cache-Control"] = "no-store"
        return response


def build_terms(principal: Principal, body: dict[str, Any]) -> dict[str, Any]:
    """Return a body as terms of a token, with agents as ids; raises `NotFound`.

    `agent` is the older way to name a single agent.
    """
    terms = {name: value for name, value in body.items() if name not in ("agent", "agents")}
    if "agent" in body and "agents" in body:
        raise InvalidInput(
            "Both `agent` and `agents` are set.", field="agent", remedy="Omit `agent`."
        )
    for field in ("agent", "agents"):
        if field in body:
            agent_names = [body[field]] if field == "agent" else body[field]
            with set_not_found_field(field):
                terms["agent_ids"] = find_visible_agent_ids(principal, agent_names)
    return terms


class TokenDetailView(ResourceView):
    """One token."""

    rules = {
        "GET": Action.MANAGE_TOKENS,
        "PATCH": Action.MANAGE_TOKENS,
        "DELETE": Action.MANAGE_TOKENS,
    }

    @describe_operation("get_token", answer=TokenSerializer)
    def get(self, request: object, token_id: str) -> Response:
        """Get a token, without its value."""
        return self.respond_row(self.get_row(Token, token_id=token_id), TokenSerializer)

    @describe_operation("update_token", body=TokenTermsBody, answer=TokenSerializer)
    def patch(self, request: object, token_id: str) -> Response:
        """Update a token; effective on its next call."""
        token = self.get_row(Token, token_id=token_id)
        body = self.read_body(TokenTermsBody, partial=True)
        update_token(self.principal, token, **build_terms(self.principal, body))
        return self.respond_row(token, TokenSerializer)

    @describe_operation("revoke_token", status=204)
    def delete(self, request: object, token_id: str) -> Response:
        """Revoke a token; effective immediately."""
        revoke_token(self.principal, self.get_row(Token, token_id=token_id))
        return Response(status=204)


class AuthorizedAppView(ResourceView):
    """Base class for the OAuth clients that the user authorized; tokens have none."""

    def query_grants(self) -> TokenQuerySet:
        """Return the user's active grants in this organization; none for tokens."""
        principal = self.principal
        rows = Token.objects.active().for_organization(self.organization_id).select_related("user")
        owner = {"user_id": principal.id} if principal.kind == "user" else {"user_id": None}
        return rows.filter(**owner, user__isnull=False).exclude(digest="")


class AuthorizedAppListView(AuthorizedAppView):
    """The OAuth clients that the user authorized."""

    rules = {"GET": READ_OR_RUN}
    orderings = ("name", "created_at")

    @describe_operation("list_authorized_clients", answer=TokenSerializer(many=True))
    def get(self, request: object) -> Response:
        """List the OAuth clients that you authorized, with their permissions."""
        return self.respond_page(self.query_grants(), TokenSerializer)


class AuthorizedAppDetailView(AuthorizedAppView):
    """One OAuth client that the user authorized."""

    rules = {"DELETE": READ_OR_RUN}

    @describe_operation("revoke_client", status=204)
    def delete(self, request: object, token_id: str) -> Response:
        """Revoke the access of an OAuth client; effective on its next request."""
        grant = self.get_row(Token, self.query_grants(), token_id=token_id)
        revoke_token(self.principal, grant)
        return Response(status=204)
