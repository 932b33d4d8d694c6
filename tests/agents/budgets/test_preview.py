"""What a budget would have done: the days of its limit, its periods, and its pace."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from django.utils import timezone

from agents.budgets.preview import (
    PREVIEW_DAYS,
    BudgetPace,
    DayUsage,
    apply_limit,
    build_preview,
    compute_next_period,
    compute_pace,
)
from agents.budgets.services import BudgetLine, BudgetUse
from bonobot.accounts.models import Organization
from bonobot.ledger.models import Rollup
from bonobot.ledger.usage.aggregation import RollupKey, RollupKind, hash_rollup_key

NOVEMBER = datetime(2026, 11, 1, tzinfo=UTC)


def list_days(*amounts: int, first: datetime = NOVEMBER) -> list[DayUsage]:
    """Return days with amounts, each with ten calls for every 100."""
    return [
        DayUsage(first + timedelta(days=index), amount, amount // 10)
        for index, amount in enumerate(amounts)
    ]


def test_calls_beyond_a_daily_limit_are_denied_in_proportion() -> None:
    days = apply_limit(list_days(50, 100, 200), "day", 100)
    assert [day.denied for day in days] == [0, 0, 10]


def test_a_month_denies_all_calls_after_its_limit_until_the_next_month() -> None:
    last_days = list_days(100, 100, 100, first=datetime(2026, 11, 29, tzinfo=UTC))
    days = apply_limit(last_days, "month", 150)
    assert [day.requested for day in days] == [100, 200, 100]
    assert [day.denied for day in days] == [0, 5, 0]


def test_a_total_never_starts_again_and_a_limit_of_zero_denies_all() -> None:
    last_days = list_days(100, 100, first=datetime(2026, 11, 30, tzinfo=UTC))
    assert [day.denied for day in apply_limit(last_days, "total", 100)] == [0, 10]
    assert [day.denied for day in apply_limit(last_days, "day", 0)] == [10, 10]


def test_periods_end_at_midnight_and_on_the_first_of_a_month_in_utc() -> None:
    now = datetime(2026, 12, 31, 23, 30, tzinfo=UTC)
    new_year = datetime(2027, 1, 1, tzinfo=UTC)
    assert compute_next_period("day", now) == compute_next_period("month", now) == new_year
    assert compute_next_period("total", now) is None


@pytest.mark.parametrize(
    ("hour", "spent", "pace"),
    [(12, 60, BudgetPace(50, 120)), (18, 30, BudgetPace(75, 40)), (1, 5, None)],
)
def test_the_pace_compares_what_is_spent_with_the_time_that_passed(
    hour: int, spent: int, pace: BudgetPace | None
) -> None:
    use = BudgetUse(uuid4(), "agent", BudgetLine("calls", "day", 100), "key", spent, 0)
    assert compute_pace(use, datetime(2026, 11, 5, hour, tzinfo=UTC)) == pace


def add_calls(organization_id: UUID, day: datetime, calls: int, outcome: str = "ok") -> None:
    """Write the rollup of a day."""
    kind = RollupKind(organization_id, "call", outcome, "", "", None, None, "search", "")
    Rollup.objects.create(
        **kind._asdict(),
        key=hash_rollup_key(RollupKey(kind, "day", day)),
        grain="day",
        begins=day,
        agent_name="",
        server_name="",
        calls=calls,
        duration_ms=0,
        input_tokens=0,
        output_tokens=0,
        cost_microusd=0,
    )


@pytest.mark.django_db
def test_the_preview_has_the_last_thirty_days_without_denied_calls(acme: Organization) -> None:
    midnight = timezone.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    add_calls(acme.pk, midnight - timedelta(days=3), 40)
    add_calls(acme.pk, midnight - timedelta(days=3), 500, outcome="refused")
    add_calls(acme.pk, midnight - timedelta(days=PREVIEW_DAYS), 900)
    preview = build_preview(acme.pk, acme, BudgetLine("calls", "day", 30), timezone.now())
    assert preview is not None
    assert len(preview.days) == PREVIEW_DAYS
    assert (preview.calls, preview.denied, preview.highest) == (40, 10, 40)
    assert build_preview(acme.pk, acme, BudgetLine("seconds", "day", 30), timezone.now()) is None
