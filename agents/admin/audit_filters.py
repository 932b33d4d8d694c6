"""Filters of the audit log: outcomes, periods, chips, saved filters, and how far a search goes."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.contrib.admin import FieldListFilter
from django.contrib.admin import ModelAdmin as DjangoModelAdmin
from django.contrib.admin.views.main import ORDER_VAR, PAGE_VAR, SEARCH_VAR
from django.db.models import Field, Model, Q, QuerySet
from django.http import HttpRequest, HttpResponseNotAllowed, HttpResponseRedirect, QueryDict
from django.http.response import HttpResponseBase
from django.urls import path, reverse
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.text import capfirst
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.approvals.pending_calls import list_pending_entries
from agents.models import Approval, SavedFilter
from agents.saved_filters import (
    can_delete_filter,
    delete_filter,
    list_filters,
    normalize_query,
    save_filter,
)
from bonobot.accounts.admin_base.responses import add_problem_message
from bonobot.accounts.admin_base.scoped_admin import BoundedPaginator
from bonobot.accounts.filter_chips import FilterChip
from bonobot.accounts.principals import Principal
from bonobot.core.admin.theme import (
    ChoicesDropdownFilter,
    DateTimeRangeFilter,
    DropdownFilter,
    FieldTextFilter,
)
from bonobot.core.i18n.localization import format_day
from bonobot.core.i18n.time_zones import (
    format_datetime_input,
    get_reader_time_zone,
    parse_datetime,
)
from bonobot.core.problems import Problem
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.admin.usage import build_time_filters
from bonobot.ledger.audit import search as audit_search
from bonobot.ledger.models import ApprovalCell, AuditRow
from bonobot.ledger.types import APPROVAL_REQUIRED_CODE
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.label_icons import FLOW_MARKS

PENDING = "pending"
ENTRY_PARAMETER = "entry"
TIME_PARAMETER = "opened_at"
LABEL_PARAMETER = "flow_label"
DECIDER_PARAMETER = "decided_by"
# Query parameters that filter nothing: page, export format, Django admin flags.
PLAIN_PARAMETERS = frozenset({PAGE_VAR, ORDER_VAR, ENTRY_PARAMETER, "e", "all", "form"})
APPROVAL_REQUESTS = Q(outcome=AuditRow.Outcome.REFUSED, code=APPROVAL_REQUIRED_CODE)
OUTCOMES = (
    ("ok", _("Succeeded")),
    ("error", _("Failed")),
    ("refused", _("Denied")),
    (PENDING, _("Pending approval")),
    ("cancelled", _("Canceled")),
    ("unknown", _("Unknown")),
    ("open", _("Running")),
)
OUTCOME_TITLES = dict(OUTCOMES)
QUICK_OUTCOMES = ("error", "refused", PENDING)
CHIP_TITLES = {
    "outcome": _("Outcome"),
    "kind": _("Type"),
    "decision": _("Decision"),
    "code": _("Code"),
    "agent_name": _("Agent"),
    "agent_id": _("Agent"),
    "server_name": _("Server"),
    "server_id": _("Server"),
    "tool_name": _("Tool"),
    "actor_label": _("Person or token"),
    DECIDER_PARAMETER: _("Approved or denied by"),
    "session_id": _("Session"),
    "resource_id": _("Resource"),
    "parent_id": _("Caused by"),
    "action": _("Action"),
    "rule": _("Rule"),
    LABEL_PARAMETER: _("Flow label"),
    SEARCH_VAR: _("Search"),
}
LIST_URL_NAME = "admin:ledger_auditrow_changelist"
EVENT_KINDS = (
    ("call", _("tool calls")),
    ("model", _("model turns")),
    ("change", _("changes")),
    ("approval", _("approvals")),
    ("connection", _("connections")),
)
LABEL_CHOICES = tuple((label.value, FLOW_MARKS[label].title) for label in FlowLabel)
VALUE_TITLES: Mapping[str, Mapping[str, Any]] = {
    "kind": dict(EVENT_KINDS),
    "decision": dict(AuditRow.Decision.choices),
}
# Filter titles of audit columns, which have no verbose names.
COLUMN_TITLES = {
    "outcome": _("outcome"),
    "decision": _("decision"),
    "code": _("code"),
    "agent_name": _("agent"),
    "server_name": _("server"),
    "tool_name": _("tool"),
    "actor_label": _("person or token"),
}
# The parameters that the filter form and the search field have fields for.
# Periods of whole days, from days ago until the end of days ago, in the reader's time zone.
PERIOD_PARAMETER = f"{TIME_PARAMETER}_period"
PERIODS: Mapping[str, tuple[Any, int, int]] = {
    "today": (_("Today"), 0, 0),
    "yesterday": (_("Yesterday"), 1, 1),
    "7d": (_("7 days"), 6, 0),
    "30d": (_("30 days"), 29, 0),
}
FORM_PARAMETERS = frozenset(
    {
        *("outcome__in", "kind", "decision__exact", "code__icontains", "agent_name__icontains"),
        *("server_name__icontains", "tool_name__icontains", "q", PAGE_VAR),
        *("actor_label__icontains", LABEL_PARAMETER, DECIDER_PARAMETER),
        *(f"{TIME_PARAMETER}_{end}_{part}" for end in ("from", "to") for part in (0, 1)),
    }
)


def parse_outcomes(query: QueryDict) -> list[str]:
    """Return the outcomes that the list is filtered by, as they are shown."""
    return [value for item in query.getlist("outcome__in") for value in item.split(",") if value]


def filter_outcomes(values: Iterable[str]) -> Q:
    """Return a filter for outcomes as they are shown: requests of approval aren't denied."""
    condition = Q()
    for value in values:
        if value == PENDING:
            condition |= APPROVAL_REQUESTS
        elif value == AuditRow.Outcome.REFUSED:
            condition |= Q(outcome=value) & ~Q(code=APPROVAL_REQUIRED_CODE)
        else:
            condition |= Q(outcome=value)
    return condition


