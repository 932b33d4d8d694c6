"""Bulk actions on servers, their confirmation pages and the progress of bulk jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import router
from django.db.models.deletion import Collector
from django.http import HttpRequest, HttpResponseRedirect, QueryDict
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import ngettext as _n

from bonobot.accounts.admin_base import render_fragment
from bonobot.accounts.admin_base.form_conflicts import describe_last_change
from bonobot.accounts.admin_base.responses import (
    FRAGMENT_HEADER,
    change_each,
    delete_each,
    render_screen,
)
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.deletions import restore_deletion
from bonobot.accounts.models import Deletion
from bonobot.accounts.roles import Action
from bonobot.core.i18n.localization import format_number
from bonobot.core.text.untrusted_text import make_visible
from bonobot.core.text.uuids import parse_uuid
from mcp_servers import services
from mcp_servers.bulk_jobs import (
    REQUIRED_ACTIONS,
    UNFINISHED_STATES,
    count_items,
    is_stalled,
    list_restorable_servers,
    retry_failed_items,
    start_bulk_job,
)
from mcp_servers.models import BulkJob, BulkJobItem, Server

# Up to this many servers are handled within the request; a worker handles more.
IMMEDIATE_LIMIT = 3
MAX_ITEMS_SHOWN = 200
MAX_RUNNING_JOBS_SHOWN = 5
MAX_RESTORED = 100  # in one request; the button restores the next ones
MAX_NAMES_SHOWN = 10
# The actions of the list that are confirmed on a page of their own.
CONFIRMATION_ROUTES = {
    "approve_chosen": "confirm_approve",
    "disable_chosen": "confirm_disable",
    "remove_chosen": "confirm_delete",
}
# In the URL of a confirmation: the selected servers, or that all servers of the list are.
SELECTION_PARAMETER, ALL_PARAMETER = "servers", "all"
# Rows that people never see as objects, such as measurements; they aren't listed.
UNLISTED_MODELS = frozenset(
    {"toolname", "healthcheck", "erroroutput", "outage", "unmonitoredperiod"}
)


def name_bulk_job(job: BulkJob, count: int) -> str:
    """Return what a bulk job does, with the number of its servers."""
    n = {"n": format_number(count)}
    match BulkJob.Kind(job.kind):
        case BulkJob.Kind.TEST:
            text = _n("Test %(n)s server", "Test %(n)s servers", count)
        case BulkJob.Kind.REFRESH:
            text = _n("Refresh %(n)s server", "Refresh %(n)s servers", count)
        case BulkJob.Kind.APPROVE:
            text = _n(
                "Approve definitions of %(n)s server",
                "Approve definitions of %(n)s servers",
                count,
            )
        case BulkJob.Kind.ENABLE:
            text = _n("Enable %(n)s server", "Enable %(n)s servers", count)
        case BulkJob.Kind.DISABLE:
            text = _n("Disable %(n)s server", "Disable %(n)s servers", count)
        case BulkJob.Kind.REMOVE:
            text = _n("Delete %(n)s server", "Delete %(n)s servers", count)
    return text % n


def start_job_and_redirect(
    request: HttpRequest, kind: str, servers: Sequence[Server], details: Any = None
) -> HttpResponseRedirect:
    job = start_bulk_job(resolve_principal(request), kind, servers, details)
    return HttpResponseRedirect(reverse("admin:mcp_servers_server_bulk_job", args=[job.pk]))


def list_running_jobs(request: HttpRequest) -> list[tuple[BulkJob, dict[str, int]]]:
    """Return the organization's unfinished bulk jobs with their counts, newest first."""
    jobs = BulkJob.objects.for_organization(resolve_principal(request).organization_id)
    counted_jobs = count_items(jobs.filter(finished_at=None).order_by("-created_at"))
    return [(job, counts) for job, counts in counted_jobs if counts["total"]][
        :MAX_RUNNING_JOBS_SHOWN
    ]


def show_bulk_job(request: HttpRequest, job_id: Any) -> HttpResponseBase:
    """Show a bulk job's progress (as a fragment: only the body), or retry what failed."""
    principal = resolve_principal(request)
    principal.require(Action.VIEW)
    job: BulkJob = BulkJob.objects.get_or_404(principal.organization_id, pk=job_id)
    deletions = list_restorable_servers(principal, job)
    if "restore" in request.POST:
        _restore_servers(request, deletions[:MAX_RESTORED])
        return HttpResponseRedirect(request.path)
    if request.method == "POST":
        retried_job = retry_failed_items(principal, job)
        return HttpResponseRedirect(
            reverse("admin:mcp_servers_server_bulk_job", args=[retried_job.pk])
        )
    ((_same, counts),) = count_items(BulkJob.objects.filter(pk=job.pk))
    # Failed items first, then running ones: they need attention.
    order = [
        BulkJobItem.State.FAILED,
        BulkJobItem.State.RUNNING,
        BulkJobItem.State.WAITING,
        BulkJobItem.State.DONE,
    ]
    items = sorted(job.items.all(), key=lambda item: order.index(BulkJobItem.State(item.state)))
    context: dict[str, Any] = {
        "job": job,
        "counts": counts,
        "over": counts["total"] - sum(counts.get(state, 0) for state in UNFINISHED_STATES),
        "items": items[:MAX_ITEMS_SHOWN],
        "left_out": max(0, len(items) - MAX_ITEMS_SHOWN),
        "stalled": is_stalled(job),
        "restorable_count": len(deletions),
        "existing_ids": set(
            Server.objects.for_organization(principal.organization_id)
            .filter(pk__in=[item.server_id for item in items[:MAX_ITEMS_SHOWN]])
            .values_list("pk", flat=True)
        ),
        "may_again": principal.may(
            REQUIRED_ACTIONS.get(BulkJob.Kind(job.kind), Action.MANAGE_SERVERS)
        ),
    }
    if FRAGMENT_HEADER in request.headers:
        return render_fragment(request, "bulk_actions/job_body.html", **context)
    return render_screen(
        request,
        "bulk_actions/job.html",
        title=name_bulk_job(job, counts["total"]),
        opts=Server._meta,
        **context,
    )


