"""The page with usage and cost."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django import forms
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from bonobot.accounts.admin_base import svg_charts
from bonobot.accounts.admin_base.responses import add_problem_to_form, render_screen
from bonobot.accounts.admin_base.svg_charts import Chart, ChartColumn, ChartValue
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.principals import Principal
from bonobot.accounts.templatetags.display import cost, dollars, tokens
from bonobot.core.i18n.localization import format_day, format_number
from bonobot.core.i18n.time_zones import format_datetime_input
from bonobot.core.problems import Problem
from bonobot.ledger.api.usage import build_csv_response
from bonobot.ledger.usage import query_rollups
from bonobot.ledger.usage.aggregation import UsageLine
from bonobot.ledger.usage.report import (
    DEFAULT_DAYS,
    MAX_HOURLY_SPAN,
    TITLES,
    UsageQuery,
    UsageReport,
    UsageReportEntry,
    build_filters,
    load_usage_report,
)

MAX_LINES_SHOWN = 200  # lines; only exports and reports by day have more
PERIODS = ((1, _("Today")), (7, _("7 days")), (DEFAULT_DAYS, _("30 days")), (90, _("90 days")))
MAX_DAYS_DRAWN = 120
# Lines of calls without what a report is grouped by.
UNNAMED_TITLES = {"agent": _("Without an agent"), "server": _("Without a server")}
FILTERS = ("since", "until", "agent", "server", "tool", "model")
AUDIT_FILTERS = {"agent": "agent_id", "server": "server_id"}
CALLS_LEGEND = (("bar", _("succeeded")), ("denied", _("denied")), ("failed", _("failed")))
# Only in the legend of charts that have such calls.
OTHER_LEGENDS = (
    ("unknown", _("unknown")),
    ("canceled", _("canceled")),
    ("pending", _("pending")),
)
INPUT_ATTRS = {"class": "bb-input"}


class UsageForm(forms.Form):
    """The parameters of a report."""

    by = forms.ChoiceField(choices=list(TITLES.items()), required=False, widget=forms.HiddenInput())
    since = forms.DateField(
        label=_("From"),
        required=False,
        widget=forms.DateInput(attrs={**INPUT_ATTRS, "type": "date"}),
    )
    until = forms.DateField(
        label=_("To"), required=False, widget=forms.DateInput(attrs={**INPUT_ATTRS, "type": "date"})
    )
    agent = forms.CharField(
        label=_("Agent"), required=False, max_length=255, widget=forms.TextInput(attrs=INPUT_ATTRS)
    )
    server = forms.CharField(
        label=_("Server"), required=False, max_length=255, widget=forms.TextInput(attrs=INPUT_ATTRS)
    )
    tool = forms.CharField(
        label=_("Tool"), required=False, max_length=255, widget=forms.TextInput(attrs=INPUT_ATTRS)
    )
    model = forms.CharField(
        label=_("Model"), required=False, max_length=255, widget=forms.TextInput(attrs=INPUT_ATTRS)
    )

    def build_query(self) -> UsageQuery:
        """Return the query; `until` is inclusive.

        Days are those of UTC, as in the report, unless it has hours: those are in the current
        time zone.
        """
        values = {name: value for name, value in self.cleaned_data.items() if value}
        if since := values.pop("since", None):
            values["since"] = _to_midnight(since)
        if until := values.pop("until", None):
            values["until"] = _to_midnight(until + timedelta(days=1))
        return UsageQuery(**values)


def show_usage(request: HttpRequest) -> HttpResponseBase:
    """Show a report, or return it as a CSV file."""
    principal = resolve_principal(request)
    form = UsageForm(request.GET or None)
    report, as_csv = None, "csv" in request.GET
    limit = query_rollups.MAX_LINES if as_csv or request.GET.get("by") == "day" else MAX_LINES_SHOWN
    if not form.is_bound:
        report = load_usage_report(principal, UsageQuery(), max_lines=limit)
    elif form.is_valid():
        try:
            report = load_usage_report(principal, form.build_query(), max_lines=limit)
        except Problem as problem:
            if problem.code == "forbidden":
                raise
            add_problem_to_form(form, problem)
    if report and as_csv:
        return build_csv_response(report)
    return render_screen(
        request,
        "usage.html",
        title=_("Usage"),
        form=form,
        report=report,
        rows=_build_rows(report) if report else [],
        shown=limit if report and len(report.entries) == limit else None,
        title_of=TITLES[report.query.by] if report else "",
        unnamed_title=UNNAMED_TITLES.get(report.query.by, "–") if report else "",
        tiles=_build_tiles(_load_totals(principal, report)) if report else [],
        chart=_build_chart(principal, report) if report else None,
        periods=_list_periods(request),
        groups=_list_groups(request, principal, report.query.by) if report else [],
        is_filtered=any(request.GET.get(name) for name in FILTERS),
        export=_build_query_string(request, csv="1"),
    )


def _list_periods(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the periods to choose from, up to now."""
    period_values = (request.GET.get("since", ""), request.GET.get("until", ""))
    # Reports of several days have days of UTC, as those of the dashboard.
    days_of_utc = timezone.now().astimezone(UTC).date()
    first_days = {
        days: (timezone.localdate() if days == 1 else days_of_utc) - timedelta(days=days - 1)
        for days, _title in PERIODS
    }
    return [
        {
            "title": title,
            "url": _build_query_string(request, since=first_days[days].isoformat(), until=""),
            "current": period_values == (first_days[days].isoformat(), "")
            or (days == DEFAULT_DAYS and not any(period_values)),
        }
        for days, title in PERIODS
    ]


