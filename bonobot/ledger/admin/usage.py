"""The page with usage and cost."""

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.admin_base.responses import add_problem_to_form, render_screen
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.usage_reports import load_usage_report
from bonobot.core.problems import Problem
from bonobot.ledger.api.usage import as_file
from bonobot.ledger.usage import query_rollups
from bonobot.ledger.usage.report import TITLES, UsageQuery, UsageReport, UsageReportEntry

SHOWN = 200  # lines; only exports and reports by day have more
DAYS = ((1, _("today")), (7, _("7 days")), (30, _("30 days")), (90, _("90 days")))
FILTERS = {"agent": "agent_id", "server": "server_id"}
INPUT = {"class": "bb-input"}


class UsageForm(forms.Form):
    """The parameters of a report."""

    by = forms.ChoiceField(
        label=_("By"),
        choices=list(TITLES.items()),
        required=False,
        widget=forms.Select(attrs=INPUT),
    )
    since = forms.DateField(
        label=_("From"), required=False, widget=forms.DateInput(attrs={**INPUT, "type": "date"})
    )
    until = forms.DateField(
        label=_("To"), required=False, widget=forms.DateInput(attrs={**INPUT, "type": "date"})
    )
    agent = forms.CharField(
        label=_("Agent"), required=False, max_length=255, widget=forms.TextInput(attrs=INPUT)
    )
    server = forms.CharField(
        label=_("Server"), required=False, max_length=255, widget=forms.TextInput(attrs=INPUT)
    )
    tool = forms.CharField(
        label=_("Tool"), required=False, max_length=255, widget=forms.TextInput(attrs=INPUT)
    )
    model = forms.CharField(
        label=_("Model"), required=False, max_length=255, widget=forms.TextInput(attrs=INPUT)
    )

    def asked(self) -> UsageQuery:
        """Return the query; days are in the current time zone, and `until` is inclusive."""
        said = {name: value for name, value in self.cleaned_data.items() if value}
        if since := said.pop("since", None):
            said["since"] = _to_midnight(since)
        if until := said.pop("until", None):
            said["until"] = _to_midnight(until + timedelta(days=1))
        return UsageQuery(**said)


def show_usage(request: HttpRequest) -> HttpResponseBase:
    """Show a report, or return it as a CSV file."""
    principal = resolve_principal(request)
    form = UsageForm(request.GET or None)
    report, as_csv = None, "csv" in request.GET
    most = query_rollups.MOST_LINES if as_csv or request.GET.get("by") == "day" else SHOWN
    if not form.is_bound:
        report = load_usage_report(principal, UsageQuery(), most=most)
    elif form.is_valid():
        try:
            report = load_usage_report(principal, form.asked(), most=most)
        except Problem as problem:
            if problem.code == "forbidden":
                raise
            add_problem_to_form(form, problem)
    if report and as_csv:
        return as_file(report)
    return render_screen(
        request,
        "usage.html",
        title=_("Usage"),
        form=form,
        report=report,
        rows=_build_rows(report) if report else [],
        shown=most if report and len(report.entries) == most else None,
        title_of=TITLES[report.asked.by] if report else "",
        ranges=[(title, _build_period_query(request, days)) for days, title in DAYS],
        export=_query(request, csv="1"),
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
    by = report.asked.by
    asked: dict[str, Any] = {"kind": "model" if by == "model" else "call"}
    since, until = report.since, report.until
    if by in FILTERS and entry.id:
        asked[FILTERS[by]] = entry.id
    elif by == "tool":
        asked["tool_name"] = entry.name
        asked |= {"server_id": entry.id} if entry.id else {}
    elif by == "model":
        asked["resource_id"] = entry.name
    elif by == "day":
        since = datetime.fromisoformat(f"{entry.name}T00:00:00+00:00")
        until = since + timedelta(days=1)
    else:
        return ""
    address = reverse("admin:ledger_auditrow_changelist")
    return f"{address}?{urlencode(asked | _build_time_filters(since, until))}"


def _build_time_filters(since: datetime, until: datetime) -> dict[str, str]:
    found = {}
    ends = (("from", since), ("to", until - timedelta(microseconds=1)))
    for end, moment in ends:
        local = timezone.localtime(moment)
        found[f"opened_at_{end}_0"] = f"{local:%Y-%m-%d}"
        found[f"opened_at_{end}_1"] = f"{local:%H:%M:%S.%f}"
    return found


def _build_period_query(request: HttpRequest, days: int) -> str:
    first = timezone.localdate() - timedelta(days=days - 1)
    return _query(request, since=first.isoformat(), until="")


def _query(request: HttpRequest, **changed: str) -> str:
    asked = request.GET.copy()
    for name, value in changed.items():
        asked[name] = value
        if not value:
            del asked[name]
    return f"?{asked.urlencode()}"


def _to_midnight(day: Any) -> datetime:
    return timezone.make_aware(datetime(day.year, day.month, day.day))
