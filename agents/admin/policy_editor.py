"""The editor of a policy: its rules by effect, and the tools and agents that changes affect."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.agent_tools.services import list_settable_tools
from agents.builtin_tools.registry import BUILTIN_TOOLS
from agents.call_activity import load_calls_by_tool
from agents.calls.snapshots import CallSnapshot, get_snapshot_cache
from agents.policies.decisions import (
    UNRESTRICTED_POLICY,
    AgentServerScope,
    EffectivePolicy,
    ToolFacts,
    decide_tool_call,
)
from agents.policies.rule_texts import MODE_TITLES, format_condition
from agents.policies.rules import STRICTEST_FIRST, Policy, Rule
from agents.policies.services import (
    EntryRules,
    Owner,
    PolicySpec,
    RuleSpec,
    format_rule_name,
    get_organization_id,
    list_entry_rules,
    load_policy_spec,
    map_tool_names,
)
from bonobot.accounts.models import Organization
from bonobot.core.text.canonical_json import to_canonical_json
from mcp_servers.models import Definition, Server

USAGE_PERIOD = timedelta(days=30)
MAX_CHANGED_TOOLS = 8
MAX_SUGGESTED_RULES = 1_000
GROUP_TEXTS: Mapping[str, Any] = {
    "deny": _("Calls are denied"),
    "ask": _("A person approves each call"),
    "allow": _("Calls need no approval"),
}
ORGANIZATION_GROUP_TEXTS = {**GROUP_TEXTS, "allow": _("Calls without an agent need no approval")}
EFFECT_WORDS: Mapping[str, Any] = {"deny": _("deny"), "ask": _("ask"), "allow": _("allow")}


@dataclass(frozen=True)
class PolicyScope:
    """The tools that a policy decides about, and how it decides.

    `calls` are those of 30 days by server and tool.
    """

    owner: Owner
    tools: Sequence[ToolFacts]
    decide: Callable[[Policy, ToolFacts], str]
    calls: Mapping[tuple[UUID | None, str], int]
    server_names: Mapping[UUID, str]

    def count_calls(self, tools: Iterable[ToolFacts]) -> int:
        return sum(self.calls.get((tool.server_id, tool.own_name), 0) for tool in tools)


def load_agent_scope(snapshot: CallSnapshot, owner: Owner) -> PolicyScope:
    """Return the scope of an agent's policy: the tools of the agent."""
    tools = [tool.facts for tool in list_settable_tools(snapshot)]
    return PolicyScope(
        owner,
        tools,
        lambda policy, tool: (
            decide_tool_call(tool, replace(snapshot.effective_policy, policy=policy)).verdict
        ),
        load_calls_by_tool(get_organization_id(owner), USAGE_PERIOD, agent_id=owner.pk),
        {tool.server_id: tool.server_name for tool in tools if tool.server_id},
    )


def load_organization_scope(organization: Organization) -> PolicyScope:
    """Return the scope of the organization's policy: the tools of its pool, and built-in ones.

    Only its deny and ask rules count, as for agents.
    """
    servers = Server.objects.for_organization(organization.pk).in_organization_pool()
    names = dict(servers.values_list("pk", "name"))
    definitions = Definition.objects.tools().callable().filter(server__in=names)
    tools = [
        ToolFacts("mcp", name, name, server_id, names[server_id])
        for server_id, name in definitions.values_list("server_id", "name")
    ]
    tools += [ToolFacts("builtin", name, name) for name in BUILTIN_TOOLS]
    scopes = dict.fromkeys(names, AgentServerScope())

    def decide(policy: Policy, tool: ToolFacts) -> str:
        effective_policy = EffectivePolicy(
            UNRESTRICTED_POLICY, replace(policy, mode="all"), scopes=scopes
        )
        return decide_tool_call(tool, effective_policy).verdict

    return PolicyScope(
        organization, tools, decide, load_calls_by_tool(organization.pk, USAGE_PERIOD), names
    )


def load_organization_defaults_scope(organization: Organization) -> PolicyScope:
    """Return the scope of calls without an agent: the mode and allow rules count, too."""
    scope = load_organization_scope(organization)
    scopes = dict.fromkeys(scope.server_names, AgentServerScope())

    def decide(policy: Policy, tool: ToolFacts) -> str:
        return decide_tool_call(tool, EffectivePolicy(policy, scopes=scopes)).verdict

    return replace(scope, decide=decide, tools=[tool for tool in scope.tools if tool.server_id])


def load_scope(owner: Owner) -> PolicyScope:
    """Return the scope of a policy."""
    if isinstance(owner, Organization):
        return load_organization_scope(owner)
    return load_agent_scope(get_snapshot_cache().load_current("agent", owner.pk), owner)


@dataclass(frozen=True)
class SuggestedRule:
    """What a rule can be about: `name` is blank for all tools of the server, or of any server."""

    rule: str
    name: str
    server: str


