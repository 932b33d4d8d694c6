"""Texts of decisions: why a call is denied or needs an approval, and what to do next. No I/O."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from bonobot.core.i18n.messages import TranslatableMessage, format_message

ENABLE_REMEDY = format_message("An operator or owner can enable it.")
POLICY_REMEDY = format_message("An operator or owner can change the agent's tool policy.")


# By owner and effect; `tools` is a message itself.
TOOL_TEXTS: Mapping[tuple[str, str], Callable[..., TranslatableMessage]] = {
    ("organization", "allow"): partial(
        format_message, "A rule of the organization allows {tools}."
    ),
    ("organization", "ask"): partial(
        format_message, "A rule of the organization requires approval for {tools}."
    ),
    ("organization", "deny"): partial(format_message, "A rule of the organization denies {tools}."),
    ("policy", "allow"): partial(format_message, "A rule of the policy allows {tools}."),
    ("policy", "ask"): partial(
        format_message, "A rule of the policy requires approval for {tools}."
    ),
    ("policy", "deny"): partial(format_message, "A rule of the policy denies {tools}."),
}
DEFAULT_PATTERN = "default"
TOOL_RULE = re.compile(
    r"(?P<owner>organization|policy:\w+):(?P<effect>allow|ask|deny) (?P<source>\w+):"
    r"(?P<pattern>.+?)(?P<condition> when its condition holds)?"
)
# An exact name, as an agent's own rule without a condition, is a setting in the table of its tools.
TOOL_SETTING_TEXTS: Mapping[str, Callable[..., TranslatableMessage]] = {
    "allow": partial(format_message, "The tool `{name}` is set to Allow for this agent."),
    "ask": partial(format_message, "The tool `{name}` is set to Ask for this agent."),
    "deny": partial(format_message, "The tool `{name}` is set to Deny for this agent."),
}
SERVER_TOOL_SETTING_TEXTS: Mapping[str, Callable[..., TranslatableMessage]] = {
    "allow": partial(
        format_message,
        "The tool `{name}` of the server `{server}` is set to Allow for this agent.",
    ),
    "ask": partial(
        format_message, "The tool `{name}` of the server `{server}` is set to Ask for this agent."
    ),
    "deny": partial(
        format_message, "The tool `{name}` of the server `{server}` is set to Deny for this agent."
    ),
}
# The default of a server, by effect, if the server is known.
DEFAULT_SETTING_TEXTS: Mapping[str, Callable[..., TranslatableMessage]] = {
    "allow": partial(
        format_message,
        "Tools of the server `{server}` without their own setting are set to Allow for this agent.",
    ),
    "ask": partial(
        format_message,
        "Tools of the server `{server}` without their own setting are set to Ask for this agent.",
    ),
    "deny": partial(
        format_message,
        "Tools of the server `{server}` without their own setting are set to Deny for this agent.",
    ),
}
UNNAMED_DEFAULT_SETTING_TEXTS: Mapping[str, TranslatableMessage] = {
    "allow": format_message(
        "Tools of the server without their own setting are set to Allow for this agent."
    ),
    "ask": format_message(
        "Tools of the server without their own setting are set to Ask for this agent."
    ),
    "deny": format_message(
        "Tools of the server without their own setting are set to Deny for this agent."
    ),
}
# What a rule is about, without the name of a server and with it.
TOOLS_TEXTS: Mapping[str, Callable[..., TranslatableMessage]] = {
    "default": partial(format_message, "tools of the server that have no rule of their own"),
    "condition": partial(format_message, "calls of `{pattern}` whose arguments meet its condition"),
    "glob": partial(format_message, "tools whose name matches `{pattern}`"),
    "name": partial(format_message, "the tool `{pattern}`"),
}
SERVER_TOOLS_TEXTS: Mapping[str, Callable[..., TranslatableMessage]] = {
    "default": partial(
        format_message, "tools of the server `{server}` that have no rule of their own"
    ),
    "condition": partial(
        format_message,
        "calls of `{pattern}` of the server `{server}` whose arguments meet its condition",
    ),
    "glob": partial(
        format_message, "tools of the server `{server}` whose name matches `{pattern}`"
    ),
    "name": partial(format_message, "the tool `{pattern}` of the server `{server}`"),
}


class DecisionText(NamedTuple):
    """Why a stage denies a call or asks for an approval, and what to do next."""

    reason: str
    remedy: str


HALTED_ORGANIZATION = DecisionText(
    format_message("The organization's kill switch is enabled."),
    format_message("An owner can disable the kill switch."),
)
DISABLED_AGENT = DecisionText(format_message("This agent is disabled."), ENABLE_REMEDY)

# By the state of a definition.
_REVIEW_REASONS = {
    "pending": partial(format_message, "The {noun} `{label}` is pending review."),
    "changed": partial(
        format_message, "The server changed the {noun} `{label}` after it was approved."
    ),
    "instructions_changed": partial(
        format_message, "The server of the {noun} `{label}` changed its instructions."
    ),
    "rejected": partial(format_message, "The {noun} `{label}` was rejected in a review."),
    "refused": partial(format_message, "The definition of the {noun} `{label}` can't be used."),
    "gone": partial(format_message, "The server no longer declares the {noun} `{label}`."),
}
_REVIEW_REMEDIES = {
    "pending": format_message("Someone who can review definitions must review it."),
    "changed": format_message("Someone who can review definitions must review the change."),
    "instructions_changed": format_message(
        "Someone who can review definitions must compare and approve the new instructions."
    ),
    "rejected": format_message("Someone who can review definitions must approve it."),
    "refused": format_message("See the definition's page for the reason. The server must fix it."),
    "gone": format_message("Refresh the server, or use another one."),
}


def explain_disabled_server(name: str) -> DecisionText:
    return DecisionText(
        format_message("The server `{name}` is disabled.", name=name), ENABLE_REMEDY
    )


def explain_missing_attachment(server_name: str, *, is_attached: bool) -> DecisionText:
    """Return why an agent can't use a server: it isn't attached, or is disabled there."""
    reason = format_message(
        "The server `{server_name}` isn't attached to this agent.", server_name=server_name
    )
    if is_attached:
        reason = format_message(
            "The server `{server_name}` is disabled for this agent.", server_name=server_name
        )
    return DecisionText(reason, format_message("Attach the server to the agent first."))


def explain_missing_toolset(tool: str, toolset: str) -> DecisionText:
    return DecisionText(
        format_message("The built-in tool `{tool}` isn't enabled for this agent.", tool=tool),
        format_message(
            "Enable `{toolset}`, with its required options, on the agent's Built-in tools page.",
            toolset=toolset,
        ),
    )


def explain_review_state(state: str, *, noun: str, label: str) -> DecisionText:
    """Return why a definition in this state can't be used."""
    return DecisionText(_REVIEW_REASONS[state](noun=noun, label=label), _REVIEW_REMEDIES[state])


