"""The draft in the shadow of an agent's tool policy: written, enforced, discarded (FEATURES X7).

While it stands, each call's audit row says what the draft would have decided, where that differs.
It is stored as rules over servers and their own tool names, as the policy itself is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone

from agents.governance.rules import Policy, Rule, read_policy
from agents.governance.snapshots import rules_of
from agents.models import Agent, ToolPolicy, ToolRule
from agents.tool_policies import PolicyText, replace_policy, text_of, written_rules
from bonobot.ledger.changes import change
from bonobot.lib.canonical import canonical, digest
from bonobot.lib.problems import NotFound
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.models import Server


@dataclass(frozen=True)
class Draft:
    """A policy in the shadow, in words, and since when it stands there."""

    text: PolicyText
    since: datetime

    def as_dict(self) -> dict[str, Any]:
        """Return the draft as REST and the command line show it."""
        return {**self.text.as_dict(), "since": self.since.isoformat()}


def written_policy(agent: Agent, text: PolicyText) -> Policy:
    """Return what a policy's words mean, as decisions take it; raises `Invalid`."""
    return Policy(text.mode, rules_of(written_rules(agent, text)))


def draft_of(agent: Agent) -> Draft | None:
    """Return the draft that stands, if one does."""
    found = _read(agent)
    return found[0] if found else None


def standing_draft(agent: Agent) -> Draft:
    """Return the draft that stands; raises `NotFound` (code `no_draft`)."""
    return _standing(agent)[0]


def set_draft(principal: Principal, agent: Agent, text: PolicyText) -> Draft:
    """Let a policy run in the shadow from the next call on; raises `Invalid` as `set_policy`."""
    principal.require(Action.MANAGE_AGENTS)
    policy, since = written_policy(agent, text), timezone.now()
    stored = {**policy.as_dict(), "since": since.isoformat()}
    with change(**_what(principal, agent, "tool_policy_drafted", text.as_dict())):
        ToolPolicy.objects.update_or_create(
            agent=agent, organization_id=agent.organization_id, defaults={"draft": stored}
        )
    return Draft(text, since)


def discard_draft(principal: Principal, agent: Agent) -> None:
    """Take the draft away; raises `NotFound` (code `no_draft`)."""
    principal.require(Action.MANAGE_AGENTS)
    details: dict[str, Any] = {}
    with change(**_what(principal, agent, "tool_policy_draft_discarded", details)):
        details |= _standing(agent)[0].as_dict()
        ToolPolicy.objects.filter(agent=agent).update(draft=None)


def enforce_draft(principal: Principal, agent: Agent) -> ToolPolicy:
    """Make the draft the agent's policy, from the next call on; raises `NotFound` (`no_draft`)."""
    principal.require(Action.MANAGE_AGENTS)
    details: dict[str, Any] = {}
    with change(**_what(principal, agent, "tool_policy_changed", details)):
        draft, rules = _standing(agent)
        details |= {**draft.text.as_dict(), "in_shadow_since": draft.since.isoformat()}
        return replace_policy(agent, draft.text.mode, rules, draft=None)


def _standing(agent: Agent) -> tuple[Draft, list[ToolRule]]:
    found = _read(agent)
    if found is None:
        raise NotFound(
            f"No draft stands in the shadow of the policy of `{agent.slug}`.",
            code="no_draft",
            field="draft",
            remedy=f"Write one first: bonobot agents policy {agent.slug} --shadow --mode …",
        )
    return found


def _read(agent: Agent) -> tuple[Draft, list[ToolRule]] | None:
    """Return the draft in words, and as rows that could be stored."""
    row = ToolPolicy.objects.filter(agent=agent).first()
    if row is None or not row.draft:
        return None
    policy, since = read_policy(row.draft), datetime.fromisoformat(row.draft["since"])
    rules = _rows(agent, policy)
    return Draft(text_of(agent, policy.mode, rules), since), rules


def _rows(agent: Agent, policy: Policy) -> list[ToolRule]:
    """Return the rules as they are stored; those about servers that are gone are left out."""
    wanted = {rule.server_id for rule in policy.rules if rule.server_id}
    servers = Server.objects.for_organization(agent.organization_id).in_bulk(wanted)
    return [
        ToolRule(
            organization_id=agent.organization_id,
            effect=rule.effect,
            source=rule.source,
            server=servers.get(rule.server_id) if rule.server_id else None,
            pattern=rule.pattern,
            condition=rule.condition,
            condition_digest=_digest(rule),
        )
        for rule in policy.rules
        if rule.server_id is None or rule.server_id in servers
    ]


def _digest(rule: Rule) -> str:
    return digest(canonical(rule.condition)) if rule.condition else ""


def _what(
    principal: Principal, agent: Agent, action: str, details: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "organization_id": agent.organization_id,
        "actor": principal.actor,
        "action": action,
        "resource_type": "agent",
        "resource_id": str(agent.pk),
        "resource_name": agent.name,
        "details": details,
    }
