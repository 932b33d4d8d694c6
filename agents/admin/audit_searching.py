"""How far a search of the audit's list looks, and the way on from there."""

from datetime import datetime, time
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib.admin.views.main import PAGE_VAR, SEARCH_VAR
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from bonobot.ledger import searching
from bonobot.lib.admin import WithinFilter

# What is looked for by a part of it.
NAMES = ("code", "agent_name", "server_name", "tool_name")
PARTS = (SEARCH_VAR, *(f"{name}__icontains" for name in NAMES))
UNTIL = "opened_at_to"


class AskedFilter(WithinFilter):
    """Rows between two moments; a search looks back from the later one."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        """Keep the rows in between, and remember the bounds."""
        request.asked_within = (  # type: ignore[attr-defined]
            self._moment("from", time.min),
            self._moment("to", time.max),
        )
        return super().queryset(request, queryset)


def within_reach(request: HttpRequest, organization_id: UUID, rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return the rows that a search looks at; `request.looked_since` tells where it stopped."""
    if not any(request.GET.get(name, "").strip() for name in PARTS):
        return rows
    since, until = getattr(request, "asked_within", (None, None))
    found = searching.reach(organization_id, until=until, of=_of(request))
    if found is None or (since is not None and found <= since):
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


def _of(request: HttpRequest) -> dict[str, UUID]:
    found = {}
    for name in searching.OF:
        try:
            found[name] = UUID(request.GET.get(name, ""))
        except ValueError:
            continue
    return found
