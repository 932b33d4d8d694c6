"""Crashes of sessions with child sessions: parent, child or both are killed at each moment.

The server logs its calls; spent budgets are compared with the audit log.
"""

import json
from collections import Counter

import pytest

from agents.assignments import set_callable_agents
from agents.budgets.services import BudgetLine, list_budget_use, set_budgets
from agents.models import Agent, Approval, Session, Step
from agents.sessions import services as sessions
from bonobot.ledger.audit import entry_encoding
from bonobot.ledger.models import AuditRow
from tests import factories
from tests.agents.crash_scenarios import (
    assert_in_order,
    choose_kill_points,
    expire_leases,
    get_session_tree,
    kill_at_each_moment,
    list_calls,
    run_until_rest,
)
from tests.wait import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.whole("postgres")]

CHILD_CALL = '/mcp_counting_charge {"key": "asked"}'
PLAN = f'/ask_second {json.dumps({"message": CHILD_CALL})}\n/mcp_counting_charge {{"key": "own"}}'
SAMPLE_SIZE = 2


@pytest.fixture
def second(acme, helper, counting):
    """An agent that the helper can call; both have their own budgets."""
    agent = factories.create_agent(acme, "second")
    factories.approve_server(acme, counting, agent)
    administrator = factories.build_administrator(acme)
    set_callable_agents(administrator, helper, [agent.slug])
    for budgeted_agent in (helper, agent):
        lines = [BudgetLine(unit, "total", 10_000_000) for unit in ("calls", "tokens")]
        set_budgets(administrator, budgeted_agent, lines)
    Agent.objects.update(calls_per_minute=100_000)
    return agent


@pytest.fixture
def start(acme, helper, second, call_log):
    """Return a function that starts a session with an empty call log."""
    administrator = factories.build_administrator(acme)

    def go():
        call_log.write_text("")
        return sessions.start_session(administrator, helper, PLAN)

    return go


@pytest.fixture
def check(helper, second, call_log):
    """Return a function that checks that nothing is lost, doubled or charged twice."""
    before = Counter()

    def check_session(session, context, *, approve):
        session.refresh_from_db()
        assert_in_order(session, context)
        child = session.children.get()
        assert {item.status for item in get_session_tree(session)} == {Session.Status.DONE}, context
        counts = Counter(call_log.read_text().splitlines())
        repeated = Approval.objects.filter(session__in=get_session_tree(session)).exists()
        for step in list_calls(session):
            name, arguments = step.payload["name"], step.payload["arguments"]
            if name == "ask_second":
                assert step.state == Step.State.DONE, context
                continue
            count = counts[f"charge {arguments['key']}"]
            assert count <= (2 if approve and repeated else 1), context
            assert count >= (step.state == Step.State.DONE), context
        for agent, agent_sessions in ((helper, get_session_tree(session)), (second, [child])):
            spent = {item.line.unit: item.spent for item in list_budget_use(agent)}
            for unit, amount in _compute_spent(agent_sessions).items():
                before[agent.slug, unit] += amount
                assert spent[unit] == before[agent.slug, unit], (context, agent.slug, unit)

    return check_session


def _compute_spent(sessions):
    """Compute the usage of sessions from the audit log; unknown usage counts as reserved.

    A request of a runner that lost its lease before it was sent is canceled without a code, and
    costs nothing.
    """
    rows = AuditRow.objects.filter(
        session_id__in=[session.pk for session in sessions], decision="allow"
    ).exclude(outcome=AuditRow.Outcome.CANCELLED, code="")
    tokens = 0
    for row in rows.filter(event_type="model"):
        used = row.input_tokens + row.output_tokens
        reserved = {
            amount
            for key, amount in entry_encoding.parse_reservations(row.opened)
            if ":tokens:" in key
        }
        assert len(reserved) == 1
        tokens += used or reserved.pop()
    return {"calls": rows.filter(event_type="call").count(), "tokens": tokens}


def _describe_kill_point(at, processes):
    return f"killed at {at}, {(processes.passed_moments or ['?'])[-1]}"


def test_parent_and_child_survive_a_crash_of_their_process(start, check, start_crash_process):
    kill_at_each_moment(start, start_crash_process(), SAMPLE_SIZE, check)


def _run_parent_and_child(session, parents, child_processes, at=0):
    """Run a session up to a moment and its child in another process; return how it ended."""
    parents.start(session, at=at, alone=True)
    children = Session.objects.filter(parent=session)
    eventually(lambda: children.exists() or 0 < at <= len(parents.passed_moments), within=60)
    for child in children:
        child_processes.run(child)
    return parents.wait()


def test_a_parent_survives_a_crash_while_its_child_runs_elsewhere(
    start, check, start_crash_process
):
    parents, processes = start_crash_process(), start_crash_process()
    session = start()
    assert _run_parent_and_child(session, parents, processes) == "0"
    moments = choose_kill_points(len(parents.passed_moments), SAMPLE_SIZE)
    run_until_rest(session, processes, approve=False)
    check(session, "unharmed", approve=False)
    killed = 0
    for at, approve in moments:
        session = start()
        killed += _run_parent_and_child(session, parents, processes, at) == "SIGKILL"
        context = _describe_kill_point(at, parents)
        run_until_rest(session, processes, approve=approve)
        check(session, context, approve=approve)
    assert killed >= len(moments) * 3 // 4


def test_a_child_survives_a_crash_while_its_parent_waits_elsewhere(
    start, check, start_crash_process
):
    parents, processes = start_crash_process(), start_crash_process()
    killed, moments = 0, [(0, False)]
    while moments:
        at, approve = moments.pop(0)
        session = start()
        parents.start(session, alone=True)
        eventually(session.children.exists, within=60)
        child = session.children.get()
        pid = processes.start(child, at=at)
        is_killed = processes.wait() == "SIGKILL"
        killed += is_killed
        context = _describe_kill_point(at, processes)
        if at == 0:
            moments = all_moments = choose_kill_points(len(processes.passed_moments), SAMPLE_SIZE)
            all_moments = list(all_moments)
        # Only the lease of the killed process expires, not its parent's.
        expire_leases(pid)
        assert processes.run(child) == "0", context
        assert parents.wait() == "0", context
        run_until_rest(session, processes, approve=approve)
        check(session, context, approve=approve)
    assert killed >= len(all_moments) * 3 // 4
