"""Usage reports by organization, agent, server, tool, model or day.

A report covers whole days of UTC, or whole hours if it starts within the last three days.

A principal sees the reports of its organization, a platform administrator of all.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.organizations import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.uuids import parse_uuid
from bonobot.ledger.audit.export import escape_formula, format_csv
from bonobot.ledger.usage import query_rollups
from bonobot.ledger.usage.aggregation import COUNT_FIELDS, Grain, UsageLine, truncate_time
from bonobot.ledger.usage.pending_calls import add_pending_calls, load_pending_calls
from bonobot.ledger.usage.query_rollups import ReportSpan

By = Literal["organization", "agent", "server", "tool", "model", "day"]
# The columns and filters of each kind of report.
GROUPS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "organization": (("organization_id",), {}),
    "agent": (("agent_id",), {}),
    "server": (("server_id",), {"event_type": "call"}),
    "tool": (("tool_name", "server_id"), {"event_type": "call"}),
    "model": (("model",), {"event_type": "model"}),
    "day": (("begins",), {}),
}
TITLES: dict[str, Any] = {
    "organization": _("organization"),
    "agent": _("agent"),
    "server": _("server"),
    "tool": _("tool"),
    "model": _("model"),
    "day": _("day"),
}
DEFAULT_DAYS = 30
MAX_HOURLY_SPAN = timedelta(days=3)
NUMBER_COLUMNS = (
    *("calls", "ok", "errors", "unknown", "refused", "turns"),
    *("input_tokens", "output_tokens", "cost_microusd", "pending", "p50_ms", "p95_ms"),
)
CSV_HEADING = ("since", "until", "by", "id", "name", "server", *NUMBER_COLUMNS)


@dataclass(frozen=True)
class UsageQuery:
    """The parameters of a report; agents and servers by id or name."""

    by: str = "agent"
    since: datetime | None = None
    until: datetime | None = None
    agent: str = ""
    server: str = ""
    tool: str = ""
    model: str = ""


@dataclass(frozen=True)
class UsageReportEntry:
    """A line of a report with its subject."""

    id: str
    name: str
    server: str
    line: UsageLine

    def as_dict(self) -> dict[str, Any]:
        """Return the line as JSON data; cost in micro-dollars, times in ms."""
        return {"id": self.id, "name": self.name, "server": self.server, **build_totals(self.line)}


@dataclass(frozen=True)
class UsageReport:
    """A report; `complete` is False while recent calls are still being counted."""

    query: UsageQuery
    since: datetime
    until: datetime
    total: UsageLine
    entries: list[UsageReportEntry]
    complete: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "by": self.query.by,
            "since": self.since,
            "until": self.until,
            "complete": self.complete,
            "total": build_totals(self.total),
            "results": [entry.as_dict() for entry in self.entries],
        }

    def as_csv(self) -> str:
        """Return the report as CSV, with formulas escaped."""
        prefix = (self.since.isoformat(), self.until.isoformat(), self.query.by)
        rows = [
            [*prefix, *(escape_formula(cell) for cell in entry.as_dict().values())]
            for entry in self.entries
        ]
        return format_csv([CSV_HEADING, *rows])


def build_totals(line: UsageLine) -> dict[str, Any]:
    counts = {name: getattr(line, name) for name in COUNT_FIELDS}
    return counts | {
        "pending": line.pending,
        "p50_ms": _to_whole_milliseconds(line.p50),
        "p95_ms": _to_whole_milliseconds(line.p95),
    }


def build_usage_report(
    organization_id: UUID,
    query: UsageQuery,
    *,
    all_organizations: bool = False,
    load_organization_names: Callable[[], Mapping[UUID, str]] = dict,
    limit: int = query_rollups.MAX_LINES,
) -> UsageReport:
    """Return a report of an organization (7 queries); raises `InvalidInput`.

    It has up to `limit` lines, those with the most calls. A report by organization has only this
    one, or with `all_organizations` all of them, with the loaded names.
    """
    if query.by not in GROUPS:
        raise InvalidInput(
            format_message("There is no report by {by!r}.", by=query.by),
            field="by",
            remedy=format_message("Use one of: {values}.", values=", ".join(GROUPS)),
        )
    now = timezone.now()
    span = _build_span(query, now)
    by_organization = query.by == "organization"
    reader = query_rollups.open_reader(
        organization_id, span, all_organizations=by_organization and all_organizations
    )
    filters = build_filters(query)
    columns, group_filters = GROUPS[query.by]
    filters |= group_filters
    pending = load_pending_calls(reader, **filters)
    lines = reader.load_lines(*columns, limit=limit, timed=True, **filters)
    total = reader.load_total(timed=True, **filters)
    total.add_pending(sum(calls.count for calls in pending))
    return UsageReport(
        query=query,
        since=span.since,
        until=span.until or now,
        total=total,
        entries=list(
            _build_entries(
                query.by,
                add_pending_calls(lines, pending, columns, limit=limit),
                load_organization_names() if by_organization else {},
            )
        ),
        complete=reader.complete,
    )


def _build_span(query: UsageQuery, now: datetime) -> ReportSpan:
    """Return the whole days or hours that contain the requested time."""
    since = query.since or now - timedelta(days=DEFAULT_DAYS - 1)  # with today
    if query.until and query.until <= since:
        raise InvalidInput(
            "The report would end before it starts.",
            field="until",
            remedy="Choose a later end or an earlier start.",
        )
    grain: Grain = "hour" if now - since <= MAX_HOURLY_SPAN and query.by != "day" else "day"
    begins = truncate_time(query_rollups.to_utc(since), grain)
    if query.until is None or query.until >= now:
        return ReportSpan(begins, None, grain)
    step = timedelta(hours=1) if grain == "hour" else timedelta(days=1)
    last = truncate_time(query_rollups.to_utc(query.until - timedelta(microseconds=1)), grain)
    return ReportSpan(begins, last + step, grain)


def build_filters(query: UsageQuery) -> dict[str, Any]:
    """Return the filters of a report by column; agents and servers are given by id or name."""
    filters: dict[str, Any] = {}
    for name, id_or_name in (("agent", query.agent), ("server", query.server)):
        if id_or_name:
            pk = parse_uuid(id_or_name)
            filters |= {f"{name}_id": pk} if pk else {f"{name}_name": id_or_name}
    text_filters = {"tool_name": query.tool, "model": query.model}
    return filters | {name: value for name, value in text_filters.items() if value}


def _build_entries(
    by: str, lines: dict[tuple[Any, ...], UsageLine], names: Mapping[UUID, str]
) -> Iterator[UsageReportEntry]:
    if by == "day":
        lines = dict(sorted(lines.items()))
    for (key, *other_keys), line in lines.items():
        name, server = str(key or ""), ""
        subject = next(iter(other_keys), key)
        if by == "organization":
            name = names.get(key, name)
        elif by == "agent":
            name = line.agent_name
        elif by == "server":
            name = line.server_name
        elif by == "tool":
            server = line.server_name
        elif by == "day":
            name = f"{key:%Y-%m-%d}"
        yield UsageReportEntry(
            str(subject) if isinstance(subject, UUID) else "", name, server, line
        )


def _to_whole_milliseconds(milliseconds: float | None) -> int | None:
    return None if milliseconds is None else round(milliseconds)


def load_usage_report(
    principal: Principal,
    query: UsageQuery,
    *,
    max_lines: int = query_rollups.MAX_LINES,
) -> UsageReport:
    """Return a report of the principal's organization; raises `Forbidden`, `InvalidInput`.

    It has at most `max_lines` lines, those with the most calls. Platform administrators see all
    organizations, others their own.
    """
    principal.require(Action.VIEW_AUDIT)
    return build_usage_report(
        principal.organization_id,
        query,
        all_organizations=principal.platform_admin,
        load_organization_names=lambda: dict(Organization.objects.values_list("pk", "name")),
        limit=max_lines,
    )
