"""REST of budgets of organizations, agents and servers, with their usage."""

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentView
from agents.budgets.services import MAX_LIMIT, BudgetLine, Owner, list_budget_use, set_budgets
from agents.models import Budget
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, ResourceView
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer, VersionedBody, VersionedSerializer
from mcp_servers.api.servers import ServerView

# Each unit in each period; for agents also per session.
MOST_BUDGETS = 24


class BudgetBody(StrictSerializer):
    """One budget; amounts of money are in millionths of a dollar."""

    unit = serializers.ChoiceField(Budget.Unit.choices)
    period = serializers.ChoiceField(Budget.Period.choices)
    limit = serializers.IntegerField(min_value=0, max_value=MAX_LIMIT)
    each_session = serializers.BooleanField(
        required=False, help_text="For an agent: the limit applies to each session separately."
    )
    warn_at = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=100,
        help_text="Percentage of the limit at which a warning is sent. Default: 80.",
    )


class BudgetsBody(VersionedBody):
    """All budgets of an owner."""

    budgets = serializers.ListField(child=BudgetBody(), max_length=MOST_BUDGETS)


class ServerBudgetBody(BudgetBody):
    """One budget of a server; servers don't use tokens."""

    unit = serializers.ChoiceField(
        [choice for choice in Budget.Unit.choices if choice[0] != Budget.Unit.TOKENS]
    )


class ServerBudgetsBody(VersionedBody):
    """All budgets of a server."""

    budgets = serializers.ListField(child=ServerBudgetBody(), max_length=MOST_BUDGETS)


class BudgetUseSerializer(StrictSerializer):
    """A budget and its usage in the current period (UTC)."""

    scope = serializers.ChoiceField(
        ["organization", "agent", "session", "server"],
        help_text="Whose usage counts. The usage of each session is in the session.",
    )
    unit = serializers.ChoiceField(Budget.Unit.choices, source="line.unit")
    period = serializers.ChoiceField(Budget.Period.choices, source="line.period")
    limit = serializers.IntegerField(source="line.limit")
    each_session = serializers.BooleanField(source="line.each_session")
    warn_at = serializers.IntegerField(source="line.warn_at", help_text="Percentage of the limit.")
    warned = serializers.BooleanField(
        help_text="True if the usage has reached the warning threshold."
    )
    spent = serializers.IntegerField()
    reserved = serializers.IntegerField(help_text="Reserved by running calls and model turns.")


class BudgetsSerializer(VersionedSerializer):
    """All budgets of an owner with their usage."""

    body_classes = (BudgetsBody,)

    budgets = BudgetUseSerializer(many=True)

    def build_parts(self, instance: Any, representation: Mapping[str, Any]) -> dict[str, Any]:
        """Return the writable values of the budgets, without their usage."""
        names = BudgetBody._declared_fields
        return {
            "budgets": [{name: line[name] for name in names} for line in representation["budgets"]]
        }


class BudgetsView(ResourceView):
    """The budgets of an owner."""

    def replace_budgets(
        self, owner: Owner, serializer_class: type[StrictSerializer] = BudgetsBody
    ) -> Response:
        lines = [BudgetLine(**line) for line in self.read_body(serializer_class)["budgets"]]
        set_budgets(self.principal, owner, lines)
        return self.show_budgets(owner)

    def show_budgets(self, owner: Owner) -> Response:
        return self.respond_row({"budgets": list_budget_use(owner)}, BudgetsSerializer, owner=owner)


class AgentBudgetsView(AgentView, BudgetsView):
    """The budgets of an agent."""

    rules = {"GET": READ, "PUT": Action.MANAGE_AGENTS}
    agent_token_methods = ("GET",)

    @describe_operation("get_budgets", answer=BudgetsSerializer)
    def get(self, request: object, agent_id: str) -> Response:
        """Get an agent's budgets with their usage."""
        return self.show_budgets(self.get_agent(agent_id))

    @describe_operation("set_budgets", body=BudgetsBody, answer=BudgetsSerializer)
    def put(self, request: object, agent_id: str) -> Response:
        """Replace an agent's budgets; the usage is kept."""
        return self.replace_budgets(self.get_agent(agent_id))


class ServerBudgetsView(ServerView, BudgetsView):
    """The budgets of a server."""

    rules = {"GET": READ, "PUT": Action.MANAGE_SERVERS}

    @describe_operation("get_server_budgets", answer=BudgetsSerializer)
    def get(self, request: object, server_id: str) -> Response:
        """Get a server's budgets with the usage of all callers."""
        return self.show_budgets(self.get_server(server_id))

    @describe_operation("set_server_budgets", body=ServerBudgetsBody, answer=BudgetsSerializer)
    def put(self, request: object, server_id: str) -> Response:
        """Replace a server's budgets; the usage is kept."""
        return self.replace_budgets(self.get_server(server_id), ServerBudgetsBody)


class OrganizationBudgetsView(BudgetsView):
    """The budgets of the request's organization."""

    rules = {"GET": READ, "PUT": Action.MANAGE_ORGANIZATION}

    @describe_operation("get_organization_budgets", answer=BudgetsSerializer)
    def get(self, request: object) -> Response:
        """Get the organization's budgets with their usage."""
        return self.show_budgets(self._get_organization())

    @describe_operation("set_organization_budgets", body=BudgetsBody, answer=BudgetsSerializer)
    def put(self, request: object) -> Response:
        """Replace the organization's budgets; the usage is kept."""
        return self.replace_budgets(self._get_organization())

    def _get_organization(self) -> Organization:
        return Organization.objects.get(pk=self.organization_id)
