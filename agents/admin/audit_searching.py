"""How far a search of the audit's list looks, and the way on from there."""

from datetime import datetime, time
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib.admin.views.main import ORDER_VAR, PAGE_VAR
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from bonobot.ledger import searching
from bonobot.lib.admin import WithinFilter

WHEN = "opened_at"
UNTIL = f"{WHEN}_to"
# What of an address narrows nothing: the page, the form of a file, marks of Django's admin.
NARROWS_NOTHING = frozenset({PAGE_VAR, "form", "e", "all", "_changelist_filters"})
# The list's order by its first column, the time, is the order of the indexes.
BY_TIME = frozenset({"", "1", "-1"})


class AskedFilter(WithinFilter):
    """Rows between two moments; a search looks back from the later one."""

    called = _("asked")

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        """Keep the rows in between, and remember the bounds."""
        request.asked_within = (  # type: ignore[attr-defined]
            self._moment("from", time.min),
            self._moment("to", time.max),
        )
        return super().queryset(request, queryset)


def within_reach(request: HttpRequest, organization_id: UUID, rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return the rows that a search looks at; `request.looked_since` tells where it stopped."""
    since, until = getattr(request, "asked_within", (None, None))
    if until is not None:
        until += searching.TICK  # the list shows rows of that moment, too
    search = searching.Search(organization_id, _asked(request), since=since, until=until)
    found = search.looks_to()
    if found is None:
        return rows
    request.looked_since = found  # type: ignore[attr-defined]
    return rows.filter(opened_at__gte=found)


def further(request: HttpRequest) -> dict[str, Any] | None:
    """Return where the search stopped, and the list of what lies before; None: it saw all."""
    since: datetime | None = getattr(request, "looked_since", None)
    if since is None:
        return None
    asked = {name: request.GET.getlist(name) for name in request.GET if name != PAGE_VAR}
    before = timezone.localtime(since - searching.TICK)
    asked |= {f"{UNTIL}_0": [f"{before:%Y-%m-%d}"], f"{UNTIL}_1": [f"{before:%H:%M:%S.%f}"]}
    return {"since": since, "rows": searching.LOOKED_AT, "query": urlencode(asked, doseq=True)}


def _asked(request: HttpRequest) -> searching.Asked:
    """Return what the list is narrowed by; anything that isn't known to be quick isn't."""
    indexed: dict[str, str] = {}
    otherwise = False
    for name, values in request.GET.lists():
        given = [value.strip() for value in values if value.strip()]
        if not given or name in NARROWS_NOTHING or name.startswith(f"{WHEN}_"):
            continue
        column = name.removesuffix("__exact").removesuffix("__in")
        if name == ORDER_VAR:
            otherwise |= given[-1] not in BY_TIME
        elif column in searching.INDEXED and len(given) == 1 and "," not in given[0]:
            indexed[column] = given[0]
        else:
            otherwise = True
    return searching.Asked(indexed, otherwise=otherwise)
