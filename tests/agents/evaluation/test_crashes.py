"""Crashes during replays: they are restarted, complete once and call no server."""

from datetime import timedelta

import pytest
from django.utils import timezone

from agents.evaluation import replays
from agents.evaluation.recordings import create_recording
from agents.evaluation.replays import ReplayOverrides, create_replay
from agents.models import Agent, Budget, Replay, Session
from agents.sessions import services as sessions
from bonobot.ledger.audit.abandoned_calls import settle_abandoned_calls
from bonobot.ledger.models import AuditRow
from tests import factories
from tests.agents.crash_scenarios import (
    assert_settled,
    choose_kill_points,
    expire_leases,
    run_until_rest,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.whole("postgres")]

PLAN = '/mcp_counting_charge {"key": "one"}\n/mcp_counting_get_balance {"key": "two"}'


@pytest.fixture
def recording(acme, helper, counting, start_crash_process):
    """Record a session of two calls in an organization with a token budget."""
    Agent.objects.update(calls_per_minute=100_000)
    administrator = factories.build_administrator(acme)
    session = sessions.start_session(administrator, helper, PLAN)
    run_until_rest(session, start_crash_process(), approve=False)
    assert session.status == Session.Status.DONE
    Budget.objects.create(
        organization=acme, agent=helper, unit="tokens", period="total", limit=100_000_000
    )
    return create_recording(administrator, session)


def test_a_killed_replay_is_restarted_and_ends_once(acme, recording, call_log, start_crash_process):
    processes, administrator = start_crash_process(), factories.build_administrator(acme)
    uninterrupted = create_replay(
        administrator, recording, ReplayOverrides(instructions="Be brief.")
    )
    assert processes.run(replay=uninterrupted) == "0"
    kill_points, killed = choose_kill_points(len(processes.passed_moments), 2), 0
    uninterrupted.refresh_from_db()
    before, turns = call_log.read_text(), recording.turns
    for at, _ in kill_points:
        replay = create_replay(administrator, recording, ReplayOverrides(instructions="Be brief."))
        killed += processes.run(replay=replay, at=at) == "SIGKILL"
        context = f"killed at {at}, {(processes.passed_moments or ['?'])[-1]}"
        expire_leases()
        finished = processes.passed_moments[-1] == "after complete_replay"
        assert replays.list_stalled_replays(timedelta()) == ([] if finished else [replay.pk]), (
            context
        )
        assert processes.run(replay=replay) == "0", context
        replay.refresh_from_db()
        assert (replay.status, replay.differs) == (Replay.Status.DONE, uninterrupted.differs), (
            context
        )
        assert _get_turns(replay) == _get_turns(uninterrupted), context
        assert (replay.tokens, replay.cost_microusd) == (
            uninterrupted.tokens,
            uninterrupted.cost_microusd,
        ), context
        rows = AuditRow.objects.filter(action="agent_evaluation", opened__contains=str(replay.pk))
        assert turns <= rows.count() <= 2 * turns, context
        assert settle_abandoned_calls(opened_before=timezone.now()) <= 1, context
        assert rows.filter(outcome="ok").count() in range(turns, 2 * turns + 1), context
        assert_settled(acme.pk, context)
    assert killed >= len(kill_points) * 3 // 4
    assert call_log.read_text() == before, "no server was called"


def _get_turns(replay):
    return [exchange["turns"] for exchange in replay.conversation["exchanges"]]