def list_suggested_rules(scope: PolicyScope) -> list[SuggestedRule]:
    """Return each server of a scope with its tools, then built-in tools (two queries)."""
    slugs = dict(Server.objects.filter(pk__in=scope.server_names).values_list("pk", "slug"))
    rule_names = map_tool_names(scope.owner)
    tools: dict[UUID | None, list[str]] = defaultdict(list)
    for tool in scope.tools:
        tools[tool.server_id].append(tool.own_name)
    choices = []
    for server_id, server in sorted(scope.server_names.items(), key=lambda item: item[1]):
        slug = slugs.get(server_id)
        if slug is None:  # deleted meanwhile
            continue
        choices.append(SuggestedRule(format_rule_name(slug, "*"), "", server))
        for name in sorted(tools[server_id]):
            rule_name = rule_names.get((server_id, name)) or format_rule_name(slug, name)
            choices.append(SuggestedRule(rule_name, name, server))
    choices += [SuggestedRule(name, name, "") for name in sorted(tools[None])]
    return choices[:MAX_SUGGESTED_RULES]


@dataclass(frozen=True)
class EditedRule:
    """A rule as a row: `tool` and `when` as people write them, `words` say when it applies.

    `state` is blank, `new`, `changed` (`was` says from what), or `removed`.
    """

    effect: str
    tool: str
    when: str = ""
    words: str = ""
    pattern: str = ""
    server_name: str = ""
    is_default: bool = False
    matches: int = 0
    calls: int = 0
    state: str = ""
    was: Any = ""
    problem: Any = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.effect, self.tool, self.when

    @property
    def title(self) -> str:
        """What it is about, without the server."""
        if self.is_default:
            return _t("All other tools")
        return _t("All tools") if self.pattern == "*" else self.pattern

    @property
    def full_title(self) -> str:
        """What it is about, with the server."""
        return f"{self.title} {self.server_name}".rstrip()


@dataclass(frozen=True)
class RuleGroup:
    """The rules with one effect."""

    effect: str
    description: Any
    rules: tuple[EditedRule, ...]

    @property
    def count(self) -> int:
        return sum(rule.state != "removed" for rule in self.rules)


@dataclass(frozen=True)
class ChangedTool:
    """A tool whose decision changes."""

    facts: ToolFacts
    before: str
    after: str
    calls: int

    @property
    def name(self) -> str:
        return self.facts.own_name

    @property
    def server_name(self) -> str:
        return self.facts.server_name


