"""The audit log in the admin: list, filters, search, export and verification."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.contrib.admin import FieldListFilter
from django.contrib.admin import ModelAdmin as DjangoModelAdmin
from django.contrib.admin.views.main import PAGE_VAR
from django.db.models import Field, Model, Q, QuerySet
from django.http import HttpRequest, HttpResponseNotAllowed, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin import audit_list
from agents.admin.audit_list import group_turns
from agents.models import SavedFilter
from agents.saved_filters import (
    can_delete_filter,
    delete_filter,
    list_filters,
    normalize_query,
    save_filter,
)
from bonobot.accounts.admin_base import ScopedAdmin, render_screen
from bonobot.accounts.admin_base.responses import FRAGMENT_HEADER, render_fragment
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import (
    ChoicesDropdownFilter,
    DateTimeRangeFilter,
    DropdownFilter,
    FieldTextFilter,
    register,
)
from bonobot.core.celery_tasks import enqueue_task_on_commit
from bonobot.core.i18n.localization import localize_problem
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound, Problem
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.api.audit import build_download
from bonobot.ledger.audit import search as audit_search
from bonobot.ledger.audit.action_titles import format_action
from bonobot.ledger.audit.export import ExportFormat
from bonobot.ledger.audit.verify_chain import VerificationProgress, load_progress
from bonobot.ledger.models import AuditRow
from bonobot.ledger.tasks import CONTINUE_VERIFICATION
from bonobot.ledger.types import APPROVAL_REQUIRED_CODE
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.label_icons import FLOW_MARKS

LIST_URL_NAME = "admin:ledger_auditrow_changelist"
MAX_FAULTS_SHOWN = 10
VERIFICATION_SESSION_KEY = "verification_asked"
# A worker starts and reports progress within this time; otherwise none is running.
START_TIMEOUT = timedelta(minutes=1)
TIME_PARAMETER = audit_list.TIME_PARAMETER
UNTIL_PARAMETER = f"{TIME_PARAMETER}_to"
# Query parameters that filter nothing: page, export format, Django admin flags.
IGNORED_PARAMETERS = audit_list.PLAIN_PARAMETERS
# Rows that the pages of one list have; older ones are in a list that ends where it does. A count
# of more would read as many rows in random places of the table.
MAX_PAGED = 1_000
EVENT_KINDS = (
    ("call", _("tool calls")),
    ("model", _("model turns")),
    ("change", _("changes")),
    ("approval", _("approvals")),
    ("connection", _("connections")),
)
LABEL_CHOICES = tuple((label.value, FLOW_MARKS[label].title) for label in FlowLabel)
# Filter titles of audit columns, which have no verbose names.
COLUMN_TITLES = {
    "outcome": _("outcome"),
    "decision": _("decision"),
    "code": _("code"),
    "agent_name": _("agent"),
    "server_name": _("server"),
    "tool_name": _("tool"),
}
# The parameters that the filter form and the search field have fields for.
FORM_PARAMETERS = frozenset(
    {
        *("outcome__in", "kind", "decision__exact", "code__icontains", "agent_name__icontains"),
        *("server_name__icontains", "tool_name__icontains", "q", PAGE_VAR),
        audit_list.LABEL_PARAMETER,
        *(f"{TIME_PARAMETER}_{end}_{part}" for end in ("from", "to") for part in (0, 1)),
    }
)


def build_verification_urls(
    view: Callable[..., Any], get_principal: Callable[[HttpRequest], Principal]
) -> list[Any]:
    """Return the URLs of the verification; `view` wraps views as the admin does."""

    def verify(request: HttpRequest) -> HttpResponseBase:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        principal = get_principal(request)
        principal.require(Action.VIEW_AUDIT)
        restart = "restart" if "restart" in request.POST else ""
        progress = load_progress(principal.organization_id)
        request.session[VERIFICATION_SESSION_KEY] = {
            "of": str(principal.organization_id),
            "at": datetime.now(UTC).isoformat(),
            "then": progress.at if progress else "",
        }
        messages.success(
            request, _t("A worker is verifying the audit log. This page shows its progress.")
        )
        enqueue_task_on_commit(CONTINUE_VERIFICATION, str(principal.organization_id), restart)
        return HttpResponseRedirect(f"{reverse(LIST_URL_NAME)}#verification")

    def show_verification(request: HttpRequest) -> HttpResponseBase:
        principal = get_principal(request)
        principal.require(Action.VIEW_AUDIT)
        context = {"verified": describe_verification(request, principal)}
        return render(request, "admin/audit/verification.html", context)

    return [
        path("verify/", view(verify), name="ledger_auditrow_verify"),
        path("verification/", view(show_verification), name="ledger_auditrow_verification"),
    ]


def describe_verification(request: HttpRequest, principal: Principal) -> dict[str, Any]:
    """Return the progress of the verification of the organization's audit log (one query)."""
    progress = load_progress(principal.organization_id)
    pending = _describe_pending_verification(request, principal, progress)
    if progress is None:
        return {"never": True, **pending}
    updated_at = datetime.fromisoformat(progress.at) if progress.at else None
    is_running = (
        not progress.done
        and updated_at is not None
        and datetime.now(UTC) - updated_at < START_TIMEOUT
    )
    return {
        "seq": progress.seq,
        "at": updated_at,
        "done": progress.done,
        "percent": int(progress.share * 100),
        "faults": progress.faults[:MAX_FAULTS_SHOWN],
        "number": len(progress.faults),
        "running": is_running,
        **pending,
    }