def explain_disabled_definition(noun: str, label: str, *, has_server: bool) -> DecisionText:
    """Return why a definition can't be used; one without a server starts an agent or workflow."""
    return DecisionText(
        format_message("The {noun} `{label}` is disabled.", noun=noun, label=label),
        format_message("An operator can enable it on its server.")
        if has_server
        else format_message("An operator can enable the agent or workflow that it starts."),
    )


def explain_unselected_tool(tool: str, server_name: str) -> DecisionText:
    return DecisionText(
        format_message(
            "The tool `{tool}` of the server `{server_name}` isn't selected for this agent.",
            server_name=server_name,
            tool=tool,
        ),
        format_message("Change the selected tools of that server on the agent's Tools tab."),
    )


def explain_unselected_definition(noun: str, uri: str, server_name: str) -> DecisionText:
    return DecisionText(
        format_message(
            "The {noun} `{uri}` of the server `{server_name}` isn't selected for this agent.",
            server_name=server_name,
            noun=noun,
            uri=uri,
        ),
        format_message("Select the {noun} for that server on the agent's Tools tab.", noun=noun),
    )


def explain_organization_denial(rule: str, server_name: str) -> DecisionText:
    """Return why the organization's rule with this ID denies a tool of a server, or built-in."""
    return DecisionText(
        describe_tool_rule(rule, of_agent=False, server_name=server_name),
        format_message("An owner can change the organization's rules."),
    )


