"""What the settings of a matrix mean as stored rules and selections. No I/O.

A setting is off, ask or allow, or blank: inherited. A tool's setting is stored as an exact rule of
the agent's policy without a condition, a server's as the server's default rule. A blank one has no
rule: a tool inherits its server's default, and without one what the policy's mode and patterns say.

Only the rules of changed rows are replaced. Patterns, conditions and the organization's policy
stay, so a setting never weakens them: the decision about a call can be stricter than the setting.
A tool that the attached server's lists leave out is off; another setting adds it to the selection.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from uuid import UUID

from agents.policies.decisions import (
    AgentServerScope,
    EffectivePolicy,
    ToolFacts,
    decide_tool_call,
)
from agents.policies.rules import STRICTEST_FIRST, Policy, Rule, escape_glob, is_name_allowed


class Setting(StrEnum):
    """The setting of a row, as the effect of its rule; inherited is blank."""

    INHERIT = ""
    DENY = "deny"
    ASK = "ask"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class ToolKey:
    """What identifies a tool: its source, its server, and the server's own name for it."""

    source: str
    server_id: UUID | None
    own_name: str


@dataclass(frozen=True, slots=True)
class MatrixChanges:
    """New settings by tool, and by server for defaults."""

    tools: Mapping[ToolKey, Setting] = field(default_factory=dict)
    defaults: Mapping[UUID, Setting] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.tools or self.defaults)


def get_tool_key(tool: ToolFacts) -> ToolKey:
    return ToolKey(tool.source, tool.server_id, tool.own_name)


def read_tool_setting(key: ToolKey, stored: EffectivePolicy) -> Setting:
    scope = stored.find_scope(key.server_id)
    if scope is not None and not is_name_allowed(key.own_name, scope.allowed, scope.denied):
        return Setting.DENY
    rules = stored.policy.list_tool_rules(key.source, key.server_id, key.own_name)
    effects = {rule.effect for rule in rules if _is_rule_of(rule, key)}
    return next(
        (Setting(effect) for effect in STRICTEST_FIRST if effect in effects), Setting.INHERIT
    )


def read_server_default(server_id: UUID, policy: Policy) -> Setting:
    rule = policy.find_default(server_id)
    return Setting(rule.effect) if rule else Setting.INHERIT


def find_inherited_setting(key: ToolKey, policy: Policy) -> Setting:
    """Return what a tool inherits: the decision of the agent's policy without its own rule."""
    matching_rules = policy.list_tool_rules(key.source, key.server_id, key.own_name)
    rules = [rule for rule in matching_rules if not _is_rule_of(rule, key)]
    if default := policy.find_default(key.server_id):
        rules.append(default)
    return _decide_by_policy(key, Policy(policy.mode, tuple(rules)))


def find_inherited_rule(key: ToolKey, policy: Policy) -> Rule | None:
    """Return the rule that determines what a tool inherits; None if the policy's mode does.

    Without arguments, a rule with a condition counts only if it allows.
    """
    if policy.mode == "none":
        return None
    rules = [
        rule
        for rule in policy.list_tool_rules(key.source, key.server_id, key.own_name)
        if not _is_rule_of(rule, key) and rule.is_condition_met(None)
    ]
    default = policy.find_default(key.server_id)
    if default is not None and not rules:
        rules = [default]
    strictest = min(rules, key=lambda rule: STRICTEST_FIRST.index(rule.effect), default=None)
    is_by_mode = policy.mode in ("denylist", "all")
    return None if strictest and strictest.effect == "allow" and is_by_mode else strictest


def find_stricter_rule(tool: ToolFacts, stored: EffectivePolicy, setting: Setting) -> Rule | None:
    """Return the organization's rule, or the agent's pattern, that is stricter than a setting.

    A setting below it has no effect. Rules with a condition decide single calls only.
    """
    key = get_tool_key(tool)
    identity = key.source, key.server_id, key.own_name
    rules = (
        rule
        for policy in (stored.organization, stored.policy)
        for rule in policy.list_tool_rules(*identity)
        if rule.condition is None and not (policy is stored.policy and _is_rule_of(rule, key))
    )
    own_effect = STRICTEST_FIRST.index(setting.value)
    stricter = [rule for rule in rules if STRICTEST_FIRST.index(rule.effect) < own_effect]
    return min(stricter, key=lambda rule: STRICTEST_FIRST.index(rule.effect), default=None)


