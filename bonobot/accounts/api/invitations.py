"""REST API of invitations."""

from typing import Any

from rest_framework import serializers
from rest_framework.response import Response

from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import ResourceView, set_not_found_field
from bonobot.accounts.extension_points import find_visible_agent_ids
from bonobot.accounts.invitations import (
    MAX_AGENTS,
    SentInvitation,
    create_invitation,
    resend_invitation,
    revoke_invitation,
)
from bonobot.accounts.models import Invitation
from bonobot.accounts.roles import Action, Role
from bonobot.core.api.serializers import StrictSerializer

ROLES = [role.value for role in Role]


class InvitationBody(StrictSerializer):
    """A person to invite, and their role."""

    email = serializers.CharField(max_length=254)
    role = serializers.ChoiceField(ROLES)
    agents = serializers.ListField(
        child=serializers.CharField(max_length=64),
        required=False,
        max_length=MAX_AGENTS,
        help_text="IDs or slugs of agents that a member can run from the start.",
    )


class InvitationSerializer(StrictSerializer):
    """An invitation; it doesn't reveal whether an account exists."""

    id = serializers.UUIDField()
    email = serializers.CharField()
    role = serializers.ChoiceField(ROLES)
    agents = serializers.ListField(child=serializers.UUIDField(), source="agent_ids")
    invited_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    mailed_at = serializers.DateTimeField(allow_null=True)
    accepted_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)


class SentInvitationSerializer(InvitationSerializer):
    """An invitation, and whether its email was sent."""

    link = serializers.SerializerMethodField(
        help_text=(
            "The link, if no email was sent: share it yourself, it isn't shown again. "
            "Otherwise empty."
        )
    )
    problem = serializers.SerializerMethodField(
        help_text="Code of why the email couldn't be sent; empty if no mail server is configured."
    )

    def get_link(self, invitation: Invitation) -> str:
        """Return the link."""
        return str(self.context["posted"].link)

    def get_problem(self, invitation: Invitation) -> str:
        """Return the code."""
        problem = self.context["posted"].problem
        return str(problem.code) if problem else ""


class InvitationView(ResourceView):
    """Base class for invitations."""

    def get_invitation(self, invitation_id: str) -> Invitation:
        """Return the invitation; raises `NotFound`."""
        return self.get_row(Invitation, invitation_id=invitation_id)

    def respond_sent_invitation(self, sent_invitation: SentInvitation, **options: Any) -> Response:
        """Return a response with the link or the problem of sending."""
        response = self.respond_row(
            sent_invitation.invitation, SentInvitationSerializer, posted=sent_invitation, **options
        )
        response["Cache-Control"] = "no-store"
        return response


class InvitationListView(InvitationView):
    """All invitations."""

    rules = {"GET": Action.MANAGE_MEMBERS, "POST": Action.MANAGE_MEMBERS}
    orderings = ("email", "created_at", "expires_at")

    @describe_operation("list_invitations", answer=InvitationSerializer(many=True))
    def get(self, request: object) -> Response:
        """List invitations, including accepted, revoked, and expired ones."""
        rows = Invitation.objects.for_organization(self.organization_id)
        return self.respond_page(rows, InvitationSerializer)

    @describe_operation(
        "create_invitation", body=InvitationBody, answer=SentInvitationSerializer, status=201
    )
    def post(self, request: object) -> Response:
        """Invite a person: by email, or with a link that you share."""
        body = self.read_body(InvitationBody)
        with set_not_found_field("agents"):
            agents = find_visible_agent_ids(self.principal, body.get("agents", ()))
        role = Role(body["role"])
        return self.respond_sent_invitation(
            create_invitation(self.principal, body["email"], role, agent_ids=agents), status=201
        )


class InvitationDetailView(InvitationView):
    """One invitation."""

    rules = {"GET": Action.MANAGE_MEMBERS, "DELETE": Action.MANAGE_MEMBERS}

    @describe_operation("get_invitation", answer=InvitationSerializer)
    def get(self, request: object, invitation_id: str) -> Response:
        """Get an invitation, without its link."""
        return self.respond_row(self.get_invitation(invitation_id), InvitationSerializer)

    @describe_operation("revoke_invitation", status=204)
    def delete(self, request: object, invitation_id: str) -> Response:
        """Revoke an invitation; effective immediately."""
        revoke_invitation(self.principal, self.get_invitation(invitation_id))
        return Response(status=204)


class ResendInvitationView(InvitationView):
    """Resend an invitation."""

    rules = {"POST": Action.MANAGE_MEMBERS}

    @describe_operation("send_invitation", answer=SentInvitationSerializer)
    def post(self, request: object, invitation_id: str) -> Response:
        """Resend an invitation with a new link; the previous link stops working."""
        return self.respond_sent_invitation(
            resend_invitation(self.principal, self.get_invitation(invitation_id))
        )
