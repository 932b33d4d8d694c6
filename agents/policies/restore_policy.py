"""Restore the policy that a save replaced, for ten minutes and unless it changed since.

The replaced policy is kept in a signed text that the page of the save shows with *Undo*.
"""

from collections.abc import Callable
from typing import Any

from django.core import signing
from django.db import transaction

from agents.models import Agent
from agents.policies.services import (
    EFFECTS,
    Owner,
    PolicySpec,
    RuleSpec,
    filter_policy,
    load_policy_spec,
    set_policy,
)
from bonobot.accounts.models.deletions import RESTORE_PERIOD
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.transactions import lock_rows
from bonobot.core.problems import Conflict
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json

SALT = "bonobot.replaced_policy"


def save_policy(
    principal: Principal, owner: Owner, build_policy: Callable[[PolicySpec], PolicySpec]
) -> tuple[PolicySpec, str]:
    """Replace a policy with what `build_policy` returns for the stored one.

    Returns the new policy, and a text that restores the replaced one; blank if nothing changed.
    Nobody can change the policy in between, so neither the save nor its undo reverts another
    change. Raises what `set_policy` and `build_policy` raise.
    """
    with transaction.atomic():
        lock_rows(type(owner)._base_manager.filter(pk=owner.pk))
        replaced = load_policy_spec(owner)
        policy = build_policy(replaced)
        set_policy(principal, owner, policy)
        return policy, _sign_replaced_policy(principal, owner, replaced)


def _sign_replaced_policy(principal: Principal, owner: Owner, replaced: PolicySpec) -> str:
    if load_policy_spec(owner) == replaced:
        return ""
    value = {
        "owner": str(owner.pk),
        "person": principal.id,
        "saved": _compute_policy_digest(owner),
        "replaced": replaced.as_dict(),
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
        if _compute_policy_digest(owner) != value["saved"]:
            raise Conflict(
                "The policy changed since then.",
                code="policy_changed",
                remedy="Edit the policy instead.",
            )
        set_policy(principal, owner, _parse_policy(value["replaced"]))


def _compute_policy_digest(owner: Owner) -> str:
    """Return a digest of the stored policy and the time of its last save.

    So a text can't be used twice, or after another save of the same policy.
    """
    saved_at = filter_policy(owner).values_list("updated_at", flat=True).first()
    return compute_digest(to_canonical_json([load_policy_spec(owner).as_dict(), str(saved_at)]))


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
