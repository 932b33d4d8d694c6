"""Decide whether tools, resources and prompts may be called: allow, ask or deny. No I/O.

The stages of a tool run in a fixed order. The first one that denies decides; if none does, the
first one that asks requires an approval:

1. the organization is not halted, and the agent is enabled,
2. the server is enabled,
3. the server is attached to the agent and enabled there, or the built-in tool is,
4. the definition is approved in its current version, still offered, and enabled,
5. the attached server's own lists (a tool denied there is always denied),
6. the organization's rules: their deny and ask rules apply to every agent,
7. the agent's policy: `none` blocks all, `allowlist` allows what an allow or ask rule matches (and
   no deny rule), `denylist` and `all` what no deny rule matches; ask rules apply in each mode
   but `none`. The default rule of a server counts only if no other rule matches the call.

Deny precedes ask, and ask precedes allow. A tool is identified by its server and the server's own
name for it, so display names never affect a decision.

Resources, templates and prompts pass stages 1 to 4. Then:

- a pattern of the attached server must match the URI, template or name (tools don't need that),
- the policy's mode must not be `none`.

Patterns are globs. A pattern that matches a template's text (`notes://{id}`, or `*`) allows the
template, and its variables don't match a `/`. A pattern that matches the requested URI
(`file:///srv/docs/*`) allows just that URI, and variables may match a `/`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, Protocol
from uuid import UUID

from agents.policies import decision_texts
from agents.policies.rules import Arguments, Policy, Rule

UNRESTRICTED_POLICY = Policy("all")
Kind = Literal["resource", "resource_template", "skill", "prompt"]
# Matches everything, so it doesn't count as a pattern over a specific URI.
EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class KillSwitches:
    """The kill switches of the organization and the agent; True means running."""

    organization: bool = True
    agent: bool = True


ALL_SWITCHES_ON = KillSwitches()


@dataclass(frozen=True, slots=True)
class AgentServerScope:
    """What an attached server allows; None instead of a scope means not attached.

    An empty `allowed` means every tool; an empty `resources` or `prompts` means none of them.
    """

    enabled: bool = True
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()

    def find_denied_glob(self, tool: str) -> str | None:
        """Return the pattern that leaves a tool out; None without one."""
        return next((glob for glob in self.denied if fnmatchcase(tool, glob)), None)

    def has_tool(self, tool: str) -> bool:
        """Return whether a tool of the server is selected."""
        is_selected = not self.allowed or any(fnmatchcase(tool, glob) for glob in self.allowed)
        return is_selected and self.find_denied_glob(tool) is None


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """Everything that decides calls of one agent, or calls without an agent.

    `policy` is the agent's (or the organization's, without an agent), `organization` has the
    organization's rules for every agent, `scopes` are those of the attached servers.
    `of_agent` is whether there is an agent.
    """

    policy: Policy = field(default_factory=Policy)
    organization: Policy = UNRESTRICTED_POLICY
    switches: KillSwitches = ALL_SWITCHES_ON
    scopes: Mapping[UUID, AgentServerScope] = field(default_factory=dict)
    of_agent: bool = True

    def find_scope(self, server_id: UUID | None) -> AgentServerScope | None:
        """Return the scope of a server; None if it isn't attached."""
        return self.scopes.get(server_id) if server_id else None

    def list_tool_rules(self, tool: "ToolFacts") -> tuple[Rule, ...]:
        """Return the rules that match a tool, regardless of its arguments."""
        tool_identity = tool.source, tool.server_id, tool.own_name
        return (
            *self.organization.list_tool_rules(*tool_identity),
            *self.policy.list_tool_rules(*tool_identity),
        )


class DecisionFacts(Protocol):
    """The facts that tools and other definitions have in common."""

    @property
    def noun(self) -> str:
        """The kind of definition: tool, resource or prompt; error codes start with it."""

    @property
    def label(self) -> str:
        """The display name, used only in messages."""

    @property
    def server_name(self) -> str:
        """The name of its server."""

    @property
    def state(self) -> str:
        """The state of its definition."""

    @property
    def enabled(self) -> bool:
        """Whether the definition is enabled."""


