"""Crashes: a runner is killed, or stopped beyond its lease, at each moment of a session.

What was done is counted by the upstream itself. `TEST_CRASHES=whole` takes every moment, with each
answer that a person may give: 148 signals. Otherwise it is some of them.
"""

import signal
from collections import Counter

import pytest

from agents.models import Agent, Approval, Budget, Session, Step
from agents.sessions import services as sessions
from tests import factories
from tests.agents.crash_scenarios import WHOLE, bring_to_rest, calls_of, in_order, kills

pytestmark = pytest.mark.django_db(transaction=True)

# Three calls at once: two that charge, one that may be repeated.
PLAN = "\n".join(
    (
        '/mcp_counting_charge {"key": "one"}',
        '/mcp_counting_get_balance {"key": "two"}',
        '/mcp_counting_charge {"key": "three"}',
    )
)
# What is done one after the other leaves no transaction open at a moment when nothing else does.
ONE = '/mcp_counting_charge {"key": "one"}'
# As many moments as such a session has; the last ones may come after its end.
KILLS = kills(58, 9)
STOPS = range(1, 32 + 1)[:: 1 if WHOLE else 7]


@pytest.fixture(autouse=True)
def _counting(acme, helper, counting):
    Agent.objects.filter(pk=helper.pk).update(calls_per_minute=100_000)
    Budget.objects.create(
        organization=acme, agent=helper, unit="calls", period="total", limit=1_000
    )


def check(session, written, *, yes, where, plan=PLAN):
    """Check that nothing was lost, nothing doubled, and everything is accounted for."""
    done = Counter(written.read_text().splitlines())
    session.refresh_from_db()
    assert session.status == Session.Status.DONE, where
    in_order(session, where)
    message = session.steps.get(kind=Step.Kind.MESSAGE)
    assert message.payload["text"] == plan, where
    asked = Approval.objects.filter(session=session).count()
    calls = calls_of(session)
    for step in calls:
        tool, key = step.payload["name"].removeprefix("mcp_counting_"), step.payload["arguments"]
        count = done[f"{tool} {key['key']}"]
        if step.state == Step.State.DONE:
            assert count >= 1, where
        if tool == "get_balance":
            assert (step.state, count <= 2) == (Step.State.DONE, True), where
        else:
            assert count <= (2 if yes and asked else 1), where
    assert len(calls) == len(plan.splitlines()), where


def begun(acme, helper, written, plan=PLAN):
    written.write_text("")
    return sessions.start_session(factories.build_administrator(acme), helper, plan)


def test_a_killed_worker_loses_nothing_and_repeats_no_charge(acme, helper, written, mortals):
    killed = 0
    victims = mortals()
    for at, yes in KILLS:
        session = begun(acme, helper, written)
        killed += victims.run(session, at=at) == "SIGKILL"
        where = f"killed at {at}, {(victims.passed or ['?'])[-1]}"
        bring_to_rest(session, victims, yes=yes)
        check(session, written, yes=yes, where=where)
    assert killed >= len(KILLS) - 2


def test_a_paused_worker_does_nothing_after_its_lease_expired(acme, helper, written, mortals):
    sleepers, others = mortals(), mortals()
    stopped = 0
    for at in STOPS:
        session = begun(acme, helper, written, ONE)
        pid = sleepers.begin(session, at=at, sent=signal.SIGSTOP)
        ended = sleepers.ended()
        where = f"stopped at {at}, {(sleepers.passed or ['?'])[-1]}"
        if ended == "stopped":
            stopped += 1
            bring_to_rest(session, others, yes=False)
            assert sleepers.wake(pid) == "0", where
        check(session, written, yes=False, where=where, plan=ONE)
    assert stopped >= len(STOPS) - 2
