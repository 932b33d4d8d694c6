"""REST of policy simulations and drafts in shadow mode."""

from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentView
from agents.api.policies import PolicySerializer, build_policy_spec
from agents.policies.services import Owner, load_policy_spec
from agents.policies.shadow_mode import delete_draft, enforce_draft, get_draft, set_draft
from agents.policies.simulations import (
    DEFAULT_DAYS,
    MAX_DAYS,
    simulate_policy,
    simulate_shadow_policy,
)
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, ResourceView
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer


class PolicySimulationBody(PolicySerializer):
    """A policy to simulate, and the number of days."""

    days = serializers.IntegerField(
        required=False,
        default=DEFAULT_DAYS,
        min_value=1,
        max_value=MAX_DAYS,
        help_text="Number of days before now.",
    )


class SimulationGroupSerializer(StrictSerializer):
    """Calls of one tool with the same decisions."""

    agent_id = serializers.UUIDField(allow_null=True)
    agent = serializers.CharField()
    server_id = serializers.UUIDField(allow_null=True)
    server = serializers.CharField(help_text="Empty for built-in tools.")
    tool = serializers.CharField(help_text="The tool's name on its server.")
    before = serializers.CharField(
        allow_null=True, help_text="`allow`, `ask`, or `deny`; null if it can't be determined."
    )
    after = serializers.CharField(allow_null=True, help_text="Same values as `before`.")
    rule = serializers.CharField(help_text="The rule that makes the new decision.")
    calls = serializers.IntegerField()
    samples = serializers.ListField(
        child=serializers.UUIDField(), help_text="IDs of some of the audit entries."
    )


class PolicySimulationSerializer(StrictSerializer):
    """The calls whose decision would change."""

    since = serializers.DateTimeField()
    until = serializers.DateTimeField(
        allow_null=True, help_text="Time of the oldest audit entry that was read."
    )
    rows = serializers.IntegerField(help_text="Number of audit entries read, newest first.")
    calls = serializers.IntegerField(
        help_text="Number of calls; an entry with repeats counts as several."
    )
    unchanged = serializers.IntegerField()
    changed = serializers.IntegerField()
    undecidable = serializers.IntegerField(
        help_text="A condition depends on a masked or truncated value."
    )
    other_denials = serializers.IntegerField(help_text="Denied for a reason other than a rule.")
    already_changed = serializers.IntegerField(
        help_text="The current policy would decide differently than the audit log shows."
    )
    complete = serializers.BooleanField()
    stopped = serializers.CharField(
        allow_null=True, help_text="`rows` or `time`: the limit that stopped the simulation early."
    )
    changed_groups = SimulationGroupSerializer(many=True)
    undecidable_groups = SimulationGroupSerializer(many=True)


class ShadowDraftSerializer(PolicySerializer):
    """A policy in shadow mode."""

    since = serializers.DateTimeField()


class PolicySimulationView(ResourceView):
    """Base class for policy simulations of any owner."""

    def simulate_policy(self, owner: Owner) -> Response:
        """Return what another policy would have decided."""
        body = self.read_body(PolicySimulationBody)
        simulation = simulate_policy(
            self.principal, owner, build_policy_spec(body), days=body["days"]
        )
        return Response(simulation.as_dict())

    def show_draft(self, owner: Owner) -> Response:
        return self.respond_row(get_draft(owner).as_dict(), ShadowDraftSerializer, owner=owner)

    def update_draft(self, owner: Owner) -> Response:
        set_draft(self.principal, owner, build_policy_spec(self.read_body(PolicySerializer)))
        return self.show_draft(owner)

    def delete_draft(self, owner: Owner) -> Response:
        delete_draft(self.principal, owner)
        return Response(status=204)

    def summarize_draft(self, owner: Owner) -> Response:
        """Return what the draft would have decided."""
        get_draft(owner)
        simulation = simulate_shadow_policy(self.principal, owner)
        return Response(simulation.as_dict() if simulation else None)

    def enforce_draft(self, owner: Owner) -> Response:
        enforce_draft(self.principal, owner)
        updated_owner: Owner = type(owner).objects.get(pk=owner.pk)
        return self.respond_row(
            load_policy_spec(updated_owner).as_dict(), PolicySerializer, owner=updated_owner
        )


class OrganizationSimulationView(PolicySimulationView):
    """Base class for simulations of the organization's policy."""

    @property
    def organization(self) -> Organization:
        return Organization.objects.get(pk=self.organization_id)


class SimulatePolicyView(AgentView, PolicySimulationView):
    """Simulation of an agent's policy."""

    rules = {"POST": Action.VIEW_AUDIT}

    @describe_operation(
        "simulate_tool_policy", body=PolicySimulationBody, answer=PolicySimulationSerializer
    )
    def post(self, request: object, agent_id: str) -> Response:
        """Simulate a tool policy on an agent's past calls.

        Changes nothing. Reads at most 50,000 audit entries for up to 10 seconds, newest first.
        """
        return self.simulate_policy(self.get_agent(agent_id))


