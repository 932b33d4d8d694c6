"""The scheduler in a thread of a worker."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from bonobot.celery import app
from bonobot.jobs.celery_beat import BonobotScheduler
from bonobot.jobs.models import Lease
from bonobot.processes.scheduler_thread import SchedulerThread
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def termination_event() -> Iterator[threading.Event]:
    """Set when this process gets SIGTERM."""
    event = threading.Event()
    previous = signal.signal(signal.SIGTERM, lambda *_: event.set())
    yield event
    signal.signal(signal.SIGTERM, previous)


def test_it_leads_until_it_is_stopped_and_releases_its_lease() -> None:
    thread = SchedulerThread(app)
    thread.start()
    try:
        eventually(lambda: BonobotScheduler.leader.is_leader)
        assert Lease.objects.filter(name="beat").exists()
    finally:
        thread.stop()
    assert not Lease.objects.filter(name="beat").exists()
    assert not thread.is_alive()


def test_a_stop_interrupts_the_wait_for_the_next_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BonobotScheduler, "tick", lambda scheduler: 3_600.0)
    thread = SchedulerThread(app)
    thread.start()
    thread.stop()
    assert not thread.is_alive()


def test_a_scheduler_that_fails_ends_its_worker(
    termination_event: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(scheduler: BonobotScheduler) -> float:
        raise RuntimeError(os.getpid())

    monkeypatch.setattr(BonobotScheduler, "tick", fail)
    thread = SchedulerThread(app)
    thread.start()
    thread.join(10)
    eventually(termination_event.is_set)