def hide_answered_requests(organization_id: UUID, request: HttpRequest) -> Q:
    """Return a filter without requests that were answered: their call has an entry of its own.

    They are listed with the approvals, and by their code.
    """
    if request.GET.get("kind") == "approval" or any(
        request.GET.get(name) for name in ("code", "code__icontains", "resource_id")
    ):
        return Q()
    is_pending = Q(pk__in=list_pending_entries(organization_id))
    if request.GET.getlist("outcome__in") == [PENDING]:
        return is_pending  # instead of a scan of all requests, most of which are answered
    return ~APPROVAL_REQUESTS | is_pending


class ScannedPaginator(BoundedPaginator):
    """Reads the keys of all pages at once: counting the matches of a search takes as long."""

    @cached_property
    def _keys(self) -> list[UUID]:
        rows: Any = self.object_list
        return list(rows.values_list("pk", flat=True)[: self.limit + 1])

    @cached_property
    def _counted(self) -> int:
        return len(self._keys)

    def list_rows(self, number: int) -> QuerySet[AuditRow]:
        """Return the rows of a page, found by their keys."""
        first = (number - 1) * self.per_page
        keys = self._keys[first : min(first + self.per_page, self.limit)]
        rows = AuditRow.objects.filter(pk__in=keys).defer("opened", "closed")
        all_rows: Any = self.object_list
        return rows.order_by(*all_rows.query.order_by)


@dataclass(frozen=True)
class QuickFilter:
    """A filter for an outcome; the query of an active one is the list's without it."""

    outcome: str
    is_active: bool
    query: str


def list_quick_filters(query: QueryDict) -> list[QuickFilter]:
    """Return the quick filters; further ones add their outcome to the chosen ones."""
    chosen, remaining_query = parse_outcomes(query), _drop(query, {"outcome__in"})
    filters = []
    for outcome in QUICK_OUTCOMES:
        is_active = outcome in chosen
        values = [value for value in (*chosen, outcome) if value != outcome or not is_active]
        outcomes = urlencode({"outcome__in": ",".join(values)}, safe=",") if values else ""
        filters.append(
            QuickFilter(outcome, is_active, "&".join(filter(None, (remaining_query, outcomes))))
        )
    return filters


