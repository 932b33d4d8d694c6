"""The writer's cache equals the stored rows, whoever wrote last; otherwise it reads them again."""

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection

from bonobot.ledger.admission import StaleSnapshot
from bonobot.ledger.audit import admin_changes
from bonobot.ledger.models import BudgetCell, FlowCell, RateCell, StoreLabel
from bonobot.ledger.types import (
    Admission,
    BudgetReservation,
    FlowLabelEffect,
    Opening,
    RateCharge,
    Settlement,
    Store,
)
from bonobot.ledger.writer import committer, sql
from bonobot.ledger.writer.batch_plan import BatchRowKeys, BatchState
from bonobot.ledger.writer.committer import BatchStateCache
from bonobot.ledger.writer.writer_thread import LedgerWriter
from tests.bonobot.ledger.factories import opening_of
from tests.ledger_chain import verify_whole_chain

WAIT_S = 30.0
NEVER = 10**9

pytestmark = pytest.mark.skipif(
    connection.vendor != "sqlite", reason="SQLite only; test_sql.py has the tests for PostgreSQL"
)


@pytest.fixture
def cache_hits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Compare cached with stored rows; list for each batch whether it was cached."""
    hits: list[bool] = []
    find_state = BatchStateCache.find_state

    def find_and_compare(
        cache: BatchStateCache, database: Any, keys: BatchRowKeys, *, now: int
    ) -> BatchState | None:
        cached = find_state(cache, database, keys, now=now)
        hits.append(cached is not None)
        if cached is not None:
            stored = sql.lock_rows(database, keys)()
            stored.now = cached.now
            assert cached == stored
        return cached

    monkeypatch.setattr(committer.BatchStateCache, "find_state", find_and_compare)
    return hits


def _build_admission(call: Opening, generation: int | None = None) -> Admission:
    organization_id = call.organization_id
    return Admission(
        call,
        reservations=(
            BudgetReservation(f"budget:{organization_id}:agent:1:calls:total:all", NEVER, 1),
        ),
        charges=(RateCharge(f"rate:{organization_id}:agent:1", 100_000, 10_000),),
        generation=generation,
        flows=(FlowLabelEffect(f"flow:{organization_id}:agent:1", added_labels=1),),
        stores=(Store(f"flow:{organization_id}:server:1"),),
    )


def _build_settlement(admission: Admission) -> Settlement:
    return Settlement(
        call_id=admission.opening.call_id,
        organization_id=admission.opening.organization_id,
        outcome="ok",
        duration_ms=1,
        actuals=tuple(
            (reservation.key, reservation.amount, 1) for reservation in admission.reservations
        ),
    )


def test_a_repeated_call_is_decided_from_the_cache(
    writer: LedgerWriter, opening: Callable[..., Opening], cache_hits: list[bool]
) -> None:
    for _ in range(3):
        admission = _build_admission(opening())
        writer.admit_call(admission).result(WAIT_S)
        assert writer.settle_call(_build_settlement(admission)).result(WAIT_S) is True
    assert cache_hits == [False, True, True, True, True, True]
    assert verify_whole_chain(admission.opening.organization_id).ok


def test_a_settlement_isnt_applied_twice_from_the_cache(
    writer: LedgerWriter, opening: Callable[..., Opening], cache_hits: list[bool]
) -> None:
    admission = _build_admission(opening())
    writer.admit_call(admission).result(WAIT_S)
    assert writer.settle_call(_build_settlement(admission)).result(WAIT_S) is True
    assert writer.settle_call(_build_settlement(admission)).result(WAIT_S) is False
    assert cache_hits == [False, True, False]


def test_a_write_of_another_connection_is_visible_to_the_next_call(
    writer: LedgerWriter, opening: Callable[..., Opening], organization_id: UUID
) -> None:
    writer.admit_call(_build_admission(opening(), generation=0)).result(WAIT_S)
    admin_changes.increment_generation(organization_id)
    with pytest.raises(StaleSnapshot):
        writer.admit_call(_build_admission(opening(), generation=0)).result(WAIT_S)
    assert (
        writer.admit_call(_build_admission(opening(), generation=1)).result(WAIT_S).generation == 1
    )


def test_each_write_of_a_labeled_caller_changes_the_time_of_the_store(
    writer: LedgerWriter, organization_id: UUID, cache_hits: list[bool]
) -> None:
    key, times = f"flow:{organization_id}:server:1", [0]
    writer.admit_call(_build_admission(opening_of(organization_id))).result(WAIT_S)
    assert FlowCell.objects.get(pk=key).touched == 0  # the caller had no labels
    for _ in range(3):
        writer.admit_call(_build_admission(opening_of(organization_id))).result(WAIT_S)
        times.append(FlowCell.objects.get(pk=key).touched)
    assert times == sorted(set(times))
    assert StoreLabel.objects.filter(key=key).count() == 1


def test_the_cache_agrees_with_the_rows_during_concurrent_changes(
    writer: LedgerWriter, organization_id: UUID, cache_hits: list[bool]
) -> None:
    rng = random.Random(7)  # noqa: S311  # reproducible
    running: list[Admission] = []
    other = uuid4()
    other_writes: list[Callable[[], object]] = [
        lambda: admin_changes.increment_generation(organization_id),
        lambda: admin_changes.increment_generation(other),
        lambda: BudgetCell.objects.all().delete(),
        lambda: BudgetCell.objects.update(spent=5),
        lambda: RateCell.objects.update(tat=0),
        lambda: RateCell.objects.all().delete(),
        lambda: FlowCell.objects.update(labels=2),
    ]
    for _ in range(120):
        match rng.randrange(8):
            case 0:
                rng.choice(other_writes)()
            case 1 | 2 | 3 if running:
                settled = _build_settlement(running.pop(rng.randrange(len(running))))
                assert writer.settle_call(settled).result(WAIT_S) is True
            case _:
                owner_id = rng.choice([organization_id, other])
                admission = _build_admission(opening_of(owner_id))
                writer.admit_call(admission).result(WAIT_S)
                running.append(admission)
    assert cache_hits.count(True) > 40
    assert verify_whole_chain(organization_id).ok


def test_the_cache_is_cleared_when_it_is_full(
    writer: LedgerWriter,
    opening: Callable[..., Opening],
    cache_hits: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bonobot.ledger.writer.committer.MAX_CACHED_ROWS", 4)
    for _ in range(12):
        writer.admit_call(_build_admission(opening())).result(WAIT_S)
    assert True in cache_hits
    assert len(writer._committer._cache._state.open_calls) <= 4