class PolicyDraftView(AgentView, PolicySimulationView):
    """The draft of an agent's policy in shadow mode."""

    rules = {"GET": READ, "PUT": Action.MANAGE_AGENTS, "DELETE": Action.MANAGE_AGENTS}
    agent_token_methods = ("GET",)

    @describe_operation("get_tool_policy_draft", answer=ShadowDraftSerializer)
    def get(self, request: object, agent_id: str) -> Response:
        """Get an agent's policy draft in shadow mode; 404 (`no_draft`) if there is none."""
        return self.show_draft(self.get_agent(agent_id))

    @describe_operation(
        "set_tool_policy_draft", body=PolicySerializer, answer=ShadowDraftSerializer
    )
    def put(self, request: object, agent_id: str) -> Response:
        """Set an agent's policy draft in shadow mode.

        The audit log records what the draft would decide. The draft has no other effect.
        """
        return self.update_draft(self.get_agent(agent_id))

    @describe_operation("discard_tool_policy_draft", status=204)
    def delete(self, request: object, agent_id: str) -> Response:
        """Delete an agent's policy draft."""
        return self.delete_draft(self.get_agent(agent_id))


class PolicyDraftSummaryView(AgentView, PolicySimulationView):
    """Summary of what an agent's draft would decide."""

    rules = {"GET": Action.VIEW_AUDIT}

    @describe_operation("get_tool_policy_shadow", answer=PolicySimulationSerializer)
    def get(self, request: object, agent_id: str) -> Response:
        """Summarize the calls that an agent's policy draft would decide differently."""
        return self.summarize_draft(self.get_agent(agent_id))


class EnforceDraftView(AgentView, PolicySimulationView):
    """Enforce an agent's draft."""

    rules = {"POST": Action.MANAGE_AGENTS}

    @describe_operation("enforce_tool_policy_draft", answer=PolicySerializer)
    def post(self, request: object, agent_id: str) -> Response:
        """Enforce an agent's policy draft as its policy; effective on the next call."""
        return self.enforce_draft(self.get_agent(agent_id))


class SimulateOrganizationPolicyView(OrganizationSimulationView):
    """Simulation of the organization's policy."""

    rules = {"POST": Action.VIEW_AUDIT}

    @describe_operation(
        "simulate_organization_tool_policy",
        body=PolicySimulationBody,
        answer=PolicySimulationSerializer,
    )
    def post(self, request: object) -> Response:
        """Simulate a tool policy on the organization's past calls.

        Changes nothing. Reads at most 50,000 audit entries for up to 10 seconds, newest first.
        """
        return self.simulate_policy(self.organization)


class OrganizationDraftView(OrganizationSimulationView):
    """The draft of the organization's policy in shadow mode."""

    rules = {
        "GET": READ,
        "PUT": Action.MANAGE_ORGANIZATION,
        "DELETE": Action.MANAGE_ORGANIZATION,
    }

    @describe_operation("get_organization_tool_policy_draft", answer=ShadowDraftSerializer)
    def get(self, request: object) -> Response:
        """Get the organization's policy draft in shadow mode; 404 (`no_draft`) if there is none."""
        return self.show_draft(self.organization)

    @describe_operation(
        "set_organization_tool_policy_draft", body=PolicySerializer, answer=ShadowDraftSerializer
    )
    def put(self, request: object) -> Response:
        """Set the organization's policy draft in shadow mode.

        The audit log records what the draft would decide. The draft has no other effect.
        """
        return self.update_draft(self.organization)

    @describe_operation("discard_organization_tool_policy_draft", status=204)
    def delete(self, request: object) -> Response:
        """Delete the organization's policy draft."""
        return self.delete_draft(self.organization)


class OrganizationDraftSummaryView(OrganizationSimulationView):
    """Summary of what the organization's draft would decide."""

    rules = {"GET": Action.VIEW_AUDIT}

    @describe_operation("get_organization_tool_policy_shadow", answer=PolicySimulationSerializer)
    def get(self, request: object) -> Response:
        """Summarize the calls that the organization's policy draft would decide differently."""
        return self.summarize_draft(self.organization)


class EnforceOrganizationDraftView(OrganizationSimulationView):
    """Enforce the organization's draft."""

    rules = {"POST": Action.MANAGE_ORGANIZATION}

    @describe_operation("enforce_organization_tool_policy_draft", answer=PolicySerializer)
    def post(self, request: object) -> Response:
        """Enforce the organization's policy draft as its policy; effective on the next call."""
        return self.enforce_draft(self.organization)
