"""Crashes of replays: begun anew where their process died, ended once, and nothing is sent."""

from datetime import timedelta

import pytest
from django.utils import timezone

from agents.evaluation import services as evaluation
from agents.evaluation.services import ReplayOverrides, create_recording, create_replay
from agents.models import Agent, Budget, Replay, Session
from agents.sessions import services as sessions
from bonobot.ledger.audit.abandoned_calls import settle_abandoned_calls
from bonobot.ledger.models import AuditRow
from tests import factories
from tests.agents.crash_scenarios import all_settled, bring_to_rest, kills, outlive_the_lease

pytestmark = pytest.mark.django_db(transaction=True)

PLAN = '/mcp_counting_charge {"key": "one"}\n/mcp_counting_get_balance {"key": "two"}'


@pytest.fixture
def recording(acme, helper, counting, mortals):
    """A session with two calls as it was recorded; its organization counts what models take."""
    Agent.objects.update(calls_per_minute=100_000)
    boss = factories.build_administrator(acme)
    session = sessions.start_session(boss, helper, PLAN)
    bring_to_rest(session, mortals(), yes=False)
    assert session.status == Session.Status.DONE
    Budget.objects.create(
        organization=acme, agent=helper, unit="tokens", period="total", limit=100_000_000
    )
    return create_recording(boss, session)


def test_a_killed_replay_is_restarted_and_ends_once(acme, recording, written, mortals):
    victims, boss = mortals(), factories.build_administrator(acme)
    whole = create_replay(boss, recording, ReplayOverrides(instructions="Be brief."))
    assert victims.run(replay=whole) == "0"
    every, killed = kills(len(victims.passed), 2), 0
    whole.refresh_from_db()
    before, turns = written.read_text(), recording.turns
    for at, _ in every:
        made = create_replay(boss, recording, ReplayOverrides(instructions="Be brief."))
        killed += victims.run(replay=made, at=at) == "SIGKILL"
        where = f"killed at {at}, {(victims.passed or ['?'])[-1]}"
        outlive_the_lease()
        over = victims.passed[-1] == "after complete_replay"
        assert evaluation.list_stalled_replays(timedelta()) == ([] if over else [made.pk]), where
        assert victims.run(replay=made) == "0", where
        made.refresh_from_db()
        assert (made.status, made.differs) == (Replay.Status.DONE, whole.differs), where
        assert _told(made) == _told(whole), where
        assert (made.tokens, made.cost_microusd) == (whole.tokens, whole.cost_microusd), where
        rows = AuditRow.objects.filter(action="agent_evaluation", opened__contains=str(made.pk))
        assert turns <= rows.count() <= 2 * turns, where
        assert settle_abandoned_calls(opened_before=timezone.now()) <= 1, where
        assert rows.filter(outcome="ok").count() in range(turns, 2 * turns + 1), where
        all_settled(acme.pk, where)
    assert killed >= len(every) * 3 // 4
    assert written.read_text() == before, "nothing was sent"


def _told(made):
    return [one["turns"] for one in made.conversation["exchanges"]]
