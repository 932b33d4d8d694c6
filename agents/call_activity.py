"""Calls, durations and costs of an organization or an agent over time.

Read from rollups in a fixed number of queries.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import pairwise
from typing import Any
from uuid import UUID

from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.models import Agent
from bonobot.accounts.admin_base import svg_charts
from bonobot.accounts.admin_base.svg_charts import (
    Chart,
    ChartColumn,
    ChartValue,
    Sparkline,
    build_sparkline,
)
from bonobot.accounts.templatetags.display import dollars, milliseconds, percent
from bonobot.core.i18n.localization import format_day, format_number, format_percent
from bonobot.core.i18n.time_zones import get_reader_time_zone
from bonobot.ledger.admin.usage import build_time_filters, describe_pending
from bonobot.ledger.extension_points import PendingCalls
from bonobot.ledger.usage import query_rollups
from bonobot.ledger.usage.aggregation import UsageLine, truncate_time
from bonobot.ledger.usage.pending_calls import (
    add_pending_calls,
    load_pending_calls,
)
from bonobot.ledger.usage.query_rollups import LineKey, ReportSpan, UsageReader

MAX_ITEMS = 7
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


MINUS = "\N{MINUS SIGN}"
# Refusals by a person's answer, or for want of one: their rule only asked.
NOT_APPROVED_TITLES = {
    "approval_denied": _("Denied by a person"),
    "approval_expired": _("Approval expired"),
}
# Refusals of calls of something that the agent doesn't have.
NOT_FOUND_TITLES = {
    "unknown_tool": _("Unknown tool"),
    "unknown_resource": _("Unknown resource"),
    "unknown_prompt": _("Unknown prompt"),
    "not_attached": _("Server not attached"),
}
REFUSAL_TITLES = NOT_APPROVED_TITLES | NOT_FOUND_TITLES
TOOL_RULE_MARK = " mcp:"  # in the ID of a rule about tools of servers
# Codes of most calls that fail; others are shown as they are.
FAILURE_TITLES = {
    "broken_json": _("Invalid response"),
    "call_timeout": _("Timeout"),
    "needs_reauth": _("Sign-in required"),
    "protocol_error": _("Protocol error"),
    "response_too_large": _("Response too large"),
    "server_crashed": _("Server process ended"),
    "server_installing": _("Package not installed yet"),
    "server_unreachable": _("Server unreachable"),
    "tool_error": _("Tool returned an error"),
    "upstream_error": _("Server returned an error"),
}


@dataclass(frozen=True)
class HeadlineTile:
    """A number with its change since the previous period.

    `change` is blank if there is nothing to compare with; `base` says what it is compared with.
    `tone` is that of the change, `line_tone` that of the sparkline.
    """

    title: str
    value: str
    url: str
    change: str
    base: str
    tone: str = ""
    note: str = ""
    line_tone: str = ""
    spark: Sparkline | None = None


def build_tiles(
    lines: Sequence[UsageLine],
    total: UsageLine,
    previous: UsageLine,
    urls: dict[str, Any],
) -> list[HeadlineTile]:
    """Return the tiles for calls, failed calls, p95 duration, and cost.

    `lines` are the steps of the period, `urls` the rows of each tile by its name.
    """
    return [
        _build_calls_tile(lines, total, previous, urls["calls"]),
        _build_failed_tile(lines, total, previous, urls["failed"]),
        _build_duration_tile(lines, total, previous, urls["duration"]),
        _build_cost_tile(lines, total, previous, urls["cost"]),
    ]


def _build_calls_tile(
    lines: Sequence[UsageLine],
    total: UsageLine,
    previous: UsageLine,
    url: str,
) -> HeadlineTile:
    calls = total.calls
    change = 100 * (calls - previous.calls) / previous.calls if previous.calls else None
    return HeadlineTile(
        _t("Calls"),
        value=format_number(calls),
        url=url,
        change="" if change is None else _sign(change, format_percent(abs(change))),
        base=_describe_base(format_number(previous.calls) if previous.calls else ""),
        note=describe_pending(total.pending),
        spark=_build_line([line.calls for line in lines]),
    )


def _build_failed_tile(
    lines: Sequence[UsageLine],
    total: UsageLine,
    previous: UsageLine,
    url: str,
) -> HeadlineTile:
    change = total.errors - previous.errors
    share = percent(100 * total.errors / total.calls) if total.calls else ""
    return HeadlineTile(
        _t("Failed calls"),
        value=format_number(total.errors),
        url=url,
        change=_sign(change, format_number(abs(change))) if previous.calls else "",
        base=_describe_base(format_number(previous.errors) if previous.calls else ""),
        tone=_judge(change) if previous.calls else "",
        note=_t("%(share)s of calls") % {"share": share} if share else "",
        line_tone="bad" if total.errors else "",
        spark=_build_line([line.errors for line in lines]),
    )


def _build_duration_tile(
    lines: Sequence[UsageLine], total: UsageLine, previous: UsageLine, url: str
) -> HeadlineTile:
    change = None if total.p95 is None or previous.p95 is None else total.p95 - previous.p95
    return HeadlineTile(
        _t("Call duration (p95)"),
        value=milliseconds(total.p95),
        url=url,
        change="" if change is None else _sign(round(change), milliseconds(abs(change))),
        base=_describe_base(milliseconds(previous.p95) if previous.p95 is not None else ""),
        tone=_judge(round(change or 0)),
        spark=_build_line([line.p95 for line in lines]),
    )


def _build_cost_tile(
    lines: Sequence[UsageLine], total: UsageLine, previous: UsageLine, url: str
) -> HeadlineTile:
    change = total.cost_microusd - previous.cost_microusd
    return HeadlineTile(
        _t("Cost"),
        value=dollars(total.cost_microusd),
        url=url,
        change=_sign(change, dollars(abs(change))) if previous.cost_microusd else "",
        base=_describe_base(dollars(previous.cost_microusd) if previous.cost_microusd else ""),
        spark=_build_line([line.cost_microusd for line in lines]),
    )


def _build_line(values: Sequence[float | None]) -> Sparkline | None:
    """Return a sparkline, or None if there is nothing to see."""
    return build_sparkline(list(values)) if any(values) else None


def _describe_base(value: str) -> str:
    return _t("from %(value)s") % {"value": value} if value else ""


def _sign(change: float, text: str) -> str:
    return f"{'+' if change > 0 else MINUS}{text}" if change else _t("No change")


def _judge(change: float) -> str:
    """Return the tone of a change of a number that should be low."""
    return "bad" if change > 0 else "good" if change < 0 else ""


@dataclass(frozen=True)
class ActivityRange:
    """A time range that can be chosen, and the length of its steps.

    One day means the last 24 hours, including the current one; longer ranges are whole UTC days up
    to today.
    """

    slug: str
    title: Any
    step: timedelta
    step_title: Any
    days: int

    def compute_span(self, now: datetime) -> ReportSpan:
        """Return the range that ends now, in whole steps including the current one."""
        now = query_rollups.to_utc(now)
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        if self.days > 1:
            first_day = midnight - (self.days - 1) * DAY
            return ReportSpan(first_day, None, "day" if self.step == DAY else "hour")
        current_step = midnight + (now - midnight) // self.step * self.step
        return ReportSpan(current_step + self.step - DAY, None, "hour")


RANGES = (
    ActivityRange("24h", title=_("24 hours"), step=HOUR, step_title=_("per hour"), days=1),
    ActivityRange("7d", title=_("7 days"), step=6 * HOUR, step_title=_("per 6 hours"), days=7),
    ActivityRange("30d", title=_("30 days"), step=DAY, step_title=_("per day"), days=30),
    ActivityRange("90d", title=_("90 days"), step=DAY, step_title=_("per day"), days=90),
)


@dataclass(frozen=True)
class ActivityInterval:
    """One step of the range, with its numbers."""

    begins: datetime
    ends: datetime
    line: UsageLine
    url: str

    @property
    def succeeded(self) -> int:
        """Calls that neither failed nor were denied or canceled."""
        return self.line.ok

    @property
    def calls(self) -> int:
        """All calls, including those that wait for approval."""
        return self.line.calls

    @property
    def pending(self) -> int:
        """Calls that wait for approval."""
        return self.line.pending

    @property
    def chart_values(self) -> tuple[ChartValue, ...]:
        """The calls by outcome."""
        return (
            ChartValue(_("succeeded"), format_number(self.succeeded), "bar"),
            ChartValue(_("denied"), format_number(self.line.refused), "denied"),
            ChartValue(_("failed"), format_number(self.line.errors), "failed"),
            *self._unknown_values,
            ChartValue(_("canceled"), format_number(self.line.canceled), "canceled"),
            ChartValue(_("pending approval"), format_number(self.pending), "pending"),
        )

    @property
    def _unknown_values(self) -> tuple[ChartValue, ...]:
        if not self.line.unknown:
            return ()
        return (ChartValue(_("unknown"), format_number(self.line.unknown), "unknown"),)

    @property
    def title(self) -> str:
        """Return the time span: of hours in the reader's time zone, of longer steps in UTC."""
        length = self.ends - self.begins
        begins, ends = (self._to_shown_time(time) for time in (self.begins, self.ends))
        if length >= DAY:
            return format_day(begins)
        return f"{format_day(begins)}, {begins:%H:%M}–{ends:%H:%M}"

    @property
    def label(self) -> str:
        """Return the start as a label of the time axis."""
        begins = self._to_shown_time(self.begins)
        return f"{begins:%H:%M}" if self.ends - self.begins <= HOUR else format_day(begins)

    def _to_shown_time(self, time: datetime) -> datetime:
        is_hour = self.ends - self.begins <= HOUR
        return time.astimezone(get_reader_time_zone() if is_hour else UTC)


