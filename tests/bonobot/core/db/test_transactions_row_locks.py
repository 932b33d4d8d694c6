"""Row locks: rows are locked and written in a fixed order."""

import pytest
from django.db import transaction
from django.utils import timezone

from bonobot.core.db.transactions import delete_in_order, lock_rows, update_in_order
from bonobot.models import Lease

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def rows():
    now = timezone.now()
    for name in "bca":
        Lease.objects.create(
            name=name, holder="00000000-0000-0000-0000-000000000001", expires_at=now
        )
    return Lease.objects.exclude(name="c")


def test_rows_are_locked_by_key_or_in_the_given_order(rows):
    with transaction.atomic():
        assert lock_rows(rows, deleting=True) == ["a", "b"]
        assert lock_rows(rows, order=("-name",)) == ["b", "a"]


def test_only_locked_rows_are_written(rows):
    later = timezone.now()
    assert update_in_order(rows, expires_at=later) == 2
    assert set(Lease.objects.filter(expires_at=later)) == set(rows)
    assert delete_in_order(rows) == 2
    assert [row.name for row in Lease.objects.all()] == ["c"]