def _restore_servers(request: HttpRequest, deletions: Sequence[Deletion]) -> None:
    restore = partial(restore_deletion, resolve_principal(request))
    if count := change_each(request, deletions, restore):
        text = _n("%(n)s server restored.", "%(n)s servers restored.", count)
        messages.success(request, text % {"n": format_number(count)})


@dataclass(frozen=True)
class ServerImpact:
    """A server and the rows affected with it: (title, count, first names)."""

    server: Server
    rows: tuple[tuple[str, int, tuple[str, ...]], ...]


def collect_impact(server: Server) -> ServerImpact:
    """Return the rows of all apps that are deleted with the server."""
    collector = Collector(using=router.db_for_write(Server), origin=server)
    collector.collect([server])
    groups: list[tuple[str, int, tuple[str, ...]]] = []
    for model, rows in collector.data.items():
        if _is_listed(model):
            groups.append(_describe_rows(model, list(rows)))
    groups += [
        _describe_rows(queryset.model, list(queryset[:MAX_NAMES_SHOWN]), count)
        for queryset in collector.fast_deletes
        if _is_listed(queryset.model) and (count := queryset.count())
    ]
    return ServerImpact(server, tuple(sorted(groups)))


def _is_listed(model: Any) -> bool:
    return model is not Server and model._meta.model_name not in UNLISTED_MODELS


def confirm_removal(
    admin: Any, request: HttpRequest, affected: Sequence[ServerImpact], name: str = ""
) -> HttpResponseBase:
    """Render the confirmation page for deleting these servers; `name` is the list's action."""
    only_server = affected[0].server if len(affected) == 1 else None
    return render_screen(
        request,
        "bulk_actions/delete_servers.html",
        title=_t("Delete servers") if len(affected) > 1 else _t("Delete server"),
        only_server=only_server,
        affected=affected,
        opts=admin.opts,
        action=name,
        # A list has no version.
        last_change=describe_last_change(request, str(only_server.pk))
        if only_server and not name
        else "",
    )


def delete_servers(request: HttpRequest, servers: Sequence[Server]) -> None:
    """Delete a few servers, and offer to undo it for all that can be restored, at once."""

    def describe_count(count: int) -> str:
        text = _n("%(n)s server was deleted.", "%(n)s servers were deleted.", count)
        return text % {"n": format_number(count)}

    delete = partial(services.delete_server, resolve_principal(request))
    delete_each(request, servers, delete, describe_count)


def _describe_rows(model: Any, rows: list[Any], count: int | None = None) -> tuple[str, int, tuple]:
    total = len(rows) if count is None else count
    options = model._meta
    title = options.verbose_name if total == 1 else options.verbose_name_plural
    is_internal = options.app_label == Server._meta.app_label
    names = (
        () if is_internal else tuple(make_visible(str(row), 120) for row in rows[:MAX_NAMES_SHOWN])
    )
    return str(title), total, names


def redirect_to_confirmation(request: HttpRequest, name: str) -> HttpResponseRedirect:
    """Redirect to the page that confirms an action of the list, which can be loaded again.

    Its URL has the selected servers, or the filters of the list if all servers are selected.
    """
    if request.POST.get("select_across") == "1":
        query = request.GET.copy()
        query[ALL_PARAMETER] = "1"
    else:
        query = QueryDict(mutable=True)
        query[SELECTION_PARAMETER] = ",".join(request.POST.getlist(ACTION_CHECKBOX_NAME))
    url = reverse(f"admin:mcp_servers_server_{CONFIRMATION_ROUTES[name]}")
    return HttpResponseRedirect(f"{url}?{query.urlencode()}")


def parse_selected_ids(request: HttpRequest) -> list[UUID]:
    """Return the IDs in the URL of a confirmation; invalid ones are dropped."""
    texts = request.GET.get(SELECTION_PARAMETER, "").split(",")
    return [server_id for text in texts if (server_id := parse_uuid(text))]


def render_confirmation(
    admin: Any, request: HttpRequest, name: str, servers: Sequence[Server]
) -> HttpResponseBase:
    """Render the page that confirms an action of the list, with what is affected."""
    if name == "remove_chosen":
        return confirm_removal(admin, request, [collect_impact(server) for server in servers], name)
    return render_screen(
        request,
        "bulk_actions/confirm.html",
        title=_t("Disable these servers?"),
        affected=[_collect_named_impact(server) for server in servers],
        opts=admin.opts,
        action=name,
    )


def disable_servers(request: HttpRequest, servers: Sequence[Server]) -> HttpResponseBase | None:
    """Disable the servers, many of them in a bulk job."""
    if len(servers) > IMMEDIATE_LIMIT:
        return start_job_and_redirect(request, BulkJob.Kind.DISABLE, servers)
    principal = resolve_principal(request)
    disable = partial(services.set_server_enabled, principal, enabled=False)
    if count := change_each(request, servers, disable):
        text = _n("%(n)s server disabled.", "%(n)s servers disabled.", count)
        messages.success(request, text % {"n": format_number(count)})
    return None


def _collect_named_impact(server: Server) -> ServerImpact:
    named_rows = tuple(row for row in collect_impact(server).rows if row[2])
    return ServerImpact(server, named_rows)
