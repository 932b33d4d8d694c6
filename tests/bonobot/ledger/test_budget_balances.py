from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from bonobot.ledger import budget_balances
from bonobot.ledger.budgets import BudgetBalance, build_budget_key
from bonobot.ledger.models import BudgetCell
from bonobot.ledger.tasks import delete_expired_data
from tests.bonobot.ledger.factories import load_organization_balances

pytestmark = pytest.mark.django_db
ORGANIZATION, OTHER = UUID(int=1), UUID(int=2)


@pytest.fixture(autouse=True)
def _create_counters() -> None:
    BudgetCell.objects.create(key="budget:a", organization_id=ORGANIZATION, spent=5, reserved=2)
    BudgetCell.objects.create(key="budget:b", organization_id=ORGANIZATION, spent=1)
    BudgetCell.objects.create(key="budget:c", organization_id=OTHER, spent=9)


def test_many_budget_counters_are_read_in_one_query(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    with django_assert_num_queries(1):
        balances = budget_balances.load_balances(["budget:a", "budget:none"])
    assert balances == {"budget:a": BudgetBalance(5, 2), "budget:none": BudgetBalance()}


def test_an_organization_sees_only_its_own_counters() -> None:
    assert load_organization_balances(ORGANIZATION) == {
        "budget:a": BudgetBalance(5, 2),
        "budget:b": BudgetBalance(1),
    }


def test_counters_of_past_periods_are_deleted_and_totals_kept() -> None:
    BudgetCell.objects.all().delete()
    kept, deleted = [], []
    for period, at, is_expired in [
        ("day", datetime(2026, 8, 21, tzinfo=UTC), True),
        ("day", datetime(2026, 8, 22, tzinfo=UTC), False),
        ("month", datetime(2026, 7, 31, tzinfo=UTC), True),
        ("month", datetime(2026, 8, 1, tzinfo=UTC), False),
        ("total", datetime(2020, 1, 1, tzinfo=UTC), False),
    ]:
        for unit in ("tokens", "calls"):
            key = build_budget_key(
                ORGANIZATION, scope="agent", scope_id=UUID(int=7), unit=unit, period=period, at=at
            )
            BudgetCell.objects.create(key=key, organization_id=ORGANIZATION, spent=1)
            (deleted if is_expired else kept).append(key)
    assert budget_balances.delete_old_cells(datetime(2026, 8, 22, 3, tzinfo=UTC)) == len(deleted)
    assert sorted(load_organization_balances(ORGANIZATION)) == sorted(kept)
    assert budget_balances.delete_old_cells(datetime(2026, 8, 22, 3, tzinfo=UTC)) == 0


def test_the_schedule_deletes_counters_after_ninety_days() -> None:
    now = timezone.now()
    keys = [
        build_budget_key(
            ORGANIZATION, scope="agent", scope_id="x", unit="calls", period="day", at=now - age
        )
        for age in (timedelta(days=89), timedelta(days=92))
    ]
    for key in keys:
        BudgetCell.objects.create(key=key, organization_id=ORGANIZATION)
    delete_expired_data()
    remaining = load_organization_balances(ORGANIZATION)
    assert (keys[0] in remaining, keys[1] in remaining) == (True, False)
