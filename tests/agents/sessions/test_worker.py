"""A session runner in this process: database outages, a deleted row, stopping."""

import pytest
from django.db import OperationalError
from django.utils import timezone

from agents.models import Runner, Session
from agents.sessions import leases, loop
from agents.sessions import services as sessions
from agents.sessions import worker as running
from bonobot.core.runtime import get_runtime
from tests import factories
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def session(acme, helper):
    return sessions.start_session(factories.build_administrator(acme), helper, "hello")


def fail_first_calls(monkeypatch, module, name, exception, *, times):
    """Make the first calls of a function raise `exception`; return the remaining exceptions."""
    original, faults = getattr(module, name), [exception] * times

    async def fail_async(*args):
        if faults:
            raise faults.pop()
        return await original(*args)

    def fail_sync(*args):
        if faults:
            raise faults.pop()
        return original(*args)

    replacement = fail_async if module is loop else fail_sync
    monkeypatch.setattr(module, name, replacement)
    return faults


def test_a_database_outage_ends_no_session(session, take, runner, monkeypatch):
    faults = fail_first_calls(monkeypatch, loop, "run_session", OperationalError("away"), times=1)
    take(session)
    eventually(lambda: session.refresh_from_db() or session.status == Session.Status.DONE)
    assert not faults


def test_a_worker_whose_row_is_deleted_continues_with_a_new_one(session, take, runner):
    get_runtime().call(runner.start)
    before = runner.runner_id
    Runner.objects.all().delete()
    assert take(session) == Session.Status.DONE
    assert Runner.objects.filter(pk=runner.runner_id).exclude(pk=before).exists()


def test_a_stopped_worker_claims_nothing(session, take, runner):
    get_runtime().call(runner.drain)
    assert take(session) == Session.Status.QUEUED
    assert not Runner.objects.exclude(stopped_at=None).filter(pk=runner.runner_id).exists()


def test_the_heartbeat_continues_after_a_database_outage(runner, monkeypatch):
    monkeypatch.setattr(running, "CANCEL_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(leases, "HEARTBEAT_INTERVAL_S", 0.02)
    faults = fail_first_calls(
        monkeypatch, leases, "renew_runner_leases", OperationalError("away"), times=2
    )
    get_runtime().call(runner.start)
    eventually(lambda: not faults)
    now = timezone.now()
    eventually(lambda: Runner.objects.get(pk=runner.runner_id).heartbeat_at > now)


def test_a_blocked_event_loop_lets_its_leases_expire(runner, monkeypatch):
    monkeypatch.setattr(running, "CANCEL_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(leases, "HEARTBEAT_INTERVAL_S", 0.02)
    checks = []
    monkeypatch.setattr(runner, "_is_loop_responsive", lambda: checks.append(1) and False)
    get_runtime().call(runner.start)
    before = Runner.objects.get(pk=runner.runner_id).heartbeat_at
    eventually(lambda: len(checks) > 5)
    assert Runner.objects.get(pk=runner.runner_id).heartbeat_at == before
