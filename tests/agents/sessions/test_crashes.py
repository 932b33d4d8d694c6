"""Crashes: a worker is killed, or paused beyond its lease, at each moment of a session.

The server itself logs its calls. `TEST_CRASHES=whole` uses every moment with each answer of a
person: 148 signals; otherwise a sample.
"""

import signal
from collections import Counter

import pytest

from agents.models import Agent, Approval, Budget, Session, Step
from agents.sessions import services as sessions
from tests import factories
from tests.agents.crash_scenarios import (
    WHOLE,
    assert_in_order,
    choose_kill_points,
    list_calls,
    run_until_rest,
)

pytestmark = pytest.mark.django_db(transaction=True)

# Three parallel calls: two that charge, one that is idempotent.
PLAN = "\n".join(
    (
        '/mcp_counting_charge {"key": "one"}',
        '/mcp_counting_get_balance {"key": "two"}',
        '/mcp_counting_charge {"key": "three"}',
    )
)
# Without parallel calls, a paused process holds no transaction that would block others.
ONE = '/mcp_counting_charge {"key": "one"}'
# The number of moments of such a session; the last ones may come after its end.
KILLS = choose_kill_points(58, 9)
STOPS = range(1, 32 + 1)[:: 1 if WHOLE else 7]


@pytest.fixture(autouse=True)
def _counting(acme, helper, counting):
    Agent.objects.filter(pk=helper.pk).update(calls_per_minute=100_000)
    Budget.objects.create(
        organization=acme, agent=helper, unit="calls", period="total", limit=1_000
    )


def check(session, call_log, *, approve, context, plan=PLAN):
    """Check that no step is lost or doubled, and that calls match the log."""
    counts = Counter(call_log.read_text().splitlines())
    session.refresh_from_db()
    assert session.status == Session.Status.DONE, context
    assert_in_order(session, context)
    message = session.steps.get(kind=Step.Kind.MESSAGE)
    assert message.payload["text"] == plan, context
    approvals = Approval.objects.filter(session=session).count()
    calls = list_calls(session)
    for step in calls:
        tool, key = step.payload["name"].removeprefix("mcp_counting_"), step.payload["arguments"]
        count = counts[f"{tool} {key['key']}"]
        if step.state == Step.State.DONE:
            assert count >= 1, context
        if tool == "get_balance":
            assert (step.state, count <= 2) == (Step.State.DONE, True), context
        else:
            assert count <= (2 if approve and approvals else 1), context
    assert len(calls) == len(plan.splitlines()), context


def start_session(acme, helper, call_log, plan=PLAN):
    call_log.write_text("")
    return sessions.start_session(factories.build_administrator(acme), helper, plan)


def test_a_killed_worker_loses_nothing_and_repeats_no_charge(
    acme, helper, call_log, start_crash_process
):
    killed = 0
    processes = start_crash_process()
    for at, approve in KILLS:
        session = start_session(acme, helper, call_log)
        killed += processes.run(session, at=at) == "SIGKILL"
        context = f"killed at {at}, {(processes.passed_moments or ['?'])[-1]}"
        run_until_rest(session, processes, approve=approve)
        check(session, call_log, approve=approve, context=context)
    assert killed >= len(KILLS) - 2


@pytest.mark.whole("postgres")
def test_a_paused_worker_does_nothing_after_its_lease_expired(
    acme, helper, call_log, start_crash_process
):
    paused, processes = start_crash_process(), start_crash_process()
    stopped = 0
    for at in STOPS:
        session = start_session(acme, helper, call_log, ONE)
        pid = paused.start(session, at=at, sent=signal.SIGSTOP)
        outcome = paused.wait()
        context = f"stopped at {at}, {(paused.passed_moments or ['?'])[-1]}"
        if outcome == "stopped":
            stopped += 1
            run_until_rest(session, processes, approve=False)
            assert paused.resume(pid) == "0", context
        check(session, call_log, approve=False, context=context, plan=ONE)
    assert stopped >= len(STOPS) - 2