def _describe_pending_verification(
    request: HttpRequest, principal: Principal, progress: VerificationProgress | None
) -> dict[str, Any]:
    """Return whether this person requested a verification that hasn't started yet."""
    requested = request.session.get(VERIFICATION_SESSION_KEY)
    progress_at = progress.at if progress else ""
    if (
        not requested
        or requested["of"] != str(principal.organization_id)
        or requested["then"] != progress_at
    ):
        return {}
    is_waiting = datetime.now(UTC) - datetime.fromisoformat(requested["at"]) < START_TIMEOUT
    return {"requested": True, "running": is_waiting, "stalled": not is_waiting}


def build_filter_urls(
    view: Callable[..., Any], get_principal: Callable[[HttpRequest], Principal]
) -> list[Any]:
    """Return the URLs to save and delete filters; `view` wraps views as the admin does."""
    names = {"save_filter": _handle_save_filter, "remove_filter": _handle_delete_filter}
    return [
        path(
            f"{name.replace('_', '-')}/",
            view(partial(_handle_post, get_principal, handler)),
            name=f"ledger_auditrow_{name}",
        )
        for name, handler in names.items()
    ]


def build_filter_panel(principal: Principal, query: str) -> dict[str, Any]:
    """Return the saved filters for the list's current query string (one query)."""
    try:
        current_query = normalize_query(query)
    except ValueError:
        current_query = ""
    rows = list(list_filters(principal))
    return {
        "now": current_query,
        "rows": [
            {
                "row": row,
                "mine": str(row.owner_id) == principal.id,
                "is_current": row.query == current_query,
                "may_remove": can_delete_filter(principal, row),
            }
            for row in rows
        ],
        "may_save": principal.kind == "user",
    }


def _handle_post(
    get_principal: Callable[[HttpRequest], Principal],
    handler: Callable[[HttpRequest, Principal], HttpResponseBase],
    request: HttpRequest,
) -> HttpResponseBase:
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    return handler(request, get_principal(request))


