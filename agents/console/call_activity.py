"""Calls, durations and percentiles over time for the dashboard.

Read from rollups in a fixed number of queries.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _

from agents.console import svg_charts
from bonobot.ledger.usage import query_rollups
from bonobot.ledger.usage.aggregation import ERRORS, UsageLine
from bonobot.ledger.usage.query_rollups import ReportSpan, UsageReader

LISTED = 8
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True)
class ActivityRange:
    """The time range of the dashboard, and the length of its steps.

    One day means the last 24 hours, including the current one; longer ranges are whole UTC days up
    to today.
    """

    slug: str
    title: Any
    step: timedelta
    days: int

    def span(self, now: datetime) -> ReportSpan:
        """Return the range that ends now, in whole steps including the current one."""
        now = query_rollups.to_utc(now)
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        if self.days > 1:
            first = midnight - (self.days - 1) * DAY
            return ReportSpan(first, None, "day" if self.step == DAY else "hour")
        running = midnight + (now - midnight) // self.step * self.step
        return ReportSpan(running + self.step - DAY, None, "hour")


RANGES = (
    ActivityRange("24h", _("24 hours"), HOUR, 1),
    ActivityRange("7d", _("7 days"), 6 * HOUR, 7),
    ActivityRange("30d", _("30 days"), DAY, 30),
)


@dataclass(frozen=True)
class ActivityInterval:
    """One step of the range, with its numbers."""

    begins: datetime
    line: UsageLine
    url: str


class CallActivity:
    """The calls of one organization within a range (7 queries in all)."""

    def __init__(self, organization_id: UUID, chosen: str, now: datetime | None = None) -> None:
        self.range = next((one for one in RANGES if one.slug == chosen), RANGES[0])
        self.now = now or timezone.now()
        self.reader: UsageReader = query_rollups.open_reader(
            organization_id, self.range.span(self.now)
        )

    @property
    def since(self) -> datetime:
        """When the range begins."""
        return self.reader.span.since

    @cached_property
    def steps(self) -> list[ActivityInterval]:
        """The steps of the range, oldest first."""
        step = self.range.step
        places = [self.since + n * step for n in range((self.now - self.since) // step + 1)]
        lines = {place: UsageLine() for place in places}
        for (begins,), line in self.reader.read("begins").items():
            lines[min(places[-1], self.since + (begins - self.since) // step * step)].add(line)
        return [
            ActivityInterval(place, line, self.link(place, place + step))
            for place, line in lines.items()
        ]

    @cached_property
    def total(self) -> UsageLine:
        """The totals of the whole range."""
        return query_rollups.sum_lines(step.line for step in self.steps)

    def link(
        self, since: datetime | None = None, until: datetime | None = None, **query: Any
    ) -> str:
        """Return the URL of the audit log filtered by these calls."""
        asked = {"kind": "call", **query, **_bound("from", since or self.since)}
        if until:
            asked |= _bound("to", until - timedelta(microseconds=1))
        return f"{reverse('admin:ledger_auditrow_changelist')}?{urlencode(asked)}"

    @property
    def cards(self) -> list[dict[str, Any]]:
        """The numbers at the top, each with a link to its rows."""
        total, errors = self.total, ",".join(ERRORS)
        slowest = self.link(outcome__in="ok", o=-8)
        return [
            {"title": _("calls"), "n": total.calls, "url": self.link(), "tone": ""},
            {
                "title": _("errors"),
                "n": total.errors,
                "url": self.link(outcome__in=errors),
                "tone": "bad" if total.errors else "",
            },
            {
                "title": _("refusals"),
                "n": total.refused,
                "url": self.link(outcome__in="refused"),
                "tone": "warn" if total.refused else "",
            },
            {"title": _("median time"), "ms": total.p50, "url": slowest, "tone": ""},
            {"title": _("95th percentile"), "ms": total.p95, "url": slowest, "tone": ""},
            {
                "title": _("cost"),
                "cost": total.cost_microusd,
                "url": self.link(kind="model"),
                "tone": "",
            },
        ]

    @property
    def calls_chart(self) -> dict[str, Any]:
        """Calls over time, with errors and refusals."""
        stacks = [
            [
                ("", one.line.calls - one.line.errors - one.line.refused),
                ("warn", one.line.refused),
                ("bad", one.line.errors),
            ]
            for one in self.steps
        ]
        return {
            "bars": list(zip(svg_charts.build_bars(stacks), self.steps, strict=True)),
            "highest": max(one.line.calls for one in self.steps),
        }

    @property
    def time_chart(self) -> dict[str, Any]:
        """Median and 95th percentile over time."""
        middle = [one.line.p50 for one in self.steps]
        late = [one.line.p95 for one in self.steps]
        highest = max((found for found in late if found is not None), default=0.0)
        return {
            "p50": svg_charts.build_curve(middle, highest),
            "p95": svg_charts.build_curve(late, highest),
            "highest": highest,
        }

    @property
    def marks(self) -> tuple[str, str]:
        """The labels at the ends of the time axis."""
        form = "H:i" if self.range.step == HOUR else "j M"
        return date_format(self.since, form), date_format(self.steps[-1].begins, form)

    @cached_property
    def refusals(self) -> list[dict[str, Any]]:
        """The most frequent refusals by rule."""
        lines = self.reader.read("code", "rule", most=LISTED, event_type="call", outcome="refused")
        return [
            {
                "code": code,
                "rule": rule,
                "n": line.refused,
                "url": self.link(
                    outcome__in="refused", code=code, **({"rule": rule} if rule else {})
                ),
            }
            for (code, rule), line in lines.items()
        ]

    @cached_property
    def tools(self) -> list[dict[str, Any]]:
        """The busiest tools."""
        lines = self.reader.read("server_id", "tool_name", most=LISTED, event_type="call")
        return [
            {"tool": tool, "server_id": server_id, "line": line, "url": self._of(server_id, tool)}
            for (server_id, tool), line in lines.items()
        ]

    @cached_property
    def agents(self) -> list[dict[str, Any]]:
        """The busiest agents."""
        lines = self.reader.read("agent_id", most=LISTED + 1)
        return list(self._agents(lines))[:LISTED]

    def _agents(self, lines: dict[Any, UsageLine]) -> Iterator[dict[str, Any]]:
        for (agent_id,), line in lines.items():
            if agent_id:
                yield {"agent_id": agent_id, "line": line, "url": self.link(agent_id=agent_id)}

    def _of(self, server_id: UUID | None, tool: str) -> str:
        of: dict[str, Any] = {"server_id": server_id} if server_id else {}
        return self.link(tool_name=tool, **of)


def _bound(end: str, moment: datetime) -> dict[str, str]:
    local = timezone.localtime(moment)
    return {f"opened_at_{end}_0": f"{local:%Y-%m-%d}", f"opened_at_{end}_1": f"{local:%H:%M:%S.%f}"}
