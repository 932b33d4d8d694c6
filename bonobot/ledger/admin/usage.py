"""The page with usage and cost."""

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.admin_base.responses import add_problem_to_form, render_screen
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.usage_reports import load_usage_report
from bonobot.core.problems import Problem
from bonobot.ledger.api.usage import build_csv_response
from bonobot.ledger.usage import query_rollups
from bonobot.ledger.usage.report import TITLES, UsageQuery, UsageReport, UsageReportEntry

MAX_LINES_SHOWN = 200  # lines; only exports and reports by day have more
PERIODS = ((1, _("today")), (7, _("7 days")), (30, _("30 days")), (90, _("90 days")))
AUDIT_FILTERS = {"agent": "agent_id", "server": "server_id"}
INPUT_ATTRS = {"class": "bb-input"}


class UsageForm(forms.Form):
    """The parameters of a report."""

    by = forms.ChoiceField(
        label=_("Group by"),
        choices=[(by, capfirst(title)) for by, title in TITLES.items()],
        required=False,
        widget=forms.Select(attrs=INPUT_ATTRS),
    )
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
        """Return the query; days are in the current time zone, and `until` is inclusive."""
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
        ranges=[(title, _build_period_query(request, days)) for days, title in PERIODS],
        export=_build_query_string(request, csv="1"),
    )


def _build_rows(report: UsageReport) -> list[dict[str, Any]]:
    parts = [entry.line.calls + entry.line.turns for entry in report.entries]
    highest = max(parts, default=0)
    return [
        {"entry": entry, "line": entry.line, "url": _build_audit_url(report, entry), "part": part}
        | {"highest": highest}
        for entry, part in zip(report.entries, parts, strict=True)
    ]


def _build_audit_url(report: UsageReport, entry: UsageReportEntry) -> str:
    """Return the URL of the audit list of a line's calls; blank for other organizations."""
    by = report.query.by
    parameters: dict[str, Any] = {"kind": "model" if by == "model" else "call"}
    since, until = report.since, report.until
    if by in AUDIT_FILTERS and entry.id:
        parameters[AUDIT_FILTERS[by]] = entry.id
    elif by == "tool":
        parameters["tool_name"] = entry.name
        parameters |= {"server_id": entry.id} if entry.id else {}
    elif by == "model":
        parameters["resource_id"] = entry.name
    elif by == "day":
        since = datetime.fromisoformat(f"{entry.name}T00:00:00+00:00")
        until = since + timedelta(days=1)
    else:
        return ""
    address = reverse("admin:ledger_auditrow_changelist")
    return f"{address}?{urlencode(parameters | _build_time_filters(since, until))}"


def _build_time_filters(since: datetime, until: datetime) -> dict[str, str]:
    filters = {}
    ends = (("from", since), ("to", until - timedelta(microseconds=1)))
    for end, moment in ends:
        local = timezone.localtime(moment)
        filters[f"opened_at_{end}_0"] = f"{local:%Y-%m-%d}"
        filters[f"opened_at_{end}_1"] = f"{local:%H:%M:%S.%f}"
    return filters


def _build_period_query(request: HttpRequest, days: int) -> str:
    first = timezone.localdate() - timedelta(days=days - 1)
    return _build_query_string(request, since=first.isoformat(), until="")


def _build_query_string(request: HttpRequest, **changed_parameters: str) -> str:
    parameters = request.GET.copy()
    for name, value in changed_parameters.items():
        parameters[name] = value
        if not value:
            del parameters[name]
    return f"?{parameters.urlencode()}"


def _to_midnight(day: Any) -> datetime:
    return timezone.make_aware(datetime(day.year, day.month, day.day))