@dataclass(frozen=True, slots=True)
class ToolFacts:
    """Everything about a tool that a decision depends on.

    `state` is the definition's (`approved`, `pending`, `changed`, `rejected`, `refused`,
    `gone`), or
    `instructions_changed` if its server's instructions need a review; built-in tools are always
    `approved`. `label` is the display name. `toolset` names the toolset of a built-in tool, and
    `granted` says whether the agent has it.
    """

    source: str
    own_name: str
    label: str
    server_id: UUID | None = None
    server_name: str = ""
    server_enabled: bool = True
    state: str = "approved"
    enabled: bool = True
    toolset: str = ""
    granted: bool = True

    @property
    def noun(self) -> str:
        """The kind of definition."""
        return "tool"


@dataclass(frozen=True, slots=True)
class StageVerdict:
    """The verdict of one stage; `code` is empty unless it denies."""

    name: str
    rule: str
    code: str = ""
    reason: str = ""
    remedy: str = ""
    asks: bool = False

    @property
    def allows(self) -> bool:
        """Whether this stage allows the call, possibly with an approval."""
        return not self.code


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """Allow, ask or deny, with the deciding rule and what to do next."""

    verdict: str
    rule: str
    code: str = ""
    reason: str = ""
    remedy: str = ""

    @property
    def allowed(self) -> bool:
        """Whether the call needs no approval."""
        return self.verdict == "allow"

    @property
    def is_callable(self) -> bool:
        """Whether the tool can be called, possibly with an approval."""
        return self.verdict != "deny"


_REVIEW_CODES = {
    "pending": "not_approved",
    "changed": "definition_changed",
    "instructions_changed": "definition_changed",
    "rejected": "definition_rejected",
    "refused": "definition_rejected",
    "gone": "{noun}_gone",
}


def decide_tool_call(
    tool: ToolFacts,
    effective_policy: EffectivePolicy,
    arguments: Arguments | None = None,
) -> PolicyDecision:
    """Return the decision about a tool; without `arguments` it is preliminary."""
    return resolve_verdict(evaluate_tool_stages(tool, effective_policy, arguments))


def resolve_verdict(stages: Iterable[StageVerdict]) -> PolicyDecision:
    """Return the stages' decision: the first that denies, else the first that asks."""
    last_stage, asking_stage = StageVerdict("policy", "policy:none"), None
    for stage in stages:
        if not stage.allows:
            return PolicyDecision("deny", stage.rule, stage.code, stage.reason, stage.remedy)
        if stage.asks and asking_stage is None:
            asking_stage = stage
        last_stage = stage
    if asking_stage is None:
        return PolicyDecision("allow", last_stage.rule)
    return PolicyDecision(
        "ask", asking_stage.rule, "approval_required", asking_stage.reason, asking_stage.remedy
    )


def evaluate_tool_stages(
    tool: ToolFacts, effective_policy: EffectivePolicy, arguments: Arguments | None = None
) -> Iterator[StageVerdict]:
    """Yield every stage's own verdict, in order."""
    scope = effective_policy.find_scope(tool.server_id)
    yield evaluate_agent_stage(effective_policy.switches)
    yield evaluate_server_stage(tool.server_name, tool.server_enabled)
    yield (
        _evaluate_toolset_stage(tool)
        if tool.source == "builtin"
        else evaluate_attachment_stage(tool, scope)
    )
    yield evaluate_review_stage(tool)
    yield _evaluate_tool_scope(tool, scope)
    yield _evaluate_organization_policy(tool, effective_policy.organization, arguments)
    yield _evaluate_policy(tool, effective_policy, arguments)


def evaluate_agent_stage(switches: KillSwitches) -> StageVerdict:
    """Check that the organization is not halted and the agent is enabled."""
    if not switches.organization:
        return StageVerdict(
            "organization",
            "organization:halted",
            "kill_switch_enabled",
            *decision_texts.HALTED_ORGANIZATION,
        )
    if not switches.agent:
        text = decision_texts.DISABLED_AGENT
        return StageVerdict("agent", "agent:enabled", "agent_disabled", *text)
    return StageVerdict("agent", "agent:enabled")


def evaluate_server_stage(name: str, enabled: bool) -> StageVerdict:
    if enabled:
        return StageVerdict("server", "server:enabled")
    text = decision_texts.explain_disabled_server(name)
    return StageVerdict("server", "server:enabled", "server_disabled", *text)


