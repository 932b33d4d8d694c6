"""What a budget does, in words and as a chart, next to its form."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import QueryDict
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _t

from agents.admin.agents import parse_amount
from agents.budgets.preview import (
    DAY,
    PREVIEW_DAYS,
    BudgetedDay,
    BudgetPreview,
    build_preview,
    compute_next_period,
)
from agents.budgets.services import DEFAULT_WARN_AT, BudgetLine, Owner
from agents.models import Agent, Budget
from bonobot.accounts.admin_base.svg_charts import (
    Chart,
    ChartColumn,
    ChartValue,
    build_bars,
    choose_axis,
    place_labels,
)
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import amount as shown_amount
from bonobot.accounts.templatetags.display import thousands
from bonobot.core.i18n.localization import format_day
from bonobot.core.problems import InvalidInput
from bonobot.ledger.admin.usage import build_time_filters
from mcp_servers.models import Server

AGENT_PREFIX = "agent:"


@dataclass(frozen=True)
class BudgetForecast:
    """What a budget of a form counts, when it starts again, and its last 30 days."""

    owner: Owner
    line: BudgetLine
    has_limit: bool  # False: the form has no valid limit yet
    resets_at: datetime | None
    preview: BudgetPreview | None
    chart: Chart | None

    @property
    def kind(self) -> str:
        """organization, agent, session, or server."""
        if isinstance(self.owner, Server):
            return "server"
        if isinstance(self.owner, Agent):
            return "session" if self.line.each_session else "agent"
        return "organization"

    @property
    def limit(self) -> str:
        return format_amount(self.line.limit, self.line.unit)

    @property
    def warning(self) -> str:
        """The amount at which people are warned."""
        return format_amount(-(-self.line.limit * self.line.warn_at // 100), self.line.unit)

    @property
    def highest(self) -> str:
        return format_amount(self.preview.highest, self.line.unit) if self.preview else ""

    @property
    def total(self) -> str:
        return format_amount(self.preview.total, self.line.unit) if self.preview else ""

    @property
    def days(self) -> int:
        return PREVIEW_DAYS


def format_amount(value: int, unit: str) -> str:
    """Return an amount with its unit."""
    text = shown_amount(value, unit)
    return text if unit == Budget.Unit.MONEY else f"{text} {Budget.Unit(unit).label}"


def read_line(data: QueryDict, row: Budget | None) -> tuple[BudgetLine, bool]:
    """Return the line of a form that may be incomplete, and whether its limit is valid."""
    unit = row.unit if row else _choose(data.get("unit"), Budget.Unit.values, Budget.Unit.TOKENS)
    period = (
        row.period
        if row
        else _choose(data.get("period"), Budget.Period.values, Budget.Period.MONTH)
    )
    is_separate = "each_session" in data and is_agent_key(data.get("owner_key", ""))
    each_session = row.each_session if row else is_separate
    has_limit, limit = True, 0
    try:
        limit = parse_amount(unit, data.get("amount", ""))
    except InvalidInput:
        has_limit = False
    warn_at = data.get("warn_at", "")
    is_percentage = warn_at.isdecimal() and 1 <= int(warn_at) <= 100
    return (
        BudgetLine(
            unit,
            period=period,
            limit=limit,
            each_session=each_session,
            warn_at=int(warn_at) if is_percentage else DEFAULT_WARN_AT,
        ),
        has_limit and limit >= 0,
    )


def is_agent_key(owner_key: str) -> bool:
    """Return whether the owner that a form names is an agent."""
    return owner_key.startswith(AGENT_PREFIX)


def _choose(value: str | None, choices: list[str], default: str) -> str:
    return value if value in choices else default


def build_forecast(
    principal: Principal, owner: Owner, line: BudgetLine, *, has_limit: bool = True
) -> BudgetForecast:
    """Return what a budget does; past usage only for those who may read the audit log."""
    now = timezone.now()
    preview = None
    if principal.may(Action.VIEW_AUDIT):
        preview = build_preview(principal.organization_id, owner, line, now)
    return BudgetForecast(
        owner,
        line=line,
        has_limit=has_limit,
        resets_at=compute_next_period(line.period, now),
        preview=preview,
        chart=_build_chart(preview, owner, line, has_limit) if preview and preview.total else None,
    )


def _build_chart(preview: BudgetPreview, owner: Owner, line: BudgetLine, has_limit: bool) -> Chart:
    """Return a bar per day: its usage, or for longer periods what the period has used so far."""
    is_daily = line.period == Budget.Period.DAY or not has_limit
    amounts = [day.usage.amount if is_daily else day.requested for day in preview.days]
    highest = max(*amounts, line.limit if has_limit else 0, 1)
    axis = choose_axis(highest)
    stacks = [
        [("", min(amount, line.limit)), ("bad", max(0, amount - line.limit))]
        if has_limit
        else [("", amount)]
        for amount in amounts
    ]
    columns = [
        ChartColumn(
            bar,
            format_day(day.usage.day),
            _build_audit_url(day.usage.day, owner),
            _build_values(day, line, has_limit),
        )
        for bar, day in zip(build_bars(stacks, axis[0]), preview.days, strict=True)
    ]
    return Chart(
        title=_t("Usage"),
        axis=[shown_amount(number, line.unit) for number in axis],
        columns=columns,
        labels=place_labels([column.title for column in columns]),
        limit_at=100 - 100 * line.limit / axis[0] if has_limit else None,
        limit_text=format_amount(line.limit, line.unit),
    )


def _build_values(day: BudgetedDay, line: BudgetLine, has_limit: bool) -> tuple[ChartValue, ...]:
    values = [ChartValue(_t("used"), format_amount(day.usage.amount, line.unit), "bar")]
    if has_limit and line.period != Budget.Period.DAY:
        values.append(ChartValue(_t("in the period"), format_amount(day.requested, line.unit)))
    if has_limit:
        values.append(ChartValue(_t("denied calls"), thousands(day.denied), "failed"))
    return tuple(values)


def _build_audit_url(day: datetime, owner: Owner) -> str:
    filters: dict[str, Any] = {"kind": "call", **build_time_filters(day, day + DAY)}
    if isinstance(owner, Agent):
        filters["agent_id"] = owner.pk
    elif isinstance(owner, Server):
        filters["server_id"] = owner.pk
    return f"{reverse('admin:ledger_auditrow_changelist')}?{urlencode(filters)}"
