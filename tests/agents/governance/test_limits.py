"""What a call is charged to."""

from datetime import UTC, datetime
from uuid import UUID

from agents.governance.limits import budget_key, charge, reserves
from agents.governance.snapshots import Limit

ORG = UUID(int=7)
NOW = datetime(2026, 11, 21, 23, 59, tzinfo=UTC)


def limit(unit="calls", period="day"):
    return Limit(scope="agent", scope_id="a", unit=unit, period=period, limit=10)


def test_each_period_has_a_cell_of_its_own():
    keys = [budget_key(ORG, limit(period=p), NOW) for p in ("day", "month", "total")]
    assert [key.rsplit(":", 1)[1] for key in keys] == ["2026-11-21", "2026-11", "all"]


def test_only_budgets_of_the_spent_unit_are_reserved():
    made = reserves(ORG, [limit("calls"), limit("tokens")], {"tokens": 5}, NOW)
    assert [(r.limit, r.amount) for r in made] == [(10, 5)]
    assert ":tokens:" in made[0].key


def test_a_burst_is_a_third_of_a_minute_and_never_above_the_rate():
    assert [charge(ORG, "agent", "a", rate).burst for rate in (1, 5, 60, 600)] == [1, 5, 20, 200]


def test_rates_of_two_organizations_are_different_cells():
    assert charge(ORG, "agent", "a", 60).key != charge(UUID(int=8), "agent", "a", 60).key
