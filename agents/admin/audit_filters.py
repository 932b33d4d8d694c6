"""Saved filters beside the audit's list: kept, shared and removed by the people who use them."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponseNotAllowed, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import path, reverse
from django.utils.translation import gettext as _t

from agents.models import SavedFilter
from agents.saved_filters import filters_of, kept_of, may_remove, remove_filter, save_filter
from bonobot.lib.problems import Problem
from bonobot.lib.translating import whole
from bonobot.lib.untrusted import visible
from bonobot.tenancy.principals import Principal

LIST = "admin:ledger_auditrow_changelist"


def addresses(
    view: Callable[..., Any], principal_of: Callable[[HttpRequest], Principal]
) -> list[Any]:
    """Return where filters are kept and removed; `view` guards a view as the admin does."""
    names = {"save_filter": _save, "remove_filter": _remove}
    return [
        path(
            f"{name.replace('_', '-')}/",
            view(partial(_done, principal_of, do)),
            name=f"ledger_auditrow_{name}",
        )
        for name, do in names.items()
    ]


def panel(principal: Principal, query: str) -> dict[str, Any]:
    """Return what the list shows of filters, for the address that it is at (a query)."""
    try:
        now = kept_of(query)
    except ValueError:
        now = ""
    rows = list(filters_of(principal))
    return {
        "now": now,
        "rows": [
            {
                "row": row,
                "mine": str(row.owner_id) == principal.id,
                "here": row.query == now,
                "may_remove": may_remove(principal, row),
            }
            for row in rows
        ],
        "may_save": principal.kind == "user",
    }


def _done(
    principal_of: Callable[[HttpRequest], Principal],
    do: Callable[[HttpRequest, Principal], HttpResponseBase],
    request: HttpRequest,
) -> HttpResponseBase:
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    return do(request, principal_of(request))


def _save(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    query, posted = request.POST.get("query", ""), request.POST
    try:
        row = save_filter(principal, posted.get("name", ""), query, shared="shared" in posted)
    except Problem as problem:
        if problem.status == 403:
            raise
        messages.error(request, whole(problem))
        return _back(query)
    messages.success(request, _t("The filter %(name)s is kept.") % {"name": visible(row.name)})
    return _back(row.query)


def _remove(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    rows: Any = filters_of(principal)
    row: SavedFilter = rows.get_or_404(principal.organization_id, pk=request.POST.get("filter"))
    remove_filter(principal, row)
    messages.success(request, _t("The filter %(name)s is gone.") % {"name": visible(row.name)})
    return _back(request.POST.get("query", ""))


def _back(query: str) -> HttpResponseRedirect:
    """Go back to the list, as it was looked at."""
    try:
        kept = kept_of(query)
    except ValueError:
        kept = ""
    return HttpResponseRedirect(reverse(LIST) + (f"?{kept}" if kept else ""))