def list_chips(query: QueryDict, names: Mapping[str, str]) -> list[FilterChip]:
    """Return the active filters; `names` are those of ids."""
    chips = []
    period = {name for name in query if name.startswith(f"{TIME_PARAMETER}_")}
    # The list shows a period of days as selected.
    if any(parse_period(query)) and not find_period_name(query):
        chips.append(FilterChip(_("Time"), _describe_period(query), drop_period(query)))
    for name in query:
        column = name.removesuffix("__icontains").removesuffix("__exact").removesuffix("__in")
        value = query.get(name, "").strip()
        if name in PLAIN_PARAMETERS or name in period or not value:
            continue
        if column == "outcome" and set(parse_outcomes(query)) <= set(QUICK_OUTCOMES):
            continue  # the quick filters show them as active
        chips.append(
            FilterChip(
                CHIP_TITLES.get(column, column),
                make_visible(_describe_value(column, query.getlist(name), names), 60),
                _drop(query, {name}),
            )
        )
    return chips


def _describe_value(column: str, values: list[str], names: Mapping[str, str]) -> str:
    parts = [part for value in values for part in value.split(",")]
    if column == "outcome":
        return ", ".join(str(OUTCOME_TITLES.get(part, part)) for part in parts)
    if column in VALUE_TITLES:
        return ", ".join(capfirst(str(VALUE_TITLES[column].get(part, part))) for part in parts)
    if column == LABEL_PARAMETER:
        return ", ".join(str(FLOW_MARKS[part].title) for part in parts if part in FLOW_MARKS)
    return ", ".join(names.get(part, part) for part in parts)


def _describe_period(query: QueryDict) -> str:
    zone = get_reader_time_zone()
    bounds = [bound.astimezone(zone) if bound else None for bound in parse_period(query)]
    start, end = (f"{format_day(bound)}, {bound:%H:%M}" if bound else "" for bound in bounds)
    since, until = bounds
    if not (since and until):
        return (
            _t("from %(time)s") % {"time": start} if since else _t("until %(time)s") % {"time": end}
        )
    return f"{start} – {until:%H:%M}" if since.date() == until.date() else f"{start} – {end}"


def find_period_name(query: QueryDict) -> str:
    """Return the name of the selected period of days; blank if it has none, or other bounds."""
    has_bounds = any(query.get(f"{TIME_PARAMETER}_{end}_0") for end in ("from", "to"))
    name = query.get(PERIOD_PARAMETER, "")
    return name if name in PERIODS and not has_bounds else ""


def parse_period(query: QueryDict) -> tuple[datetime | None, datetime | None]:
    """Return the first and the last time of the list's period."""
    if name := find_period_name(query):
        _title, first, last = PERIODS[name]
        zone = get_reader_time_zone()
        today = timezone.now().astimezone(zone).date()
        return (
            datetime.combine(today - timedelta(days=first), time.min, zone),
            datetime.combine(today - timedelta(days=last), time.max, zone),
        )
    since, until = (
        [query.get(f"{TIME_PARAMETER}_{end}_{part}", "") for part in (0, 1)]
        for end in ("from", "to")
    )
    return parse_datetime(*since), parse_datetime(*until, is_end=True)


def list_periods(query: QueryDict) -> list[FilterChip]:
    """Return the periods of days; the query of the selected one is that without it."""
    remaining_query = drop_period(query)
    selected = find_period_name(query)
    return [
        FilterChip(
            title,
            name,
            remaining_query
            if name == selected
            else "&".join(filter(None, (remaining_query, urlencode({PERIOD_PARAMETER: name})))),
        )
        for name, (title, _first, _last) in PERIODS.items()
    ]


def list_period_inputs(query: QueryDict) -> dict[str, str]:
    """Return the fields of the period in the filter form, in the reader's time zone."""
    bounds = (None, None) if find_period_name(query) else parse_period(query)
    inputs = {}
    for end, bound in zip(("from", "to"), bounds, strict=True):
        if bound:
            local = bound.astimezone(get_reader_time_zone())
            is_minute = local.second == (59 if end == "to" else 0)
            inputs[f"{end}_date"] = f"{local:%Y-%m-%d}"
            inputs[f"{end}_time"] = f"{local:%H:%M}" if is_minute else f"{local:%H:%M:%S}"
    return inputs


def _drop(query: QueryDict, names: Iterable[str]) -> str:
    """Return the query without some parameters, on its first page."""
    dropped = {*names, PAGE_VAR, ENTRY_PARAMETER}
    return urlencode(
        [(name, value) for name in query if name not in dropped for value in query.getlist(name)]
    )


