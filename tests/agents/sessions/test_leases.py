"""Leases and fences: who may run a session, and who no longer may."""

from datetime import timedelta

import pytest
from django.utils import timezone

from agents.models import Runner, Session, Step
from agents.sessions import dead_runners, leases, step_store
from agents.sessions.leases import LeaseLost
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def session():
    where = factories.create_organization()
    return Session.objects.create(
        organization=where,
        agent=factories.create_agent(where),
        started_by="ann",
        started_by_kind="user",
    )


def grow_old(runner_id):
    Runner.objects.filter(pk=runner_id).update(heartbeat_at=timezone.now() - timedelta(minutes=1))


def release_dead_runners(own_id):
    return dead_runners.release_dead_runners(dead_runners.list_other_runners(own_id))


def test_a_queued_session_is_claimed_once(session):
    one, other = leases.register_runner(), leases.register_runner()
    assert leases.claim_session(session.pk, one) is not None
    assert leases.claim_session(session.pk, other) is None


def test_a_session_of_a_live_worker_isnt_taken_over(session):
    one, other = leases.register_runner(), leases.register_runner()
    leases.claim_session(session.pk, one)
    leases.renew_runner_leases(one)
    assert leases.claim_session(session.pk, other) is None
    assert leases.list_unattended_sessions() == []


def test_a_session_of_a_silent_worker_is_taken_over(session):
    one, other = leases.register_runner(), leases.register_runner()
    first = leases.claim_session(session.pk, one)
    grow_old(one)
    assert release_dead_runners(other) == [session.pk]
    second = leases.claim_session(session.pk, other)
    assert second is not None
    assert second.fence == first.fence + 1


def test_a_worker_with_an_expired_lease_writes_nothing(session):
    one, other = leases.register_runner(), leases.register_runner()
    first = leases.claim_session(session.pk, one)
    step = step_store.append_step(
        first, Step.Kind.CALL, {"name": "x"}, state=Step.State.INTENT, turn=1
    )
    grow_old(one)
    release_dead_runners(other)
    leases.claim_session(session.pk, other)
    with pytest.raises(LeaseLost):
        step_store.append_step(first, Step.Kind.NOTICE, {"text": "late"})
    with pytest.raises(LeaseLost):
        step_store.finish_step(first, step, Step.State.DONE, {"name": "x", "text": "late"})
    with pytest.raises(LeaseLost):
        step_store.close_session(first, Session.Status.DONE)
    step.refresh_from_db()
    assert step.state == Step.State.INTENT
    assert Step.objects.count() == 1


def test_sessions_of_a_stopped_worker_are_free_immediately(session):
    one, other = leases.register_runner(), leases.register_runner()
    leases.claim_session(session.pk, one)
    leases.stop_runner(one)
    assert leases.claim_session(session.pk, other) is not None


def test_releasing_a_session_queues_it_again(session):
    one, other = leases.register_runner(), leases.register_runner()
    leases.release_session(leases.claim_session(session.pk, one))
    assert leases.claim_session(session.pk, other) is not None


def test_an_idle_session_needs_no_worker(session):
    one = leases.register_runner()
    hold = leases.claim_session(session.pk, one)
    step_store.close_session(hold, Session.Status.DONE)
    assert leases.claim_session(session.pk, one) is None
    assert leases.list_unattended_sessions() == []


def test_steps_are_numbered_consecutively(session):
    hold = leases.claim_session(session.pk, leases.register_runner())
    for text in "abc":
        step_store.append_step(hold, Step.Kind.NOTICE, {"text": text})
    assert list(session.steps.values_list("seq", flat=True)) == [1, 2, 3]


def test_only_a_worker_with_heartbeats_counts_as_alive():
    assert not leases.has_live_runner()
    one = leases.register_runner()
    assert leases.has_live_runner()
    grow_old(one)
    assert not leases.has_live_runner()


def test_a_session_held_but_not_run_by_a_live_worker_is_queued_again(session):
    one = leases.register_runner()
    leases.claim_session(session.pk, one)
    Session.objects.update(updated_at=timezone.now() - timedelta(minutes=1))
    assert leases.release_orphaned_sessions(one, {session.pk}) == []
    assert leases.release_orphaned_sessions(one, set()) == [session.pk]
    session.refresh_from_db()
    assert session.status == Session.Status.QUEUED


def test_a_recently_claimed_session_isnt_orphaned(session):
    one = leases.register_runner()
    leases.claim_session(session.pk, one)
    assert leases.release_orphaned_sessions(one, set()) == []


def test_a_worker_notices_that_its_row_was_deleted():
    one = leases.register_runner()
    assert leases.renew_runner_leases(one)
    Runner.objects.all().delete()
    assert not leases.renew_runner_leases(one)
