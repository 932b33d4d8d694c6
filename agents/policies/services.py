"""Read and write policies in terms of the tool names that people use.

People write the names that models see (`mcp_github_*`, `mcp_time_get_current_time`,
`current_time`); rules store the server and a pattern over its own names.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from agents.models import Agent, ToolPolicy, ToolRule
from agents.policies.effective_policies import build_rules
from agents.policies.rules import Policy, Rule
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.transactions import lock_rows
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json
from bonobot.ledger.audit.admin_changes import record_change
from mcp_servers.models import Server
from mcp_servers.schemas import classify_schema
from mcp_servers.tool_names import (
    EVERY_SERVER,
    Style,
    build_rule_name,
    build_tool_aliases,
    parse_rule_target,
)

# The owner of a policy; an organization's policy row has no agent.
Owner = Agent | Organization
EFFECTS = ("allow", "ask", "deny")
RuleTargets = tuple[Mapping[str, UUID], Mapping[str, tuple[str, str]]]


@dataclass(frozen=True)
class RuleSpec:
    """A name or glob with a condition: a JSON Schema that the arguments must match."""

    tool: str
    when: Mapping[str, Any] = field(hash=False)


Entry = str | RuleSpec


@dataclass(frozen=True)
class PolicySpec:
    """A policy as people write it: a mode, and entries to allow, ask about and deny."""

    mode: str
    allow: tuple[Entry, ...] = ()
    deny: tuple[Entry, ...] = ()
    ask: tuple[Entry, ...] = ()

    def get_entries(self, effect: str) -> tuple[Entry, ...]:
        entries: tuple[Entry, ...] = getattr(self, effect)
        return entries

    def as_dict(self) -> dict[str, Any]:
        """Return the policy for REST and files; an entry with a condition is an object."""
        lists = {
            effect: [_serialize_entry(entry) for entry in self.get_entries(effect)]
            for effect in EFFECTS
        }
        return {"mode": self.mode, **lists}


def set_policy(principal: Principal, owner: Owner, spec: PolicySpec) -> ToolPolicy:
    """Replace a policy; raises `InvalidInput` with the field of an invalid entry.

    Operators may change an agent's policy, owners the organization's.
    """
    agent = _find_agent(owner)
    principal.require(Action.MANAGE_AGENTS if agent else Action.MANAGE_ORGANIZATION)
    rules = build_tool_rules(owner, spec)
    with record_change(
        organization_id=get_organization_id(owner),
        actor=principal.actor,
        action="tool_policy_updated",
        resource_type="agent" if agent else "organization",
        resource_id=str(owner.pk),
        resource_name=owner.name,
        details=spec.as_dict(),
    ):
        return replace_policy(owner, spec.mode, rules)


def build_tool_rules(owner: Owner, spec: PolicySpec) -> list[ToolRule]:
    """Return the unsaved rules of a policy; raises `InvalidInput`."""
    if spec.mode not in ToolPolicy.Mode.values:
        raise InvalidInput(
            format_message("Unknown policy mode {mode!r}.", mode=spec.mode),
            code="unknown_mode",
            field="mode",
            remedy=format_message(
                "Use one of: {values}.", values=", ".join(ToolPolicy.Mode.values)
            ),
        )
    return build_all_rules(owner, spec)


def load_policy_spec(owner: Owner) -> PolicySpec:
    """Return an owner's policy in the form that `set_policy` takes."""
    policy = filter_policy(owner).prefetch_related("rules__server").first()
    if policy is None:
        return PolicySpec(get_default_mode(owner))
    return build_policy_spec(owner, policy.mode, list(policy.rules.all()))


def build_policy_spec(owner: Owner, mode: str, rules: Sequence[ToolRule]) -> PolicySpec:
    """Return a mode and rules in the form that `set_policy` takes."""
    tool_names = map_tool_names(owner)
    entries_by_effect: dict[str, list[Entry]] = {effect: [] for effect in EFFECTS}
    wildcard_keys = {_build_effect_key(rule) for rule in rules if _matches_every_builtin(rule)}
    for rule in rules:
        if (
            rule.source == ToolRule.Source.MCP
            and _matches_every_tool(rule)
            and _build_effect_key(rule) in wildcard_keys
        ):
            continue  # `*` already covers both sources
        name = format_rule(rule, tool_names)
        entries_by_effect[rule.effect].append(
            RuleSpec(name, rule.condition) if rule.condition else name
        )
    return PolicySpec(
        mode, **{effect: tuple(entries) for effect, entries in entries_by_effect.items()}
    )


