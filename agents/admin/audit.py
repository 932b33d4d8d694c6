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
from django.contrib.admin.views.main import ORDER_VAR, PAGE_VAR
from django.db.models import Field, Model, QuerySet
from django.http import HttpRequest, HttpResponseNotAllowed, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.models import SavedFilter
from agents.saved_filters import (
    can_delete_filter,
    delete_filter,
    list_filters,
    normalize_query,
    save_filter,
)
from bonobot.accounts.admin_base import ScopedAdmin, render_screen
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import ago, milliseconds, render_badge
from bonobot.core.admin.theme import (
    ChoicesDropdownFilter,
    DateTimeRangeFilter,
    DropdownFilter,
    FieldTextFilter,
    MultipleChoicesDropdownFilter,
    display,
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

LIST_URL_NAME = "admin:ledger_auditrow_changelist"
MAX_FAULTS_SHOWN = 10
VERIFICATION_SESSION_KEY = "verification_asked"
# A worker starts and reports progress within this time; otherwise none is running.
START_TIMEOUT = timedelta(minutes=1)


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
    return {"asked": True, "running": is_waiting, "stalled": not is_waiting}


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
                "here": row.query == current_query,
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
    """Redirect to the list with its filters."""
    try:
        normalized = normalize_query(query)
    except ValueError:
        normalized = ""
    return HttpResponseRedirect(reverse(LIST_URL_NAME) + (f"?{normalized}" if normalized else ""))


TIME_PARAMETER = "opened_at"
UNTIL_PARAMETER = f"{TIME_PARAMETER}_to"
# Query parameters that filter nothing: page, export format, Django admin flags.
IGNORED_PARAMETERS = frozenset({PAGE_VAR, "form", "e", "all", "_changelist_filters"})
# Orderings by the first column, the time, which the indexes support.
TIME_ORDERINGS = frozenset({"", "1", "-1"})


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
    parameters = {name: request.GET.getlist(name) for name in request.GET if name != PAGE_VAR}
    before = timezone.localtime(since - audit_search.TIME_RESOLUTION)
    parameters |= {
        f"{UNTIL_PARAMETER}_0": [f"{before:%Y-%m-%d}"],
        f"{UNTIL_PARAMETER}_1": [f"{before:%H:%M:%S.%f}"],
    }
    return {
        "since": since,
        "rows": audit_search.MAX_ROWS_SCANNED,
        "query": urlencode(parameters, doseq=True),
    }


def _parse_search_criteria(request: HttpRequest) -> audit_search.SearchCriteria:
    """Return the filters of the list by whether an index supports them."""
    indexed: dict[str, str] = {}
    has_unindexed = False
    for name, values in request.GET.lists():
        filled = [value.strip() for value in values if value.strip()]
        if not filled or name in IGNORED_PARAMETERS or name.startswith(f"{TIME_PARAMETER}_"):
            continue
        column = name.removesuffix("__exact").removesuffix("__in")
        if name == ORDER_VAR:
            has_unindexed |= filled[-1] not in TIME_ORDERINGS
        elif column in audit_search.INDEXED_COLUMNS and len(filled) == 1 and "," not in filled[0]:
            indexed[column] = filled[0]
        else:
            has_unindexed = True
    return audit_search.SearchCriteria(indexed, has_other_filters=has_unindexed)


EVENT_KINDS = (
    ("call", _("tool calls")),
    ("model", _("model turns")),
    ("change", _("changes")),
    ("approval", _("approvals")),
    ("connection", _("connections")),
)


class AuditKindFilter(DropdownFilter):
    """A filter by kind: calls, model turns, changes, approvals or connections."""

    title = _("type")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: DjangoModelAdmin) -> Any:
        """Return the kinds."""
        return EVENT_KINDS

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditRow]) -> QuerySet[AuditRow]:
        """Return the rows of the chosen kind."""
        kind = self.value()
        return queryset.filter(event_type=kind) if kind in dict(EVENT_KINDS) else queryset


# Filter titles of audit columns, which have no verbose names.
COLUMN_TITLES = {
    "outcome": _("outcome"),
    "decision": _("decision"),
    "code": _("code"),
    "agent_name": _("agent"),
    "server_name": _("server"),
    "tool_name": _("tool"),
}


class _ColumnTitleFilter(FieldListFilter):
    """A filter with the translated title of its column."""

    def __init__(self, field: Field, *args: Any, **kwargs: Any) -> None:
        super().__init__(field, *args, **kwargs)
        self.title = COLUMN_TITLES[field.name]


class AuditOutcomeFilter(_ColumnTitleFilter, MultipleChoicesDropdownFilter):
    """A filter by one or more outcomes."""