def drop_period(query: QueryDict) -> str:
    """Return the query of the list without its period, on its first page."""
    return _drop(query, {name for name in query if name.startswith(f"{TIME_PARAMETER}_")})


def build_period_query(query: QueryDict, since: datetime, until: datetime) -> str:
    period = urlencode(build_time_filters(since, until))
    return "&".join(filter(None, (drop_period(query), period)))


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
        add_problem_message(request, problem)
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

    def __init__(
        self, field: Field, request: HttpRequest, params: Any, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(field, request, params, *args, **kwargs)
        params.pop(PERIOD_PARAMETER, None)
        self.bounds = parse_period(request.GET)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        """Return the rows in the range, and store its bounds on the request."""
        request.asked_within = self.bounds  # type: ignore[attr-defined]
        return super().queryset(request, queryset)

    def parse_bounds(self) -> tuple[datetime | None, datetime | None]:
        """Return the bounds of the period, which may be one of days."""
        return self.bounds


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
    since = parse_period(request.GET)[0]
    if since and parameters.pop(PERIOD_PARAMETER, None):
        parameters |= _build_bound("from", since)
    return urlencode(parameters | _build_bound("to", until), doseq=True)


def _build_bound(end: str, moment: datetime) -> dict[str, list[str]]:
    texts = format_datetime_input(moment)
    return {f"{TIME_PARAMETER}_{end}_{part}": [text] for part, text in enumerate(texts)}


def _parse_search_criteria(request: HttpRequest) -> audit_search.SearchCriteria:
    """Return the filters of the list by whether an index supports them."""
    indexed: dict[str, str] = {}
    has_unindexed = False
    for name, values in request.GET.lists():
        filled = [value.strip() for value in values if value.strip()]
        if not filled or name in PLAIN_PARAMETERS or name.startswith(f"{TIME_PARAMETER}_"):
            continue
        column = name.removesuffix("__exact").removesuffix("__in")
        if column == "outcome" and filled == [PENDING]:
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
            return queryset.filter(Q(event_type=kind) | APPROVAL_REQUESTS)
        return queryset.filter(event_type=kind) if kind in dict(EVENT_KINDS) else queryset


class AuditLabelFilter(DropdownFilter):
    """A filter by a flow label of the called tool."""

    title = _("flow label")
    parameter_name = LABEL_PARAMETER

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
        return OUTCOMES

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditRow]) -> QuerySet[AuditRow]:
        return queryset.filter(filter_outcomes(parse_outcomes(request.GET)))


class AuditDecisionFilter(_ColumnTitleFilter, ChoicesDropdownFilter):
    """A filter by decision."""


class AuditNameFilter(_ColumnTitleFilter, FieldTextFilter):
    """A filter by a part of a recorded name."""


class AuditDeciderFilter(DropdownFilter):
    """A filter by a part of the name of who approved or denied calls."""

    title = _("approved or denied by")
    parameter_name = DECIDER_PARAMETER

    def lookups(self, request: HttpRequest, model_admin: DjangoModelAdmin) -> Any:
        name = request.GET.get(DECIDER_PARAMETER, "")
        return ((name, name),)  # the filter form has a text field

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditRow]) -> QuerySet[AuditRow]:
        name = (self.value() or "").strip()
        return queryset.filter(_build_decider_filter(name)) if name else queryset


def _build_decider_filter(name: str) -> Q:
    """Return a filter for calls that a person approved or denied, once or for their session."""
    states = (Approval.State.APPROVED, Approval.State.DENIED)
    approvals = Approval.objects.filter(state__in=states, decided_by__icontains=name).order_by()
    # A client that repeats its call uses the approval with another call.
    cells = ApprovalCell.objects.filter(pk__in=approvals.values("pk"), spent_by__isnull=False)
    pattern = f'"approved_by":"[^"]*{re.escape(json.dumps(name)[1:-1])}'
    is_covered = Q(opened__contains='"approved_by":') & Q(opened__iregex=pattern)
    return Q(pk__in=approvals.values("call_id")) | Q(pk__in=cells.values("spent_by")) | is_covered


def parse_details(text: str) -> dict[str, Any]:
    """Return the details of an entry's text; empty if there are none."""
    details = json.loads(text).get("details") if text else None
    return details if isinstance(details, dict) else {}
