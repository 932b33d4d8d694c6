"""An agent's tool policy and budgets."""

from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentResource
from agents.budgets import LARGEST, BudgetLine, budgets_in_use, set_budgets
from agents.models import Agent, Budget, ToolPolicy
from agents.tool_policies import PolicyText, policy_text, set_policy
from bonobot.tenancy.api.resources import READ
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from bonobot.tenancy.roles import Action

MOST_RULES = 1_000
MOST_BUDGETS = 9
PATTERNS = "Tool names as models see them, or globs: `mcp_github_*`, `read_result`."


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "Only these",
            {"mode": "allowlist", "allow": ["mcp_time_*", "read_result"], "deny": []},
        )
    ]
)
class PolicyShape(Shape):
    """A tool policy, the same for MCP and built-in tools."""

    # The mode is judged with the rules, where the answer says which modes there are.
    mode = serializers.CharField(help_text=f"One of: {', '.join(ToolPolicy.Mode.values)}.")
    allow = serializers.ListField(
        child=serializers.CharField(max_length=600),
        required=False,
        max_length=MOST_RULES,
        help_text=PATTERNS,
    )
    deny = serializers.ListField(
        child=serializers.CharField(max_length=600),
        required=False,
        max_length=MOST_RULES,
        help_text=PATTERNS,
    )


class AgentPolicy(AgentResource):
    """The tool policy of an agent."""

    rules = {"GET": READ, "PUT": Action.MANAGE_AGENTS}
    narrowed = ("GET",)

    @operation("get_tool_policy", answer=PolicyShape)
    def get(self, request: object, agent_id: str) -> Response:
        """Show an agent's tool policy in the words that a PUT takes."""
        return self._answer(self.agent(agent_id))

    @operation("set_tool_policy", body=PolicyShape, answer=PolicyShape)
    def put(self, request: object, agent_id: str) -> Response:
        """Replace an agent's tool policy; it holds on the very next call."""
        agent = self.agent(agent_id)
        body = self.read(PolicyShape)
        allow, deny = tuple(body.get("allow", ())), tuple(body.get("deny", ()))
        set_policy(self.principal, agent, PolicyText(body["mode"], allow, deny))
        return self._answer(agent)

    def _answer(self, agent: Agent) -> Response:
        text = policy_text(Agent.objects.get(pk=agent.pk))
        return Response({"mode": text.mode, "allow": text.allow, "deny": text.deny})


class BudgetBody(Shape):
    """One budget; money is counted in millionths of a dollar."""

    unit = serializers.ChoiceField(Budget.Unit.choices)
    period = serializers.ChoiceField(Budget.Period.choices)
    limit = serializers.IntegerField(min_value=0, max_value=LARGEST)


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "Tokens and money",
            {
                "budgets": [
                    {"unit": "tokens", "period": "day", "limit": 200_000},
                    {"unit": "microusd", "period": "month", "limit": 20_000_000},
                ]
            },
            request_only=True,
        )
    ]
)
class BudgetsBody(Shape):
    """All budgets of an agent."""

    budgets = serializers.ListField(child=BudgetBody(), max_length=MOST_BUDGETS)


class BudgetUseShape(Shape):
    """A budget and its use in the current period (UTC)."""

    unit = serializers.ChoiceField(Budget.Unit.choices, source="line.unit")
    period = serializers.ChoiceField(Budget.Period.choices, source="line.period")
    limit = serializers.IntegerField(source="line.limit")
    spent = serializers.IntegerField()
    reserved = serializers.IntegerField(help_text="Held by calls and turns that still run.")


class BudgetsShape(Shape):
    """All budgets of an agent with their use."""

    budgets = BudgetUseShape(many=True)


class AgentBudgets(AgentResource):
    """The budgets of an agent."""

    rules = {"GET": READ, "PUT": Action.MANAGE_AGENTS}
    narrowed = ("GET",)

    @operation("get_budgets", answer=BudgetsShape)
    def get(self, request: object, agent_id: str) -> Response:
        """Show an agent's budgets with what is spent of them."""
        return self._answer(self.agent(agent_id))

    @operation("set_budgets", body=BudgetsBody, answer=BudgetsShape)
    def put(self, request: object, agent_id: str) -> Response:
        """Replace an agent's budgets; what was spent stays spent."""
        agent = self.agent(agent_id)
        lines = [BudgetLine(**line) for line in self.read(BudgetsBody)["budgets"]]
        set_budgets(self.principal, agent, lines)
        return self._answer(agent)

    def _answer(self, agent: Agent) -> Response:
        return self.shown({"budgets": budgets_in_use(agent)}, BudgetsShape)
