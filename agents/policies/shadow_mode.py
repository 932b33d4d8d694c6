"""Draft policies in shadow mode, of agents or the organization: set, enforce, discard.

While a draft exists, the audit entry of each call says what the draft would have decided if that
differs. It is stored as rules over servers and their own tool names, like the policy itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone

from agents.models import Agent, ToolPolicy, ToolRule
from agents.policies.effective_policies import build_rules
from agents.policies.rules import Policy, Rule, read_policy
from agents.policies.services import (
    Owner,
    PolicySpec,
    build_policy_spec,
    build_tool_rules,
    filter_policy,
    get_default_mode,
    get_organization_id,
    is_same_policy,
    replace_policy,
)
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json
from bonobot.ledger.audit.admin_changes import record_change
from mcp_servers.models import Server

# Keys of shadow decisions in the details of audit entries: the agent's, the organization's.
SHADOW = "shadow"
ORGANIZATION_SHADOW = "organization_shadow"


@dataclass(frozen=True)
class ShadowDraft:
    """A draft policy and the time it was set."""

    spec: PolicySpec
    since: datetime

    def as_dict(self) -> dict[str, Any]:
        """Return the draft for REST and the command line."""
        return {**self.spec.as_dict(), "since": self.since.isoformat()}


def build_policy(owner: Owner, spec: PolicySpec) -> Policy:
    """Return the policy of a spec for decisions; raises `InvalidInput`."""
    return Policy(spec.mode, build_rules(build_tool_rules(owner, spec)))


def find_draft(owner: Owner) -> ShadowDraft | None:
    draft_and_rules = _find_draft_and_rules(owner)
    return draft_and_rules[0] if draft_and_rules else None


def get_draft(owner: Owner) -> ShadowDraft:
    """Return the current draft; raises `NotFound` (`no_draft`)."""
    return _get_draft_and_rules(owner)[0]


def get_draft_policy(owner: Owner) -> Policy:
    """Return the current draft for decisions; raises `NotFound` (`no_draft`)."""
    draft, rules = _get_draft_and_rules(owner)
    return Policy(draft.spec.mode, build_rules(rules))


def is_current_draft(owner: Owner, spec: PolicySpec) -> bool:
    """Return whether `spec` equals the current draft; raises `InvalidInput` as `set_draft` does."""
    draft_and_rules = _find_draft_and_rules(owner)
    return draft_and_rules is not None and is_same_policy(
        owner, spec, draft_and_rules[0].spec.mode, draft_and_rules[1]
    )


def set_draft(principal: Principal, owner: Owner, spec: PolicySpec) -> ShadowDraft:
    """Set a draft policy, effective from the next call; raises `InvalidInput` as `set_policy`."""
    principal.require(_get_required_action(owner))
    policy, since = build_policy(owner, spec), timezone.now()
    draft = {**policy.as_dict(), "since": since.isoformat()}
    with record_change(
        **_build_audit_fields(principal, owner, "tool_policy_draft_created", spec.as_dict())
    ):
        agent = owner if isinstance(owner, Agent) else None
        # Without a policy row, the new row gets the default mode.
        ToolPolicy.objects.update_or_create(
            agent=agent,
            organization_id=get_organization_id(owner),
            defaults={"draft": draft},
            create_defaults={"draft": draft, "mode": get_default_mode(owner)},
        )
    return ShadowDraft(spec, since)


def delete_draft(principal: Principal, owner: Owner) -> None:
    """Delete the draft; raises `NotFound` (`no_draft`)."""
    principal.require(_get_required_action(owner))
    details: dict[str, Any] = {}
    with record_change(
        **_build_audit_fields(principal, owner, "tool_policy_draft_discarded", details)
    ):
        details |= _get_draft_and_rules(owner)[0].as_dict()
        filter_policy(owner).update(draft=None)


def enforce_draft(principal: Principal, owner: Owner) -> ToolPolicy:
    """Make the draft the policy, effective from the next call; raises `NotFound` (`no_draft`)."""
    principal.require(_get_required_action(owner))
    details: dict[str, Any] = {}
    with record_change(**_build_audit_fields(principal, owner, "tool_policy_updated", details)):
        draft, rules = _get_draft_and_rules(owner)
        details |= {**draft.spec.as_dict(), "in_shadow_since": draft.since.isoformat()}
        return replace_policy(owner, draft.spec.mode, rules, draft=None)


def _get_draft_and_rules(owner: Owner) -> tuple[ShadowDraft, list[ToolRule]]:
    draft_and_rules = _find_draft_and_rules(owner)
    if draft_and_rules is None:
        raise NotFound(
            format_message(
                "The policy of `{owner_slug}` has no draft in shadow mode.",
                owner_slug=owner.slug,
            ),
            code="no_draft",
            field="draft",
            remedy=format_message(
                "Create one first: bonobot agents policy {agent} --shadow --mode …",
                agent=format_owner_option(owner),
            ),
        )
    return draft_and_rules


def _find_draft_and_rules(owner: Owner) -> tuple[ShadowDraft, list[ToolRule]] | None:
    """Return the draft and its unsaved rules, if there is one."""
    row = filter_policy(owner).first()
    if row is None or not row.draft:
        return None
    policy, since = read_policy(row.draft), datetime.fromisoformat(row.draft["since"])
    rules = _build_rule_rows(owner, policy)
    return ShadowDraft(build_policy_spec(owner, policy.mode, rules), since), rules


def _build_rule_rows(owner: Owner, policy: Policy) -> list[ToolRule]:
    """Return unsaved rule rows, without rules about deleted servers."""
    server_ids = {rule.server_id for rule in policy.rules if rule.server_id}
    servers = Server.objects.for_organization(get_organization_id(owner)).in_bulk(server_ids)
    return [
        ToolRule(
            organization_id=get_organization_id(owner),
            effect=rule.effect,
            source=rule.source,
            server=servers.get(rule.server_id) if rule.server_id else None,
            pattern=rule.pattern,
            condition=rule.condition,
            condition_digest=_hash_condition(rule),
        )
        for rule in policy.rules
        if rule.server_id is None or rule.server_id in servers
    ]


def format_owner_option(owner: Owner) -> str:
    """Return the command line argument that names the owner."""
    return owner.slug if isinstance(owner, Agent) else "--organization"


def _get_required_action(owner: Owner) -> Action:
    return Action.MANAGE_AGENTS if isinstance(owner, Agent) else Action.MANAGE_ORGANIZATION


def _hash_condition(rule: Rule) -> str:
    return compute_digest(to_canonical_json(rule.condition)) if rule.condition else ""


def _build_audit_fields(
    principal: Principal, owner: Owner, action: str, details: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "organization_id": get_organization_id(owner),
        "actor": principal.actor,
        "action": action,
        "resource_type": "agent" if isinstance(owner, Agent) else "organization",
        "resource_id": str(owner.pk),
        "resource_name": owner.name,
        "details": details,
    }
