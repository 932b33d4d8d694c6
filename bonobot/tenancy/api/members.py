"""Members of the organization: read, given another role, removed. People join by invitation."""

from django.db.models import F
from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from bonobot.tenancy.api.resources import READ, Resource, named_in_path
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape, VersionedBody, VersionedShape
from bonobot.tenancy.members import change_role, remove_member
from bonobot.tenancy.models import Membership
from bonobot.tenancy.resets import offer_reset
from bonobot.tenancy.roles import Action, Role
from bonobot.tenancy.second_factor import reset_second_factor


class MemberShape(VersionedShape):
    """A person in this organization."""

    id = serializers.UUIDField(help_text="Id of the membership.")
    user_id = serializers.UUIDField()
    username = serializers.CharField(source="user.username")
    name = serializers.CharField(source="user.get_full_name")
    email = serializers.CharField(source="user.email")
    role = serializers.ChoiceField([role.value for role in Role])
    created_at = serializers.DateTimeField()


class Members(Resource):
    """Who belongs to the organization."""

    rules = {"GET": READ}
    orderings = ("username", "role", "created_at")

    @operation("list_members", answer=MemberShape(many=True))
    def get(self, request: object) -> Response:
        """List the members with their roles."""
        rows = Membership.objects.for_organization(self.organization_id).select_related("user")
        return self.listed(rows.annotate(username=F("user__username")), MemberShape)


@extend_schema_serializer(
    examples=[OpenApiExample("Another role", {"role": "operator"}, request_only=True)]
)
class RoleBody(VersionedBody):
    """What can be said of a member."""

    role = serializers.ChoiceField([role.value for role in Role])


MemberShape.written_as = (RoleBody,)


class MemberResource(Resource):
    """What has to do with one member."""

    def member(self, member_id: str) -> Membership:
        """Return the membership; raises `NotFound`."""
        rows = Membership.objects.select_related("user")
        with named_in_path("member_id"):
            found: Membership = rows.get_or_404(self.organization_id, pk=member_id)
        return found


class Member(MemberResource):
    """One member."""

    rules = {"GET": READ, "PATCH": Action.MANAGE_MEMBERS, "DELETE": Action.MANAGE_MEMBERS}

    @operation("get_member", answer=MemberShape)
    def get(self, request: object, member_id: str) -> Response:
        """Show a member."""
        return self.shown(self.member(member_id), MemberShape)

    @operation("change_member", body=RoleBody, answer=MemberShape)
    def patch(self, request: object, member_id: str) -> Response:
        """Give a member another role; it holds on their very next request."""
        member = self.member(member_id)
        change_role(self.principal, member, Role(self.read(RoleBody)["role"]))
        return self.shown(member, MemberShape)

    @operation("remove_member", status=204)
    def delete(self, request: object, member_id: str) -> Response:
        """End a membership; the account stays."""
        remove_member(self.principal, self.member(member_id))
        return Response(status=204)


class MemberSecondFactor(MemberResource):
    """A member's second factor."""

    rules = {"DELETE": Action.MANAGE_MEMBERS}

    @operation("reset_second_factor", status=204)
    def delete(self, request: object, member_id: str) -> Response:
        """Take a member's second factor away, who has lost it, and end their sessions."""
        reset_second_factor(self.principal, self.member(member_id).user)
        return Response(status=204)


class OfferedShape(Shape):
    """What came of sending a link for a new password."""

    link = serializers.CharField(
        help_text="Blank where it was mailed; else for the platform administrator to hand over."
    )


class MemberPassword(MemberResource):
    """A new password for a member."""

    rules = {"POST": Action.MANAGE_MEMBERS}

    @operation("offer_password_reset", answer=OfferedShape)
    def post(self, request: object, member_id: str) -> Response:
        """Send a member a link to choose a new password."""
        link = offer_reset(self.principal, self.member(member_id).user)
        answer = self.shown({"link": link}, OfferedShape)
        answer["Cache-Control"] = "no-store"
        return answer
