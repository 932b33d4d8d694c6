"""Restore the policy that a save replaced, for ten minutes and unless it changed since.

The replaced policy is kept in a signed text that the page of the save shows with *Undo*. A save of
an agent's tools can change the selected tools of attached servers, too: both are restored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.core import signing
from django.db import transaction

from agents.models import Agent, AgentServer
from agents.policies.services import (
    EFFECTS,
    Owner,
    PolicySpec,
    RuleSpec,
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

    def compute_digest(self) -> str:
        """Return a digest that differs after any change."""
        content = {"policy": self.policy.as_dict(), "selections": self.selections}
        return compute_digest(to_canonical_json(content))


def load_restorable_policy(owner: Owner) -> RestorablePolicy:
    """Return the policy as it is stored now."""
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


def sign_replaced_policy(principal: Principal, owner: Owner, replaced: RestorablePolicy) -> str:
    """Return a text that restores a policy which was just replaced; blank if nothing changed."""
    saved = load_restorable_policy(owner)
    if saved == replaced:
        return ""
    value = {
        "owner": str(owner.pk),
        "person": principal.id,
        "saved": saved.compute_digest(),
        "replaced": replaced.policy.as_dict(),
        "selections": {
            server_id: selection
            for server_id, selection in replaced.selections.items()
            if selection != saved.selections.get(server_id)
        },
    }
    return signing.dumps(value, salt=SALT, compress=True)


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
        lock_rows(type(owner)._base_manager.filter(pk=owner.pk))
        if load_restorable_policy(owner).compute_digest() != value["saved"]:
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
