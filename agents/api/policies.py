"""REST of tool policies of agents and the organization."""

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import (
    extend_schema_field,
)
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentView
from agents.calls.missing_tools import describe_missing_tool, list_missing_tools
from agents.models import Agent, ToolPolicy
from agents.policies.services import (
    EFFECTS,
    Entry,
    Owner,
    PolicySpec,
    RuleSpec,
    load_policy_spec,
    set_policy,
)
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, ResourceView
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer, VersionedSerializer, VersionField

MAX_RULES = 1_000
MAX_NAME_LENGTH = 600
PATTERN_HELP = "Tool names as models see them, or glob patterns: `mcp_github_*`, `read_result`."


@extend_schema_field(
    {
        "oneOf": [
            {"type": "string", "maxLength": MAX_NAME_LENGTH},
            {
                "type": "object",
                "required": ["tool", "when"],
                "properties": {
                    "tool": {"type": "string", "maxLength": MAX_NAME_LENGTH},
                    "when": {"type": "object", "description": "JSON Schema over the arguments."},
                },
            },
        ]
    }
)
class PolicyRuleField(serializers.Field):
    """A name or pattern, or an object with a pattern and a condition on the arguments."""

    default_error_messages = {"invalid": 'A name, or {"tool": …, "when": {…}}.'}

    def to_internal_value(self, data: Any) -> Entry:
        """Return the policy entry; raises `ValidationError`."""
        if isinstance(data, str) and data.strip() and len(data) <= MAX_NAME_LENGTH:
            return data
        if isinstance(data, dict) and set(data) == {"tool", "when"}:
            tool, when = data["tool"], data["when"]
            if (
                isinstance(tool, str)
                and 0 < len(tool) <= MAX_NAME_LENGTH
                and isinstance(when, dict)
            ):
                return RuleSpec(tool, when)
        raise serializers.ValidationError(self.error_messages["invalid"], code="invalid")

    def to_representation(self, value: Any) -> Any:
        """Return the value unchanged: `as_dict` has serialized it."""
        return value


def _build_rules_field(prefix: str) -> serializers.ListField:
    return serializers.ListField(
        child=PolicyRuleField(),
        required=False,
        max_length=MAX_RULES,
        help_text=f"{prefix} {PATTERN_HELP}",
    )


class PolicySerializer(VersionedSerializer):
    """A tool policy, for MCP tools and built-in tools."""

    version = VersionField(required=False)
    # The service validates the mode; its error lists the valid modes.
    mode = serializers.CharField(help_text=f"One of: {', '.join(ToolPolicy.Mode.values)}.")
    allow = _build_rules_field("Allowed.")
    ask = _build_rules_field("Requires approval.")
    deny = _build_rules_field("Denied, even if another rule allows it.")


class PolicyWarningSerializer(StrictSerializer):
    """A rule that has no effect yet."""

    rule = serializers.CharField(help_text="The name in the rule.")
    code = serializers.CharField(help_text="`unknown_tool`")
    detail = serializers.CharField()


class CheckedPolicySerializer(PolicySerializer):
    """A tool policy, with warnings about rules for tools that don't exist."""

    body_classes = (PolicySerializer,)

    warnings = PolicyWarningSerializer(many=True, read_only=True)

    def to_internal_value(self, data: Any) -> Any:
        """Return the validated fields; the warnings of a GET response are ignored."""
        if isinstance(data, Mapping):
            data = {name: value for name, value in data.items() if name != "warnings"}
        return super().to_internal_value(data)


def build_policy_spec(body: Mapping[str, Any]) -> PolicySpec:
    """Return the policy of a `PolicySerializer` body."""
    return PolicySpec(body["mode"], **{effect: tuple(body.get(effect, ())) for effect in EFFECTS})


def _build_answer(owner: Owner) -> dict[str, Any]:
    policy = load_policy_spec(owner)
    return policy.as_dict() | {
        "warnings": [
            {"rule": name, "code": "unknown_tool", "detail": str(describe_missing_tool(name))}
            for name in list_missing_tools(owner, policy)
        ]
    }


class AgentPolicyView(AgentView):
    """The tool policy of an agent."""

    rules = {"GET": READ, "PUT": Action.MANAGE_AGENTS}
    agent_token_methods = ("GET",)

    @describe_operation("get_tool_policy", answer=CheckedPolicySerializer)
    def get(self, request: object, agent_id: str) -> Response:
        """Get an agent's tool policy, in the format of a PUT request."""
        return self._show_policy(self.get_agent(agent_id))

    @describe_operation(
        "set_tool_policy", body=CheckedPolicySerializer, answer=CheckedPolicySerializer
    )
    def put(self, request: object, agent_id: str) -> Response:
        """Replace an agent's tool policy; effective on the next call.

        `warnings` has the rules that name a tool that doesn't exist.
        """
        agent = self.get_agent(agent_id)
        body = self.read_body(CheckedPolicySerializer)
        set_policy(self.principal, agent, build_policy_spec(body))
        return self._show_policy(agent)

    def _show_policy(self, agent: Agent) -> Response:
        stored_agent = Agent.objects.get(pk=agent.pk)
        return self.respond_row(_build_answer(stored_agent), CheckedPolicySerializer, owner=agent)


class OrganizationPolicyView(ResourceView):
    """The tool policy of the organization."""

    rules = {"GET": READ, "PUT": Action.MANAGE_ORGANIZATION}

    @describe_operation("get_organization_tool_policy", answer=CheckedPolicySerializer)
    def get(self, request: object) -> Response:
        """Get the organization's tool policy.

        Its deny and approval rules apply to all agents. Its mode and allow rules apply to calls
        without an agent.
        """
        return self._show_policy(self._get_organization())

    @describe_operation(
        "set_organization_tool_policy",
        body=CheckedPolicySerializer,
        answer=CheckedPolicySerializer,
    )
    def put(self, request: object) -> Response:
        """Replace the organization's tool policy; effective on the next call."""
        organization = self._get_organization()
        body = self.read_body(CheckedPolicySerializer)
        set_policy(self.principal, organization, build_policy_spec(body))
        return self._show_policy(organization)

    def _get_organization(self) -> Organization:
        return Organization.objects.get(pk=self.organization_id)

    def _show_policy(self, organization: Organization) -> Response:
        return self.respond_row(
            _build_answer(organization), CheckedPolicySerializer, owner=organization
        )
