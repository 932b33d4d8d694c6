"""REST of policy simulations and drafts in shadow mode."""

from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
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


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "Only the clock",
            {"mode": "allowlist", "allow": ["mcp_time_*"], "days": 7},
            request_only=True,
        )
    ]
)
class PolicySimulationBody(PolicySerializer):
    """A policy to try, and on how many days."""

    days = serializers.IntegerField(
        required=False,
        default=DEFAULT_DAYS,
        min_value=1,
        max_value=MAX_DAYS,
        help_text="Counted back.",
    )


class SimulationGroupSerializer(StrictSerializer):
    """Calls of one tool with the same fate."""

    agent_id = serializers.UUIDField(allow_null=True)
    agent = serializers.CharField()
    server_id = serializers.UUIDField(allow_null=True)
    server = serializers.CharField(help_text="Empty for built-in tools.")
    tool = serializers.CharField(help_text="By its server's own name.")
    before = serializers.CharField(
        allow_null=True, help_text="`allow`, `ask`, `deny`; null where nobody can tell."
    )
    after = serializers.CharField(allow_null=True, help_text="As `before`.")
    rule = serializers.CharField(help_text="What decides afterwards.")
    calls = serializers.IntegerField()
    samples = serializers.ListField(
        child=serializers.UUIDField(), help_text="A few of their audit entries."
    )


class PolicySimulationSerializer(StrictSerializer):
    """What would flip, in calls."""

    since = serializers.DateTimeField()
    until = serializers.DateTimeField(allow_null=True, help_text="Of the oldest row read.")
    rows = serializers.IntegerField(help_text="Audit rows read, the newest first.")
    calls = serializers.IntegerField(help_text="A row with repeats stands for several.")
    same = serializers.IntegerField()
    flipped = serializers.IntegerField()
    undecidable = serializers.IntegerField(help_text="A condition reads what is masked or cut.")
    elsewhere = serializers.IntegerField(help_text="Refused by something else than rules.")
    otherwise = serializers.IntegerField(help_text="Decided otherwise then than it would be now.")
    complete = serializers.BooleanField()
    stopped = serializers.CharField(
        allow_null=True, help_text="`rows` or `time`: the bound that ended the reading early."
    )
    flips = SimulationGroupSerializer(many=True)
    unsure = SimulationGroupSerializer(many=True)


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "A stricter one",
            {
                "mode": "allowlist",
                "allow": ["mcp_time_*"],
                "ask": [],
                "deny": [],
                "since": "2026-11-20T08:00:00Z",
            },
        )
    ]
)
class ShadowDraftSerializer(PolicySerializer):
    """A policy that stands in the shadow."""

    since = serializers.DateTimeField()


class PolicySimulationView(ResourceView):
    """What is done with a policy, whoever its owner is."""

    def simulate_policy(self, owner: Owner) -> Response:
        """Return what another policy would have decided."""
        body = self.read_body(PolicySimulationBody)
        simulation = simulate_policy(
            self.principal, owner, build_policy_spec(body), days=body["days"]
        )
        return Response(simulation.as_dict())

    def show_draft(self, owner: Owner) -> Response:
        """Return the response with the draft."""
        return self.respond_row(get_draft(owner).as_dict(), ShadowDraftSerializer, owner=owner)

    def update_draft(self, owner: Owner) -> Response:
        """Save the draft."""
        set_draft(self.principal, owner, build_policy_spec(self.read_body(PolicySerializer)))
        return self.show_draft(owner)

    def delete_draft(self, owner: Owner) -> Response:
        """Delete the draft."""
        delete_draft(self.principal, owner)
        return Response(status=204)

    def summarize_draft(self, owner: Owner) -> Response:
        """Return what the draft would have decided."""
        get_draft(owner)
        simulation = simulate_shadow_policy(self.principal, owner)
        return Response(simulation.as_dict() if simulation else None)

    def enforce_draft(self, owner: Owner) -> Response:
        """Make the draft the policy."""
        enforce_draft(self.principal, owner)
        updated_owner: Owner = type(owner).objects.get(pk=owner.pk)
        return self.respond_row(
            load_policy_spec(updated_owner).as_dict(), PolicySerializer, owner=updated_owner
        )


class OrganizationSimulationView(PolicySimulationView):
    """The same for the organization's own policy."""

    @property
    def organization(self) -> Organization:
        """The current organization."""
        return Organization.objects.get(pk=self.organization_id)


