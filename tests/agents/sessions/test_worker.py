"""A session runner in this process: database outages, a deleted row, stopping."""

import asyncio
from datetime import timedelta
from time import monotonic

import pytest
from django.db import OperationalError
from django.utils import timezone

from agents import tasks
from agents.models import Runner, Session
from agents.sessions import dead_runners, leases, loop
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


def test_a_database_outage_ends_no_session(session, run_to_rest, runner, monkeypatch):
    faults = fail_first_calls(monkeypatch, loop, "run_session", OperationalError("away"), times=1)
    run_to_rest(session)
    eventually(lambda: session.refresh_from_db() or session.status == Session.Status.DONE)
    assert not faults


def test_a_worker_whose_row_is_deleted_continues_with_a_new_one(session, run_to_rest, runner):
    get_runtime().call(runner.start)
    before = runner.runner_id
    Runner.objects.all().delete()
    assert run_to_rest(session) == Session.Status.DONE
    assert Runner.objects.filter(pk=runner.runner_id).exclude(pk=before).exists()


def test_a_stopped_worker_claims_nothing(session, run_to_rest, runner):
    get_runtime().call(runner.drain)
    assert run_to_rest(session) == Session.Status.QUEUED
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


def test_the_heartbeat_continues_after_an_unexpected_error(runner, monkeypatch):
    monkeypatch.setattr(running, "CANCEL_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(leases, "HEARTBEAT_INTERVAL_S", 0.02)
    left = fail_first_calls(
        monkeypatch, leases, "release_orphaned_sessions", RuntimeError("bug"), times=1
    )
    get_runtime().call(runner.start)
    eventually(lambda: not left)
    now = timezone.now()
    eventually(lambda: Runner.objects.get(pk=runner.runner_id).heartbeat_at > now)


def test_two_starts_at_once_register_one_worker(runner):
    async def start_twice():
        await asyncio.gather(runner.start(), runner.start())

    get_runtime().call(start_twice)
    assert Runner.objects.count() == 1


def test_a_session_queued_while_its_run_still_ends_is_run_again(session, runner, monkeypatch):
    async def claim_during_the_end():
        ended, claim_session = asyncio.Event(), runner._claim_session
        earlier_run = asyncio.create_task(ended.wait())

        async def claim(session_id):
            lease = await claim_session(session_id)
            runner._tasks[session_id] = earlier_run
            earlier_run.add_done_callback(lambda _: runner._tasks.pop(session_id))
            ended.set()
            return lease

        monkeypatch.setattr(runner, "_claim_session", claim)
        await (await runner.claim_and_run(session.pk))

    get_runtime().call(claim_during_the_end, timeout_s=30)
    session.refresh_from_db()
    assert session.status == Session.Status.DONE


def test_an_ended_session_is_not_claimed_again(session, runner, monkeypatch):
    claimed_ids, claim_session = [], leases.claim_session

    def claim(session_id, runner_id):
        claimed_ids.append(session_id)
        return claim_session(session_id, runner_id)

    async def run():
        await (await runner.claim_and_run(session.pk))

    monkeypatch.setattr(leases, "claim_session", claim)
    get_runtime().call(run, timeout_s=30)
    assert claimed_ids == [session.pk]


@pytest.mark.parametrize("method", ["_execute_session", "close"])
def test_a_message_that_arrives_while_the_run_ends_is_answered(
    acme, session, runner, monkeypatch, method
):
    """Before the end is recorded, and while the connections are closed after that."""
    owner = loop if method == "_execute_session" else loop.RunConnections
    original, messages = getattr(owner, method), ["and this?"]

    async def send_message_after(*args, **kwargs):
        result = await original(*args, **kwargs)
        if messages:
            administrator = factories.build_administrator(acme)
            orm, text = get_runtime().run_orm, messages.pop()
            await orm(sessions.send_message, administrator, session, text)
            await runner.claim_and_run(session.pk)  # as the broker's message does
        return result

    async def run():
        await (await runner.claim_and_run(session.pk))
        while task := runner._tasks.get(session.pk):
            await task

    monkeypatch.setattr(owner, method, send_message_after)
    get_runtime().call(run, timeout_s=30)
    session.refresh_from_db()
    assert session.status == Session.Status.DONE
    assert [step.kind for step in session.steps.order_by("seq")].count("end") == 2


def test_a_worker_that_stops_leaves_messages_to_others(session, runner, monkeypatch):
    monkeypatch.setattr(tasks, "get_session_runner", lambda: runner)
    announced = []
    monkeypatch.setattr(tasks, "notify_worker", announced.append)
    get_runtime().call(runner.start)
    get_runtime().call(runner.drain)
    tasks.run_session(str(session.pk))
    assert announced == [session.pk]


@pytest.fixture
def run_until_model(session, runner, monkeypatch):
    """A function that runs the session until it waits for its model."""
    started = asyncio.Event()

    async def wait_for_model(*_):
        started.set()
        await asyncio.Event().wait()

    def run_session():
        get_runtime().call(runner.claim_and_run, session.pk)
        get_runtime().call(started.wait, timeout_s=30)

    monkeypatch.setattr(loop, "_execute_session", wait_for_model)
    return run_session


def test_a_stopping_worker_releases_sessions_before_it_closes_their_connections(
    runner, run_until_model, monkeypatch
):
    statuses = []

    async def read_status(*_, **__):
        statuses.append(await get_runtime().run_orm(lambda: Session.objects.get().status))

    monkeypatch.setattr(loop.RunConnections, "close", read_status)
    run_until_model()
    get_runtime().call(runner.drain)
    assert statuses == [Session.Status.QUEUED]


def test_a_stopping_worker_records_that_a_person_canceled_a_session(
    acme, session, runner, run_until_model
):
    run_until_model()
    lease_state = runner._lease_states[session.pk]
    get_runtime().loop.call_soon_threadsafe(lease_state.stopping.set)
    sessions.cancel_session(factories.build_administrator(acme), session)
    get_runtime().call(runner._cancel_requested_sessions)
    eventually(lambda: session.pk not in runner._tasks)
    session.refresh_from_db()
    assert session.status == Session.Status.CANCELLED


def test_sessions_of_a_dead_worker_continue_when_another_one_starts(session, run_to_rest, runner):
    dead_id = leases.register_runner()
    leases.claim_session(session.pk, dead_id)
    Runner.objects.filter(pk=dead_id).update(heartbeat_at=timezone.now() - leases.LEASE_DURATION)
    # The heartbeat may release it first, and before announces it to other workers.
    eventually(lambda: run_to_rest(session) == Session.Status.DONE)
    assert Runner.objects.get(pk=dead_id).stopped_at


def test_a_late_heartbeat_makes_no_other_worker_dead(session, runner):
    silent_id = leases.register_runner()
    leases.claim_session(session.pk, silent_id)
    Runner.objects.filter(pk=silent_id).update(heartbeat_at=timezone.now() - leases.LEASE_DURATION)
    runner._check_heartbeat_delay(monotonic() - leases.LEASE_DURATION.total_seconds())
    assert get_runtime().call(runner.release_dead_runners) == []


def test_a_session_that_another_process_releases_during_the_claim_is_claimed(
    session, runner, monkeypatch
):
    dead_id = leases.register_runner()
    leases.claim_session(session.pk, dead_id)
    Runner.objects.filter(pk=dead_id).update(heartbeat_at=timezone.now() - leases.LEASE_DURATION)
    list_other_runners = dead_runners.list_other_runners

    def release_before_listing(*args):
        dead_runners.release_dead_runners(list_other_runners(runner.runner_id))
        return list_other_runners(*args)

    get_runtime().call(runner.start)
    monkeypatch.setattr(dead_runners, "list_other_runners", release_before_listing)
    assert get_runtime().call(runner._claim_session, session.pk) is not None


def test_a_starting_worker_runs_what_a_dead_one_left_without_messages(
    acme, helper, runner, monkeypatch
):
    monkeypatch.setattr("bonobot.core.celery_tasks.enqueue_task_on_commit", lambda *_: None)
    administrator = factories.build_administrator(acme)
    sessions_left = [sessions.start_session(administrator, helper, "hello") for _ in range(2)]
    dead_id = leases.register_runner()
    leases.claim_session(sessions_left[0].pk, dead_id)
    Runner.objects.filter(pk=dead_id).update(heartbeat_at=timezone.now() - leases.LEASE_DURATION)
    monkeypatch.setattr(running, "MIN_QUEUED_TIME", timedelta(0))
    get_runtime().call(runner.take_over_sessions)
    eventually(lambda: Session.objects.filter(status="done").count() == 2)