@dataclass(frozen=True)
class PolicyEditor:
    """What the editor shows: `changes` say what isn't saved, `counts` are tools by decision.

    `before` is the stored policy, `after` the edited one.
    """

    groups: tuple[RuleGroup, ...]
    changes: tuple[str, ...]
    counts: Mapping[str, int]
    changed_tools: tuple[ChangedTool, ...] = ()
    mode: str = ""
    problem: bool = field(default=False)
    scope: PolicyScope | None = None
    before: Policy = field(default_factory=Policy)
    after: Policy = field(default_factory=Policy)

    @property
    def suggested_rules(self) -> str:
        """What a rule can be about, as JSON for the script of the dialog."""
        choices = list_suggested_rules(self.scope) if self.scope else []
        return json.dumps([vars(choice) for choice in choices])

    @property
    def total(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def has_rules(self) -> bool:
        """Whether there are rules to show, also removed ones."""
        return any(group.rules for group in self.groups)

    def keep_groups(self, effects: Collection[str]) -> "PolicyEditor":
        """Return the editor with the rules of some effects only."""
        groups = tuple(group for group in self.groups if group.effect in effects)
        return replace(self, groups=groups)

    @cached_property
    def newly(self) -> Mapping[str, int]:
        """The number of tools that get each decision."""
        return Counter(tool.after for tool in self.changed_tools)

    @property
    def listed_tools(self) -> tuple[ChangedTool, ...]:
        return self.changed_tools[:MAX_CHANGED_TOOLS]

    @property
    def unlisted(self) -> int:
        return max(0, len(self.changed_tools) - MAX_CHANGED_TOOLS)

    @property
    def changed_calls(self) -> int:
        """The calls of 30 days of the tools whose decision changes."""
        return sum(tool.calls for tool in self.changed_tools)


def build_policy_editor(scope: PolicyScope, stored: PolicySpec, draft: PolicySpec) -> PolicyEditor:
    """Return the rules of an unsaved policy, and what it changes of the stored one."""
    entries = list_entry_rules(scope.owner, draft)
    stored_entries = list_entry_rules(scope.owner, stored)
    rules = _build_rows(scope, draft.mode, entries)
    stored_rules = _build_rows(scope, stored.mode, stored_entries)
    rows = _mark_changes(rules, stored_rules)
    has_problem = any(entry.problem for entry in entries)
    before = _build_policy(stored.mode, stored_entries)
    after = before if has_problem else _build_policy(draft.mode, entries)
    verdicts = {tool: scope.decide(after, tool) for tool in scope.tools}
    texts = ORGANIZATION_GROUP_TEXTS if isinstance(scope.owner, Organization) else GROUP_TEXTS
    return PolicyEditor(
        tuple(
            RuleGroup(effect, texts[effect], tuple(row for row in rows if row.effect == effect))
            for effect in STRICTEST_FIRST
        ),
        tuple(_describe_changes(stored, draft, rows)),
        Counter(verdicts.values()),
        _list_changed_tools(scope, before, after, verdicts),
        draft.mode,
        has_problem,
        scope,
        before,
        after,
    )


def build_stored_policy(owner: Owner) -> Policy:
    """Return the stored policy of an owner for decisions."""
    spec = load_policy_spec(owner)
    return _build_policy(spec.mode, list_entry_rules(owner, spec))


def _build_policy(mode: str, entries: Iterable[EntryRules]) -> Policy:
    return Policy(mode, tuple(rule for entry in entries for rule in entry.rules))


def _build_rows(scope: PolicyScope, mode: str, entries: Sequence[EntryRules]) -> list[EditedRule]:
    policy = _build_policy(mode, entries)
    matched_tools: dict[int, list[ToolFacts]] = {}
    for tool in scope.tools:
        rules = list(policy.list_tool_rules(tool.source, tool.server_id, tool.own_name))
        default = None if rules else policy.find_default(tool.server_id)
        for rule in (*rules, *filter(None, [default])):
            matched_tools.setdefault(id(rule), []).append(tool)
    return [_build_row(scope, entry, matched_tools) for entry in entries]


def _build_row(
    scope: PolicyScope, entry: EntryRules, matched_tools: Mapping[int, list[ToolFacts]]
) -> EditedRule:
    condition = entry.entry.when if isinstance(entry.entry, RuleSpec) else None
    name = entry.entry.tool if isinstance(entry.entry, RuleSpec) else entry.entry
    tools = {tool for rule in entry.rules for tool in matched_tools.get(id(rule), ())}
    rule: Rule | None = entry.rules[-1] if entry.rules else None
    return EditedRule(
        entry.effect,
        name,
        to_canonical_json(condition) if condition is not None else "",
        format_condition(condition),
        rule.pattern if rule else name,
        scope.server_names.get(rule.server_id, "") if rule and rule.server_id else "",
        is_default=bool(rule and rule.is_default),
        matches=len(tools),
        calls=scope.count_calls(tools),
        problem=entry.problem,
    )


def _mark_changes(
    rules: Sequence[EditedRule], stored_rules: Sequence[EditedRule]
) -> list[EditedRule]:
    """Return the rows with their states; a rule that replaces one of the same tool is changed."""
    keys, stored_keys = {rule.key for rule in rules}, {rule.key for rule in stored_rules}
    removed = [rule for rule in stored_rules if rule.key not in keys]
    rows = []
    for rule in rules:
        if rule.key in stored_keys:
            rows.append(rule)
            continue
        replaced = next((item for item in removed if item.tool == rule.tool), None)
        if replaced is None:
            rows.append(replace(rule, state="new"))
            continue
        removed.remove(replaced)
        was = (
            replaced.words or _t("always")
            if replaced.effect == rule.effect
            else EFFECT_WORDS[replaced.effect]
        )
        rows.append(replace(rule, state="changed", was=was))
    rows += [replace(rule, state="removed") for rule in removed]
    return sorted(rows, key=lambda row: row.tool)


def _describe_changes(
    stored: PolicySpec, draft: PolicySpec, rows: Iterable[EditedRule]
) -> Iterable[str]:
    if stored.mode != draft.mode:
        modes = {
            "before": MODE_TITLES.get(stored.mode, stored.mode),
            "after": MODE_TITLES.get(draft.mode, draft.mode),
        }
        yield _t("mode: %(before)s to %(after)s") % modes
    for row in rows:
        values = {"tool": row.full_title, "effect": EFFECT_WORDS[row.effect], "was": row.was}
        if row.state == "new":
            yield _t("%(tool)s: new %(effect)s") % values
        elif row.state == "changed":
            yield _t("%(tool)s: was %(was)s") % values
        elif row.state == "removed":
            yield _t("%(tool)s: %(effect)s removed") % values


def _list_changed_tools(
    scope: PolicyScope, before: Policy, after: Policy, verdicts: Mapping[ToolFacts, str]
) -> tuple[ChangedTool, ...]:
    """Return the tools whose decision changes, the most called first."""
    if before == after:
        return ()
    changed = [
        ChangedTool(tool, was, verdict, scope.count_calls([tool]))
        for tool, verdict in verdicts.items()
        if (was := scope.decide(before, tool)) != verdict
    ]
    return tuple(sorted(changed, key=lambda tool: (-tool.calls, tool.name)))
