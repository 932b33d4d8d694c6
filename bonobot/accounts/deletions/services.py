"""Keep the rows of a deleted object, restore them, or delete them for good."""

from functools import partial
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Model
from django.utils import timezone

from bonobot.accounts.deletions.kinds import (
    RestorableKind,
    get_restorable_kind,
    list_restorable_kinds,
)
from bonobot.accounts.deletions.stored_rows import can_collect_rows, collect_rows, insert_rows
from bonobot.accounts.models import Deletion
from bonobot.accounts.models.deletions import RESTORE_PERIOD, DeletionQuerySet
from bonobot.accounts.principals import Principal
from bonobot.core.db.transactions import lock_rows
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, NotFound
from bonobot.ledger.audit.admin_changes import record_change


def keep_deleted_rows(
    principal: Principal, kind_name: str, item: Any, *others: Model
) -> Deletion | None:
    """Keep the rows of an object that is about to be deleted, in the same transaction.

    `others` are objects that are deleted with it and that no foreign key connects. Returns None if
    there are too many rows to restore them; the object's `finish` is then called at once.
    """
    kind = get_restorable_kind(kind_name)
    rows = collect_rows([item, *others], kind.ignored_models)
    if rows is None:
        transaction.on_commit(partial(_finish, kind, item.organization_id, str(item.pk)))
        return None
    return Deletion.objects.create(
        organization_id=item.organization_id,
        kind=kind_name,
        object_id=str(item.pk),
        name=str(item)[:255],
        deleted_by=principal.label[:255],
        expires_at=timezone.now() + RESTORE_PERIOD,
        rows=rows,
    )


def can_restore_later(kind_name: str, item: Any, *others: Model) -> bool:
    """Return whether the object could be restored if it were deleted now."""
    return can_collect_rows([item, *others], get_restorable_kind(kind_name).ignored_models)


def list_deletions(principal: Principal) -> DeletionQuerySet:
    """Return what the principal may restore now, newest first."""
    kinds = [kind.name for kind in list_restorable_kinds() if principal.may(kind.needs)]
    rows: DeletionQuerySet = Deletion.objects.for_organization(principal.organization_id)
    return rows.restorable().filter(kind__in=kinds)


def get_deletion(principal: Principal, deletion_id: str) -> Deletion:
    """Return a deletion that the principal may restore; raises `NotFound`."""
    deletion: Deletion = list_deletions(principal).get_or_404(
        principal.organization_id, pk=deletion_id
    )
    return deletion


def restore_deletion(principal: Principal, deletion: Deletion) -> None:
    """Restore a deleted object with its rows; raises `Conflict`, `Forbidden`, `NotFound`."""
    kind = get_restorable_kind(deletion.kind)
    principal.require(kind.needs)
    with record_change(
        organization_id=deletion.organization_id,
        actor=principal.actor,
        action=kind.action,
        resource_type=kind.name,
        resource_id=deletion.object_id,
        resource_name=deletion.name,
    ):
        rows = _take_rows(deletion)
        try:
            with transaction.atomic():
                insert_rows(rows)
        except IntegrityError:
            raise Conflict(
                format_message("Another object uses a name of {name!r} now.", name=deletion.name),
                code="name_taken",
                remedy="Rename the other object, then restore this one.",
            ) from None
        if kind.after_restore is not None:
            kind.after_restore(principal, deletion.object_id)


def finish_expired_deletions() -> int:
    """Delete for good what can't be restored anymore; return how many objects that were."""
    expired = list(Deletion.objects.expired().defer("rows"))
    for deletion in expired:
        kind = get_restorable_kind(deletion.kind)
        _finish(kind, deletion.organization_id, deletion.object_id)
        deletion.delete()
    return len(expired)


def _finish(kind: RestorableKind, organization_id: UUID, object_id: str) -> None:
    if kind.finish is not None:
        kind.finish(organization_id, object_id)


def _take_rows(deletion: Deletion) -> Any:
    """Delete the row and return the rows it keeps; raises `NotFound` if that isn't possible."""
    locked = Deletion.objects.restorable().filter(pk=deletion.pk)
    lock_rows(locked)
    current = locked.first()
    if current is None:
        raise NotFound(
            format_message("{name!r} can't be restored anymore.", name=deletion.name),
            remedy="Deleted objects can be restored for ten minutes. Create it again.",
        )
    rows = current.rows.open()
    current.delete()
    return rows
