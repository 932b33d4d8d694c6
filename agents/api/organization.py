"""REST of the organization and its kill switch."""

from rest_framework import serializers
from rest_framework.response import Response

from agents.kill_switch import (
    MAX_REASON_LENGTH,
    halt_organization,
    load_impact,
    resume_organization,
)
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, ResourceView
from bonobot.accounts.models import Organization
from bonobot.accounts.models.organizations import (
    MAX_APPROVAL_HOURS,
    MAX_AUDIT_DAYS,
    RegistryAccess,
)
from bonobot.accounts.organizations import save_organization
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer, VersionedBody, VersionedSerializer

MAX_CALLS_PER_MINUTE = 1_000_000
AUDIT_DAYS_HELP = "Retention of the audit log in days; 0: unlimited, null: from the settings."
CALLS_PER_MINUTE_HELP = (
    "Calls per minute of all agents and tokens together; 0: no limit, null: from the settings."
)

REGISTRY_HELP = "Who can read the MCP registry of approved servers and agents."


class OrganizationSerializer(VersionedSerializer):
    """An organization, and what its kill switch would stop or has stopped."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    slug = serializers.CharField()
    halted_at = serializers.DateTimeField(
        allow_null=True, help_text="When the kill switch was enabled; null: not enabled."
    )
    running_sessions = serializers.IntegerField(source="impact.running_sessions")
    waiting_sessions = serializers.IntegerField(source="impact.waiting_sessions")
    agents = serializers.IntegerField(source="impact.agents", help_text="Number of enabled agents.")
    servers = serializers.IntegerField(
        source="impact.servers", help_text="Number of enabled servers."
    )
    four_eyes = serializers.BooleanField(help_text="People can't approve their own calls.")
    second_factor = serializers.BooleanField(help_text="A second factor is required.")
    single_sign_on = serializers.BooleanField(help_text="Single sign-on is required.")
    approval_hours = serializers.IntegerField(
        allow_null=True, help_text="Hours until an approval expires; null: the platform's default."
    )
    calls_per_minute = serializers.IntegerField(allow_null=True, help_text=CALLS_PER_MINUTE_HELP)
    audit_days = serializers.IntegerField(allow_null=True, help_text=AUDIT_DAYS_HELP)
    registry = serializers.ChoiceField(RegistryAccess.choices, help_text=REGISTRY_HELP)
    registry_url = serializers.CharField(
        help_text="Base URL of the registry, without the version of its API."
    )


class OrganizationBody(VersionedBody):
    """Settings of an organization."""

    name = serializers.CharField(max_length=255)
    four_eyes = serializers.BooleanField()
    second_factor = serializers.BooleanField()
    single_sign_on = serializers.BooleanField()
    approval_hours = serializers.IntegerField(
        min_value=1, max_value=MAX_APPROVAL_HOURS, allow_null=True
    )
    calls_per_minute = serializers.IntegerField(
        min_value=0,
        max_value=MAX_CALLS_PER_MINUTE,
        allow_null=True,
        help_text=CALLS_PER_MINUTE_HELP,
    )
    audit_days = serializers.IntegerField(
        min_value=0, max_value=MAX_AUDIT_DAYS, allow_null=True, help_text=AUDIT_DAYS_HELP
    )
    registry = serializers.ChoiceField(RegistryAccess.choices, help_text=REGISTRY_HELP)


OrganizationSerializer.body_classes = (OrganizationBody,)


class HaltBody(StrictSerializer):
    """The reason, for the audit log and for the people whose sessions are canceled."""

    reason = serializers.CharField(required=False, allow_blank=True, max_length=MAX_REASON_LENGTH)


class OrganizationView(ResourceView):
    """Base class for the current organization."""

    def show_organization(self, organization: Organization) -> Response:
        organization.impact = load_impact(organization)  # type: ignore[attr-defined]  # for the shape
        return self.respond_row(organization, OrganizationSerializer)


class OrganizationDetailView(OrganizationView):
    """The current organization."""

    rules = {"GET": READ, "PATCH": Action.MANAGE_ORGANIZATION}

    @describe_operation("get_organization", answer=OrganizationSerializer)
    def get(self, request: object) -> Response:
        """Get the organization, and what its kill switch would stop or has stopped."""
        return self.show_organization(Organization.objects.get(pk=self.organization_id))

    @describe_operation("update_organization", body=OrganizationBody, answer=OrganizationSerializer)
    def patch(self, request: object) -> Response:
        """Update the organization: name, approvals, security, limits, retention, registry."""
        organization = Organization.objects.get(pk=self.organization_id)
        for name, value in self.read_body(OrganizationBody, partial=True).items():
            setattr(organization, name, value)
        save_organization(self.principal, organization, adding=False)
        return self.show_organization(organization)


class HaltOrganizationView(OrganizationView):
    """The kill switch."""

    rules = {"POST": Action.MANAGE_ORGANIZATION}

    @describe_operation("enable_kill_switch", body=HaltBody, answer=OrganizationSerializer)
    def post(self, request: object) -> Response:
        """Enable the kill switch: deny all calls and model turns, and cancel all sessions.

        Effective immediately on all hosts, until it is disabled. Repeating the request has no
        effect.
        """
        return self.show_organization(
            halt_organization(self.principal, self.read_body(HaltBody).get("reason", ""))
        )


class ResumeOrganizationView(OrganizationView):
    """Disabling the kill switch."""

    rules = {"POST": Action.MANAGE_ORGANIZATION}

    @describe_operation("disable_kill_switch", answer=OrganizationSerializer)
    def post(self, request: object) -> Response:
        """Disable the kill switch; canceled sessions stay canceled."""
        return self.show_organization(resume_organization(self.principal))
