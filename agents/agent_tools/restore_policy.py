"""Restore the policy that a save replaced, for ten minutes and unless it changed since.

The replaced policy is kept in a signed text that the page of the save shows with *Undo*. A save of
an agent's tools can change the selected tools of attached servers, too: both are restored.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.core import signing
from django.db import transaction

from agents.agent_tools.services import save_settings
from agents.agent_tools.settings import Setting, ToolKey
from agents.models import Agent, AgentServer
from agents.policies.services import (
    EFFECTS,
    Owner,
    PolicySpec,
    RuleSpec,
    filter_policy,
    load_policy_spec,
    set_policy,
)
from agents.services import attach_server
from bonobot.accounts.models.deletions import RESTORE_PERIOD
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.transactions import lock_rows
from bonobot.core.problems import Conflict
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json

SALT = "bonobot.replaced_policy"

ToolSelections = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class RestorablePolicy:
    """A policy with the selected tools of the agent's attached servers, by server ID."""

    policy: PolicySpec
    selections: ToolSelections


def save_policy(
    principal: Principal, owner: Owner, build_policy: Callable[[PolicySpec], PolicySpec]
) -> tuple[PolicySpec, str]:
    """Replace a policy with what `build_policy` returns for the stored one.

    Returns the new policy, and a text that restores the replaced one; blank if nothing changed.
    The policy can't change in between, so neither the save nor its undo reverts another
    change. Raises what `set_policy` and `build_policy` raise.
    """
    with transaction.atomic():
        replaced = _load_locked_policy(owner)
        policy = build_policy(replaced.policy)
        set_policy(principal, owner, policy)
        return policy, _sign_replaced_policy(principal, owner, replaced)


def save_tools(
    principal: Principal,
    agent: Agent,
    tools: Mapping[ToolKey, Setting],
    defaults: Mapping[UUID, Setting],
) -> str:
    """Save settings as `save_settings` does; return a text that restores the replaced ones."""
    with transaction.atomic():
        replaced = _load_locked_policy(agent)
        save_settings(principal, agent, tools, defaults)
        return _sign_replaced_policy(principal, agent, replaced)


def _load_locked_policy(owner: Owner) -> RestorablePolicy:
    """Lock the owner, and return the policy as it is stored now."""
    lock_rows(type(owner)._base_manager.filter(pk=owner.pk))
    return _load_policy(owner)


def _load_policy(owner: Owner) -> RestorablePolicy:
    rows = AgentServer.objects.filter(agent=owner) if isinstance(owner, Agent) else ()
    selections = {
        str(row.server_id): {
            "enabled": row.enabled,
            "allowed_tools": list(row.allowed_tools),
            "denied_tools": list(row.denied_tools),
        }
        for row in rows
    }
    return RestorablePolicy(load_policy_spec(owner), selections)


def _sign_replaced_policy(principal: Principal, owner: Owner, replaced: RestorablePolicy) -> str:
    saved = _load_policy(owner)
    if saved == replaced:
        return ""
    value = {
        "owner": str(owner.pk),
        "person": principal.id,
        "saved": _compute_digest(owner, saved),
        "replaced": replaced.policy.as_dict(),
        "selections": {
            server_id: selection
            for server_id, selection in replaced.selections.items()
            if selection != saved.selections.get(server_id)
        },
    }
    return signing.dumps(value, salt=SALT, compress=True)


def _compute_digest(owner: Owner, stored: RestorablePolicy) -> str:
    """Return a digest of what is stored and of the time when the policy was last saved.

    So a text can't be used twice, or after another save of the same policy.
    """
    saved_at = filter_policy(owner).values_list("updated_at", flat=True).first()
    content = [stored.policy.as_dict(), stored.selections, str(saved_at)]
    return compute_digest(to_canonical_json(content))


def restore_policy(principal: Principal, owner: Owner, signed: str) -> None:
    """Restore a replaced policy, which the same person replaced.

    Raises `Forbidden`, `Conflict` (`undo_expired`, `policy_changed`), and `InvalidInput` if it
    names a server that was deleted since.
    """
    is_agent = isinstance(owner, Agent)
    principal.require(Action.MANAGE_AGENTS if is_agent else Action.MANAGE_ORGANIZATION)
    try:
        value = signing.loads(signed, salt=SALT, max_age=RESTORE_PERIOD)
    except signing.BadSignature:
        value = {}
    if (value.get("owner"), value.get("person")) != (str(owner.pk), principal.id):
        raise Conflict(
            "This change can't be undone anymore.",
            code="undo_expired",
            remedy="Changes of a policy can be undone for ten minutes. Edit the policy instead.",
        )
    with transaction.atomic():
        if _compute_digest(owner, _load_locked_policy(owner)) != value["saved"]:
            raise Conflict(
                "The policy changed since then.",
                code="policy_changed",
                remedy="Edit the policy instead.",
            )
        set_policy(principal, owner, _parse_policy(value["replaced"]))
        if isinstance(owner, Agent):
            _restore_selections(principal, owner, value["selections"])


def _restore_selections(principal: Principal, agent: Agent, selections: ToolSelections) -> None:
    server_ids = [UUID(server_id) for server_id in selections]
    attached = agent.agent_servers.filter(server__in=server_ids).select_related("server")
    for row in attached:
        attach_server(principal, agent, row.server, **selections[str(row.server_id)])


def _parse_policy(value: dict[str, Any]) -> PolicySpec:
    """Return a policy from `PolicySpec.as_dict`."""
    entries = {
        effect: tuple(
            entry if isinstance(entry, str) else RuleSpec(entry["tool"], entry["when"])
            for entry in value.get(effect, ())
        )
        for effect in EFFECTS
    }
    return PolicySpec(value["mode"], **entries)