def build_draft_policy(owner: Owner, spec: PolicySpec) -> Policy:
    """Return an unsaved policy for decisions; raises `InvalidInput` as `set_policy` does."""
    return Policy(spec.mode, build_rules(build_all_rules(owner, spec)))


@dataclass(frozen=True)
class EntryRules:
    """An entry of a policy with its rules; `problem` says why an unsaved one is invalid."""

    effect: str
    entry: Entry
    rules: tuple[Rule, ...] = ()
    problem: InvalidInput | None = None


def list_entry_rules(owner: Owner, spec: PolicySpec) -> list[EntryRules]:
    """Return each entry of an unsaved policy with its rules (three queries)."""
    targets = _load_rule_targets(owner)
    return [
        _build_entry_rules(owner, effect, entry, targets)
        for effect in EFFECTS
        for entry in spec.get_entries(effect)
    ]


def _build_entry_rules(owner: Owner, effect: str, entry: Entry, targets: RuleTargets) -> EntryRules:
    try:
        rows = _build_effect_rules(owner, effect, (entry,), *targets)
    except InvalidInput as problem:
        return EntryRules(effect, entry, problem=problem)
    return EntryRules(effect, entry, build_rules(rows))


def is_current_policy(owner: Owner, spec: PolicySpec) -> bool:
    """Return whether `spec` is equivalent to the current policy.

    Raises `InvalidInput` as `set_policy` does.
    """
    policy = filter_policy(owner).first()
    return is_same_policy(
        owner,
        spec,
        policy.mode if policy else get_default_mode(owner),
        policy.rules.all() if policy else (),
    )


def is_same_policy(owner: Owner, spec: PolicySpec, mode: str, rules: Iterable[ToolRule]) -> bool:
    """Return whether `spec` is equivalent to this mode and these rules."""
    wanted_keys = {_build_rule_key(rule) for rule in build_all_rules(owner, spec)}
    return mode == spec.mode and {_build_rule_key(rule) for rule in rules} == wanted_keys


def _build_rule_key(rule: ToolRule) -> tuple[str, str, UUID | None, str, str]:
    return rule.effect, rule.source, rule.server_id, rule.pattern, rule.condition_digest


def _find_agent(owner: Owner) -> Agent | None:
    return owner if isinstance(owner, Agent) else None


def get_organization_id(owner: Owner) -> UUID:
    return owner.organization_id if isinstance(owner, Agent) else owner.pk


def filter_policy(owner: Owner) -> QuerySet[ToolPolicy]:
    """Return a queryset with the owner's policy row, if there is one."""
    return ToolPolicy.objects.filter(
        organization_id=get_organization_id(owner), agent=_find_agent(owner)
    )


def get_default_mode(owner: Owner) -> str:
    """Return the mode without a policy row."""
    return ToolPolicy.Mode.NONE if isinstance(owner, Agent) else ToolPolicy.Mode.ALL


def _list_tool_names(owner: Owner) -> Iterable[Any]:
    """Return the stored tool names that rules may use; organizations have none."""
    if not isinstance(owner, Agent):
        return ()
    # There may be thousands per preview: don't build model objects.
    return owner.tool_names.values_list("name", "server_id", "own_name", "server__slug", named=True)


def map_tool_names(owner: Owner) -> dict[tuple[UUID, str], str]:
    """Return (server id, own name) → stored name."""
    return {(row.server_id, row.own_name): row.name for row in _list_tool_names(owner)}


def _matches_every_tool(rule: ToolRule) -> bool:
    return rule.server_id is None and rule.pattern == "*"


def _matches_every_builtin(rule: ToolRule) -> bool:
    return rule.source == ToolRule.Source.BUILTIN and _matches_every_tool(rule)


def _build_effect_key(rule: ToolRule) -> tuple[str, str]:
    return rule.effect, rule.condition_digest


def _serialize_entry(entry: Entry) -> Any:
    return entry if isinstance(entry, str) else {"tool": entry.tool, "when": dict(entry.when)}


def format_entries(entries: Iterable[Entry]) -> str:
    """Return entries as one line for people."""
    names = [
        entry if isinstance(entry, str) else f"{entry.tool} (on a condition)" for entry in entries
    ]
    return ", ".join(names) or "–"


def replace_policy(
    owner: Owner, mode: str, rules: Sequence[ToolRule], **columns: Any
) -> ToolPolicy:
    """Replace mode, rules and `columns` of a policy; call it within a recorded change."""
    with transaction.atomic():
        # Version checks lock the owner, too, so the policy can't change in between.
        lock_rows(type(owner)._base_manager.filter(pk=owner.pk))
        policy, _ = ToolPolicy.objects.update_or_create(
            agent=_find_agent(owner),
            organization_id=get_organization_id(owner),
            defaults={"mode": mode, **columns},
        )
        if policy.rules.exists():  # deleting none takes several queries
            policy.rules.all().delete()
        for rule in rules:
            rule.policy = policy
        if rules:
            ToolRule.objects.bulk_create(rules, ignore_conflicts=True)
    return policy


