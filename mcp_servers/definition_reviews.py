"""Approve, withdraw, enable, disable definitions.

The approval names the digest that was shown. A definition that changed in between stays as it was
and is reported as skipped, so that nobody approves what they didn't read. One whose text reads like
orders to a model (soft findings) is approved only by name; "all that wait" leaves it out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db.models import F
from django.utils import timezone

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.transactions import lock
from bonobot.core.problems import Conflict
from bonobot.ledger.audit.admin_changes import record_change
from mcp_servers.audit import record_server_change
from mcp_servers.models import Definition, Server


@dataclass(frozen=True)
class DefinitionReviewResult:
    """What an approval did: names pinned, and names that were not.

    `skipped`: changed, refused or gone. `held`: suspicious text, to be approved by name.
    """

    approved: tuple[str, ...]
    skipped: tuple[str, ...]
    held: tuple[str, ...] = ()


def approve(
    principal: Principal, server: Server, seen: Mapping[UUID, str] | None = None
) -> DefinitionReviewResult:
    """Pin definitions of `server`: those in `seen` (id → digest shown), or all that wait.

    All that wait are those without findings; the others come back as `held`.

    Raises `Forbidden` without the right, `Conflict` (code `nothing_approved`) when not one of the
    named definitions could be approved.
    """
    principal.require(Action.APPROVE_DEFINITIONS)
    held: tuple[str, ...] = ()
    if seen is None:
        waiting = list(
            server.definitions.waiting().only("pk", "name", "kind", "digest", "findings")
        )
        chosen = {row.pk: row.digest for row in waiting if not row.findings}
        held = tuple(str(row) for row in waiting if row.findings)
    else:
        chosen = dict(seen)
    names = dict(server.definitions.filter(pk__in=chosen).values_list("pk", "name"))
    with record_server_change(server, principal.actor, "definitions_approved", (details := {})):
        lock(Server.objects.filter(pk=server.pk))
        pinned = [pk for pk, digest in chosen.items() if _pin(server, pk, digest, principal.label)]
        details.update({"approved": [{"name": names[pk], "digest": chosen[pk]} for pk in pinned]})
        if seen and not pinned:
            raise Conflict(
                "None of these definitions could be approved: they changed, or are refused.",
                code="nothing_approved",
                remedy="Reload, read them again, and approve what you see.",
            )
    skipped = [names.get(pk, str(pk)) for pk in chosen if pk not in set(pinned)]
    return DefinitionReviewResult(tuple(names[pk] for pk in pinned), tuple(skipped), held)


def pin_all(server: Server, definitions: Iterable[Definition], by: str) -> None:
    """Pin what the server's own approval mode trusts (`first`, `always`), inside a `change`.

    `first` trusts no text with findings; `always` is the platform administrator's explicit choice.
    """
    for row in definitions:
        if row.findings and server.approval != Server.Approval.ALWAYS:
            continue
        _pin(server, row.pk, row.digest, by)


def reset_review(principal: Principal, definition: Definition) -> None:
    """Take an approval back: the definition waits again."""
    principal.require(Action.APPROVE_DEFINITIONS)
    with record_change(
        organization_id=definition.organization_id,
        actor=principal.actor,
        action="approval_withdrawn",
        resource_type="definition",
        resource_id=str(definition.pk),
        resource_name=definition.name,
    ):
        Definition.objects.filter(pk=definition.pk).update(
            pinned=None, pinned_digest="", pinned_at=None, pinned_by=""
        )


def set_definition_enabled(principal: Principal, definition: Definition, *, enabled: bool) -> None:
    """Switch one definition on or off for everybody."""
    principal.require(Action.MANAGE_SERVERS)
    with record_change(
        organization_id=definition.organization_id,
        actor=principal.actor,
        action="definition_enabled" if enabled else "definition_disabled",
        resource_type="definition",
        resource_id=str(definition.pk),
        resource_name=definition.name,
        details={"server_id": str(definition.server_id)},
    ):
        Definition.objects.filter(pk=definition.pk).update(enabled=enabled)


def _pin(server: Server, pk: UUID, digest: str, by: str) -> bool:
    """Pin one definition if it is still what was shown; tell whether it was."""
    row = server.definitions.sound().filter(pk=pk, digest=digest, present=True)
    return bool(
        row.update(
            pinned=F("payload"), pinned_digest=digest, pinned_at=timezone.now(), pinned_by=by
        )
    )