def evaluate_attachment_stage(facts: DecisionFacts, scope: AgentServerScope | None) -> StageVerdict:
    """Check that the server is attached to the agent and enabled there."""
    if scope is not None and scope.enabled:
        return StageVerdict("attachment", "attachment:enabled")
    text = decision_texts.explain_missing_attachment(
        facts.server_name, is_attached=scope is not None
    )
    return StageVerdict("attachment", "attachment:enabled", "not_attached", *text)


def _evaluate_toolset_stage(tool: ToolFacts) -> StageVerdict:
    """Check that the agent has the toolset of a built-in tool."""
    if tool.granted:
        return StageVerdict("attachment", "attachment:enabled")
    return StageVerdict(
        "attachment",
        f"builtin:{tool.toolset}",
        "builtin_disabled",
        *decision_texts.explain_missing_toolset(tool.own_name, tool.toolset),
    )


def evaluate_review_stage(facts: DecisionFacts) -> StageVerdict:
    """Check that the definition is approved, still offered, and enabled."""
    if code := _REVIEW_CODES.get(facts.state):
        text = decision_texts.explain_review_state(facts.state, noun=facts.noun, label=facts.label)
        code = code.replace("{noun}", facts.noun)
        return StageVerdict("definition", f"definition:{facts.state}", code, *text)
    if not facts.enabled:
        text = decision_texts.explain_disabled_definition(
            facts.noun, facts.label, has_server=bool(facts.server_name)
        )
        code = f"{facts.noun}_disabled"
        return StageVerdict("definition", "definition:switch", code, *text)
    return StageVerdict("definition", "definition:approved")


def _evaluate_tool_scope(tool: ToolFacts, scope: AgentServerScope | None) -> StageVerdict:
    if tool.source == "builtin" or scope is None:
        return StageVerdict("scope", "attachment:all")
    if scope.has_tool(tool.own_name):
        return StageVerdict("scope", "attachment:allowed" if scope.allowed else "attachment:all")
    denied_glob = scope.find_denied_glob(tool.own_name)
    return StageVerdict(
        "scope",
        "attachment:allowed" if denied_glob is None else f"attachment:denied:{denied_glob}",
        "denied_by_attachment",
        *decision_texts.explain_unselected_tool(tool.label, tool.server_name),
    )


def _evaluate_organization_policy(
    tool: ToolFacts, policy: Policy, arguments: Arguments | None
) -> StageVerdict:
    matching_rules = _MatchingRules(tool, policy, arguments)
    if matching_rules.deny is not None:
        rule = f"organization:{matching_rules.deny}"
        text = decision_texts.explain_organization_denial(rule, tool.server_name)
        return StageVerdict("organization", rule, "denied_by_organization", *text)
    if matching_rules.ask is not None:
        rule = f"organization:{matching_rules.ask}"
        return _build_ask_stage("organization", rule, tool, of_agent=False)
    return StageVerdict("organization", "organization:none")


def _evaluate_policy(
    tool: ToolFacts, effective_policy: EffectivePolicy, arguments: Arguments | None
) -> StageVerdict:
    policy = effective_policy.policy
    matching_rules = _MatchingRules(tool, policy, arguments)
    rule = f"policy:{policy.mode}"
    is_listed = policy.mode in ("denylist", "all") or matching_rules.ask or matching_rules.allow
    if policy.mode != "none" and matching_rules.deny is None and is_listed:
        if matching_rules.ask is not None:
            asking_rule = f"{rule}:{matching_rules.ask}"
            return _build_ask_stage("policy", asking_rule, tool, of_agent=effective_policy.of_agent)
        return StageVerdict(
            "policy", f"{rule}:{matching_rules.allow}" if policy.mode == "allowlist" else rule
        )
    text = decision_texts.explain_policy_denial(policy.mode, tool.label)
    if policy.mode != "none" and matching_rules.deny is not None:
        rule = f"{rule}:{matching_rules.deny}"
        text = decision_texts.explain_rule_denial(
            rule, tool.server_name, of_agent=effective_policy.of_agent
        )
    return StageVerdict("policy", rule, "denied_by_policy", *text)


