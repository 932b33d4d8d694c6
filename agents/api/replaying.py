"""Replay and shadow of an agent's tool policy, and of the organization's (FEATURES X7)."""

from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentResource
from agents.api.policies import PolicyShape, text_in
from agents.drafts import discard_draft, enforce_draft, set_draft, standing_draft
from agents.replay import DAYS, MOST_DAYS, replay, shadowed
from agents.tool_policies import Owner, policy_text
from bonobot.tenancy.api.resources import READ, Resource
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from bonobot.tenancy.models import Organization
from bonobot.tenancy.roles import Action


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "Only the clock",
            {"mode": "allowlist", "allow": ["mcp_time_*"], "days": 7},
            request_only=True,
        )
    ]
)
class ReplayBody(PolicyShape):
    """A policy to try, and on how many days."""

    days = serializers.IntegerField(
        required=False, default=DAYS, min_value=1, max_value=MOST_DAYS, help_text="Counted back."
    )


class FateShape(Shape):
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


class ReplayShape(Shape):
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
    flips = FateShape(many=True)
    unsure = FateShape(many=True)


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
class DraftShape(PolicyShape):
    """A policy that stands in the shadow."""

    since = serializers.DateTimeField()


class PolicyResource(Resource):
    """What is done with a policy, whoever its owner is."""

    def replayed(self, owner: Owner) -> Response:
        """Say what another policy would have decided."""
        body = self.read(ReplayBody)
        found = replay(self.principal, owner, text_in(body), days=body["days"])
        return Response(found.as_dict())

    def draft(self, owner: Owner) -> Response:
        """Show the draft."""
        return self.shown(standing_draft(owner).as_dict(), DraftShape, owner=owner)

    def redrafted(self, owner: Owner) -> Response:
        """Write the draft."""
        set_draft(self.principal, owner, text_in(self.read(PolicyShape)))
        return self.draft(owner)

    def discarded(self, owner: Owner) -> Response:
        """Drop the draft."""
        discard_draft(self.principal, owner)
        return Response(status=204)

    def summed_up(self, owner: Owner) -> Response:
        """Say what the draft would have decided."""
        standing_draft(owner)
        found = shadowed(self.principal, owner)
        return Response(found.as_dict() if found else None)

    def enforced(self, owner: Owner) -> Response:
        """Make the draft the policy."""
        enforce_draft(self.principal, owner)
        fresh: Owner = type(owner).objects.get(pk=owner.pk)
        return self.shown(policy_text(fresh).as_dict(), PolicyShape, owner=fresh)


class OwnPolicyResource(PolicyResource):
    """The same for the organization's own policy."""

    @property
    def own(self) -> Organization:
        """The organization that is worked in."""
        return Organization.objects.get(pk=self.organization_id)


class ReplayPolicy(AgentResource, PolicyResource):
    """Another policy over past calls."""

    rules = {"POST": Action.VIEW_AUDIT}

    @operation("replay_tool_policy", body=ReplayBody, answer=ReplayShape)
    def post(self, request: object, agent_id: str) -> Response:
        """Say what a changed tool policy would have decided about an agent's calls.

        Nothing is changed. At most 50,000 rows and 10 seconds, the newest calls first.
        """
        return self.replayed(self.agent(agent_id))


class PolicyDraft(AgentResource, PolicyResource):
    """The draft in the shadow of an agent's policy."""

    rules = {"GET": READ, "PUT": Action.MANAGE_AGENTS, "DELETE": Action.MANAGE_AGENTS}
    narrowed = ("GET",)

    @operation("get_tool_policy_draft", answer=DraftShape)
    def get(self, request: object, agent_id: str) -> Response:
        """Show the policy that runs in the shadow; a 404 (`no_draft`) where none does."""
        return self.draft(self.agent(agent_id))

    @operation("set_tool_policy_draft", body=PolicyShape, answer=DraftShape)
    def put(self, request: object, agent_id: str) -> Response:
        """Run a policy in the shadow: the audit says what it would decide, and nothing else is."""
        return self.redrafted(self.agent(agent_id))

    @operation("discard_tool_policy_draft", status=204)
    def delete(self, request: object, agent_id: str) -> Response:
        """Drop the policy that runs in the shadow."""
        return self.discarded(self.agent(agent_id))


class PolicyShadow(AgentResource, PolicyResource):
    """What the draft would have decided."""

    rules = {"GET": Action.VIEW_AUDIT}

    @operation("get_tool_policy_shadow", answer=ReplayShape)
    def get(self, request: object, agent_id: str) -> Response:
        """Sum up what the draft would have decided otherwise since it stands."""
        return self.summed_up(self.agent(agent_id))


class EnforceDraft(AgentResource, PolicyResource):
    """The draft becomes the policy."""

    rules = {"POST": Action.MANAGE_AGENTS}

    @operation("enforce_tool_policy_draft", answer=PolicyShape)
    def post(self, request: object, agent_id: str) -> Response:
        """Make the draft the agent's tool policy; it holds on the very next call."""
        return self.enforced(self.agent(agent_id))


class ReplayOwnPolicy(OwnPolicyResource):
    """Another policy of the organization over past calls."""

    rules = {"POST": Action.VIEW_AUDIT}

    @operation("replay_organization_tool_policy", body=ReplayBody, answer=ReplayShape)
    def post(self, request: object) -> Response:
        """Say what a changed policy of the organization would have decided about all its calls.

        Nothing is changed. At most 50,000 rows and 10 seconds, the newest calls first.
        """
        return self.replayed(self.own)


class OwnPolicyDraft(OwnPolicyResource):
    """The draft in the shadow of the organization's policy."""

    rules = {
        "GET": READ,
        "PUT": Action.MANAGE_ORGANIZATION,
        "DELETE": Action.MANAGE_ORGANIZATION,
    }

    @operation("get_organization_tool_policy_draft", answer=DraftShape)
    def get(self, request: object) -> Response:
        """Show the policy that runs in the shadow; a 404 (`no_draft`) where none does."""
        return self.draft(self.own)

    @operation("set_organization_tool_policy_draft", body=PolicyShape, answer=DraftShape)
    def put(self, request: object) -> Response:
        """Run a policy in the shadow: the audit says what it would decide, and nothing else is."""
        return self.redrafted(self.own)

    @operation("discard_organization_tool_policy_draft", status=204)
    def delete(self, request: object) -> Response:
        """Drop the policy that runs in the shadow."""
        return self.discarded(self.own)


class OwnPolicyShadow(OwnPolicyResource):
    """What the organization's draft would have decided."""

    rules = {"GET": Action.VIEW_AUDIT}

    @operation("get_organization_tool_policy_shadow", answer=ReplayShape)
    def get(self, request: object) -> Response:
        """Sum up what the draft would have decided otherwise since it stands."""
        return self.summed_up(self.own)


class EnforceOwnDraft(OwnPolicyResource):
    """The organization's draft becomes its policy."""

    rules = {"POST": Action.MANAGE_ORGANIZATION}

    @operation("enforce_organization_tool_policy_draft", answer=PolicyShape)
    def post(self, request: object) -> Response:
        """Make the draft the organization's tool policy; it holds on the very next call."""
        return self.enforced(self.own)
