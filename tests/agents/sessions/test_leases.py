"""Session leases: claiming, renewal, expiry, fencing."""

from datetime import timedelta

import pytest
from django.utils import timezone

from agents.models import Runner, Session, Step
from agents.sessions import dead_runners, leases, step_store
from agents.sessions.leases import LeaseLost
from agents.sessions.loop import close_session
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def session():
    organization = factories.create_organization()
    return Session.objects.create(
        organization=organization,
        agent=factories.create_agent(organization),
        started_by="ann",
        started_by_kind="user",
    )


def expire_heartbeat(runner_id):
    Runner.objects.filter(pk=runner_id).update(heartbeat_at=timezone.now() - timedelta(minutes=1))


def release_dead_runners(own_id):
    return dead_runners.release_dead_runners(dead_runners.list_other_runners(own_id))


def test_a_queued_session_is_claimed_once(session):
    worker_id, other_worker_id = leases.register_runner(), leases.register_runner()
    assert leases.claim_session(session.pk, worker_id) is not None
    assert leases.claim_session(session.pk, other_worker_id) is None


def test_a_session_of_a_live_worker_isnt_taken_over(session):
    worker_id, other_worker_id = leases.register_runner(), leases.register_runner()
    leases.claim_session(session.pk, worker_id)
    leases.renew_runner_leases(worker_id)
    assert leases.claim_session(session.pk, other_worker_id) is None
    assert leases.list_unattended_sessions() == []


def test_a_session_of_a_silent_worker_is_taken_over(session):
    worker_id, other_worker_id = leases.register_runner(), leases.register_runner()
    first = leases.claim_session(session.pk, worker_id)
    expire_heartbeat(worker_id)
    assert release_dead_runners(other_worker_id) == [session.pk]
    second = leases.claim_session(session.pk, other_worker_id)
    assert second is not None
    assert second.fence == first.fence + 1


def test_a_worker_with_an_expired_lease_writes_nothing(session):
    worker_id, other_worker_id = leases.register_runner(), leases.register_runner()
    first = leases.claim_session(session.pk, worker_id)
    step = step_store.append_step(
        first, Step.Kind.CALL, {"name": "x"}, state=Step.State.INTENT, turn=1
    )
    expire_heartbeat(worker_id)
    release_dead_runners(other_worker_id)
    leases.claim_session(session.pk, other_worker_id)
    with pytest.raises(LeaseLost):
        step_store.append_step(first, Step.Kind.NOTICE, {"text": "late"})
    with pytest.raises(LeaseLost):
        step_store.finish_step(first, step, Step.State.DONE, {"name": "x", "text": "late"})
    with pytest.raises(LeaseLost):
        close_session(first, Session.Status.DONE)
    step.refresh_from_db()
    assert step.state == Step.State.INTENT
    assert Step.objects.count() == 1


def test_sessions_of_a_stopped_worker_are_free_immediately(session):
    worker_id, other_worker_id = leases.register_runner(), leases.register_runner()
    leases.claim_session(session.pk, worker_id)
    leases.stop_runner(worker_id)
    assert leases.claim_session(session.pk, other_worker_id) is not None


def test_releasing_a_session_queues_it_again(session):
    worker_id, other_worker_id = leases.register_runner(), leases.register_runner()
    leases.release_session(leases.claim_session(session.pk, worker_id))
    assert leases.claim_session(session.pk, other_worker_id) is not None


def test_an_idle_session_needs_no_worker(session):
    worker_id = leases.register_runner()
    lease = leases.claim_session(session.pk, worker_id)
    close_session(lease, Session.Status.DONE)
    assert leases.claim_session(session.pk, worker_id) is None
    assert leases.list_unattended_sessions() == []


def test_steps_are_numbered_consecutively(session):
    lease = leases.claim_session(session.pk, leases.register_runner())
    for text in "abc":
        step_store.append_step(lease, Step.Kind.NOTICE, {"text": text})
    assert list(session.steps.values_list("seq", flat=True)) == [1, 2, 3]


def test_only_another_process_with_heartbeats_counts_as_a_live_worker():
    worker_id = leases.register_runner()
    assert not leases.has_live_runner()
    Runner.objects.update(host="worker.example.com")
    assert leases.has_live_runner()
    expire_heartbeat(worker_id)
    assert not leases.has_live_runner()


def test_a_session_held_but_not_run_by_a_live_worker_is_queued_again(session):
    worker_id = leases.register_runner()
    leases.claim_session(session.pk, worker_id)
    Session.objects.update(updated_at=timezone.now() - timedelta(minutes=1))
    assert leases.release_orphaned_sessions(worker_id, {session.pk}) == []
    assert leases.release_orphaned_sessions(worker_id, set()) == [session.pk]
    session.refresh_from_db()
    assert session.status == Session.Status.QUEUED


def test_a_recently_claimed_session_isnt_orphaned(session):
    worker_id = leases.register_runner()
    leases.claim_session(session.pk, worker_id)
    assert leases.release_orphaned_sessions(worker_id, set()) == []


def test_a_worker_notices_that_its_row_was_deleted():
    worker_id = leases.register_runner()
    assert leases.renew_runner_leases(worker_id)
    Runner.objects.all().delete()
    assert not leases.renew_runner_leases(worker_id)


def test_an_outcome_that_is_saved_again_is_counted_once(session):
    lease = leases.claim_session(session.pk, leases.register_runner())
    step = step_store.append_step(
        lease, Step.Kind.CALL, {"name": "x"}, state=Step.State.INTENT, turn=1
    )
    for text in ("first", "again"):  # the answer to the first commit was lost
        payload = {"name": "x", "text": text}
        step_store.finish_step(lease, step, Step.State.DONE, payload, calls=1, cost_microusd=5)
    session.refresh_from_db()
    step.refresh_from_db()
    assert (session.calls, session.cost_microusd) == (1, 5)
    assert (step.state, step.payload["text"]) == (Step.State.DONE, "first")
