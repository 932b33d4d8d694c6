"""Approve, reject, reset, enable and disable definitions, and notify about pending reviews.

An approval contains the digest that was shown. A definition that has changed since is not approved
and reported as skipped. Definitions with suspicious text (soft findings), and those that changed
since an approval, are approved only explicitly, not by approving all pending ones.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db.models import F, Q
from django.utils import timezone

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.transactions import lock_rows, update_in_order
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.core.text.canonical_json import compute_json_digest
from bonobot.core.text.untrusted_text import make_storable
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from bonobot.notifications.notify import notify
from mcp_servers.audit import build_server_event, record_server_change
from mcp_servers.extension_points import review_hooks
from mcp_servers.health import outages
from mcp_servers.models import Definition, Server

MAX_REASON_LENGTH = 2_000
MAX_NAMES_NOTIFIED = 10
PIN_BATCH = 200  # conditions of one UPDATE; SQLite nests each in the one before, 1,000 at most


@dataclass(frozen=True)
class DefinitionReviewResult:
    """The names of the definitions that were approved, and of those that weren't.

    `skipped`: changed, refused, or no longer declared. `needs_review`: suspicious, or changed since
    an approval; they must be approved one by one.
    """

    approved: tuple[str, ...]
    skipped: tuple[str, ...]
    needs_review: tuple[str, ...] = ()


def needs_own_review(definition: Definition) -> bool:
    """Return whether a definition must be reviewed by itself: it is suspicious, or has changed."""
    return bool(definition.findings or definition.pinned_digest)


def approve_definitions(
    principal: Principal, server: Server, shown_digests: Mapping[UUID, str] | None = None
) -> DefinitionReviewResult:
    """Pin definitions of `server`: those in `shown_digests` (by id), or all new ones.

    Without `shown_digests`, definitions with findings and changed ones are not approved but
    returned as `needs_review`.

    Raises `Forbidden`, and `Conflict` (`nothing_approved`) if none of the given definitions could
    be approved.
    """
    principal.require(Action.APPROVE_DEFINITIONS)
    held_names: tuple[str, ...] = ()
    if shown_digests is None:
        # With `server`: a related manager reads it of each row, which would be a query each.
        fields = ("pk", "server", "name", "kind", "digest", "findings", "pinned_digest")
        pending_definitions = list(server.definitions.awaiting_review().only(*fields))
        selected_digests = {
            row.pk: row.digest for row in pending_definitions if not needs_own_review(row)
        }
        held_names = tuple(
            str(row) for row in pending_definitions if row.pk not in selected_digests
        )
    else:
        selected_digests = dict(shown_digests)
    names = dict(server.definitions.filter(pk__in=selected_digests).values_list("pk", "name"))
    with record_server_change(server, principal.actor, "definitions_approved", (details := {})):
        lock_rows(Server.objects.filter(pk=server.pk))
        pinned = _pin_definitions(server, selected_digests, principal.label)
        details.update(
            {"approved": [{"name": names[pk], "digest": selected_digests[pk]} for pk in pinned]}
        )
        if shown_digests and not pinned:
            raise Conflict(
                "None of these definitions could be approved because they changed or are rejected.",
                code="nothing_approved",
                remedy="Reload the definitions, then review them again.",
            )
    skipped_names = [names.get(pk, str(pk)) for pk in selected_digests if pk not in set(pinned)]
    return DefinitionReviewResult(
        tuple(names[pk] for pk in pinned), tuple(skipped_names), held_names
    )


def pin_trusted_definitions(
    server: Server, definitions: Iterable[Definition], pinned_by: str
) -> None:
    """Pin what the server's approval mode trusts (`first`, `always`), in a recorded change.

    `first` does not trust definitions with findings; `always` trusts everything except
    rejected definitions.
    """
    trusts_findings = server.approval == Server.Approval.ALWAYS
    trusted_digests = {
        row.pk: row.digest
        for row in definitions
        if (trusts_findings or not row.findings) and row.rejected_digest != row.digest
    }
    _pin_definitions(server, trusted_digests, pinned_by)


def reject_definition(
    principal: Principal, definition: Definition, digest: str, reason: str
) -> None:
    """Reject a definition that is pending review, as it was shown; it can be approved later.

    It isn't pending review again until the server changes it. Raises `Forbidden`, `InvalidInput`
    without a reason, and `Conflict` (`nothing_rejected`) if it changed or isn't pending review.
    """
    principal.require(Action.APPROVE_DEFINITIONS)
    reason = make_storable(reason.strip())
    if not reason or len(reason) > MAX_REASON_LENGTH:
        raise InvalidInput(
            format_message(
                "A rejection needs a reason of at most {maximum} characters.",
                maximum=MAX_REASON_LENGTH,
            ),
            field="reason",
        )
    with record_change(
        **describe_row("definition", definition),
        actor=principal.actor,
        action="definition_rejected",
        details={"server_id": str(definition.server_id), "digest": digest, "reason": reason},
        event=build_server_event(definition.server),
    ):
        pending_definitions = Definition.objects.awaiting_review().filter(
            pk=definition.pk, digest=digest
        )
        if not pending_definitions.update(
            rejected_digest=digest,
            rejected_at=timezone.now(),
            rejected_by=principal.label[:255],
            rejection_reason=reason,
        ):
            raise Conflict(
                "The definition changed or isn't pending review.",
                code="nothing_rejected",
                remedy="Reload the definitions, then review them again.",
            )


def reset_review(principal: Principal, definition: Definition) -> None:
    """Reset an approval: the definition needs review again."""
    principal.require(Action.APPROVE_DEFINITIONS)
    with record_change(
        **describe_row("definition", definition),
        actor=principal.actor,
        action="definition_approval_revoked",
        event=build_server_event(definition.server),
    ):
        Definition.objects.filter(pk=definition.pk).update(
            pinned=None, pinned_digest="", pinned_at=None, pinned_by=""
        )


def set_definition_enabled(principal: Principal, definition: Definition, *, enabled: bool) -> None:
    principal.require(Action.MANAGE_SERVERS)
    with record_change(
        **describe_row("definition", definition),
        actor=principal.actor,
        action="definition_enabled" if enabled else "definition_disabled",
        details={"server_id": str(definition.server_id)},
        event=build_server_event(definition.server),
    ):
        Definition.objects.filter(pk=definition.pk).update(enabled=enabled)


def _pin_definitions(server: Server, digests: Mapping[UUID, str], by: str) -> list[UUID]:
    """Pin the definitions whose digests are unchanged; return their keys."""
    pinned_at, pairs = timezone.now(), list(digests.items())
    rows = server.definitions.without_fault().filter(present=True)
    for start in range(0, len(pairs), PIN_BATCH):
        unchanged = [Q(pk=pk, digest=digest) for pk, digest in pairs[start : start + PIN_BATCH]]
        update_in_order(
            rows.filter(Q(*unchanged, _connector=Q.OR)),
            pinned=F("payload"),
            pinned_digest=F("digest"),
            pinned_at=pinned_at,
            pinned_by=by,
            rejected_digest="",
            rejected_at=None,
            rejected_by="",
            rejection_reason="",
        )
    pinned = rows.filter(pk__in=digests, pinned_at=pinned_at, pinned_by=by)
    pinned_keys = set(pinned.values_list("pk", flat=True))
    if pinned_keys:
        for hook in review_hooks:
            hook(server)
    return [pk for pk in digests if pk in pinned_keys]


def notify_pending_review(server: Server, definition_ids: list[UUID]) -> None:
    """Notify about definitions to review; topics prevent repeated notifications."""
    rows = server.definitions.awaiting_review().filter(pk__in=definition_ids)
    pending_keys = sorted(rows.values_list("kind", "name", "digest"))
    if not pending_keys:
        return
    names = ", ".join(name or kind for kind, name, _digest in pending_keys[:MAX_NAMES_NOTIFIED])
    more = ", …" if len(pending_keys) > MAX_NAMES_NOTIFIED else ""
    notify(
        server.organization_id,
        "definitions_waiting",
        outages.build_server_subject(server, "tools"),
        format_message(
            "{server} has new or changed definitions ({n}): {names}. They can't be called "
            "until they are approved.",
            server=server.name,
            n=len(pending_keys),
            names=names + more,
        ),
        topic=f"definitions:{server.pk}:{compute_json_digest(pending_keys)}",
    )