def _list_groups(request: HttpRequest, principal: Principal, by: str) -> list[dict[str, Any]]:
    """Return what a report can be grouped by; organizations for those who see several."""
    return [
        {"title": capfirst(title), "url": _build_query_string(request, by=name)}
        | {"current": name == by}
        for name, title in TITLES.items()
        if name != "organization" or principal.platform_admin
    ]


def _load_totals(principal: Principal, report: UsageReport) -> UsageReport:
    """Return a report whose total has both calls and model turns, the same for every grouping."""
    if report.query.by in ("organization", "agent"):
        return report
    return load_usage_report(principal, replace(report.query, by="agent"), max_lines=1)


def _build_tiles(report: UsageReport) -> list[dict[str, Any]]:
    """Return the totals, each with the URL of its rows; blank if they are of all organizations."""
    total = report.total
    tiles: tuple[tuple[Any, str, str, dict[str, str]], ...] = (
        (_("Calls"), format_number(total.calls), "", {"kind": "call"}),
        (
            _("Failed calls"),
            format_number(total.errors),
            "bad" if total.errors else "",
            {"kind": "call", "outcome__in": "error"},
        ),
        (
            _("Denied"),
            format_number(total.refused),
            "trust" if total.refused else "",
            {"kind": "call", "outcome__in": "refused"},
        ),
        (_("Model turns"), format_number(total.turns), "", {"kind": "model"}),
        (_("Tokens"), tokens(total.tokens), "", {"kind": "model"}),
        (_("Cost"), cost(total.cost_microusd, total.tokens), "", {"kind": "model"}),
    )
    is_own = report.query.by != "organization"
    return [
        {
            "title": title,
            "value": value,
            "tone": tone,
            "note": describe_pending(total.pending) if query == {"kind": "call"} else "",
            "url": _build_audit_url(report, report.since, report.until, **query) if is_own else "",
        }
        for title, value, tone, query in tiles
    ]


def describe_pending(pending: int) -> str:
    """Return how many calls wait for approval, or for a retry after it; blank for none."""
    if not pending:
        return ""
    text = ngettext("%(n)s pending call", "%(n)s pending calls", pending)
    return text % {"n": format_number(pending)}


def _build_chart(principal: Principal, report: UsageReport) -> Chart | None:
    """Return the days of a report as bars: of costs, calls by outcome, or model turns.

    It is the first of these that the report has.

    None for a report of several organizations, or of a single day.
    """
    last_moment = report.until - timedelta(microseconds=1)
    first, last = (time.astimezone(UTC).date() for time in (report.since, last_moment))
    if report.query.by == "organization" or first == last:
        return None
    daily = report
    if report.query.by != "day":
        daily = load_usage_report(principal, replace(report.query, by="day"))
    lines = {entry.name: entry.line for entry in daily.entries}
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    steps = [(day, lines.get(day.isoformat()) or UsageLine()) for day in days[-MAX_DAYS_DRAWN:]]
    has_costs = any(line.cost_microusd for _day, line in steps)
    has_calls = not has_costs and any(line.calls for _day, line in steps)
    if has_calls:
        title, kind = _("Calls"), "call"
        stacks = [
            [
                ("", line.ok),
                ("warn", line.refused),
                ("bad", line.errors),
                ("unknown", line.unknown),
                ("canceled", line.canceled),
                ("pending", line.pending),
            ]
            for _day, line in steps
        ]
        highest = max(line.calls for _day, line in steps)
    else:
        title, kind = _("Cost") if has_costs else _("Model turns"), "model"
        numbers = [line.cost_microusd if has_costs else line.turns for _day, line in steps]
        stacks = [[("", number)] for number in numbers]
        highest = max(numbers)
    axis = svg_charts.choose_axis(highest)
    bars = svg_charts.build_bars(stacks, axis[0])
    return Chart(
        title=title,
        axis=[dollars(label) if has_costs else format_number(label) for label in axis],
        columns=[
            ChartColumn(
                bar,
                format_day(day),
                _build_audit_url(report, *_get_day_span(day), kind=kind),
                _build_call_values(line) if has_calls else _build_values(line, has_costs=has_costs),
            )
            for bar, (day, line) in zip(bars, steps, strict=True)
        ],
        labels=svg_charts.place_labels([format_day(day) for day, _line in steps]),
        legend=_choose_legend(daily.total) if has_calls else (),
    )


