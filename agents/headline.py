"""The headline numbers of calls: values, trends, and sparklines (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from bonobot.accounts.admin_base.svg_charts import Sparkline, build_sparkline
from bonobot.accounts.templatetags.display import dollars, milliseconds
from bonobot.ledger.usage.aggregation import UsageLine

MINUS = "\N{MINUS SIGN}"


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
    lines: Sequence[UsageLine], total: UsageLine, previous: UsageLine, urls: dict[str, Any]
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
    lines: Sequence[UsageLine], total: UsageLine, previous: UsageLine, url: str
) -> HeadlineTile:
    change = 100 * (total.calls - previous.calls) / previous.calls if previous.calls else None
    return HeadlineTile(
        _("Calls"),
        f"{total.calls:,}",
        url,
        "" if change is None else _sign(change, f"{abs(change):,.1f}%"),
        _describe_base(f"{previous.calls:,}"),
        spark=build_sparkline([line.calls for line in lines]),
    )


def _build_failed_tile(
    lines: Sequence[UsageLine], total: UsageLine, previous: UsageLine, url: str
) -> HeadlineTile:
    change = total.errors - previous.errors
    share = 100 * total.errors / total.calls if total.calls else 0
    return HeadlineTile(
        _("Failed"),
        f"{total.errors:,}",
        url,
        _sign(change, f"{abs(change):,}"),
        _describe_base(f"{previous.errors:,}"),
        _judge(change),
        note=_("%(share)s of calls") % {"share": f"{share:.1f}%"},
        line_tone="bad" if total.errors else "",
        spark=build_sparkline([line.errors for line in lines]),
    )


def _build_duration_tile(
    lines: Sequence[UsageLine], total: UsageLine, previous: UsageLine, url: str
) -> HeadlineTile:
    change = None if total.p95 is None or previous.p95 is None else total.p95 - previous.p95
    return HeadlineTile(
        _("p95 duration"),
        milliseconds(total.p95),
        url,
        "" if change is None else _sign(round(change), milliseconds(abs(change))),
        _describe_base(milliseconds(previous.p95) if previous.p95 is not None else ""),
        _judge(round(change or 0)),
        spark=build_sparkline([line.p95 for line in lines]),
    )


def _build_cost_tile(
    lines: Sequence[UsageLine], total: UsageLine, previous: UsageLine, url: str
) -> HeadlineTile:
    change = total.cost_microusd - previous.cost_microusd
    return HeadlineTile(
        _("Cost"),
        dollars(total.cost_microusd),
        url,
        _sign(change, dollars(abs(change))),
        _describe_base(dollars(previous.cost_microusd)),
        spark=build_sparkline([line.cost_microusd for line in lines]),
    )


def _describe_base(value: str) -> str:
    return _("from %(value)s") % {"value": value} if value else _("none in the previous period")


def _sign(change: float, text: str) -> str:
    return f"{'+' if change > 0 else MINUS}{text}" if change else _("No change")


def _judge(change: float) -> str:
    """Return the tone of a change of a number that should be low."""
    return "bad" if change > 0 else "good" if change < 0 else ""