def _handle_save_filter(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    query, posted = request.POST.get("query", ""), request.POST
    try:
        row = save_filter(principal, posted.get("name", ""), query, shared="shared" in posted)
    except Problem as problem:
        if problem.status == 403:
            raise
        messages.error(request, localize_problem(problem))
        return _redirect_to_list(query)
    messages.success(
        request, _t("The filter %(name)s was saved.") % {"name": make_visible(row.name)}
    )
    return _redirect_to_list(row.query)


def _handle_delete_filter(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    rows: Any = list_filters(principal)
    row: SavedFilter = rows.get_or_404(principal.organization_id, pk=request.POST.get("filter"))
    delete_filter(principal, row)
    messages.success(
        request, _t("The filter %(name)s was deleted.") % {"name": make_visible(row.name)}
    )
    return _redirect_to_list(request.POST.get("query", ""))


def _redirect_to_list(query: str) -> HttpResponseRedirect:
    try:
        normalized = normalize_query(query)
    except ValueError:
        normalized = ""
    return HttpResponseRedirect(reverse(LIST_URL_NAME) + (f"?{normalized}" if normalized else ""))


class AuditPeriodFilter(DateTimeRangeFilter):
    """A time range filter; a search goes back from its end."""

    column_label = _("requested")

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        """Return the rows in the range, and store its bounds on the request."""
        request.asked_within = (  # type: ignore[attr-defined]
            self._parse_datetime("from", time.min),
            self._parse_datetime("to", time.max),
        )
        return super().queryset(request, queryset)


def limit_search(request: HttpRequest, organization_id: UUID, rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return the rows that a search covers; `request.looked_since` is where it stopped."""
    since, until = getattr(request, "asked_within", (None, None))
    if until is not None:
        until += audit_search.TIME_RESOLUTION  # the list includes rows of that moment
    search = audit_search.AuditSearch(
        organization_id, _parse_search_criteria(request), since=since, until=until
    )
    search_start = search.find_stop_time()
    if search_start is None:
        return rows
    request.looked_since = search_start  # type: ignore[attr-defined]
    return rows.filter(opened_at__gte=search_start)


def describe_search_limit(request: HttpRequest) -> dict[str, Any] | None:
    """Return where the search stopped and the query for older rows; None if it saw all."""
    since: datetime | None = getattr(request, "looked_since", None)
    if since is None:
        return None
    return {
        "since": since,
        "rows": audit_search.MAX_ROWS_SCANNED,
        "query": _build_query_until(request, since - audit_search.TIME_RESOLUTION),
    }


def build_older_query(request: HttpRequest, changelist: Any) -> str:
    """Return the query for the rows after the last page; blank if there are none, or more pages.

    Its first row is the last one of this page, since others may have the same time.
    """
    paginator, rows = changelist.paginator, list(changelist.result_list)
    is_last_page = changelist.page_num >= paginator.num_pages
    if not (is_last_page and paginator.more and rows):
        return ""
    return _build_query_until(request, rows[-1].opened_at)


def _build_query_until(request: HttpRequest, until: datetime) -> str:
    """Return the list's query with another end of the period, on its first page."""
    parameters = {name: request.GET.getlist(name) for name in request.GET if name != PAGE_VAR}
    local = timezone.localtime(until)
    parameters |= {
        f"{UNTIL_PARAMETER}_0": [f"{local:%Y-%m-%d}"],
        f"{UNTIL_PARAMETER}_1": [f"{local:%H:%M:%S.%f}"],
    }
    return urlencode(parameters, doseq=True)


def _parse_search_criteria(request: HttpRequest) -> audit_search.SearchCriteria:
    """Return the filters of the list by whether an index supports them."""
    indexed: dict[str, str] = {}
    has_unindexed = False
    for name, values in request.GET.lists():
        filled = [value.strip() for value in values if value.strip()]
        if not filled or name in IGNORED_PARAMETERS or name.startswith(f"{TIME_PARAMETER}_"):
            continue
        column = name.removesuffix("__exact").removesuffix("__in")
        if column == "outcome" and filled == [audit_list.PENDING]:
            indexed["code"] = APPROVAL_REQUIRED_CODE
        elif column in audit_search.INDEXED_COLUMNS and len(filled) == 1 and "," not in filled[0]:
            indexed[column] = filled[0]
        else:
            has_unindexed = True
    return audit_search.SearchCriteria(indexed, has_other_filters=has_unindexed)


class AuditKindFilter(DropdownFilter):
    """A filter by kind: calls, model turns, changes, approvals or connections."""

    title = _("type")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: DjangoModelAdmin) -> Any:
        return EVENT_KINDS

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditRow]) -> QuerySet[AuditRow]:
        kind = self.value()
        if kind == "approval":  # with the requests, which are entries of calls
            return queryset.filter(Q(event_type=kind) | audit_list.APPROVAL_REQUESTS)
        return queryset.filter(event_type=kind) if kind in dict(EVENT_KINDS) else queryset


class AuditLabelFilter(DropdownFilter):
    """A filter by a flow label of the called tool."""

    title = _("flow label")
    parameter_name = audit_list.LABEL_PARAMETER

    def lookups(self, request: HttpRequest, model_admin: DjangoModelAdmin) -> Any:
        return LABEL_CHOICES

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditRow]) -> QuerySet[AuditRow]:
        label = self.value()
        return queryset.filter(audit_search.build_label_filter(label)) if label else queryset


class _ColumnTitleFilter(FieldListFilter):
    """A filter with the translated title of its column."""

    def __init__(self, field: Field, *args: Any, **kwargs: Any) -> None:
        super().__init__(field, *args, **kwargs)
        self.title = COLUMN_TITLES[field.name]