class CallActivity:
    """The calls of an organization, or of one of its agents, within a range.

    At most 13 queries in all.
    """

    def __init__(
        self,
        organization_id: UUID,
        range_slug: str,
        now: datetime | None = None,
        *,
        agent_id: UUID | None = None,
    ) -> None:
        self.organization_id = organization_id
        self.filters: dict[str, Any] = {"agent_id": agent_id} if agent_id else {}
        self.range = next(
            (candidate for candidate in RANGES if candidate.slug == range_slug), RANGES[0]
        )
        self.now = now or timezone.now()
        self.reader: UsageReader = query_rollups.open_reader(
            organization_id, self.range.compute_span(self.now)
        )

    @property
    def since(self) -> datetime:
        """When the range begins."""
        return self.reader.span.since

    @cached_property
    def steps(self) -> list[ActivityInterval]:
        """The steps of the range, oldest first."""
        step = self.range.step
        starts = [self.since + index * step for index in range((self.now - self.since) // step + 1)]
        lines = {start: UsageLine() for start in starts}
        found = self.reader.load_lines("begins", timed=True, **self.filters)
        for (begins,), line in self._add_pending(found, "begins").items():
            lines[min(starts[-1], self.since + (begins - self.since) // step * step)].add_line(line)
        return [
            ActivityInterval(start, start + step, line, self.build_audit_url(start, start + step))
            for start, line in lines.items()
        ]

    @cached_property
    def pending_calls(self) -> list[PendingCalls]:
        """The calls of the range that wait for approval (one query)."""
        return load_pending_calls(self.reader, **self.filters)

    @property
    def pending(self) -> int:
        """The number of calls of the range that wait for approval."""
        return self.total.pending

    def _add_pending(
        self, lines: dict[LineKey, UsageLine], *columns: str, limit: int = query_rollups.MAX_LINES
    ) -> dict[LineKey, UsageLine]:
        return add_pending_calls(lines, self.pending_calls, columns, limit=limit)

    @cached_property
    def total(self) -> UsageLine:
        """The totals of the whole range."""
        return query_rollups.sum_lines(step.line for step in self.steps)

    @cached_property
    def previous_total(self) -> UsageLine:
        """The totals of as long a time before the range, up to the same time of day."""
        length = timedelta(days=self.range.days)
        since, until = self.since - length, self.now - length
        # Whole days are read from days, of which there are summaries for longer than of hours.
        midnight = truncate_time(query_rollups.to_utc(until), "day")
        edges = [since, until] if self.range.days == 1 else [since, midnight, until]
        return query_rollups.sum_lines(
            replace(self.reader, span=ReportSpan(begins, ends, "hour")).load_total(
                timed=True, **self.filters
            )
            for begins, ends in pairwise(edges)
            if begins < ends
        )

    def build_audit_url(
        self, since: datetime | None = None, until: datetime | None = None, **query: Any
    ) -> str:
        """Return the URL of the audit log filtered by these calls."""
        times = build_time_filters(since or self.since, until)
        parameters = {"kind": "call", **self.filters, **query, **times}
        return f"{reverse('admin:ledger_auditrow_changelist')}?{urlencode(parameters)}"

    @property
    def tiles(self) -> list[HeadlineTile]:
        """The numbers at the top, each with a link to its rows."""
        urls = {
            "calls": self.build_audit_url(),
            "failed": self.build_audit_url(outcome__in="error"),
            "duration": self.build_audit_url(outcome__in="ok"),
            "cost": self.build_audit_url(kind="model"),
        }
        # The current step would always end the sparklines with a fall, but the first calls of an
        # organization are in no other one.
        all_lines = [step.line for step in self.steps]
        lines = [step.line for step in self.steps if step.ends <= self.now]
        has_calls = any(line.calls for line in lines)
        return build_tiles(lines if has_calls else all_lines, self.total, self.previous_total, urls)

    @property
    def has_calls(self) -> bool:
        """Whether the chart has a bar."""
        return any(step.calls for step in self.steps)

    @property
    def chart(self) -> Chart:
        """Calls over time by outcome."""
        axis = svg_charts.choose_axis(max(step.calls for step in self.steps))
        stacks = [
            [
                ("", step.succeeded),
                ("warn", step.line.refused),
                ("bad", step.line.errors),
                ("unknown", step.line.unknown),
                ("canceled", step.line.canceled),
                ("pending", step.pending),
            ]
            for step in self.steps
        ]
        bars = svg_charts.build_bars(stacks, axis[0])
        return Chart(
            title=_("Calls over time"),
            axis=[format_number(label) for label in axis],
            columns=[
                ChartColumn(bar, step.title, step.url, step.chart_values)
                for bar, step in zip(bars, self.steps, strict=True)
            ],
            labels=svg_charts.place_labels([step.label for step in self.steps]),
        )

    @cached_property
    def refusals(self) -> list[dict[str, Any]]:
        """The most frequent refusals by rule, those by a rule about tools by server, too."""
        lines = self.reader.load_lines(
            "code", "rule", "server_id", event_type="call", outcome="refused", **self.filters
        )
        refused: dict[tuple[str, str, UUID | None], UsageLine] = {}
        for (code, rule, server_id), line in lines.items():
            has_server = TOOL_RULE_MARK in rule and code not in NOT_APPROVED_TITLES
            key = (code, rule, server_id if has_server else None)
            refused.setdefault(key, UsageLine()).add_line(line)
        return [
            {
                "title": REFUSAL_TITLES.get(code) or rule or code,
                "note": rule if code in NOT_APPROVED_TITLES else server_id and line.server_name,
                "n": line.refused,
                "url": self._build_outcome_url("refused", code, rule=rule, server_id=server_id),
            }
            for (code, rule, server_id), line in _sort_by_count(refused, "refused")
        ]

    @cached_property
    def failures(self) -> list[dict[str, Any]]:
        """The most frequent codes of calls that failed, by server."""
        lines = self.reader.load_lines("code", "server_id", event_type="call", **self.filters)
        failed = {key: line for key, line in lines.items() if line.errors}
        return [
            {
                "title": FAILURE_TITLES.get(code, code),
                "note": line.server_name,
                "n": line.errors,
                "url": self._build_outcome_url("error", code, server_id=server_id),
            }
            for (code, server_id), line in _sort_by_count(failed, "errors")
        ]

    def _build_outcome_url(self, outcome: str, code: str, **query: Any) -> str:
        known = {name: value for name, value in query.items() if value}
        return self.build_audit_url(outcome__in=outcome, code=code, **known)

    @cached_property
    def tools(self) -> list[dict[str, Any]]:
        """The busiest tools."""
        lines = self.reader.load_lines(
            "server_id", "tool_name", limit=MAX_ITEMS, timed=True, event_type="call", **self.filters
        )
        return [
            {
                "tool": tool,
                "server_id": server_id,
                "line": line,
                **self._build_row_urls(
                    tool_name=tool, **({"server_id": server_id} if server_id else {})
                ),
            }
            for (server_id, tool), line in self._add_pending(
                lines, "server_id", "tool_name", limit=MAX_ITEMS
            ).items()
        ]

    @cached_property
    def agents(self) -> list[dict[str, Any]]:
        """The busiest agents."""
        limit = MAX_ITEMS + 1
        lines = self.reader.load_lines("agent_id", limit=limit)
        lines = self._add_pending(lines, "agent_id", limit=limit)
        return list(self._iterate_agents(lines))[:MAX_ITEMS]

    def _iterate_agents(self, lines: dict[Any, UsageLine]) -> Iterator[dict[str, Any]]:
        for (agent_id,), line in lines.items():
            if agent_id:
                yield {
                    "agent_id": agent_id,
                    "line": line,
                    "turns_url": self.build_audit_url(agent_id=agent_id, kind="model"),
                    **self._build_row_urls(agent_id=agent_id),
                }

    def _build_row_urls(self, **query: Any) -> dict[str, str]:
        """Return the URLs of the entries that the numbers of a row count."""
        outcomes = {"errors": "error", "refused": "refused", "p95": "ok"}
        urls = {
            f"{name}_url": self.build_audit_url(outcome__in=outcome, **query)
            for name, outcome in outcomes.items()
        }
        return {"url": self.build_audit_url(**query), **urls}


def _sort_by_count(lines: Mapping[Any, UsageLine], field: str) -> list[tuple[Any, UsageLine]]:
    """Return the lines with the highest counts."""
    return sorted(lines.items(), key=lambda item: -getattr(item[1], field))[:MAX_ITEMS]


def load_calls_by_tool(
    organization_id: UUID, length: timedelta, **filters: Any
) -> dict[tuple[UUID | None, str], int]:
    """Return the number of calls by server and tool, by whole days up to now (4 queries)."""
    reader = _open_daily_reader(organization_id, length)
    lines = reader.load_lines("server_id", "tool_name", event_type="call", **filters)
    return {(server_id, tool): line.calls for (server_id, tool), line in lines.items()}


def _open_daily_reader(organization_id: UUID, length: timedelta) -> UsageReader:
    since = truncate_time(query_rollups.to_utc(timezone.now() - length), "day") + DAY
    return query_rollups.open_reader(organization_id, ReportSpan(since, None, "day"))


def load_calls_by_server(agent: Agent, length: timedelta) -> dict[UUID | None, int]:
    """Return an agent's number of calls to each server, by whole days up to now (4 queries)."""
    reader = _open_daily_reader(agent.organization_id, length)
    lines = reader.load_lines("server_id", event_type="call", agent_id=agent.pk)
    return {server_id: line.calls for (server_id,), line in lines.items()}
