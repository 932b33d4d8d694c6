"""Stored rows: what the audit's chain is verified from, read in pages by the places of openings."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from bonobot.ledger import sealing
from bonobot.ledger.chain import Stored, Tip
from bonobot.ledger.models import AuditRow, Head

PAGE = 1_000
LOWEST, HIGHEST = -(2**63), 2**63 - 1

SEALED = ("id", "seq", "digest", "opened", "closed_seq", "closed_digest", "closed")


def tip_of(organization_id: UUID) -> Tip:
    """Return where an organization's chain ends now."""
    head = Head.objects.filter(pk=organization_id).first()
    return Tip(head.seq, head.digest, head.generation) if head else Tip()


def rows_from(organization_id: UUID, first: int, *, up_to: int, most: int) -> Iterator[Stored]:
    """Yield so many rows from a place on, at another at most, in their order."""
    rows = AuditRow.objects.filter(organization_id=organization_id, seq__lte=up_to).order_by("seq")
    while most > 0:
        page = rows.filter(seq__gte=first).values_list(*SEALED, *sealing.NAMES)[: min(PAGE, most)]
        for values in page:
            yield stored(values)
        if not page:
            return
        first, most = values[1] + 1, most - len(page)


def rows_at(organization_id: UUID, places: Sequence[int]) -> Iterator[Stored]:
    """Yield the rows at these places, as far as they are there."""
    rows = AuditRow.objects.filter(organization_id=organization_id).order_by("seq")
    for first in range(0, len(places), PAGE):
        some = rows.filter(seq__in=places[first : first + PAGE])
        for values in some.values_list(*SEALED, *sealing.NAMES):
            yield stored(values)


def stored(values: tuple[Any, ...]) -> Stored:
    """Return a row out of the values of `SEALED` and `sealing.NAMES`."""
    row_id, seq, digest, opened, closed_seq, closed_digest, closed = values[: len(SEALED)]
    columns = tuple([_plain(one) for one in values[len(SEALED) :]])
    return Stored(str(row_id), seq, digest, opened, closed_seq, closed_digest, closed, columns)


def _plain(value: Any) -> Any:
    """Return a column's value as the sealed text writes it."""
    if isinstance(value, UUID):
        return str(value)
    return sealing.stamp(value) if isinstance(value, datetime) else value
