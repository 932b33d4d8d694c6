"""REST API of invitations."""

from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from bonobot.accounts.agent_directory import find_visible_agent_ids
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import ResourceView, set_not_found_field
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


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "A member for one agent",
            {"email": "anna@example.com", "role": "member", "agents": ["release-helper"]},
            request_only=True,
        )
    ]
)
class InvitationBody(StrictSerializer):
    """Who is asked to join, as what."""

    email = serializers.CharField(max_length=254)
    role = serializers.ChoiceField(ROLES)
    agents = serializers.ListField(
        child=serializers.CharField(max_length=64),
        required=False,
        max_length=MAX_AGENTS,
        help_text="Ids or slugs of agents that a member may run from the start.",
    )


class InvitationSerializer(StrictSerializer):
    """An invitation; it names no account."""

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
    """An invitation that was just sent, or not."""

    link = serializers.SerializerMethodField(
        help_text="Blank where it was mailed; else hand it over: it isn't shown again."
    )
    problem = serializers.SerializerMethodField(
        help_text="The code of why it couldn't be mailed; blank where no mail server is set."
    )

    def get_link(self, invitation: Invitation) -> str:
        """Return the link."""
        return str(self.context["posted"].link)

    def get_problem(self, invitation: Invitation) -> str:
        """Return the code."""
        problem = self.context["posted"].problem
        return str(problem.code) if problem else ""


class InvitationView(ResourceView):
    """What has to do with invitations."""

    def get_invitation(self, invitation_id: str) -> Invitation:
        """Return the invitation; raises `NotFound`."""
        with set_not_found_field("invitation_id"):
            invitation: Invitation = Invitation.objects.get_or_404(
                self.organization_id, pk=invitation_id
            )
        return invitation

    def respond_sent_invitation(self, sent: SentInvitation, **options: Any) -> Response:
        """Return a response with the link or the problem of sending."""
        response = self.respond_row(
            sent.invitation, SentInvitationSerializer, posted=sent, **options
        )
        response["Cache-Control"] = "no-store"
        return response


class InvitationListView(InvitationView):
    """All invitations."""

    rules = {"GET": Action.MANAGE_MEMBERS, "POST": Action.MANAGE_MEMBERS}
    orderings = ("email", "created_at", "expires_at")

    @describe_operation("list_invitations", answer=InvitationSerializer(many=True))
    def get(self, request: object) -> Response:
        """List the invitations, accepted, revoked and expired ones too."""
        rows = Invitation.objects.for_organization(self.organization_id)
        return self.respond_page(rows, InvitationSerializer)

    @describe_operation("invite", body=InvitationBody, answer=SentInvitationSerializer, status=201)
    def post(self, request: object) -> Response:
        """Ask somebody to join: by mail, or by a link that you hand over."""
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
        """Show an invitation, without its link."""
        return self.respond_row(self.get_invitation(invitation_id), InvitationSerializer)

    @describe_operation("revoke_invitation", status=204)
    def delete(self, request: object, invitation_id: str) -> Response:
        """Revoke an invitation at once; its row stays."""
        revoke_invitation(self.principal, self.get_invitation(invitation_id))
        return Response(status=204)


class ResendInvitationView(InvitationView):
    """An invitation, sent again."""

    rules = {"POST": Action.MANAGE_MEMBERS}

    @describe_operation("send_invitation", answer=SentInvitationSerializer)
    def post(self, request: object, invitation_id: str) -> Response:
        """Make a new link and send it; the old one ends."""
        return self.respond_sent_invitation(
            resend_invitation(self.principal, self.get_invitation(invitation_id))
        )