class AuditOutcomeFilter(DropdownFilter):
    """A filter by one or more outcomes, as they are shown: values or lists with commas."""

    title = COLUMN_TITLES["outcome"]
    parameter_name = "outcome__in"

    def lookups(self, request: HttpRequest, model_admin: DjangoModelAdmin) -> Any:
        return audit_list.OUTCOMES

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditRow]) -> QuerySet[AuditRow]:
        values = ",".join(request.GET.getlist("outcome__in")).split(",")
        return queryset.filter(audit_list.filter_outcomes(filter(None, values)))


class AuditDecisionFilter(_ColumnTitleFilter, ChoicesDropdownFilter):
    """A filter by decision."""


class AuditNameFilter(_ColumnTitleFilter, FieldTextFilter):
    """A filter by a part of a recorded name."""


@register(AuditRow)
class AuditAdmin(ScopedAdmin):
    """The active organization's audit rows."""

    needs_to_view = (Action.VIEW_AUDIT,)
    list_display = ("opened_at",)  # the only order that indexes support
    max_paged = MAX_PAGED
    list_filter = (
        AuditOutcomeFilter,
        AuditKindFilter,
        AuditLabelFilter,
        ("decision", AuditDecisionFilter),
        ("code", AuditNameFilter),
        ("agent_name", AuditNameFilter),
        ("server_name", AuditNameFilter),
        ("tool_name", AuditNameFilter),
        ("opened_at", AuditPeriodFilter),
    )
    search_fields = audit_search.COLUMNS
    ordering = ("-opened_at", "-seq")
    list_per_page = 50
    actions = None
    change_list_template = "admin/audit/list.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditRow]:
        """Return the organization's rows without the long JSON columns."""
        organization_id = self.get_principal(request).organization_id
        return AuditRow.objects.for_organization(organization_id).defer("opened", "closed")

    def get_paginator(
        self,
        request: HttpRequest,
        queryset: QuerySet[Any],
        per_page: int,
        *args: Any,
        **kwargs: Any,
    ) -> audit_list.ScannedPaginator:
        """Return a paginator that scans the rows once."""
        limit = self.max_paged
        return audit_list.ScannedPaginator(queryset, per_page, *args, limit=limit, **kwargs)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the change list with the rows that its paginator found."""
        changelist = super().get_changelist_instance(request)
        if not changelist.show_all:
            changelist.result_list = changelist.paginator.list_rows(changelist.page_num)
        return changelist

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AuditRow], search_term: str
    ) -> tuple[QuerySet[AuditRow], bool]:
        """Return the matches among the latest rows, as many as a search covers."""
        rows = queryset.filter(audit_search.build_text_filter(search_term))
        if not getattr(request, "exporting", False):
            organization_id = self.get_principal(request).organization_id
            rows = rows.filter(audit_list.hide_answered_requests(organization_id, request))
            rows = limit_search(request, organization_id, rows)
        return rows, False

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        extra_lookups = {
            "server_id",
            "agent_id",
            "session_id",
            "resource_id",
            "parent_id",
            "action",
            "rule",
        }
        return lookup in extra_lookups or super().lookup_allowed(lookup, value, request)

    def get_urls(self) -> list[Any]:
        """Add the export, saved filters and verification."""
        export_view = self.admin_site.admin_view(self.download_export)
        guards = (self.admin_site.admin_view, self.get_principal)
        other_urls = [*build_filter_urls(*guards), *build_verification_urls(*guards)]
        own_urls = [path("export/", export_view, name="ledger_auditrow_export"), *other_urls]
        return [*own_urls, *super().get_urls()]

    def download_export(self, request: HttpRequest) -> HttpResponseBase:
        """Return the filtered rows as a file."""
        self.get_principal(request).require(Action.VIEW_AUDIT)
        query = request.GET.copy()
        export_format: ExportFormat = "csv" if "".join(query.pop("form", [])) == "csv" else "jsonl"
        request.GET = query  # type: ignore[assignment]  # a copy, which may be changed
        request.exporting = True  # type: ignore[attr-defined]  # a file has all matches
        rows = self.get_changelist_instance(request).get_queryset(request)
        return build_download(rows.defer(None), export_format)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Show the log with calls over time, filters and one entry, or its rows to a script."""
        principal = self.get_principal(request)
        query = request.GET.copy()
        entry_id = "".join(query.pop(audit_list.ENTRY_PARAMETER, [])[:1])
        request.GET = query  # type: ignore[assignment]  # a copy, which may be changed
        own_context = {"title": _("Audit log"), **(extra_context or {})}
        response = super().changelist_view(request, own_context)
        if not isinstance(response, TemplateResponse) or response.context_data is None:
            return response
        context: dict[str, Any] = response.context_data
        if "cl" not in context:
            return response
        context |= self._build_rows(principal, request, context["cl"], entry_id)
        if FRAGMENT_HEADER in request.headers:
            return render_fragment(request, "audit/rows.html", **context)
        context |= self._build_tools(principal, request, context)
        if entry_id:
            row = self._get_row(principal.organization_id, entry_id)
            context |= build_entry_context(row) | {"panel_template": "admin/audit/entry.html"}
        return response

    def _build_rows(
        self, principal: Principal, request: HttpRequest, changelist: Any, entry_id: str
    ) -> dict[str, Any]:
        entries = audit_list.describe_entries(principal.organization_id, changelist.result_list)
        names = {
            str(key): name
            for entry in entries
            for key, name in (
                (entry.row.agent_id, entry.row.agent_name),
                (entry.row.server_id, entry.row.server_name),
            )
            if key
        }
        return {
            "groups": group_turns(entries, entry_id),
            "chips": audit_list.list_chips(request.GET, names),
            "query": request.GET.urlencode(),
            "further": describe_search_limit(request),
            "older_query": build_older_query(request, changelist),
        }

    def _build_tools(
        self, principal: Principal, request: HttpRequest, context: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the context of what is above the rows."""
        query = request.GET
        period = getattr(request, "asked_within", (None, None))
        return {
            "export_forms": (("jsonl", _("Export JSON Lines")), ("csv", _("Export CSV"))),
            "saved": build_filter_panel(principal, query.urlencode()),
            "verified": describe_verification(request, principal),
            "has_entries": bool(context["groups"] or context["chips"]),
            "histogram": audit_list.build_histogram(principal.organization_id, query, period),
            "outcomes": audit_list.OUTCOMES,
            "chosen_outcomes": ",".join(query.getlist("outcome__in")).split(","),
            "kinds": EVENT_KINDS,
            "labels": LABEL_CHOICES,
            "decisions": AuditRow.Decision.choices,
            "other_parameters": [
                (name, value)
                for name in query
                if name not in FORM_PARAMETERS
                for value in query.getlist(name)
            ],
        }

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponseBase:
        """Show one entry with its records in the hash chain, or its panel to a script."""
        principal = self.get_principal(request)
        principal.require(Action.VIEW_AUDIT)
        row = self._get_row(principal.organization_id, object_id)
        if FRAGMENT_HEADER in request.headers:
            return render_fragment(request, "audit/entry.html", **build_entry_context(row))
        return render_screen(
            request,
            "audit/row.html",
            title=f"{capfirst(format_action(row.action))}: {row.resource_name or row.tool_name}",
            opts=self.opts,
            opened=_parse_json(row.opened),
            closed=_parse_json(row.closed),
            **build_entry_context(row),
        )

    def _get_row(self, organization_id: UUID, object_id: str) -> AuditRow:
        try:
            row = (
                AuditRow.objects.for_organization(organization_id)
                .filter(pk=UUID(object_id))
                .first()
            )
        except ValueError:
            row = None
        if row is None:
            raise NotFound(
                format_message("The audit entry {object_id!r} doesn't exist.", object_id=object_id)
            )
        return row


def build_entry_context(row: AuditRow) -> dict[str, Any]:
    details = audit_list.load_entry_details(row)
    return {
        "row": row,
        "details": details,
        "entry": details.entry,
        "action": capfirst(format_action(row.action)),
        "links": _build_links(row),
    }


def _parse_json(text: str) -> Any:
    return json.loads(text) if text else None


def _build_links(row: AuditRow) -> dict[str, str]:
    """Return the URLs of the objects that the row refers to; they may be deleted."""
    addresses = {
        "agent": ("agents_agent_change", row.agent_id),
        "server": ("mcp_servers_server_change", row.server_id),
        "session": ("agents_session_change", row.session_id),
        "parent": ("ledger_auditrow_change", row.parent_id),
    }
    return {
        name: reverse(f"admin:{address}", args=[pk])
        for name, (address, pk) in addresses.items()
        if pk
    }
