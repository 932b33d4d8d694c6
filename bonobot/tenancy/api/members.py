"""Members of the organization, read."""

from rest_framework import serializers
from rest_framework.response import Response

from bonobot.tenancy.api.resources import READ, Resource
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from bonobot.tenancy.models import Membership
from bonobot.tenancy.roles import Role


class MemberShape(Shape):
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

    @operation("list_members", answer=MemberShape(many=True))
    def get(self, request: object) -> Response:
        """List the members with their roles."""
        rows = Membership.objects.for_organization(self.organization_id).select_related("user")
        return self.listed(rows, MemberShape)
