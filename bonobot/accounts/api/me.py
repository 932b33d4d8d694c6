"""REST API of the current principal: token, profile, sessions."""

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers
from rest_framework.response import Response

from bonobot.accounts import profiles
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ_OR_RUN, ResourceView
from bonobot.accounts.models import Organization, Token, User
from bonobot.accounts.roles import Role
from bonobot.core.api.serializers import StrictSerializer, VersionedBody, VersionedSerializer
from bonobot.core.i18n import time_zones
from bonobot.core.problems import Forbidden

LANGUAGES = ["", "en", "de"]
OWN_FIELDS = ("first_name", "last_name", "language", "time_zone")


class ProfileSerializer(StrictSerializer):
    """A user's profile."""

    username = serializers.CharField()
    first_name = serializers.CharField()
    last_name = serializers.CharField()
    email = serializers.CharField()
    language = serializers.ChoiceField(LANGUAGES)
    time_zone = serializers.CharField(
        help_text="Time zone of the screens; times in the API are UTC."
    )


class MeSerializer(VersionedSerializer):
    """The authenticated principal and its organization."""

    kind = serializers.ChoiceField([("user", "a person's session"), ("token", "a token")])
    id = serializers.UUIDField()
    name = serializers.CharField(help_text="Username of the person, or name of the token.")
    organization = serializers.CharField(help_text="Slug of the organization.")
    role = serializers.ChoiceField([role.value for role in Role])
    platform_admin = serializers.BooleanField()
    person = ProfileSerializer(allow_null=True, help_text="Null for a token.")

    def build_parts(self, instance: Any, representation: Mapping[str, Any]) -> dict[str, Any]:
        """Return what people say of themselves; a token says nothing."""
        return {name: (representation["person"] or {}).get(name, "") for name in OWN_FIELDS}


class MeBody(VersionedBody):
    """A profile to update."""

    first_name = serializers.CharField(max_length=150, allow_blank=True, required=False)
    last_name = serializers.CharField(max_length=150, allow_blank=True, required=False)
    language = serializers.ChoiceField(
        LANGUAGES, required=False, help_text="Empty: the browser's language."
    )
    time_zone = serializers.CharField(
        max_length=time_zones.MAX_ZONE_NAME,
        allow_blank=True,
        required=False,
        help_text="An IANA name, such as Europe/Berlin; empty: UTC.",
    )


class SignedOutSessionsSerializer(StrictSerializer):
    """The result of signing out other sessions."""

    ended = serializers.IntegerField(help_text="Number of sessions.")


class CurrentPrincipalView(ResourceView):
    """Base class for the authenticated principal."""

    def get_person(self) -> User:
        """Return the user; raises `Forbidden` (code `not_a_person`) for tokens."""
        user: Any = self.request.user
        if self.principal.kind != "user":
            raise Forbidden(
                "A token has no profile or sessions.",
                code="not_a_person",
                rule="person",
                remedy="Sign in with a user account.",
            )
        return User.objects.get(pk=user.pk)

    def describe_principal(self) -> dict[str, Any]:
        principal = self.principal
        return {
            "kind": principal.kind,
            "id": principal.id,
            "name": principal.label,
            "organization": Organization.objects.get(pk=principal.organization_id).slug,
            "role": principal.role,
            "platform_admin": principal.platform_admin,
            "person": self.get_person() if principal.kind == "user" else None,
        }


class MeView(CurrentPrincipalView):
    """The authenticated principal."""

    rules = {"GET": READ_OR_RUN, "PATCH": READ_OR_RUN}
    agent_token_methods = ("GET",)

    @describe_operation("get_me", answer=MeSerializer)
    def get(self, request: object) -> Response:
        """Get the authenticated user or token."""
        return self._respond_current_principal()

    @describe_operation("update_me", body=MeBody, answer=MeSerializer)
    def patch(self, request: object) -> Response:
        """Update your profile; users only.

        To change your email address, use the admin.
        """
        person = self.get_person()
        profiles.update_own_profile(person, **self.read_body(MeBody, partial=True))
        return self._respond_current_principal()

    def _respond_current_principal(self) -> Response:
        described = self.describe_principal()
        if isinstance(token := getattr(self.request, "auth", None), Token):
            self.report_read([token])  # its name
        return self.respond_row(described, MeSerializer, owner=described["person"])


class MySessionsView(CurrentPrincipalView):
    """The user's browser sessions."""

    rules = {"DELETE": READ_OR_RUN}

    @describe_operation("sign_out_elsewhere", answer=SignedOutSessionsSerializer)
    def delete(self, request: object) -> Response:
        """Sign out of all other sessions; users only."""
        current_session_key = self.request.session.session_key or ""
        ended_count = profiles.sign_out_other_sessions(
            self.get_person(), current_session_key=current_session_key
        )
        return self.respond_row({"ended": ended_count}, SignedOutSessionsSerializer)