class SimulatePolicyView(AgentView, PolicySimulationView):
    """Another policy over past calls."""

    rules = {"POST": Action.VIEW_AUDIT}

    @describe_operation(
        "replay_tool_policy", body=PolicySimulationBody, answer=PolicySimulationSerializer
    )
    def post(self, request: object, agent_id: str) -> Response:
        """Say what a changed tool policy would have decided about an agent's calls.

        Nothing is changed. At most 50,000 rows and 10 seconds, the newest calls first.
        """
        return self.simulate_policy(self.get_agent(agent_id))


class PolicyDraftView(AgentView, PolicySimulationView):
    """The draft in the shadow of an agent's policy."""

    rules = {"GET": READ, "PUT": Action.MANAGE_AGENTS, "DELETE": Action.MANAGE_AGENTS}
    agent_token_methods = ("GET",)

    @describe_operation("get_tool_policy_draft", answer=ShadowDraftSerializer)
    def get(self, request: object, agent_id: str) -> Response:
        """Show the policy that runs in the shadow; a 404 (`no_draft`) where none does."""
        return self.show_draft(self.get_agent(agent_id))

    @describe_operation(
        "set_tool_policy_draft", body=PolicySerializer, answer=ShadowDraftSerializer
    )
    def put(self, request: object, agent_id: str) -> Response:
        """Run a policy in the shadow: the audit says what it would decide, and nothing else is."""
        return self.update_draft(self.get_agent(agent_id))

    @describe_operation("discard_tool_policy_draft", status=204)
    def delete(self, request: object, agent_id: str) -> Response:
        """Drop the policy that runs in the shadow."""
        return self.delete_draft(self.get_agent(agent_id))


class PolicyDraftSummaryView(AgentView, PolicySimulationView):
    """What the draft would have decided."""

    rules = {"GET": Action.VIEW_AUDIT}

    @describe_operation("get_tool_policy_shadow", answer=PolicySimulationSerializer)
    def get(self, request: object, agent_id: str) -> Response:
        """Sum up what the draft would have decided otherwise since it stands."""
        return self.summarize_draft(self.get_agent(agent_id))


class EnforceDraftView(AgentView, PolicySimulationView):
    """The draft becomes the policy."""

    rules = {"POST": Action.MANAGE_AGENTS}

    @describe_operation("enforce_tool_policy_draft", answer=PolicySerializer)
    def post(self, request: object, agent_id: str) -> Response:
        """Make the draft the agent's tool policy; it holds on the very next call."""
        return self.enforce_draft(self.get_agent(agent_id))


class SimulateOrganizationPolicyView(OrganizationSimulationView):
    """Another policy of the organization over past calls."""

    rules = {"POST": Action.VIEW_AUDIT}

    @describe_operation(
        "replay_organization_tool_policy",
        body=PolicySimulationBody,
        answer=PolicySimulationSerializer,
    )
    def post(self, request: object) -> Response:
        """Say what a changed policy of the organization would have decided about all its calls.

        Nothing is changed. At most 50,000 rows and 10 seconds, the newest calls first.
        """
        return self.simulate_policy(self.organization)


class OrganizationDraftView(OrganizationSimulationView):
    """The draft in the shadow of the organization's policy."""

    rules = {
        "GET": READ,
        "PUT": Action.MANAGE_ORGANIZATION,
        "DELETE": Action.MANAGE_ORGANIZATION,
    }

    @describe_operation("get_organization_tool_policy_draft", answer=ShadowDraftSerializer)
    def get(self, request: object) -> Response:
        """Show the policy that runs in the shadow; a 404 (`no_draft`) where none does."""
        return self.show_draft(self.organization)

    @describe_operation(
        "set_organization_tool_policy_draft", body=PolicySerializer, answer=ShadowDraftSerializer
    )
    def put(self, request: object) -> Response:
        """Run a policy in the shadow: the audit says what it would decide, and nothing else is."""
        return self.update_draft(self.organization)

    @describe_operation("discard_organization_tool_policy_draft", status=204)
    def delete(self, request: object) -> Response:
        """Drop the policy that runs in the shadow."""
        return self.delete_draft(self.organization)


class OrganizationDraftSummaryView(OrganizationSimulationView):
    """What the organization's draft would have decided."""

    rules = {"GET": Action.VIEW_AUDIT}

    @describe_operation("get_organization_tool_policy_shadow", answer=PolicySimulationSerializer)
    def get(self, request: object) -> Response:
        """Sum up what the draft would have decided otherwise since it stands."""
        return self.summarize_draft(self.organization)


class EnforceOrganizationDraftView(OrganizationSimulationView):
    """The organization's draft becomes its policy."""

    rules = {"POST": Action.MANAGE_ORGANIZATION}

    @describe_operation("enforce_organization_tool_policy_draft", answer=PolicySerializer)
    def post(self, request: object) -> Response:
        """Make the draft the organization's tool policy; it holds on the very next call."""
        return self.enforce_draft(self.organization)
