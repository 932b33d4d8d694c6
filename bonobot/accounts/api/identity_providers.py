"""REST API of identity providers."""

from typing import Any

from rest_framework import serializers
from rest_framework.response import Response

from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import ResourceView
from bonobot.accounts.external_issuers.services import MAX_CLAIM_LENGTH, MAX_URL_LENGTH
from bonobot.accounts.models import Provider
from bonobot.accounts.roles import Action, Role
from bonobot.accounts.sso import identity_providers as sso
from bonobot.core.api.serializers import StrictSerializer, VersionedBody, VersionedSerializer

ROLES = [role.value for role in Role]
REQUIRED_ACTION = Action.MANAGE_ORGANIZATION


class IdentityProviderBody(VersionedBody):
    """An identity provider to create or update."""

    name = serializers.CharField(max_length=255, help_text="Shown on the sign-in page.")
    url = serializers.CharField(
        max_length=MAX_URL_LENGTH, help_text="Exactly as in the `iss` claim of its tokens."
    )
    client_id = serializers.CharField(max_length=MAX_CLAIM_LENGTH)
    client_secret = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=sso.MAX_SECRET_LENGTH,
        help_text="Stored encrypted; omitted or `********`: unchanged.",
    )
    domains = serializers.ListField(
        child=serializers.CharField(max_length=254),
        required=False,
        max_length=sso.MAX_DOMAINS,
        help_text="Only people with email addresses of these domains can sign in; empty: everyone.",
    )
    trusts_email = serializers.BooleanField(
        required=False, help_text="Its email addresses count as verified without `email_verified`."
    )
    creates = serializers.BooleanField(
        required=False, help_text="Create accounts and memberships on first sign-in."
    )
    role = serializers.ChoiceField(
        ROLES, required=False, allow_blank=True, help_text="The role if no claim sets one."
    )
    role_claim = serializers.CharField(
        required=False, allow_blank=True, max_length=MAX_CLAIM_LENGTH
    )
    roles = serializers.DictField(
        child=serializers.ChoiceField(ROLES), required=False, help_text="Roles by claim value."
    )
    second_factor = serializers.BooleanField(
        required=False, help_text="Also require Bonobot's second factor."
    )
    announced = serializers.BooleanField(required=False, help_text="Show it on the sign-in page.")
    allow_private = serializers.BooleanField(
        required=False, help_text="Only a platform administrator can set it."
    )
    enabled = serializers.BooleanField(required=False)


class IdentityProviderSerializer(VersionedSerializer):
    """An identity provider."""

    body_classes = (IdentityProviderBody,)

    id = serializers.UUIDField()
    name = serializers.CharField()
    url = serializers.CharField()
    client_id = serializers.CharField()
    client_secret = serializers.SerializerMethodField(help_text="`********`, or empty.")
    redirect_uri = serializers.SerializerMethodField(
        help_text="The redirect URI to register with the provider."
    )
    domains = serializers.ListField(child=serializers.CharField())
    trusts_email = serializers.BooleanField()
    creates = serializers.BooleanField()
    role = serializers.CharField()
    role_claim = serializers.CharField()
    roles = serializers.DictField(child=serializers.CharField())
    second_factor = serializers.BooleanField()
    announced = serializers.BooleanField()
    allow_private = serializers.BooleanField()
    enabled = serializers.BooleanField()
    created_at = serializers.DateTimeField()

    def get_client_secret(self, provider: Provider) -> str:
        """Return the mask, where there is one."""
        return str(provider.client_secret or "")

    def get_redirect_uri(self, provider: Provider) -> str:
        """Return where people are sent back to."""
        return sso.build_redirect_uri(provider.organization_id)


class IdentityProviderCheckSerializer(StrictSerializer):
    """The result of a check."""

    keys = serializers.IntegerField(help_text="Number of keys that it publishes.")


class IdentityProviderListView(ResourceView):
    """All identity providers of the organization."""

    rules = {"GET": REQUIRED_ACTION, "POST": REQUIRED_ACTION}
    orderings = ("name", "created_at")

    @describe_operation("list_identity_providers", answer=IdentityProviderSerializer(many=True))
    def get(self, request: object) -> Response:
        """List identity providers."""
        return self.respond_page(
            Provider.objects.for_organization(self.organization_id), IdentityProviderSerializer
        )

    @describe_operation(
        "create_identity_provider",
        body=IdentityProviderBody,
        answer=IdentityProviderSerializer,
        status=201,
    )
    def post(self, request: object) -> Response:
        """Create an OpenID Connect identity provider."""
        provider = sso.create_provider(self.principal, **self.read_body(IdentityProviderBody))
        return self.respond_row(provider, IdentityProviderSerializer, status=201)


class IdentityProviderDetailView(ResourceView):
    """One identity provider."""

    rules = {"GET": REQUIRED_ACTION, "PATCH": REQUIRED_ACTION, "DELETE": REQUIRED_ACTION}

    @describe_operation("get_identity_provider", answer=IdentityProviderSerializer)
    def get(self, request: object, provider_id: str) -> Response:
        """Get an identity provider."""
        provider = self.get_row(Provider, provider_id=provider_id)
        return self.respond_row(provider, IdentityProviderSerializer)

    @describe_operation(
        "update_identity_provider", body=IdentityProviderBody, answer=IdentityProviderSerializer
    )
    def patch(self, request: object, provider_id: str) -> Response:
        """Update an identity provider; disabling it ends its sessions."""
        provider = self.get_row(Provider, provider_id=provider_id)
        values: dict[str, Any] = self.read_body(IdentityProviderBody, partial=True)
        sso.update_provider(self.principal, provider, **values)
        return self.respond_row(provider, IdentityProviderSerializer)

    @describe_operation("delete_identity_provider", status=204)
    def delete(self, request: object, provider_id: str) -> Response:
        """Delete an identity provider; accounts are kept."""
        sso.delete_provider(self.principal, self.get_row(Provider, provider_id=provider_id))
        return Response(status=204)


class CheckIdentityProviderView(ResourceView):
    """Check of a provider."""

    rules = {"POST": REQUIRED_ACTION}

    @describe_operation(
        "check_identity_provider", answer=IdentityProviderCheckSerializer, asks=True
    )
    def post(self, request: object, provider_id: str) -> Response:
        """Check an identity provider: fetch its metadata and keys."""
        provider = self.get_row(Provider, provider_id=provider_id)
        return Response({"keys": sso.check_provider(self.principal, provider)})
