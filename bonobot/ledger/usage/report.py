"""Usage reports by organization, agent, server, tool, model or day.

A report covers whole days of UTC, or whole hours if it starts within the last three days.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.ledger.audit.export import escape_formula, format_csv
from bonobot.ledger.usage import query_rollups
from bonobot.ledger.usage.aggregation import COUNTS, Grain, UsageLine, truncate_time
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
USUAL_DAYS = 30
BY_HOURS = timedelta(days=3)
NUMBERS = (
    *("calls", "ok", "errors", "refused", "turns"),
    *("input_tokens", "output_tokens", "cost_microusd", "p50_ms", "p95_ms"),
)
HEADING = ("since", "until", "by", "id", "name", "server", *NUMBERS)


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

    asked: UsageQuery
    since: datetime
    until: datetime
    total: UsageLine
    entries: list[UsageReportEntry]
    complete: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "by": self.asked.by,
            "since": self.since,
            "until": self.until,
            "complete": self.complete,
            "total": build_totals(self.total),
            "results": [entry.as_dict() for entry in self.entries],
        }

    def as_csv(self) -> str:
        """Return the report as CSV, with formulas escaped."""
        when = (self.since.isoformat(), self.until.isoformat(), self.asked.by)
        rows = [
            [*when, *(escape_formula(cell) for cell in entry.as_dict().values())]
            for entry in self.entries
        ]
        return format_csv([HEADING, *rows])


def build_totals(line: UsageLine) -> dict[str, Any]:
    """Return the totals of a line by name."""
    counts = {name: getattr(line, name) for name in COUNTS}
    return counts | {
        "p50_ms": _to_whole_milliseconds(line.p50),
        "p95_ms": _to_whole_milliseconds(line.p95),
    }


def build_usage_report(
    organization_id: UUID,
    asked: UsageQuery,
    now: datetime | None = None,
    *,
    everywhere: bool = False,
    load_organization_names: Callable[[], Mapping[UUID, str]] = dict,
    most: int = query_rollups.MOST_LINES,
) -> UsageReport:
    """Return a report of an organization (5 queries); raises `InvalidInput`.

    It has up to `limit` lines, those with the most calls. A report by organization has only this
    one, or with `all_organizations` all of them, with the loaded names.
    """
    if asked.by not in GROUPS:
        raise InvalidInput(
            format_message("There is no report by {by!r}.", by=asked.by),
            field="by",
            remedy=format_message("Use {groups}.", groups=", ".join(GROUPS)),
        )
    now = now or timezone.now()
    span = _build_span(asked, now)
    by_organization = asked.by == "organization"
    found = query_rollups.open_reader(
        organization_id, span, everywhere=by_organization and everywhere
    )
    where = _build_filters(asked)
    columns, only = GROUPS[asked.by]
    lines = found.read(*columns, most=most, **where, **only)
    return UsageReport(
        asked=asked,
        since=span.since,
        until=span.until or now,
        total=found.total(**where, **only),
        entries=list(
            _build_entries(asked.by, lines, load_organization_names() if by_organization else {})
        ),
        complete=found.complete,
    )


def _build_span(asked: UsageQuery, now: datetime) -> ReportSpan:
    """Return the whole days or hours that contain the requested time."""
    since = asked.since or now - timedelta(days=USUAL_DAYS)
    if asked.until and asked.until <= since:
        raise InvalidInput(
            "The report would end before it begins.",
            field="until",
            remedy="Choose a later end, or an earlier beginning.",
        )
    grain: Grain = "hour" if now - since <= BY_HOURS and asked.by != "day" else "day"
    begins = truncate_time(query_rollups.to_utc(since), grain)
    if asked.until is None or asked.until >= now:
        return ReportSpan(begins, None, grain)
    step = timedelta(hours=1) if grain == "hour" else timedelta(days=1)
    last = truncate_time(query_rollups.to_utc(asked.until - timedelta(microseconds=1)), grain)
    return ReportSpan(begins, last + step, grain)


def _build_filters(asked: UsageQuery) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, said in (("agent", asked.agent), ("server", asked.server)):
        if said:
            number = _parse_uuid(said)
            found |= {f"{name}_id": number} if number else {f"{name}_name": said}
    wanted = {"tool_name": asked.tool, "model": asked.model}
    return found | {name: value for name, value in wanted.items() if value}


def _build_entries(
    by: str, lines: dict[tuple[Any, ...], UsageLine], names: Mapping[UUID, str]
) -> Iterator[UsageReportEntry]:
    if by == "day":
        lines = dict(sorted(lines.items()))
    for (key, *more), line in lines.items():
        name, server = str(key or ""), ""
        of = next(iter(more), key)
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
        yield UsageReportEntry(str(of) if isinstance(of, UUID) else "", name, server, line)


def _to_whole_milliseconds(milliseconds: float | None) -> int | None:
    return None if milliseconds is None else round(milliseconds)


def _parse_uuid(said: str) -> UUID | None:
    try:
        return UUID(said)
    except ValueError:
        return None
