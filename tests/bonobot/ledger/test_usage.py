from uuid import UUID

import pytest
from pytest_django import DjangoAssertNumQueries

from bonobot.ledger import usage
from bonobot.ledger.budgets import Cell
from bonobot.ledger.models import BudgetCell

pytestmark = pytest.mark.django_db
ORGANIZATION, OTHER = UUID(int=1), UUID(int=2)


@pytest.fixture(autouse=True)
def _cells() -> None:
    BudgetCell.objects.create(key="budget:a", organization_id=ORGANIZATION, spent=5, reserved=2)
    BudgetCell.objects.create(key="budget:b", organization_id=ORGANIZATION, spent=1)
    BudgetCell.objects.create(key="budget:c", organization_id=OTHER, spent=9)


def test_a_cell_shows_what_is_spent_and_set_aside() -> None:
    assert usage.spent("budget:a") == (5, 2)
    assert usage.spent("budget:none") == (0, 0)


def test_many_cells_are_read_at_once(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    with django_assert_num_queries(1):
        found = usage.spent_many(["budget:a", "budget:none"])
    assert found == {"budget:a": Cell(5, 2), "budget:none": Cell()}


def test_an_organization_sees_its_own_cells() -> None:
    assert usage.cells(ORGANIZATION) == {"budget:a": Cell(5, 2), "budget:b": Cell(1)}
