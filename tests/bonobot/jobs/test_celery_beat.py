"""Of two schedulers one leads, and the other takes over its lease."""

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.db import OperationalError
from django.utils import timezone
from django_celery_beat.models import PeriodicTask

from bonobot.celery import app
from bonobot.jobs import celery_beat
from bonobot.jobs.celery_beat import (
    LEASE_DURATION_S,
    STANDBY_INTERVAL_S,
    BonobotScheduler,
    LeaderLease,
)
from bonobot.models import Lease

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _renew_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celery_beat, "RENEW_INTERVAL_S", 0.0)


def travel_past_lease() -> Any:
    return time_machine.travel(timezone.now() + timedelta(seconds=LEASE_DURATION_S + 1), tick=True)


def test_one_of_two_schedulers_leads_and_renews_its_lease() -> None:
    first, second = LeaderLease("x"), LeaderLease("x")
    assert [first.renew(), second.renew(), first.renew(), second.renew()] == [True, False] * 2
    assert (first.is_leader, second.is_leader) == (True, False)


def test_leases_with_different_names_are_independent() -> None:
    assert LeaderLease("x").renew()
    assert LeaderLease("y").renew()


def test_the_second_scheduler_takes_over_an_expired_lease_and_the_first_notices() -> None:
    first, second = LeaderLease("x"), LeaderLease("x")
    assert first.renew()
    with travel_past_lease():
        assert second.renew()
        assert not first.renew()


def test_a_released_lease_is_taken_over_immediately() -> None:
    first, second = LeaderLease("x"), LeaderLease("x")
    assert first.renew()
    first.release()
    assert not first.is_leader
    assert second.renew()
    first.release()
    assert Lease.objects.get().holder == second.holder


def test_without_a_database_the_lease_is_kept_until_it_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = LeaderLease("x")
    assert leader.renew()

    def fail() -> bool:
        raise OperationalError

    monkeypatch.setattr(leader, "_claim_row", fail)
    assert leader.renew()
    leader._held_until = 0.0
    assert not leader.renew()


@pytest.fixture
def schedulers(monkeypatch: pytest.MonkeyPatch) -> Any:
    for module in ("bonobot.jobs.celery_beat", "django_celery_beat.schedulers"):
        monkeypatch.setattr(f"{module}.close_old_connections", lambda: None)
    pair = [BonobotScheduler(app), BonobotScheduler(app)]
    for scheduler in pair:
        scheduler.leader = LeaderLease("beat")
        scheduler.sent = []
        monkeypatch.setattr(
            scheduler,
            "apply_async",
            lambda entry, scheduler=scheduler, **_: scheduler.sent.append(entry),
        )
    yield pair
    for scheduler in pair:
        scheduler._finalize.cancel()


def make_due() -> None:
    PeriodicTask.objects.update(last_run_at=timezone.now() - timedelta(days=2))


def list_names(scheduler: Any) -> set[str]:
    return {entry.name for entry in scheduler.sent}


def test_of_two_schedulers_one_sends_and_the_other_continues_where_it_stopped(
    schedulers: Any,
) -> None:
    first, second = schedulers
    first.tick()
    make_due()
    first._is_leading = False  # its schedules are outdated
    for _ in range(PeriodicTask.objects.count() + 2):
        first.tick()
    assert list_names(first) == set(PeriodicTask.objects.values_list("name", flat=True))
    assert second.tick() == STANDBY_INTERVAL_S
    first.sync()
    with travel_past_lease():
        for _ in range(PeriodicTask.objects.count() + 2):
            second.tick()
        # Entries that the first one sent aren't sent again.
        assert "prune audit log" not in list_names(second)
        assert "sweep" in list_names(second)
        assert first.tick() == STANDBY_INTERVAL_S


def test_the_first_heartbeat_is_saved_immediately_and_later_runs_in_batches(
    schedulers: Any,
) -> None:
    first, _ = schedulers
    first.tick()
    first._do_sync()
    make_due()
    first._is_leading = False  # its schedules are outdated
    first._dirty.add("prune audit log")
    assert not first.should_sync()  # it would leave the heartbeat unsaved until the next batch
    for _ in range(PeriodicTask.objects.count() + 2):
        first.tick()
    assert "sweep" in list_names(first)
    assert first.should_sync()
    first._do_sync()
    row = PeriodicTask.objects.get(name="sweep")
    assert row.last_run_at is not None
    assert timezone.now() - row.last_run_at < timedelta(minutes=1)
    first._dirty.add(row.name)
    assert not first.should_sync()


def test_stopping_a_scheduler_lets_the_other_lead_immediately(schedulers: Any) -> None:
    first, second = schedulers
    first.tick()
    first.close()
    assert second.tick() < STANDBY_INTERVAL_S or second.leader.leads
