"""Before a server is removed: what else goes with it, named."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import router
from django.db.models.deletion import Collector
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t

from bonobot.lib.untrusted import visible
from bonobot.tenancy.screens.answers import screen
from mcp_servers.models import Server

NAMED_AT_MOST = 10
# Names of tools at agents are as much a part of the server as its own rows: a number is enough.
PARTS = frozenset({"toolname"})


@dataclass(frozen=True)
class Affected:
    """A server, and what is deleted with it: (what, how many, the first names)."""

    server: Server
    rows: tuple[tuple[str, int, tuple[str, ...]], ...]


def affected_by(server: Server) -> Affected:
    """Return what removing the server takes along, whichever room it lives in."""
    collector = Collector(using=router.db_for_write(Server), origin=server)
    collector.collect([server])
    found: list[tuple[str, int, tuple[str, ...]]] = []
    for model, rows in collector.data.items():
        if model is not Server:
            found.append(_described(model, list(rows)))
    found += [
        _described(queryset.model, list(queryset[:NAMED_AT_MOST]), count)
        for queryset in collector.fast_deletes
        if (count := queryset.count())
    ]
    return Affected(server, tuple(sorted(found)))


def confirm_removal(
    admin: Any, request: HttpRequest, affected: Sequence[Affected]
) -> HttpResponseBase:
    """Ask whether to remove these servers."""
    return screen(
        request,
        "servers/remove.html",
        title=_t("Remove servers") if len(affected) > 1 else _t("Remove a server"),
        affected=affected,
        opts=admin.opts,
        action=request.POST.get("action", ""),
    )


def _described(model: Any, rows: list[Any], count: int | None = None) -> tuple[str, int, tuple]:
    total = len(rows) if count is None else count
    options = model._meta
    title = options.verbose_name if total == 1 else options.verbose_name_plural
    parts = options.app_label == Server._meta.app_label or options.model_name in PARTS
    names = () if parts else tuple(visible(str(row), 120) for row in rows[:NAMED_AT_MOST])
    return str(title), total, names
