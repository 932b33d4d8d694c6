"""Sentences about the rules that decide calls. No I/O.

A decision names its rule by an ID, such as `policy:allowlist:ask mcp:send_*`. REST, audit entries,
and the command line have the ID; screens show the sentence of `build_rule_text` with the ID next to
it. The reason of a required approval is this sentence, too.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.policies.decision_texts import TOOL_RULE, describe_tool_rule, is_tool_setting
from bonobot.accounts.roles import ACTION_TITLES, Action
from bonobot.core.i18n.localization import format_number
from bonobot.core.i18n.messages import TranslatableMessage, format_message
from bonobot.core.text.canonical_json import to_canonical_json
from bonobot.ledger.budgets import describe_budget_key, parse_budget_key

# Keywords of JSON Schema that compare a value, as they are shown next to an argument.
COMPARISONS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "const": "=",
}

Message = TranslatableMessage

MODE_TITLES: Mapping[str, Any] = {
    "none": _("None"),
    "allowlist": _("Allowlist"),
    "denylist": _("Denylist"),
    "all": _("All"),
}

FLOW_TEXT = format_message(
    "Private data and untrusted content were read, so calls with an external effect require "
    "approval."
)
ARGUMENTS_TEXT = format_message("The arguments must match the tool's input schema.")
FIXED_TEXTS: Mapping[str, Message] = {
    "agent:enabled": format_message("Only enabled agents can call tools."),
    "approval": format_message("The call requires a valid approval."),
    "arguments": ARGUMENTS_TEXT,
    "attachment:all": format_message("All tools of the server are selected for this agent."),
    "attachment:allowed": format_message(
        "Only the selected tools of the server can be called by this agent."
    ),
    "attachment:app_page": format_message("The page shows results of a tool of this agent."),
    "attachment:enabled": format_message("The server or toolset must be enabled for this agent."),
    "attachment:selected": format_message(
        "Only the selected resources and prompts of the server can be used by this agent."
    ),
    "definition:approved": format_message("The definition is approved."),
    "definition:changed": format_message("The definition changed after it was approved."),
    "definition:gone": format_message("The server no longer declares it."),
    "definition:instructions_changed": format_message(
        "The instructions of the server changed after they were approved."
    ),
    "definition:pending": format_message("The definition is pending review."),
    "definition:refused": format_message("The definition can't be used."),
    "definition:rejected": format_message("The definition was rejected in a review."),
    "definition:switch": format_message("The definition is disabled on its server."),
    "flow": FLOW_TEXT,
    "flow_labels": FLOW_TEXT,
    "invalid_arguments": ARGUMENTS_TEXT,
    "organization:four_eyes": format_message("Someone else must approve the call."),
    "organization:halted": format_message("The organization's kill switch is enabled."),
    "organization:none": format_message("No rule of the organization matches."),
    "platform_admin": format_message("Only platform administrators have this permission."),
    "policy:all": format_message(
        "The policy's mode is All: approved tools of attached servers are allowed."
    ),
    "policy:allowlist": format_message(
        "The policy's mode is Allowlist: only tools that a rule allows can be called."
    ),
    "policy:denylist": format_message(
        "The policy's mode is Denylist: tools that no rule denies are allowed."
    ),
    "policy:none": format_message("The policy's mode is None: all tools are denied."),
    "resolve": format_message("The agent must have a tool with this name."),
    "server:enabled": format_message("Only enabled servers can be called."),
    "session:depth": format_message("Agents can call each other only to a limited depth."),
    "session:interrupted": format_message("The session was interrupted during the call."),
}
RATE_TEXTS: Mapping[str, Message] = {
    "agent": format_message("The agent's rate limit applies."),
    "global": format_message("The rate limit of all organizations applies."),
    "organization": format_message("The organization's rate limit applies."),
    "server": format_message("The server's rate limit applies."),
    "token": format_message("The token's rate limit applies."),
}
# What decides by its rules, by the first part of their IDs.
RULE_OWNERS: Mapping[str, Any] = {
    "agent": _("Agent"),
    "arguments": _("Input schema"),
    "attachment": _("Agent tools"),
    "budget": _("Budget"),
    "builtin": _("Built-in tools"),
    "definition": _("Definition review"),
    "flow": _("Flow labels"),
    "flow_labels": _("Flow labels"),
    "invalid_arguments": _("Input schema"),
    "organization": _("Organization policy"),
    "policy": _("Policy"),
    "rate": _("Rate limit"),
    "resolve": _("Agent tools"),
    "role": _("Role"),
    "scope": _("Token scope"),
    "server": _("Server"),
}
MIN_RATE_KEY_PARTS = 4  # `rate:{organization}:{scope}:{scope id}`


def build_rule_text(rule: str, *, of_agent: bool = True, server_name: str = "") -> str:
    """Return a sentence about a rule; blank for an ID without one, such as one of a plugin.

    `of_agent` is whether an agent's policy decided; without an agent, it is the organization's.
    `server_name` is the server of the tool that was decided about.
    """
    tool_text = describe_tool_rule(rule, of_agent=of_agent, server_name=server_name)
    if text := FIXED_TEXTS.get(rule) or tool_text:
        return text
    kind, _, rest = rule.partition(":")
    build_text = _TEXT_BUILDERS.get(kind)
    return build_text(rule, rest) if build_text and rest else ""


def name_rule(rule: str, *, of_agent: bool = True) -> tuple[Any, str]:
    """Return what decides by a rule and the tools that it matches, each blank if unknown."""
    if rule == "organization:halted":
        return _("Kill switch"), ""
    owner = rule.partition(":")[0]
    if of_agent and is_tool_setting(rule):
        owner = "attachment"
    elif not of_agent and owner == "policy":
        owner = "organization"
    match = TOOL_RULE.fullmatch(rule)
    pattern = match["pattern"] if match else ""
    return RULE_OWNERS.get(owner, ""), "" if pattern == "default" else pattern


def _build_attachment_text(_rule: str, rest: str) -> str:
    kind, _, pattern = rest.partition(":")
    if kind == "denied":
        return format_message(
            "Tools whose name matches `{pattern}` aren't selected for this agent.", pattern=pattern
        )
    if kind == "selected":
        return format_message("The selection `{pattern}` of this agent matches.", pattern=pattern)
    return ""


def _build_toolset_text(_rule: str, toolset: str) -> Message:
    return format_message(
        "The toolset `{toolset}` must be enabled for this agent.", toolset=toolset
    )


def _build_rate_text(rule: str, _rest: str) -> str:
    parts = rule.split(":")
    return RATE_TEXTS.get(parts[2], "") if len(parts) >= MIN_RATE_KEY_PARTS else ""


def _build_budget_text(rule: str, _rest: str) -> Message | str:
    if not parse_budget_key(rule):  # a model without a price or usage, with such a budget
        return ""
    return format_message("The {budget} isn't enough.", budget=describe_budget_key(rule))


def _build_flow_text(_rule: str, _rest: str) -> Message:
    return FLOW_TEXT


def _build_role_text(_rule: str, action: str) -> str:
    if action not in list(Action):
        return ""
    return format_message(
        "The role must have permission to {activity}.", activity=ACTION_TITLES[Action(action)]
    )


def _build_scope_text(_rule: str, scope: str) -> Message:
    return format_message("The token must have the scope `{scope}`.", scope=scope)


_TEXT_BUILDERS: Mapping[str, Callable[[str, str], str]] = {
    "attachment": _build_attachment_text,
    "budget": _build_budget_text,
    "builtin": _build_toolset_text,
    "flow": _build_flow_text,
    "rate": _build_rate_text,
    "role": _build_role_text,
    "scope": _build_scope_text,
}


def describe_condition(condition: Mapping[str, Any] | None) -> dict[str, str]:
    """Return what a rule's condition requires of each argument: `{"amount": "amount ≥ 20000"}`."""
    schema = condition or {}
    properties = schema.get("properties")
    texts = {
        name: " ".join((name, *_describe_comparisons(subschema)))
        for name, subschema in (properties.items() if isinstance(properties, Mapping) else ())
        if isinstance(subschema, Mapping)
    }
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if texts.get(name, name) == name:
            texts[name] = _t("%(name)s is set") % {"name": name}
    return texts


def format_condition(condition: Mapping[str, Any] | None) -> str:
    """Return a rule's condition in words, blank without one; as JSON if there are no words."""
    if condition is None:
        return ""
    return ", ".join(describe_condition(condition).values()) or to_canonical_json(condition)


def _describe_comparisons(schema: Mapping[str, Any]) -> Iterator[str]:
    for keyword, sign in COMPARISONS.items():
        if keyword in schema:
            bound = schema[keyword]
            yield f"{sign} {format_number(bound) if isinstance(bound, int | float) else bound}"
    if "pattern" in schema:
        yield _t("matches %(pattern)s") % {"pattern": schema["pattern"]}
    if isinstance(schema.get("enum"), list):
        yield "= " + " | ".join(map(str, schema["enum"]))
