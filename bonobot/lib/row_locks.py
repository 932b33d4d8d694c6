"""Row locks: writers that meet at the same rows wait for each other in one order.

PostgreSQL turns one of two transactions away that wait for each other. None do where a parent's row
is locked before its children's, and children by key. SQLite has one lock for all who write, which
a transaction takes when it begins; nothing is locked there beside it.

This says who waits, never who may: that is a conditional UPDATE's to tell.
"""

from collections.abc import Iterable
from typing import Any, cast

from django.db import transaction
from django.db.models import QuerySet

Rows = QuerySet[Any, Any]


def lock(rows: Rows, *, order: Iterable[str] = ("pk",), deleting: bool = False) -> list[Any]:
    """Lock rows until the caller's transaction ends, and return their keys (a query).

    `deleting` also has those wait who write rows that refer to them.
    """
    return list(_ordered(rows, order, deleting=deleting).values_list("pk", flat=True))


def update_in_order(rows: Rows, *, order: Iterable[str] = ("pk",), **values: Any) -> int:
    """Update rows, each locked in this order first; return how many (a query)."""
    with transaction.atomic():
        return _mine(rows, order).update(**values)


def delete_in_order(rows: Rows, *, order: Iterable[str] = ("pk",)) -> int:
    """Delete rows that nothing refers to, each locked in this order first; return how many."""
    with transaction.atomic():
        return int(_mine(rows, order).delete()[0])


def _mine(rows: Rows, order: Iterable[str]) -> Rows:
    own = rows.model._default_manager
    return cast(Rows, own.filter(pk__in=_ordered(rows, order).values("pk")))


def _ordered(rows: Rows, order: Iterable[str], *, deleting: bool = False) -> Rows:
    return rows.order_by(*order).select_for_update(no_key=not deleting)