def find_server_setting(policy: Policy) -> Setting:
    """Return what a server without a default inherits: what the policy's mode says."""
    return Setting.ALLOW if policy.mode in ("all", "denylist") else Setting.DENY


def apply_changes(stored: EffectivePolicy, changes: MatrixChanges) -> EffectivePolicy:
    """Return the policy and the scopes after these changes.

    The mode `none` denies everything, so a setting of ask or allow replaces it with `allowlist`.
    """
    replaced_rules = {_get_rule_key(key) for key in changes.tools}
    replaced_rules |= {("mcp", server_id, "") for server_id in changes.defaults}
    rules = [
        rule
        for rule in stored.policy.rules
        if rule.condition is not None
        or (rule.source, rule.server_id, rule.pattern) not in replaced_rules
    ]
    rules += [
        Rule(setting.value, "mcp", "", server_id)
        for server_id, setting in changes.defaults.items()
        if setting
    ]
    rules += [
        Rule(setting.value, key.source, escape_glob(key.own_name), key.server_id)
        for key, setting in changes.tools.items()
        if setting
    ]
    requested_settings = {*changes.defaults.values(), *changes.tools.values()}
    opens_policy = stored.policy.mode == "none" and requested_settings & {
        Setting.ASK,
        Setting.ALLOW,
    }
    mode = "allowlist" if opens_policy else stored.policy.mode
    return replace(
        stored, policy=Policy(mode, tuple(rules)), scopes=_select_tools(stored.scopes, changes)
    )


def _select_tools(
    scopes: Mapping[UUID, AgentServerScope], changes: MatrixChanges
) -> dict[UUID, AgentServerScope]:
    """Return the scopes with the changed tools selected, unless they are off."""
    selected = dict(scopes)
    for key, setting in changes.tools.items():
        scope = selected.get(key.server_id) if key.server_id else None
        if scope is None or key.server_id is None or setting == Setting.DENY:
            continue
        own_glob = escape_glob(key.own_name)
        denied = tuple(glob for glob in scope.denied if glob != own_glob)
        allowed = scope.allowed
        if not is_name_allowed(key.own_name, allowed):
            allowed = (*allowed, own_glob)
        selected[key.server_id] = replace(scope, allowed=allowed, denied=denied)
    return selected


def _decide_by_policy(key: ToolKey, policy: Policy) -> Setting:
    tool = ToolFacts(key.source, key.own_name, key.own_name, key.server_id)
    scopes = {key.server_id: AgentServerScope()} if key.server_id else {}
    verdict = decide_tool_call(tool, EffectivePolicy(policy=policy, scopes=scopes)).verdict
    return Setting(verdict)


def _is_rule_of(rule: Rule, key: ToolKey) -> bool:
    rule_key = rule.source, rule.server_id, rule.pattern
    return rule.condition is None and rule_key == _get_rule_key(key)


def _get_rule_key(key: ToolKey) -> tuple[str, UUID | None, str]:
    return key.source, key.server_id, escape_glob(key.own_name)


def list_changes(
    stored: EffectivePolicy, requested: Mapping[ToolKey, Setting], defaults: Mapping[UUID, Setting]
) -> MatrixChanges:
    return MatrixChanges(
        {key: item for key, item in requested.items() if read_tool_setting(key, stored) != item},
        {
            server_id: item
            for server_id, item in defaults.items()
            if read_server_default(server_id, stored.policy) != item
        },
    )


def find_overriding_rule(key: ToolKey, policy: Policy, verdict: str) -> Rule | None:
    """Return the pattern of the agent's policy that made a decision, if it wasn't a setting."""
    matching: Sequence[Rule] = [
        rule
        for rule in policy.list_tool_rules(key.source, key.server_id, key.own_name)
        if rule.effect == verdict and rule.condition is None
    ]
    if not matching or any(_is_rule_of(rule, key) for rule in matching):
        return None
    return matching[0]