def build_all_rules(owner: Owner, spec: PolicySpec) -> list[ToolRule]:
    if not any(spec.get_entries(effect) for effect in EFFECTS):
        return []  # what names can mean takes three queries
    targets = _load_rule_targets(owner)
    rules = [
        rule
        for effect in EFFECTS
        for rule in _build_effect_rules(owner, effect, spec.get_entries(effect), *targets)
    ]
    return list({_build_rule_key(rule): rule for rule in rules}.values())  # without duplicates


def _load_rule_targets(owner: Owner) -> RuleTargets:
    """Return what names in rules can mean: servers by slug, and tools by name."""
    servers = {server.slug: server.pk for server in _list_servers(owner)}
    known_tools = {
        tool.name: (tool.server__slug, tool.own_name) for tool in _list_tool_names(owner)
    }
    aliases = build_tool_aliases(known_tools)
    known_tools |= {alias: known_tools[name] for alias, name in aliases.items()}
    return servers, known_tools


def _build_effect_rules(
    owner: Owner,
    effect: str,
    entries: Iterable[Entry],
    servers: Mapping[str, UUID],
    known_tools: Mapping[str, tuple[str, str]],
) -> list[ToolRule]:
    rules = []
    for index, entry in enumerate(entries):
        pattern = entry if isinstance(entry, str) else entry.tool
        try:
            target = parse_rule_target(pattern, servers, known_tools)
            condition = None if isinstance(entry, str) else _check_condition(entry.when)
            if condition is not None and target.server and not target.pattern:
                raise InvalidInput(
                    "The default of a server can't have a condition.",
                    code="unusable_condition",
                    field="when",
                    remedy="Create a rule for the server's tools instead, such as `mcp_github_*`.",
                )
        except InvalidInput as problem:
            problem.field = ".".join(
                part
                for part in (f"{effect}[{index}]", problem.field)
                if part not in ("", "pattern")
            )
            raise
        build_rule = partial(_build_rule, get_organization_id(owner), effect, condition)
        if target.builtin:
            rules.append(build_rule(ToolRule.Source.BUILTIN, None, target.pattern))
        if target.server:
            is_any_server = target.server == EVERY_SERVER
            server_id = None if is_any_server else servers[target.server]
            rules.append(build_rule(ToolRule.Source.MCP, server_id, target.pattern))
    return rules


def _build_rule(
    organization_id: UUID,
    effect: str,
    condition: Mapping[str, Any] | None,
    source: str,
    server_id: UUID | None,
    pattern: str,
) -> ToolRule:
    return ToolRule(
        organization_id=organization_id,
        effect=effect,
        source=source,
        server_id=server_id,
        pattern=pattern,
        condition=condition,
        condition_digest=compute_digest(to_canonical_json(condition)) if condition else "",
    )


def _check_condition(condition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a condition that can be checked inline; raises `InvalidInput` for any other."""
    schema_verdict = classify_schema(condition)
    if schema_verdict.verdict != "inline" or not condition:
        raise InvalidInput(
            f"The condition can't be checked at each call. {schema_verdict.reason}".strip(),
            code="unusable_condition",
            field="when",
            remedy="Provide a small JSON Schema for the arguments, without recursion: "
            '{"properties": {"amount": {"minimum": 1000}}, "required": ["amount"]}.',
        )
    return condition


def _list_servers(owner: Owner) -> list[Server]:
    """Return the servers that rules may name: an agent's own take precedence over the pool's."""
    pool = Server.objects.for_organization(get_organization_id(owner)).in_organization_pool()
    return [*pool, *(Server.objects.in_scope(owner.pk) if isinstance(owner, Agent) else ())]


def _get_style() -> Style:
    return cast(Style, settings.BONOBOT_TOOL_NAME_STYLE)


def format_rule(rule: ToolRule, tool_names: dict[tuple[UUID, str], str]) -> str:
    if rule.source == ToolRule.Source.BUILTIN:
        return rule.pattern
    if rule.server is None:
        return "mcp_*"
    tool_name = tool_names.get((rule.server.pk, rule.pattern))
    return tool_name or format_rule_name(rule.server.slug, rule.pattern)


def format_rule_name(server_slug: str, pattern: str) -> str:
    """Return what a rule about tools of a server is called, such as `mcp_github_delete_*`."""
    return build_rule_name(server_slug, pattern, _get_style())
