"""The limits and rates that a call is charged to."""

from datetime import UTC, datetime
from uuid import UUID

from agents.budgets.limits import (
    BudgetLimit,
    build_budget_key,
    build_charge,
    build_reservations,
    select_limits,
    to_whole_units,
)
from bonobot.ledger.budgets import settle_reservations

ORG = UUID(int=7)
NOW = datetime(2026, 11, 21, 23, 59, tzinfo=UTC)


def limit(unit="calls", period="day"):
    return BudgetLimit(scope="agent", scope_id="a", unit=unit, period=period, limit=10)


def test_each_period_has_its_own_counter():
    keys = [
        build_budget_key(ORG, limit(period=period_name), NOW)
        for period_name in ("day", "month", "total")
    ]
    assert [key.rsplit(":", 1)[1] for key in keys] == ["2026-11-21", "2026-11", "all"]


def test_only_budgets_of_the_used_unit_are_reserved():
    reservations = build_reservations(ORG, [limit("calls"), limit("tokens")], {"tokens": 5}, NOW)
    assert [(reservation.limit, reservation.amount) for reservation in reservations] == [(10, 5)]
    assert ":tokens:" in reservations[0].key


def test_rates_of_two_organizations_are_independent():
    assert (
        build_charge(ORG, "agent", "a", 60).key != build_charge(UUID(int=8), "agent", "a", 60).key
    )


def test_seconds_are_counted_in_milliseconds():
    (reservation,) = build_reservations(ORG, [limit("seconds")], {"milliseconds": 1_500}, NOW)
    assert (reservation.limit, reservation.amount, ":milliseconds:" in reservation.key) == (
        10_000,
        1_500,
        True,
    )
    assert to_whole_units("seconds", 1_001) == 2
    assert settle_reservations([reservation], {"milliseconds": 20}) == (
        (reservation.key, 1_500, 20),
    )
    assert settle_reservations([reservation], None) == ((reservation.key, 1_500, 1_500),)


def test_a_limit_applies_to_calls_of_its_owner():
    server, session = UUID(int=3), UUID(int=4)
    limits = [
        BudgetLimit("organization", "o", "calls", "day", 1),
        BudgetLimit("server", str(server), "calls", "day", 1),
        BudgetLimit("session", "", "calls", "day", 1),
    ]
    selected = select_limits(limits, server_id=server, session_id=session)
    assert [budget_limit.scope_id for budget_limit in selected] == ["o", str(server), str(session)]
    assert [
        budget_limit.scope
        for budget_limit in select_limits(limits, server_id=None, session_id=None)
    ] == ["organization"]
