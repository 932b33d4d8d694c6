"""Workers that died: their sessions continue, and one that kills its workers is quarantined."""

from datetime import timedelta

import pytest
from django.utils import timezone

from agents.models import Runner, Session
from agents.sessions import dead_runners, leases
from agents.sessions.quarantine import QUARANTINE_CODE
from bonobot.core.process_identity import identify_this_process
from bonobot.ledger.models import AuditRow
from tests import factories

pytestmark = pytest.mark.django_db

# No process has this id: it is above Linux's largest one.
UNUSED_PID = 2**22 + 1


@pytest.fixture
def agent():
    return factories.create_agent(factories.create_organization())


def create_session(agent, **values):
    return Session.objects.create(
        organization=agent.organization,
        agent=agent,
        started_by="ann",
        started_by_kind="user",
        **values,
    )


def die(*held, silent=False):
    """Have a new runner claim sessions and die; return its id."""
    runner_id = leases.register_runner()
    for session in held:
        assert leases.claim_session(session.pk, runner_id)
    values = (
        {"heartbeat_at": timezone.now() - timedelta(minutes=1)} if silent else {"pid": UNUSED_PID}
    )
    Runner.objects.filter(pk=runner_id).update(**values)
    return runner_id


def release(**options):
    return dead_runners.release_dead_runners(dead_runners.list_other_runners(None), **options)


def statuses(*listed):
    rows = Session.objects.in_bulk([session.pk for session in listed])
    return [rows[session.pk].status for session in listed]


@pytest.mark.skipif(not identify_this_process().machine, reason="needs an identified machine")
def test_sessions_of_an_ended_process_continue_at_once(agent):
    session = create_session(agent)
    runner_id = die(session)
    assert release(trust_heartbeats=False) == [session.pk]
    assert statuses(session) == [Session.Status.QUEUED]
    assert Runner.objects.get(pk=runner_id).stopped_at


def test_a_living_process_keeps_its_sessions(agent):
    session = create_session(agent)
    leases.claim_session(session.pk, leases.register_runner())
    assert release() == []
    assert statuses(session) == [Session.Status.RUNNING]


def test_missing_heartbeats_prove_nothing_after_an_outage(agent):
    session = create_session(agent)
    die(session, silent=True)
    assert release(trust_heartbeats=False) == []
    assert release() == [session.pk]


def test_a_worker_that_sent_a_heartbeat_meanwhile_keeps_its_sessions(agent):
    session = create_session(agent)
    runner_id = die(session, silent=True)
    other_runners = dead_runners.list_other_runners(None)
    leases.renew_runner_leases(runner_id)
    assert dead_runners.release_dead_runners(other_runners) == []
    assert statuses(session) == [Session.Status.RUNNING]


def test_a_session_that_kills_its_worker_twice_is_quarantined(agent):
    parent = create_session(agent, status=Session.Status.WAITING)
    session = create_session(agent, parent=parent)
    die(session, silent=True)
    release()
    die(session, silent=True)
    assert release() == []
    session.refresh_from_db()
    assert (session.status, session.error_code) == (Session.Status.FAILED, QUARANTINE_CODE)
    assert session.quarantined_at
    assert session.steps.get().payload["code"] == QUARANTINE_CODE
    assert AuditRow.objects.get(action="session_quarantined").resource_id == str(session.pk)
    assert statuses(parent) == [Session.Status.QUEUED]


def test_a_session_that_progressed_between_two_crashes_continues(agent):
    session = create_session(agent)
    die(session, silent=True)
    release()
    Session.objects.update(turns=1)
    die(session, silent=True)
    assert release() == [session.pk]
    assert Session.objects.get().crashes == 1


def test_of_several_suspects_one_runs_at_a_time_and_the_cause_is_quarantined(agent):
    cause, innocent = create_session(agent), create_session(agent)
    for _ in range(2):
        die(cause, innocent, silent=True)
        release()
    assert statuses(cause, innocent) == [Session.Status.QUEUED] * 2
    runner_id = leases.register_runner()
    assert leases.claim_session(cause.pk, runner_id)
    assert leases.claim_session(innocent.pk, runner_id) is None
    Runner.objects.filter(pk=runner_id).update(heartbeat_at=timezone.now() - timedelta(minutes=1))
    release()
    assert statuses(cause, innocent) == [Session.Status.FAILED, Session.Status.QUEUED]
    assert leases.claim_session(innocent.pk, leases.register_runner())


def test_a_session_that_waits_for_its_child_isnt_suspected(agent):
    parent = create_session(agent)
    create_session(agent, parent=parent)
    for _ in range(3):
        die(parent, silent=True)
        assert release() == [parent.pk]


def test_the_number_of_crashes_can_be_set(agent, settings):
    settings.BONOBOT_QUARANTINE_CRASHES = 3
    session = create_session(agent)
    for _ in range(2):
        die(session, silent=True)
        assert release() == [session.pk]
    die(session, silent=True)
    assert release() == []