def _choose_legend(total: UsageLine) -> tuple[tuple[str, Any], ...]:
    numbers = (total.unknown, total.canceled, total.pending)
    others = zip(OTHER_LEGENDS, numbers, strict=True)
    return (*CALLS_LEGEND, *(legend for legend, number in others if number))


def _build_values(line: UsageLine, *, has_costs: bool) -> tuple[ChartValue, ...]:
    return (
        ChartValue(_("Cost"), dollars(line.cost_microusd), "bar" if has_costs else "none"),
        ChartValue(_("Calls"), format_number(line.calls), "none"),
        ChartValue(_("Model turns"), format_number(line.turns), "none" if has_costs else "bar"),
        ChartValue(_("Tokens"), tokens(line.tokens), "none"),
    )


def _build_call_values(line: UsageLine) -> tuple[ChartValue, ...]:
    numbers = (line.ok, line.refused, line.errors, line.unknown, line.canceled, line.pending)
    titles = (*CALLS_LEGEND, *OTHER_LEGENDS)
    return (
        *(
            ChartValue(title, format_number(number), tone)
            for (tone, title), number in zip(titles, numbers, strict=True)
            if number or (tone, title) in CALLS_LEGEND
        ),
        ChartValue(_("Model turns"), format_number(line.turns), "none"),
        ChartValue(_("Tokens"), tokens(line.tokens), "none"),
    )


def _build_rows(report: UsageReport) -> list[dict[str, Any]]:
    parts = [entry.line.calls for entry in report.entries]
    if not any(parts):
        parts = [entry.line.turns for entry in report.entries]
    highest = max(parts, default=0)
    return [
        {"entry": entry, "line": entry.line, "url": _build_row_url(report, entry), "part": part}
        | {"highest": highest}
        for entry, part in zip(report.entries, parts, strict=True)
    ]


def _build_row_url(report: UsageReport, entry: UsageReportEntry) -> str:
    """Return the URL of the audit list of a line's calls; blank for other organizations."""
    by = report.query.by
    subject: dict[str, Any] = {}
    since, until = report.since, report.until
    if by in AUDIT_FILTERS and entry.id:
        subject[AUDIT_FILTERS[by]] = entry.id
    elif by == "tool":
        subject["tool_name"] = entry.name
        subject |= {"server_id": entry.id} if entry.id else {}
    elif by == "model":
        subject["resource_id"] = entry.name
    elif by == "day":
        since, until = _get_day_span(date.fromisoformat(entry.name))
    else:
        return ""
    kind = "model" if by == "model" else "call"
    return _build_audit_url(report, since, until, kind=kind, **subject)


def _build_audit_url(
    report: UsageReport, since: datetime, until: datetime, **parameters: Any
) -> str:
    """Return the URL of the audit list with the filters of a report and these parameters."""
    filters = build_filters(report.query)
    if model := filters.pop("model", ""):
        filters["resource_id"] = model
    query = filters | parameters | build_time_filters(since, until)
    return f"{reverse('admin:ledger_auditrow_changelist')}?{urlencode(query)}"


def _get_day_span(day: date) -> tuple[datetime, datetime]:
    """Return when a day of UTC starts and ends."""
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return start, start + timedelta(days=1)


def build_time_filters(since: datetime, until: datetime | None = None) -> dict[str, str]:
    """Return the parameters of the audit list for a time from `since` to before `until`."""
    filters: dict[str, str] = {}
    last = until - timedelta(microseconds=1) if until else None
    for end, moment in (("from", since), ("to", last)):
        if moment:
            texts = format_datetime_input(moment)
            filters |= {f"opened_at_{end}_{part}": text for part, text in enumerate(texts)}
    return filters


def _build_query_string(request: HttpRequest, **changed_parameters: str) -> str:
    parameters = request.GET.copy()
    for name, value in changed_parameters.items():
        parameters[name] = value
        if not value:
            del parameters[name]
    return f"?{parameters.urlencode()}"


def _to_midnight(day: date) -> datetime:
    """Return when a day starts: of UTC, unless it is so recent that reports have hours."""
    midnight = datetime(day.year, day.month, day.day)
    local_midnight = timezone.make_aware(midnight)
    if timezone.now() - local_midnight > MAX_HOURLY_SPAN:
        return midnight.replace(tzinfo=UTC)
    return local_midnight
