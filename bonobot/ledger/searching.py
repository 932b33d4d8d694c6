"""Searching: how far back one search of the audit looks.

What is searched by a part of a word is found by reading rows, and by no index: one that knew parts
of words would have to be written by every call. So a search looks through so many of the latest
rows, tells up to when it looked, and goes on from there where somebody wants that.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from bonobot.ledger.models import AuditRow

LOOKED_AT = 25_000
# Whose rows are found by an index: so many of theirs are looked through.
OF = ("server_id", "agent_id", "session_id")
TICK = timedelta(microseconds=1)  # times of rows are told to that


def reach(
    organization_id: UUID, *, until: datetime | None = None, of: Mapping[str, Any] | None = None
) -> datetime | None:
    """Return the time since which a search looks that ends at `until`; None: all of it (1 query).

    `of` narrows the rows by columns of `OF`. Rows of one moment are never parted.
    """
    rows = AuditRow.objects.of(organization_id).filter(**(of or {}))
    if until is not None:
        rows = rows.filter(opened_at__lte=until)
    times = rows.order_by("-opened_at").values_list("opened_at", flat=True)
    last = list(times[LOOKED_AT - 1 : LOOKED_AT + 1])
    return last[0] if len(last) > 1 else None