class AuditDecisionFilter(_ColumnTitleFilter, ChoicesDropdownFilter):
    """A filter by decision."""


class AuditNameFilter(_ColumnTitleFilter, FieldTextFilter):
    """A filter by a part of a recorded name."""


@register(AuditRow)
class AuditAdmin(ScopedAdmin):
    """The active organization's audit rows."""

    needs_to_view = (Action.VIEW_AUDIT,)
    list_display = ("when", "result", "what", "on_what", "agent", "server", "who", "took")
    list_display_links = ("when",)
    list_filter = (
        ("outcome", AuditOutcomeFilter),
        AuditKindFilter,
        ("decision", AuditDecisionFilter),
        ("code", AuditNameFilter),
        ("agent_name", AuditNameFilter),
        ("server_name", AuditNameFilter),
        ("tool_name", AuditNameFilter),
        ("opened_at", AuditPeriodFilter),
    )
    search_fields = audit_search.COLUMNS
    search_help_text = _("Searches names, codes, and arguments.")
    ordering = ("-opened_at", "-seq")
    list_per_page = 50
    actions = None
    list_before_template = "admin/audit/tools.html"
    empty_icon = "receipt_long"
    empty_text = _("Every call, change, and sign-in is recorded here as it happens.")

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditRow]:
        """Return the organization's rows without the long JSON columns."""
        organization_id = self.get_principal(request).organization_id
        return AuditRow.objects.for_organization(organization_id).defer("opened", "closed")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AuditRow], search_term: str
    ) -> tuple[QuerySet[AuditRow], bool]:
        """Return the matches among the latest rows, as many as a search covers."""
        rows = queryset.filter(audit_search.build_text_filter(search_term))
        if not getattr(request, "exporting", False):
            organization_id = self.get_principal(request).organization_id
            rows = limit_search(request, organization_id, rows)
        return rows, False

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        """Allow the lookups that other pages link with."""
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

    @display(description=_("time"), ordering="opened_at")
    def when(self, row: AuditRow) -> Any:
        """Return when the action started."""
        return ago(row.opened_at)

    @display(description=_("outcome"), ordering="outcome")
    def result(self, row: AuditRow) -> Any:
        """Return the outcome with its code."""
        return render_badge(row.outcome, row.code or row.outcome, row.rule)

    @display(description=_("action"), ordering="action")
    def what(self, row: AuditRow) -> SafeString:
        """Return the title of the action, with its code."""
        return format_html('<span title="{}">{}</span>', row.action, format_action(row.action))

    @display(description=_("resource"), ordering="resource_name")
    def on_what(self, row: AuditRow) -> str:
        """Return the object of the action."""
        name = row.tool_name or row.resource_name or row.resource_id
        times = f" ×{row.repeats + 1}" if row.repeats else ""
        return make_visible(name, 80) + times

    @display(description=_("agent"), ordering="agent_name")
    def agent(self, row: AuditRow) -> str:
        """Return the agent's name."""
        return make_visible(row.agent_name, 60) or "–"

    @display(description=_("server"), ordering="server_name")
    def server(self, row: AuditRow) -> str:
        """Return the server's name."""
        return make_visible(row.server_name, 60) or "–"

    @display(description=_("actor"), ordering="actor_label")
    def who(self, row: AuditRow) -> str:
        """Return the actor."""
        return make_visible(f"{row.actor_kind}: {row.actor_label or row.actor_id}", 60)

    @display(description=_("duration"), ordering="duration_ms")
    def took(self, row: AuditRow) -> str:
        """Return the duration."""
        return milliseconds(row.duration_ms)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Show the list with exports, saved filters and verification."""
        export_formats = (("jsonl", _("Export JSON Lines")), ("csv", _("Export CSV")))
        filter_panel = build_filter_panel(self.get_principal(request), request.GET.urlencode())
        verification = describe_verification(request, self.get_principal(request))
        own_context = {
            "export_forms": export_formats,
            "saved": filter_panel,
            "verified": verification,
        }
        response = super().changelist_view(request, {**(extra_context or {}), **own_context})
        if isinstance(response, TemplateResponse) and response.context_data is not None:
            response.context_data["further"] = describe_search_limit(request)
        return response

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponseBase:
        """Show one row with its opening and closing records."""
        principal = self.get_principal(request)
        principal.require(Action.VIEW_AUDIT)
        row = self._get_row(principal.organization_id, object_id)
        return render_screen(
            request,
            "audit/row.html",
            title=f"{format_action(row.action)}: {row.resource_name or row.tool_name}",
            row=row,
            action=format_action(row.action),
            opts=self.opts,
            opened=_parse_json(row.opened),
            closed=_parse_json(row.closed),
            links=_build_links(row),
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
