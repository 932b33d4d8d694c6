"""REST API of external issuers."""

from typing import Any

from rest_framework import serializers
from rest_framework.response import Response

from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import ResourceView
from bonobot.accounts.api.tokens import ROLES, build_terms
from bonobot.accounts.external_issuers import services as external_issuers
from bonobot.accounts.external_issuers.jwt_validation import GATEWAY_SCOPES
from bonobot.accounts.external_issuers.services import MAX_CLAIM_LENGTH, MAX_URL_LENGTH
from bonobot.accounts.models import Issuer
from bonobot.accounts.roles import Action
from bonobot.accounts.tokens.constraints import MAX_AGENTS, MAX_CALLS_PER_MINUTE
from bonobot.core.api.serializers import StrictSerializer, VersionedBody, VersionedSerializer

CLAIM_OPTIONS: dict[str, Any] = {"required": False, "max_length": MAX_CLAIM_LENGTH}
REQUIRED_ACTION = Action.MANAGE_ISSUERS


class IssuerBody(VersionedBody):
    """An external issuer to create or update; an empty list means no restriction."""

    name = serializers.CharField(max_length=255)
    url = serializers.CharField(
        max_length=MAX_URL_LENGTH, help_text="Exactly as in the `iss` claim of its tokens."
    )
    audience = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=MAX_URL_LENGTH,
        help_text="The value that `aud` must contain; empty: the URL at which the token is used.",
    )
    subject_claim = serializers.CharField(**CLAIM_OPTIONS)
    label_claim = serializers.CharField(allow_blank=True, **CLAIM_OPTIONS)
    role = serializers.ChoiceField(
        ROLES, required=False, allow_blank=True, help_text="The role if no claim sets one."
    )
    role_claim = serializers.CharField(allow_blank=True, **CLAIM_OPTIONS)
    roles = serializers.DictField(
        child=serializers.ChoiceField(ROLES), required=False, help_text="Roles by claim value."
    )
    scope_claim = serializers.CharField(allow_blank=True, **CLAIM_OPTIONS)
    scopes = serializers.ListField(
        child=serializers.CharField(max_length=32),
        required=False,
        max_length=len(GATEWAY_SCOPES),
        help_text=f"The scopes its tokens can have, of {', '.join(GATEWAY_SCOPES)}; empty: all.",
    )
    agents = serializers.ListField(
        child=serializers.CharField(max_length=64),
        required=False,
        max_length=MAX_AGENTS,
        help_text="IDs or slugs of the only agents that its tokens can use.",
    )
    calls_per_minute = serializers.IntegerField(
        required=False, allow_null=True, min_value=1, max_value=MAX_CALLS_PER_MINUTE
    )
    any_type = serializers.BooleanField(
        required=False, help_text="Also accept the type `JWT`, not only `at+jwt`."
    )
    allow_private = serializers.BooleanField(required=False)
    announced = serializers.BooleanField(required=False)
    enabled = serializers.BooleanField(required=False)


class IssuerSerializer(VersionedSerializer):
    """An external issuer."""

    body_classes = (IssuerBody,)

    id = serializers.UUIDField()
    name = serializers.CharField()
    url = serializers.CharField()
    audience = serializers.CharField()
    subject_claim = serializers.CharField()
    label_claim = serializers.CharField()
    role = serializers.CharField()
    role_claim = serializers.CharField()
    roles = serializers.DictField(child=serializers.CharField())
    scope_claim = serializers.CharField()
    scopes = serializers.ListField(child=serializers.CharField())
    agents = serializers.ListField(child=serializers.UUIDField(), source="agent_ids")
    calls_per_minute = serializers.IntegerField(allow_null=True)
    any_type = serializers.BooleanField()
    allow_private = serializers.BooleanField()
    announced = serializers.BooleanField()
    enabled = serializers.BooleanField()
    created_at = serializers.DateTimeField()


class IssuerKeysSerializer(StrictSerializer):
    """The result of a check."""

    keys = serializers.IntegerField(help_text="Number of keys that it publishes.")


class IssuerListView(ResourceView):
    """All issuers of the organization."""

    rules = {"GET": REQUIRED_ACTION, "POST": REQUIRED_ACTION}
    orderings = ("name", "created_at")

    @describe_operation("list_external_issuers", answer=IssuerSerializer(many=True))
    def get(self, request: object) -> Response:
        """List external issuers whose tokens MCP endpoints accept."""
        return self.respond_page(
            Issuer.objects.for_organization(self.organization_id), IssuerSerializer
        )

    @describe_operation(
        "create_external_issuer", body=IssuerBody, answer=IssuerSerializer, status=201
    )
    def post(self, request: object) -> Response:
        """Create an external issuer; requires a platform administrator."""
        terms = build_terms(self.principal, self.read_body(IssuerBody))
        return self.respond_row(
            external_issuers.create_issuer(self.principal, **terms), IssuerSerializer, status=201
        )


class IssuerDetailView(ResourceView):
    """One issuer."""

    rules = {"GET": REQUIRED_ACTION, "PATCH": REQUIRED_ACTION, "DELETE": REQUIRED_ACTION}

    @describe_operation("get_external_issuer", answer=IssuerSerializer)
    def get(self, request: object, issuer_id: str) -> Response:
        """Get an external issuer."""
        return self.respond_row(self.get_row(Issuer, issuer_id=issuer_id), IssuerSerializer)

    @describe_operation("update_external_issuer", body=IssuerBody, answer=IssuerSerializer)
    def patch(self, request: object, issuer_id: str) -> Response:
        """Update an external issuer; effective on the next call of each of its tokens."""
        issuer = self.get_row(Issuer, issuer_id=issuer_id)
        terms = build_terms(self.principal, self.read_body(IssuerBody, partial=True))
        external_issuers.update_issuer(self.principal, issuer, **terms)
        return self.respond_row(issuer, IssuerSerializer)

    @describe_operation("delete_external_issuer", status=204)
    def delete(self, request: object, issuer_id: str) -> Response:
        """Delete an external issuer; its tokens are no longer accepted."""
        external_issuers.delete_issuer(self.principal, self.get_row(Issuer, issuer_id=issuer_id))
        return Response(status=204)


class CheckIssuerView(ResourceView):
    """Check of an issuer."""

    rules = {"POST": REQUIRED_ACTION}

    @describe_operation("check_external_issuer", answer=IssuerKeysSerializer, asks=True)
    def post(self, request: object, issuer_id: str) -> Response:
        """Check an external issuer: fetch its keys."""
        issuer = self.get_row(Issuer, issuer_id=issuer_id)
        return Response({"keys": external_issuers.check_issuer(self.principal, issuer)})
