"""An agent's tool policy."""

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import (
    OpenApiExample,
    extend_schema_field,
    extend_schema_serializer,
)
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentResource
from agents.models import Agent, ToolPolicy
from agents.tool_policies import (
    EFFECTS,
    Entry,
    PolicyText,
    RuleText,
    policy_text,
    set_policy,
)
from bonobot.tenancy.api.resources import READ, Resource
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import VersionedShape, VersionField
from bonobot.tenancy.models import Organization
from bonobot.tenancy.roles import Action

MOST_RULES = 1_000
NAME_LENGTH = 600
PATTERNS = "Tool names as models see them, or globs: `mcp_github_*`, `read_result`."


@extend_schema_field(
    {
        "oneOf": [
            {"type": "string", "maxLength": NAME_LENGTH},
            {
                "type": "object",
                "required": ["tool", "when"],
                "properties": {
                    "tool": {"type": "string", "maxLength": NAME_LENGTH},
                    "when": {"type": "object", "description": "JSON Schema over the arguments."},
                },
            },
        ]
    }
)
class RuleField(serializers.Field):
    """A name or glob, or an object of one with the condition that the arguments must fit."""

    default_error_messages = {"invalid": 'A name, or {"tool": …, "when": {…}}.'}

    def to_internal_value(self, data: Any) -> Entry:
        """Return the entry."""
        if isinstance(data, str) and data.strip() and len(data) <= NAME_LENGTH:
            return data
        if isinstance(data, dict) and set(data) == {"tool", "when"}:
            tool, when = data["tool"], data["when"]
            if isinstance(tool, str) and 0 < len(tool) <= NAME_LENGTH and isinstance(when, dict):
                return RuleText(tool, when)
        raise serializers.ValidationError(self.error_messages["invalid"], code="invalid")

    def to_representation(self, value: Any) -> Any:
        """Return it as it is: `as_dict` has written it."""
        return value


def _rules(what: str) -> serializers.ListField:
    return serializers.ListField(
        child=RuleField(), required=False, max_length=MOST_RULES, help_text=f"{what} {PATTERNS}"
    )


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "Only these",
            {
                "mode": "allowlist",
                "allow": ["mcp_time_*", "read_result"],
                "ask": [
                    {
                        "tool": "mcp_bank_transfer",
                        "when": {"properties": {"amount": {"minimum": 1000}}},
                    }
                ],
                "deny": [],
            },
        )
    ]
)
class PolicyShape(VersionedShape):
    """A tool policy, the same for MCP and built-in tools."""

    version = VersionField(required=False)
    # The mode is judged with the rules, where the answer says which modes there are.
    mode = serializers.CharField(help_text=f"One of: {', '.join(ToolPolicy.Mode.values)}.")
    allow = _rules("Allowed.")
    ask = _rules("Wants a person's yes.")
    deny = _rules("Denied, whatever else says.")


def text_in(body: Mapping[str, Any]) -> PolicyText:
    """Return the policy that a body of `PolicyShape` says."""
    return PolicyText(body["mode"], **{effect: tuple(body.get(effect, ())) for effect in EFFECTS})


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
        set_policy(self.principal, agent, text_in(self.read(PolicyShape)))
        return self._answer(agent)

    def _answer(self, agent: Agent) -> Response:
        text = policy_text(Agent.objects.get(pk=agent.pk))
        return self.shown(text.as_dict(), PolicyShape, owner=agent)


class OwnPolicy(Resource):
    """The tool policy of the organization."""

    rules = {"GET": READ, "PUT": Action.MANAGE_ORGANIZATION}

    @operation("get_organization_tool_policy", answer=PolicyShape)
    def get(self, request: object) -> Response:
        """Show what the organization rules.

        What it denies, or asks about, holds for every agent; its mode and what it allows decide
        about calls that are made without an agent.
        """
        return self._answer(self._own())

    @operation("set_organization_tool_policy", body=PolicyShape, answer=PolicyShape)
    def put(self, request: object) -> Response:
        """Replace the organization's tool policy; it holds on the very next call."""
        own = self._own()
        set_policy(self.principal, own, text_in(self.read(PolicyShape)))
        return self._answer(own)

    def _own(self) -> Organization:
        return Organization.objects.get(pk=self.organization_id)

    def _answer(self, own: Organization) -> Response:
        return self.shown(policy_text(own).as_dict(), PolicyShape, owner=own)