class _MatchingRules:
    """The first rule of each effect that matches a tool and its arguments."""

    def __init__(self, tool: ToolFacts, policy: Policy, arguments: Arguments | None) -> None:
        self.allow: Rule | None = None
        self.ask: Rule | None = None
        self.deny: Rule | None = None
        for rule in policy.list_tool_rules(tool.source, tool.server_id, tool.own_name):
            if getattr(self, rule.effect) is None and rule.is_condition_met(arguments):
                setattr(self, rule.effect, rule)
        default = policy.find_default(tool.server_id)
        if default is not None and not (self.allow or self.ask or self.deny):
            setattr(self, default.effect, default)


def _build_ask_stage(stage: str, rule: str, tool: ToolFacts, *, of_agent: bool) -> StageVerdict:
    text = decision_texts.explain_required_approval(rule, tool.server_name, of_agent=of_agent)
    return StageVerdict(stage, rule, "", *text, asks=True)


@dataclass(frozen=True, slots=True)
class DefinitionFacts:
    """Everything about a resource, template or prompt that a decision depends on.

    `own_name` is its URI, template or name, which identifies it at its server. `uri` is the URI
    requested through a template or skill. `state` is the definition's, as for tools.
    `is_app_page` is whether a callable tool shows its results on this page (MCP Apps).
    """

    kind: Kind
    own_name: str
    server_id: UUID
    server_name: str = ""
    server_enabled: bool = True
    state: str = "approved"
    enabled: bool = True
    uri: str = ""
    is_app_page: bool = False

    @property
    def source(self) -> str:
        """The source of the definition: always a server."""
        return "mcp"

    @property
    def noun(self) -> str:
        """The kind of definition for people."""
        return "prompt" if self.kind == "prompt" else "resource"

    @property
    def label(self) -> str:
        return self.own_name


def decide_definition(
    definition: DefinitionFacts, effective_policy: EffectivePolicy
) -> PolicyDecision:
    """Return the decision about a resource, template or prompt."""
    return resolve_verdict(evaluate_definition_stages(definition, effective_policy))


def evaluate_definition_stages(
    definition: DefinitionFacts, effective_policy: EffectivePolicy
) -> Iterator[StageVerdict]:
    """Yield every stage's own verdict, in order."""
    scope = effective_policy.find_scope(definition.server_id)
    yield evaluate_agent_stage(effective_policy.switches)
    yield evaluate_server_stage(definition.server_name, definition.server_enabled)
    yield evaluate_attachment_stage(definition, scope)
    yield evaluate_review_stage(definition)
    yield _evaluate_definition_scope(definition, scope or AgentServerScope())
    yield _evaluate_mode(definition, effective_policy.policy.mode)


def matches_pattern(pattern: str, name: str) -> bool:
    """Return whether a pattern matches this URI, template or name."""
    # Also compared literally, since a URI may contain `?` and `[`.
    return pattern == name or fnmatchcase(name, pattern)


def can_span_slashes(scope: AgentServerScope | None, uri: str) -> bool:
    """Return whether template variables may match a `/`: only if a pattern matches the URI."""
    patterns = scope.resources if scope else ()
    return any(pattern != EVERYTHING and matches_pattern(pattern, uri) for pattern in patterns)


def _evaluate_definition_scope(
    definition: DefinitionFacts, scope: AgentServerScope
) -> StageVerdict:
    patterns = scope.prompts if definition.kind == "prompt" else scope.resources
    names = [definition.own_name, definition.uri] if definition.uri else [definition.own_name]
    if (pattern := _find_pattern(patterns, names)) is not None:
        return StageVerdict("scope", f"attachment:selected:{pattern}")
    if definition.is_app_page:
        return StageVerdict("scope", "attachment:app_page")
    return StageVerdict(
        "scope",
        "attachment:selected",
        "not_selected",
        *decision_texts.explain_unselected_definition(
            definition.noun, definition.uri or definition.label, definition.server_name
        ),
    )


def _find_pattern(patterns: Iterable[str], names: Iterable[str]) -> str | None:
    return next(
        (pattern for pattern in patterns if any(matches_pattern(pattern, name) for name in names)),
        None,
    )


def _evaluate_mode(definition: DefinitionFacts, mode: str) -> StageVerdict:
    if mode != "none":
        return StageVerdict("policy", f"policy:{mode}")
    text = decision_texts.explain_definition_denial(definition.label)
    return StageVerdict("policy", "policy:none", "denied_by_policy", *text)
