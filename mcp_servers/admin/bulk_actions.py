"""Bulk actions on servers, their confirmation pages and the progress of bulk jobs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db import router
from django.db.models.deletion import Collector
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext as _n

from bonobot.accounts.admin_base import render_fragment
from bonobot.accounts.admin_base.responses import FRAGMENT, render_screen
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.roles import Action
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers import services
from mcp_servers.bulk_jobs import NEEDS, OPEN, begin, begin_again, count_items, is_stalled
from mcp_servers.definition_reviews import approve
from mcp_servers.models import Round, Server, Stop

# Up to this many servers are handled within the request; a worker handles more.
AT_ONCE = 3
STOPS_SHOWN = 200
UNDER_WAY_SHOWN = 5


def set_out(
    request: HttpRequest, kind: str, servers: Sequence[Server], said: Any = None
) -> HttpResponseRedirect:
    """Start a bulk job and redirect to its progress page."""
    made = begin(resolve_principal(request), kind, servers, said)
    return HttpResponseRedirect(reverse("admin:mcp_servers_server_round", args=[made.pk]))


def list_running_jobs(request: HttpRequest) -> list[tuple[Round, dict[str, int]]]:
    """Return the organization's unfinished bulk jobs with their counts, newest first."""
    mine = Round.objects.for_organization(resolve_principal(request).organization_id)
    found = count_items(mine.filter(finished_at=None).order_by("-created_at"))
    return [(one, counts) for one, counts in found if counts["total"]][:UNDER_WAY_SHOWN]


def show(request: HttpRequest, round_id: Any) -> HttpResponseBase:
    """Show a bulk job's progress (as a fragment: only the body), or retry what failed."""
    principal = resolve_principal(request)
    principal.require(Action.VIEW)
    going: Round = Round.objects.get_or_404(principal.organization_id, pk=round_id)
    if request.method == "POST":
        made = begin_again(principal, going)
        return HttpResponseRedirect(reverse("admin:mcp_servers_server_round", args=[made.pk]))
    ((_same, counts),) = count_items(Round.objects.filter(pk=going.pk))
    # Failed items first, then running ones: they need attention.
    order = [Stop.State.FAILED, Stop.State.RUNNING, Stop.State.WAITING, Stop.State.DONE]
    stops = sorted(going.stops.all(), key=lambda stop: order.index(Stop.State(stop.state)))
    shown: dict[str, Any] = {
        "round": going,
        "counts": counts,
        "over": counts["total"] - sum(counts.get(state, 0) for state in OPEN),
        "stops": stops[:STOPS_SHOWN],
        "left_out": max(0, len(stops) - STOPS_SHOWN),
        "stalled": is_stalled(going),
        "may_again": principal.may(NEEDS.get(Round.Kind(going.kind), Action.MANAGE_SERVERS)),
    }
    if FRAGMENT in request.headers:
        return render_fragment(request, "servers/round_body.html", **shown)
    return render_screen(
        request, "servers/round.html", title=_("Several servers"), opts=Server._meta, **shown
    )


NAMED_AT_MOST = 10
# Models outside this app whose rows are counted, not named, like the server's own rows.
PARTS = frozenset({"toolname"})


@dataclass(frozen=True)
class ServerImpact:
    """A server and the rows affected with it: (title, count, first names)."""

    server: Server
    rows: tuple[tuple[str, int, tuple[str, ...]], ...]


def collect_impact(server: Server) -> ServerImpact:
    """Return the rows of all apps that are deleted with the server."""
    collector = Collector(using=router.db_for_write(Server), origin=server)
    collector.collect([server])
    found: list[tuple[str, int, tuple[str, ...]]] = []
    for model, rows in collector.data.items():
        if model is not Server:
            found.append(_describe_rows(model, list(rows)))
    found += [
        _describe_rows(queryset.model, list(queryset[:NAMED_AT_MOST]), count)
        for queryset in collector.fast_deletes
        if (count := queryset.count())
    ]
    return ServerImpact(server, tuple(sorted(found)))


def confirm_removal(
    admin: Any, request: HttpRequest, affected: Sequence[ServerImpact]
) -> HttpResponseBase:
    """Render the confirmation page for deleting these servers."""
    return render_screen(
        request,
        "servers/remove.html",
        title=_t("Remove servers") if len(affected) > 1 else _t("Remove a server"),
        affected=affected,
        opts=admin.opts,
        action=request.POST.get("action", ""),
    )


