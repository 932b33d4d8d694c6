"""Write and read an agent's tool policy as people name tools (FEATURES A8, A14).

People write the names that models see (`mcp_github_*`, `mcp_time_get_current_time`,
`current_time`); stored is the server and a pattern over its own names (DESIGN section 4).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction

from agents.models import Agent, ToolPolicy, ToolRule
from bonobot.ledger.changes import change
from bonobot.lib.problems import Invalid
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.models import Server
from mcp_servers.naming import EVERY_SERVER, rule_target


@dataclass(frozen=True)
class PolicyText:
    """A policy as people write and read it: a mode, and names or globs to allow and deny."""

    mode: str
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


def set_policy(principal: Principal, agent: Agent, text: PolicyText) -> ToolPolicy:
    """Replace the agent's policy; raises `Invalid` naming the entry that can't be understood."""
    principal.require(Action.MANAGE_AGENTS)
    if text.mode not in ToolPolicy.Mode.values:
        raise Invalid(
            f"There is no policy mode {text.mode!r}.",
            code="unknown_mode",
            field="mode",
            remedy=f"Use one of: {', '.join(ToolPolicy.Mode.values)}.",
        )
    rules = [*_rules(agent, "allow", text.allow), *_rules(agent, "deny", text.deny)]
    with change(
        organization_id=agent.organization_id,
        actor=principal.actor,
        action="tool_policy_changed",
        resource_type="agent",
        resource_id=str(agent.pk),
        resource_name=agent.name,
        details={"mode": text.mode, "allow": list(text.allow), "deny": list(text.deny)},
    ):
        return _replace(agent, text.mode, rules)


def policy_text(agent: Agent) -> PolicyText:
    """Return the agent's policy in the words that `set_policy` takes."""
    policy = ToolPolicy.objects.filter(agent=agent).prefetch_related("rules__server").first()
    if policy is None:
        return PolicyText(ToolPolicy.Mode.NONE)
    named = {(rule.server_id, rule.own_name): rule.name for rule in agent.tool_names.all()}
    words: dict[str, list[str]] = {"allow": [], "deny": []}
    for rule in policy.rules.all():
        words[rule.effect].append(_words(rule, named))
    return PolicyText(policy.mode, tuple(words["allow"]), tuple(words["deny"]))


def is_policy(agent: Agent, text: PolicyText) -> bool:
    """Tell whether `text` says what the agent's policy is, in whatever words and order.

    Raises `Invalid` as `set_policy` does.
    """
    policy = ToolPolicy.objects.filter(agent=agent).first()
    stored = policy.rules.all() if policy else ()
    wanted = [*_rules(agent, "allow", text.allow), *_rules(agent, "deny", text.deny)]
    return (policy.mode if policy else ToolPolicy.Mode.NONE) == text.mode and (
        {_meaning(rule) for rule in stored} == {_meaning(rule) for rule in wanted}
    )


def _meaning(rule: ToolRule) -> tuple[str, str, UUID | None, str]:
    return rule.effect, rule.source, rule.server_id, rule.pattern


def _replace(agent: Agent, mode: str, rules: Sequence[ToolRule]) -> ToolPolicy:
    with transaction.atomic():
        policy, _ = ToolPolicy.objects.update_or_create(
            agent=agent, organization_id=agent.organization_id, defaults={"mode": mode}
        )
        policy.rules.all().delete()
        for rule in rules:
            rule.policy = policy
        ToolRule.objects.bulk_create(rules, ignore_conflicts=True)
    return policy


def _rules(agent: Agent, effect: str, patterns: Iterable[str]) -> list[ToolRule]:
    servers = {server.slug: server.pk for server in _servers(agent)}
    known = {
        name.name: (name.server.slug, name.own_name)
        for name in agent.tool_names.select_related("server")
    }
    rules = []
    for index, pattern in enumerate(patterns):
        try:
            target = rule_target(pattern, servers, known)
        except Invalid as problem:
            problem.field = f"{effect}[{index}]"
            raise
        if target.builtin:
            rules.append(_rule(agent, effect, ToolRule.Source.BUILTIN, None, target.pattern))
        if target.server:
            everywhere = target.server == EVERY_SERVER
            server_id = None if everywhere else servers[target.server]
            rules.append(_rule(agent, effect, ToolRule.Source.MCP, server_id, target.pattern))
    return rules


def _rule(agent: Agent, effect: str, source: str, server_id: UUID | None, pattern: str) -> ToolRule:
    return ToolRule(
        organization_id=agent.organization_id,
        effect=effect,
        source=source,
        server_id=server_id,
        pattern=pattern,
    )


def _servers(agent: Agent) -> list[Server]:
    """Return the servers that rules may name: the agent's own come before the pool's."""
    pool = Server.objects.for_organization(agent.organization_id).pool()
    return [*pool, *Server.objects.in_scope(agent.pk)]


def _words(rule: ToolRule, named: dict[tuple[UUID, str], str]) -> str:
    if rule.source == ToolRule.Source.BUILTIN:
        return rule.pattern
    if rule.server is None:
        return "*" if rule.pattern == "*" else f"mcp_*_{rule.pattern}"
    stored = named.get((rule.server.pk, rule.pattern))
    return stored or f"mcp_{rule.server.slug.replace('-', '_')}_{rule.pattern}"
