"""Crashes of sessions that begin sessions: one, the other or both killed at each moment.

The upstream counts what was done; what the budgets have spent is compared with the audit.
"""

import json
from collections import Counter

import pytest

from agents.budgets.services import BudgetLine, list_budget_use, set_budgets
from agents.callable_agents import set_callable_agents
from agents.models import Agent, Approval, Session, Step
from agents.sessions import services as sessions
from bonobot.ledger.audit import entry_encoding
from bonobot.ledger.models import AuditRow
from tests import factories
from tests.agents.crash_scenarios import (
    bring_to_rest,
    calls_of,
    in_order,
    kills,
    outlive_the_lease,
    table,
    tree,
)
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)

ASKED = '/mcp_counting_charge {"key": "asked"}'
PLAN = f'/ask_second {json.dumps({"message": ASKED})}\n/mcp_counting_charge {{"key": "own"}}'
FEW = 2


@pytest.fixture
def second(acme, helper, counting):
    """An agent that the other one asks; each has budgets of its own."""
    made = factories.create_agent(acme, "second")
    factories.approve_server(acme, counting, made)
    boss = factories.build_administrator(acme)
    set_callable_agents(boss, helper, [made.slug])
    for one in (helper, made):
        lines = [BudgetLine(unit, "total", 10_000_000) for unit in ("calls", "tokens")]
        set_budgets(boss, one, lines)
    Agent.objects.update(calls_per_minute=100_000)
    return made


@pytest.fixture
def begin(acme, helper, second, written):
    """A function that begins a session with nothing counted yet."""
    boss = factories.build_administrator(acme)

    def go():
        written.write_text("")
        return sessions.start_session(boss, helper, PLAN)

    return go


@pytest.fixture
def check(helper, second, written):
    """A function that checks that nothing is lost or doubled, and each spend charged once."""
    before = Counter()

    def checked(session, where, *, yes):
        session.refresh_from_db()
        in_order(session, where)
        child = session.children.get()
        assert {one.status for one in tree(session)} == {Session.Status.DONE}, where
        done = Counter(written.read_text().splitlines())
        asked = Approval.objects.filter(session__in=tree(session)).exists()
        for step in calls_of(session):
            name, arguments = step.payload["name"], step.payload["arguments"]
            if name == "ask_second":
                assert step.state == Step.State.DONE, where
                continue
            count = done[f"charge {arguments['key']}"]
            assert count <= (2 if yes and asked else 1), where
            assert count >= (step.state == Step.State.DONE), where
        for agent, its_sessions in ((helper, tree(session)), (second, [child])):
            spent = {one.line.unit: one.spent for one in list_budget_use(agent)}
            for unit, amount in _due(its_sessions).items():
                before[agent.slug, unit] += amount
                assert spent[unit] == before[agent.slug, unit], (where, agent.slug, unit)

    return checked


def _due(sessions):
    """Return what sessions have spent, by the audit: what nobody knows counts as reserved."""
    rows = AuditRow.objects.filter(session_id__in=[one.pk for one in sessions], decision="allow")
    tokens = 0
    for row in rows.filter(event_type="model"):
        told = row.input_tokens + row.output_tokens
        held = {
            amount
            for key, amount in entry_encoding.parse_reservations(row.opened)
            if ":tokens:" in key
        }
        assert len(held) == 1
        tokens += told or held.pop()
    return {"calls": rows.filter(event_type="call").count(), "tokens": tokens}


def _where(at, victims):
    return f"killed at {at}, {(victims.passed or ['?'])[-1]}"


def test_parent_and_child_survive_a_crash_of_their_process(begin, check, mortals):
    table(begin, mortals(), FEW, check)


def _with_its_child(session, parents, others, at=0):
    """Run a session up to a moment, and elsewhere what it begins; return how it ended."""
    parents.begin(session, at=at, alone=True)
    begun = Session.objects.filter(parent=session)
    eventually(lambda: begun.exists() or 0 < at <= len(parents.passed), within=60)
    for child in begun:
        others.run(child)
    return parents.ended()


def test_a_parent_survives_a_crash_while_its_child_runs_elsewhere(begin, check, mortals):
    parents, others = mortals(), mortals()
    session = begin()
    assert _with_its_child(session, parents, others) == "0"
    moments = kills(len(parents.passed), FEW)
    bring_to_rest(session, others, yes=False)
    check(session, "unharmed", yes=False)
    killed = 0
    for at, yes in moments:
        session = begin()
        killed += _with_its_child(session, parents, others, at) == "SIGKILL"
        where = _where(at, parents)
        bring_to_rest(session, others, yes=yes)
        check(session, where, yes=yes)
    assert killed >= len(moments) * 3 // 4


def test_a_child_survives_a_crash_while_its_parent_waits_elsewhere(begin, check, mortals):
    parents, victims = mortals(), mortals()
    killed, moments = 0, [(0, False)]
    while moments:
        at, yes = moments.pop(0)
        session = begin()
        parents.begin(session, alone=True)
        eventually(session.children.exists, within=60)
        child = session.children.get()
        pid = victims.begin(child, at=at)
        dead = victims.ended() == "SIGKILL"
        killed += dead
        where = _where(at, victims)
        if at == 0:
            moments = every = kills(len(victims.passed), FEW)
            every = list(every)
        # Its parent's lease holds: only the dead one's runs out.
        outlive_the_lease(pid)
        assert victims.run(child) == "0", where
        assert parents.ended() == "0", where
        bring_to_rest(session, victims, yes=yes)
        check(session, where, yes=yes)
    assert killed >= len(every) * 3 // 4