def _describe_rows(model: Any, rows: list[Any], count: int | None = None) -> tuple[str, int, tuple]:
    total = len(rows) if count is None else count
    options = model._meta
    title = options.verbose_name if total == 1 else options.verbose_name_plural
    parts = options.app_label == Server._meta.app_label or options.model_name in PARTS
    names = () if parts else tuple(make_visible(str(row), 120) for row in rows[:NAMED_AT_MOST])
    return str(title), total, names


def disable_servers(admin: Any, request: HttpRequest, servers: Sequence[Server]) -> Any:
    """Confirm with the affected rows, then disable the servers."""
    if "confirmed" not in request.POST:
        return _ask(
            admin,
            request,
            [_collect_named_impact(server) for server in servers],
            title=_t("Switch these servers off?"),
            about=_t("Every call of them is refused from then on, for everybody who has them."),
            button=_t("Switch off"),
            icon="power_settings_new",
        )
    if len(servers) > AT_ONCE:
        return set_out(request, Round.Kind.DISABLE, servers)
    for server in servers:
        services.set_server_enabled(admin.principal(request), server, enabled=False)
    messages.success(request, _t("%(n)d servers are off.") % {"n": len(servers)})
    return None


def approve_what_waits(
    admin: Any, request: HttpRequest, servers: Sequence[Server]
) -> HttpResponseBase | None:
    """Confirm the pending definitions, then approve those; confirm again if they changed."""
    waiting = {server.pk: _list_pending_digests(server) for server in servers}
    if request.POST.get("confirmed") != mark(waiting.values()):
        return _ask(
            admin,
            request,
            [_to_approve(server, waiting[server.pk]) for server in servers],
            title=_t("Approve what waits at these servers?"),
            about=_t("Agents that have them may call it from then on, as their policies say."),
            button=_t("Approve"),
            icon="task_alt",
            confirmed=mark(waiting.values()),
        )
    if len(servers) > AT_ONCE:
        said = {pk: {str(one): digest for one, digest in of.items()} for pk, of in waiting.items()}
        for server in servers:
            _warn_about_findings(request, server)
        return set_out(request, Round.Kind.APPROVE, servers, said)
    for server in servers:
        if seen := waiting[server.pk]:
            done = approve(admin.principal(request), server, seen)
            text = _t("%(server)s: %(n)d definitions approved.")
            messages.success(request, text % {"server": server, "n": len(done.approved)})
        _warn_about_findings(request, server)
    return None


def mark(waiting: Iterable[dict[UUID, str]]) -> str:
    """Return a hash of these definitions and their digests."""
    said = sorted(f"{pk}:{digest}" for one in waiting for pk, digest in one.items())
    return sha256("\n".join(said).encode()).hexdigest()


def _list_pending_digests(server: Server) -> dict[UUID, str]:
    rows = server.definitions.waiting().only("pk", "digest", "findings")
    return {row.pk: row.digest for row in rows if not row.findings}


def _warn_about_findings(request: HttpRequest, server: Server) -> None:
    held = [str(row) for row in server.definitions.waiting() if row.findings]
    if held:
        text = _t("%(server)s: %(names)s read like orders to a model. Read and approve each.")
        names = make_visible(", ".join(held[:NAMED_AT_MOST]), 500)
        messages.warning(request, text % {"server": server, "names": names})


def _to_approve(server: Server, seen: dict[UUID, str]) -> ServerImpact:
    rows = server.definitions.filter(pk__in=seen).order_by("kind", "name")[:NAMED_AT_MOST]
    names = tuple(make_visible(str(row), 120) for row in rows)
    title = _n("definition", "definitions", len(seen))
    return ServerImpact(server, ((title, len(seen), names),) if seen else ())


def _collect_named_impact(server: Server) -> ServerImpact:
    named = tuple(row for row in collect_impact(server).rows if row[2])
    return ServerImpact(server, named)


def _ask(
    admin: Any, request: HttpRequest, affected: Sequence[ServerImpact], **texts: Any
) -> HttpResponseBase:
    return render_screen(
        request,
        "servers/bulk.html",
        affected=affected,
        opts=admin.opts,
        action=request.POST.get("action", ""),
        **{"confirmed": "1", **texts},
    )