def explain_policy_denial(mode: str, tool: str) -> DecisionText:
    """Return why a policy denies a tool without a rule: its mode, or no rule that allows it."""
    if mode == "none":
        reason = format_message(
            "The agent's policy (mode `none`) blocks every tool, including `{tool}`.", tool=tool
        )
    else:
        reason = format_message(
            "The agent's policy (mode `allowlist`) has no rule that allows `{tool}`.", tool=tool
        )
    return DecisionText(reason, POLICY_REMEDY)


def explain_rule_denial(rule: str, server_name: str, *, of_agent: bool) -> DecisionText:
    """Return why the rule of a policy with this ID denies a tool of a server, or a built-in one."""
    reason = describe_tool_rule(rule, of_agent=of_agent, server_name=server_name)
    return DecisionText(reason, POLICY_REMEDY)


def explain_definition_denial(name: str) -> DecisionText:
    """Return why the agent's policy denies a resource or prompt: its mode is `none`."""
    return DecisionText(
        format_message(
            "The tool policy mode `none` denies `{name}` and everything else.", name=name
        ),
        POLICY_REMEDY,
    )


def explain_required_approval(rule: str, server_name: str, *, of_agent: bool) -> DecisionText:
    """Return why a rule with this ID requires approval; `of_agent`: an agent's policy decided."""
    return DecisionText(
        describe_tool_rule(rule, of_agent=of_agent, server_name=server_name),
        format_message("Someone who can approve calls must approve it on the Approvals page."),
    )


def is_tool_setting(rule: str) -> bool:
    """Return whether the rule with this ID is a setting of a tool or server, if an agent's."""
    match = TOOL_RULE.fullmatch(rule)
    if match is None or match["owner"] == "organization" or match["condition"]:
        return False
    return not any(char in match["pattern"] for char in "*?[")


def describe_tool_rule(rule: str, *, of_agent: bool, server_name: str = "") -> str:
    """Return a sentence about a rule for tools; blank for the ID of another one.

    `server_name` is the server of the tool that the rule decided about; the ID doesn't have it.
    """
    match = TOOL_RULE.fullmatch(rule)
    if match is None:
        return ""
    server_name = server_name if match["source"] == "mcp" else ""
    if of_agent and is_tool_setting(rule):
        return _describe_setting(match["effect"], match["pattern"], match["source"], server_name)
    tools = _describe_tools(match, server_name)
    owner = match["owner"].partition(":")[0] if of_agent else "organization"
    return TOOL_TEXTS[owner, match["effect"]](tools=tools)


def _describe_setting(effect: str, pattern: str, source: str, server: str) -> TranslatableMessage:
    if pattern == DEFAULT_PATTERN and source == "mcp":
        if server:
            return DEFAULT_SETTING_TEXTS[effect](server=server)
        return UNNAMED_DEFAULT_SETTING_TEXTS[effect]
    if server:
        return SERVER_TOOL_SETTING_TEXTS[effect](name=pattern, server=server)
    return TOOL_SETTING_TEXTS[effect](name=pattern)


def _describe_tools(match: re.Match[str], server: str) -> TranslatableMessage:
    """Return the tools that a rule is about."""
    pattern = match["pattern"]
    if pattern == DEFAULT_PATTERN and match["source"] == "mcp":
        kind = "default"
    elif match["condition"]:
        kind = "condition"
    else:
        kind = "glob" if any(char in pattern for char in "*?[") else "name"
    build_text = (SERVER_TOOLS_TEXTS if server else TOOLS_TEXTS)[kind]
    return build_text(pattern=pattern, server=server)
