"""The audit log in the admin: its list, histogram, export and verification."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseNotAllowed, HttpResponseRedirect, QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin import audit_entries, audit_filters
from agents.admin.audit_entries import group_turns
from agents.admin.audit_filters import (
    EVENT_KINDS,
    FORM_PARAMETERS,
    LABEL_CHOICES,
    LIST_URL_NAME,
    PLAIN_PARAMETERS,
    TIME_PARAMETER,
    AuditDeciderFilter,
    AuditDecisionFilter,
    AuditKindFilter,
    AuditLabelFilter,
    AuditNameFilter,
    AuditOutcomeFilter,
    AuditPeriodFilter,
    build_filter_panel,
    build_filter_urls,
    build_older_query,
    build_period_query,
    describe_search_limit,
    limit_search,
    parse_outcomes,
)
from agents.admin.audit_names import build_name_urls
from bonobot.accounts.admin_base import ScopedAdmin, render_screen
from bonobot.accounts.admin_base.responses import FRAGMENT_HEADER, render_fragment
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import register
from bonobot.core.celery_tasks import enqueue_task_on_commit
from bonobot.core.i18n.localization import format_day
from bonobot.core.i18n.messages import format_message
from bonobot.core.i18n.time_zones import get_reader_time_zone
from bonobot.core.problems import NotFound
from bonobot.core.text.uuids import parse_uuid
from bonobot.ledger.api.audit import build_download
from bonobot.ledger.audit import search as audit_search
from bonobot.ledger.audit.action_titles import format_action
from bonobot.ledger.audit.call_histogram import OUTCOMES, ROLLUP_COLUMNS, ActivityBar, load_activity
from bonobot.ledger.audit.export import ExportFormat
from bonobot.ledger.audit.verify_chain import VerificationProgress, load_progress
from bonobot.ledger.models import AuditRow
from bonobot.ledger.tasks import CONTINUE_VERIFICATION

MAX_FAULTS_SHOWN = 10
# A script that sends this gets the numbers and bars of the list with its rows.
SUMMARY_HEADER = "Bonobot-Summary"
VERIFICATION_SESSION_KEY = "verification_asked"
# A worker starts and reports progress within this time; otherwise none is running.
START_TIMEOUT = timedelta(minutes=1)
# Rows that the pages of one list have; older ones are in a list that ends where it does. A count
# of more would read as many rows in random places of the table.
MAX_PAGED = 1_000
DEFAULT_SPAN = timedelta(hours=24)
# Bars up to this long are labeled with times.
MAX_TIMED_STEP, MINUTE, DAY = timedelta(hours=1), timedelta(minutes=1), timedelta(days=1)
MAX_TICKS = 6
# Labels right of this part of the axis would meet the one at its end.
MAX_PLACE = 0.85
TICK_INTERVALS = [timedelta(minutes=n) for n in (5, 10, 15, 30, 60, 120, 180, 240, 360, 720)]
WIDTH, HEIGHT, GAP = 1000, 100, 0.2


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
        return render(request, "admin/audit/verification_parts.html", context)

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
        ("actor_label", AuditNameFilter),
        AuditDeciderFilter,
        ("opened_at", AuditPeriodFilter),
    )
    search_fields = audit_search.SEARCHED_COLUMNS
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
    ) -> audit_filters.ScannedPaginator:
        """Return a paginator that scans the rows once."""
        limit = self.max_paged
        return audit_filters.ScannedPaginator(queryset, per_page, *args, limit=limit, **kwargs)

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
            rows = rows.filter(audit_filters.hide_answered_requests(organization_id, request))
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
        """Add the export, saved filters, suggested names and verification."""
        export_view = self.admin_site.admin_view(self.download_export)
        guards = (self.admin_site.admin_view, self.get_principal)
        return [
            path("export/", export_view, name="ledger_auditrow_export"),
            *build_filter_urls(*guards),
            *build_name_urls(*guards),
            *build_verification_urls(*guards),
            *super().get_urls(),
        ]

    def download_export(self, request: HttpRequest) -> HttpResponseBase:
        """Return the filtered rows as a file."""
        self.get_principal(request).require(Action.VIEW_AUDIT)
        query = request.GET.copy()
        export_format: ExportFormat = "csv" if "".join(query.pop("form", [])) == "csv" else "jsonl"
        request.GET = query  # type: ignore[assignment]  # a copy, which may be changed
        request.exporting = True  # type: ignore[attr-defined]  # a file has all matches
        rows = self.get_changelist_instance(request).get_queryset(request)
        return build_download(request, rows.defer(None), export_format)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Show the log with calls over time, filters and one entry, or its rows to a script."""
        principal = self.get_principal(request)
        query = request.GET.copy()
        entry_id = "".join(query.pop(audit_filters.ENTRY_PARAMETER, [])[:1])
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
            if SUMMARY_HEADER in request.headers:
                context |= self._build_summary(principal, request, context)
                context["has_summary"] = True
            return render_fragment(request, "audit/rows.html", **context)
        context |= self._build_tools(principal, request, context)
        if entry_id:
            row = self._get_row(principal.organization_id, entry_id)
            context |= build_entry_context(row) | {
                "panel_template": "admin/audit/entry_details.html"
            }
        return response

    def _build_rows(
        self, principal: Principal, request: HttpRequest, changelist: Any, entry_id: str
    ) -> dict[str, Any]:
        entries = audit_entries.describe_entries(principal.organization_id, changelist.result_list)
        names = {
            str(key): name
            for entry in entries
            for key, name in (
                (entry.row.agent_id, entry.row.agent_name),
                (entry.row.server_id, entry.row.server_name),
            )
            if key
        }
        chips = audit_filters.list_chips(request.GET, names)
        quick_filters = audit_filters.list_quick_filters(request.GET)
        active_count = sum(quick_filter.is_active for quick_filter in quick_filters)
        filter_count = len(chips) + active_count + bool(audit_filters.find_period_name(request.GET))
        return {
            "groups": group_turns(entries, entry_id),
            "chips": chips,
            "quick_filters": quick_filters,
            "has_removable_filters": bool(chips or active_count),
            "filter_count": filter_count,
            "is_filtered": filter_count > 0,
            "query": request.GET.urlencode(),
            "further": describe_search_limit(request),
            "older_query": build_older_query(request, changelist),
        }

    def _build_summary(
        self, principal: Principal, request: HttpRequest, context: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the context of the numbers and bars above the rows, which a live tail updates."""
        period = getattr(request, "asked_within", (None, None))
        return {
            "has_entries": bool(context["groups"] or context["is_filtered"]),
            "histogram": build_histogram(principal.organization_id, request.GET, period),
        }

    def _build_tools(
        self, principal: Principal, request: HttpRequest, context: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the context of what is above the rows."""
        query = request.GET
        return self._build_summary(principal, request, context) | {
            "export_forms": (("jsonl", _("Export JSON Lines")), ("csv", _("Export CSV"))),
            "saved": build_filter_panel(principal, query.urlencode()),
            "verified": describe_verification(request, principal),
            "periods": audit_filters.list_periods(query),
            "period": audit_filters.find_period_name(query),
            "is_all_time": not any(audit_filters.parse_period(query)),
            "all_time_query": audit_filters.drop_period(query),
            "period_inputs": audit_filters.list_period_inputs(query),
            "outcomes": audit_filters.OUTCOMES,
            "chosen_outcomes": parse_outcomes(query),
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
        context = build_entry_context(row)
        if FRAGMENT_HEADER in request.headers:
            return render_fragment(request, "audit/entry_details.html", **context)
        name = context["entry"].subject or row.resource_name or row.tool_name
        return render_screen(
            request,
            "audit/entry_page.html",
            title=f"{context['action']}: {name}",
            opts=self.opts,
            opened=_parse_json(row.opened),
            closed=_parse_json(row.closed),
            **context,
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
    details = audit_entries.load_entry_details(row)
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


@dataclass(frozen=True)
class Histogram:
    """The bars of calls over time, their scale, and whether all filters are applied."""

    bars: list[dict[str, Any]]
    highest: int
    total: int
    step: timedelta
    # What the bars cover, as the list does; blank for all time.
    span: str
    # The place in percent, the time of day or the day, and the day below the first time of one.
    ticks: list[tuple[float, str, str]]

    @property
    def legend(self) -> list[tuple[str, Any]]:
        """Return the outcomes that the bars have, with their titles."""
        return [
            (outcome, audit_filters.OUTCOME_TITLES[outcome])
            for outcome in OUTCOMES
            if any(bar["bar"].counts[outcome] for bar in self.bars)
        ]


def build_histogram(
    organization_id: UUID, query: QueryDict, period: tuple[datetime | None, datetime | None]
) -> Histogram | None:
    """Return the calls over time for the list's filters; None if rollups don't know a filter."""
    filters = _select_rollup_filters(query)
    if filters is None:
        return None
    until = min(period[1] or timezone.now(), timezone.now())
    since = period[0] or find_first_time(organization_id, until)
    if since >= until:
        return None
    bars = load_activity(organization_id, since, until, filters, parse_outcomes(query))
    highest = max((bar.total for bar in bars), default=0) or 1
    width = WIDTH / len(bars)
    shown_parts = [
        {
            "bar": bar,
            "x": round(index * width, 2),
            "full_width": round(width, 2),
            "parts": _stack_parts(bar, index * width, width, highest),
            "query": build_period_query(query, bar.begins, bar.ends),
        }
        for index, bar in enumerate(bars)
    ]
    return Histogram(
        shown_parts,
        highest=highest,
        total=sum(bar.total for bar in bars),
        step=bars[0].ends - bars[0].begins,
        span=_format_span(since, until) if any(period) else "",
        ticks=_build_ticks(bars),
    )


def find_first_time(organization_id: UUID, until: datetime) -> datetime:
    """Return the time of the organization's first entry, at least a day before `until`."""
    entries = AuditRow.objects.for_organization(organization_id).order_by("opened_at")
    first = entries.values_list("opened_at", flat=True).first()
    return min(first or until, until - DEFAULT_SPAN)


def _format_span(since: datetime, until: datetime) -> str:
    """Return the days of a span, with times of day if it is a day or less."""
    zone = get_reader_time_zone()
    start, end = since.astimezone(zone), until.astimezone(zone)
    start_day, end_day = format_day(start), format_day(end)
    if until - since > DAY:
        return f"{start_day} – {end_day}"
    end_text = f"{end:%H:%M}" if end_day == start_day else f"{end_day} {end:%H:%M}"
    return f"{start_day} {start:%H:%M} – {end_text}"


def _build_ticks(bars: list[ActivityBar]) -> list[tuple[float, str, str]]:
    """Return the labels of the time axis: round times of day, or days where they begin.

    The last one is the end of the axis: a time, or the last day.
    """
    start, end = bars[0].begins, bars[-1].ends
    step = bars[0].ends - start
    # Bars of days are of UTC.
    zone = UTC if step >= DAY else get_reader_time_zone()
    is_short = step <= MAX_TIMED_STEP
    if is_short:
        wanted = (end - start) / (MAX_TICKS + 1)
        interval = next((item for item in TICK_INTERVALS if item >= wanted), DAY)
    else:
        interval = max(DAY, step) * max(1, (end - start) // (max(DAY, step) * MAX_TICKS))
    midnight = datetime.combine(start.astimezone(zone).date(), time.min, zone).astimezone(UTC)
    ticks, day = [], timezone.now().astimezone(zone).date()
    for number in range((end - midnight) // interval + 1):
        moment = midnight + number * interval
        place = (moment - start) / (end - start)
        if not 0 <= place <= MAX_PLACE:
            continue
        local = moment.astimezone(zone)
        day_text = format_day(local) if local.date() != day or not is_short else ""
        label = (f"{local:%H:%M}", day_text) if is_short else (day_text, "")
        ticks.append((round(100 * place, 2), *label))
        day = local.date()
    if is_short:
        return [*ticks, (100.0, *_build_end_label(start.astimezone(zone), end.astimezone(zone)))]
    last_day = format_day((end - MINUTE).astimezone(zone))
    return [*(tick for tick in ticks if tick[1] != last_day), (100.0, last_day, "")]


def _build_end_label(start: datetime, end: datetime) -> tuple[str, str]:
    """Return the time of the end, and its day if the axis has several."""
    return f"{end:%H:%M}", format_day(end) if end.date() != start.date() else ""


def _select_rollup_filters(query: QueryDict) -> dict[str, Any] | None:
    """Return the filters that rollups have, or None if there is another one."""
    filters: dict[str, Any] = {}
    for name in query:
        value = query.get(name, "").strip()
        is_plain = name in PLAIN_PARAMETERS or name.startswith(f"{TIME_PARAMETER}_")
        if is_plain or not value or name.startswith("outcome"):
            continue
        if name == "kind" and value == "call":
            continue
        if name not in ROLLUP_COLUMNS:
            return None
        filters[name] = parse_uuid(value) if name.endswith("_id") else value
    return None if None in filters.values() else filters


def _stack_parts(bar: ActivityBar, x: float, width: float, highest: int) -> list[dict[str, Any]]:
    parts, base = [], float(HEIGHT)
    for series in OUTCOMES:
        if count := bar.counts[series]:
            height = HEIGHT * count / highest
            base -= height
            parts.append(
                {
                    "series": series,
                    "x": round(x + width * GAP / 2, 2),
                    "width": round(width * (1 - GAP), 2),
                    "y": round(base, 2),
                    "height": round(height, 2),
                }
            )
    return parts
