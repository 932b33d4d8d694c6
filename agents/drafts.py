"""The draft in the shadow of a tool policy: written, enforced, discarded (FEATURES X7).

The policy is an agent's or the organization's.

While it stands, each call's audit row says what the draft would have decided, where that differs.
It is stored as rules over servers and their own tool names, as the policy itself is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone

from agents.governance.rules import Policy, Rule, read_policy
from agents.governance.rulings import rules_of
from agents.models import Agent, ToolPolicy, ToolRule
from agents.tool_policies import (
    Owner,
    PolicyText,
    organization_of,
    replace_policy,
    says,
    stored,
    text_of,
    unsaid,
    written_rules,
)
from bonobot.ledger.changes import change
from bonobot.lib.canonical import canonical, digest
from bonobot.lib.problems import NotFound
from bonobot.lib.sayings import say
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


def written_policy(owner: Owner, text: PolicyText) -> Policy:
    """Return what a policy's words mean, as decisions take it; raises `Invalid`."""
    return Policy(text.mode, rules_of(written_rules(owner, text)))


def draft_of(owner: Owner) -> Draft | None:
    """Return the draft that stands, if one does."""
    found = _read(owner)
    return found[0] if found else None


def standing_draft(owner: Owner) -> Draft:
    """Return the draft that stands; raises `NotFound` (code `no_draft`)."""
    return _standing(owner)[0]


def standing_policy(owner: Owner) -> Policy:
    """Return the draft that stands as decisions take it; raises `NotFound` (code `no_draft`)."""
    draft, rules = _standing(owner)
    return Policy(draft.text.mode, rules_of(rules))


def is_draft(owner: Owner, text: PolicyText) -> bool:
    """Tell whether `text` says what the standing draft does; raises `Invalid` as `set_draft`."""
    found = _read(owner)
    return found is not None and says(owner, text, found[0].text.mode, found[1])


def set_draft(principal: Principal, owner: Owner, text: PolicyText) -> Draft:
    """Let a policy run in the shadow from the next call on; raises `Invalid` as `set_policy`."""
    principal.require(_needed(owner))
    policy, since = written_policy(owner, text), timezone.now()
    draft = {**policy.as_dict(), "since": since.isoformat()}
    with change(**_what(principal, owner, "tool_policy_drafted", text.as_dict())):
        agent = owner if isinstance(owner, Agent) else None
        # Where no policy was ever written, the draft's row says what holds without one.
        ToolPolicy.objects.update_or_create(
            agent=agent,
            organization_id=organization_of(owner),
            defaults={"draft": draft},
            create_defaults={"draft": draft, "mode": unsaid(owner)},
        )
    return Draft(text, since)


def discard_draft(principal: Principal, owner: Owner) -> None:
    """Take the draft away; raises `NotFound` (code `no_draft`)."""
    principal.require(_needed(owner))
    details: dict[str, Any] = {}
    with change(**_what(principal, owner, "tool_policy_draft_discarded", details)):
        details |= _standing(owner)[0].as_dict()
        stored(owner).update(draft=None)


def enforce_draft(principal: Principal, owner: Owner) -> ToolPolicy:
    """Make the draft the policy, from the next call on; raises `NotFound` (`no_draft`)."""
    principal.require(_needed(owner))
    details: dict[str, Any] = {}
    with change(**_what(principal, owner, "tool_policy_changed", details)):
        draft, rules = _standing(owner)
        details |= {**draft.text.as_dict(), "in_shadow_since": draft.since.isoformat()}
        return replace_policy(owner, draft.text.mode, rules, draft=None)


def _standing(owner: Owner) -> tuple[Draft, list[ToolRule]]:
    found = _read(owner)
    if found is None:
        raise NotFound(
            say(
                "No draft stands in the shadow of the policy of `{owner_slug}`.",
                owner_slug=owner.slug,
            ),
            code="no_draft",
            field="draft",
            remedy=say(
                "Write one first: bonobot agents policy {named} --shadow --mode …",
                named=named(owner),
            ),
        )
    return found


def _read(owner: Owner) -> tuple[Draft, list[ToolRule]] | None:
    """Return the draft in words, and as rows that could be stored."""
    row = stored(owner).first()
    if row is None or not row.draft:
        return None
    policy, since = read_policy(row.draft), datetime.fromisoformat(row.draft["since"])
    rules = _rows(owner, policy)
    return Draft(text_of(owner, policy.mode, rules), since), rules


def _rows(owner: Owner, policy: Policy) -> list[ToolRule]:
    """Return the rules as they are stored; those about servers that are gone are left out."""
    wanted = {rule.server_id for rule in policy.rules if rule.server_id}
    servers = Server.objects.for_organization(organization_of(owner)).in_bulk(wanted)
    return [
        ToolRule(
            organization_id=organization_of(owner),
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


def named(owner: Owner) -> str:
    """Return how the command line names whose policy it is."""
    return owner.slug if isinstance(owner, Agent) else "--organization"


def _needed(owner: Owner) -> Action:
    return Action.MANAGE_AGENTS if isinstance(owner, Agent) else Action.MANAGE_ORGANIZATION


def _digest(rule: Rule) -> str:
    return digest(canonical(rule.condition)) if rule.condition else ""


def _what(
    principal: Principal, owner: Owner, action: str, details: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "organization_id": organization_of(owner),
        "actor": principal.actor,
        "action": action,
        "resource_type": "agent" if isinstance(owner, Agent) else "organization",
        "resource_id": str(owner.pk),
        "resource_name": owner.name,
        "details": details,
    }
