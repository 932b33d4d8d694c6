"""REST API of members: roles, second factors, password resets."""

from django.db.models import F
from rest_framework import serializers
from rest_framework.response import Response

from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, ResourceView
from bonobot.accounts.members import remove_member, update_member_role
from bonobot.accounts.models import Membership
from bonobot.accounts.password_reset import send_reset_link
from bonobot.accounts.roles import Action, Role
from bonobot.accounts.second_factor import reset_second_factor
from bonobot.core.api.serializers import StrictSerializer, VersionedBody, VersionedSerializer


class MemberSerializer(VersionedSerializer):
    """A member of the organization."""

    id = serializers.UUIDField(help_text="ID of the membership.")
    user_id = serializers.UUIDField()
    username = serializers.CharField(source="user.username")
    name = serializers.CharField(source="user.get_full_name")
    email = serializers.CharField(source="user.email")
    role = serializers.ChoiceField([role.value for role in Role])
    created_at = serializers.DateTimeField()


class MemberListView(ResourceView):
    """The members of the organization."""

    rules = {"GET": READ}
    orderings = ("username", "role", "created_at")

    @describe_operation("list_members", answer=MemberSerializer(many=True))
    def get(self, request: object) -> Response:
        """List members with their roles."""
        rows = Membership.objects.for_organization(self.organization_id).select_related("user")
        return self.respond_page(rows.annotate(username=F("user__username")), MemberSerializer)


class MemberRoleBody(VersionedBody):
    """A member to update."""

    role = serializers.ChoiceField([role.value for role in Role])


MemberSerializer.body_classes = (MemberRoleBody,)


class MemberView(ResourceView):
    """Base class of the views of one member."""

    def get_member(self, member_id: str) -> Membership:
        """Return the membership; raises `NotFound`."""
        rows = Membership.objects.select_related("user")
        return self.get_row(Membership, rows, member_id=member_id)


class MemberDetailView(MemberView):
    """One member."""

    rules = {"GET": READ, "PATCH": Action.MANAGE_MEMBERS, "DELETE": Action.MANAGE_MEMBERS}

    @describe_operation("get_member", answer=MemberSerializer)
    def get(self, request: object, member_id: str) -> Response:
        """Get a member."""
        return self.respond_row(self.get_member(member_id), MemberSerializer)

    @describe_operation("update_member", body=MemberRoleBody, answer=MemberSerializer)
    def patch(self, request: object, member_id: str) -> Response:
        """Change a member's role; effective on their next request."""
        member = self.get_member(member_id)
        update_member_role(self.principal, member, Role(self.read_body(MemberRoleBody)["role"]))
        return self.respond_row(member, MemberSerializer)

    @describe_operation("remove_member", status=204)
    def delete(self, request: object, member_id: str) -> Response:
        """Remove a member; the account is kept."""
        remove_member(self.principal, self.get_member(member_id))
        return Response(status=204)


class MemberSecondFactorView(MemberView):
    """A member's second factor."""

    rules = {"DELETE": Action.MANAGE_MEMBERS}

    @describe_operation("reset_second_factor", status=204)
    def delete(self, request: object, member_id: str) -> Response:
        """Reset a member's second factor and end their sessions."""
        reset_second_factor(self.principal, self.get_member(member_id).user)
        return Response(status=204)


class PasswordResetLinkSerializer(StrictSerializer):
    """The result of sending a password reset link."""

    link = serializers.CharField(
        help_text=(
            "The link, if no email was sent: the platform administrator shares it. Otherwise empty."
        )
    )


class MemberPasswordView(MemberView):
    """A member's password reset."""

    rules = {"POST": Action.MANAGE_MEMBERS}

    @describe_operation("create_password_reset", answer=PasswordResetLinkSerializer)
    def post(self, request: object, member_id: str) -> Response:
        """Send a member a password reset link."""
        link = send_reset_link(self.principal, self.get_member(member_id).user)
        response = self.respond_row({"link": link}, PasswordResetLinkSerializer)
        response["Cache-Control"] = "no-store"
        return response
