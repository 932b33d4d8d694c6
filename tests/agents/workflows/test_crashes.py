"""Crashes of runs: killed at each moment of calls, agent steps, conditions and endings."""

from collections import Counter
from functools import partial

import pytest

from agents.callable_agents import set_callable_agents
from agents.models import Agent, Approval, Session, Step, WorkflowRun
from agents.workflows.services import WorkflowSpec, run_workflow, save_workflow
from tests import factories
from tests.agents.crash_scenarios import in_order, table

pytestmark = pytest.mark.django_db(transaction=True)

SOURCE = """\
agent: helper
inputs: {type: object, properties: {key: {type: string}}, required: [key]}
steps:
  - {id: pay, call: mcp_counting_charge, arguments: {key: "${/inputs/key}"}}
  - {id: ask, agent: second, message: '/mcp_counting_charge {"key": "asked"}'}
  - {id: never, call: mcp_counting_charge, arguments: {key: never},
     when: {/steps/pay/text: {const: nothing}}}
  - {id: last, call: mcp_counting_get_balance, arguments: {key: last},
     when: {/steps/pay/text: {const: "charge own"}}}
outputs: {said: "${/steps/last/text}"}
"""
STEPS = ["pay", "ask", "never", "last"]


@pytest.fixture
def begin(acme, helper, counting, written):
    """A function that begins a run with nothing counted yet."""
    second = factories.create_agent(acme, "second")
    factories.approve_server(acme, counting, second)
    boss = factories.build_administrator(acme)
    set_callable_agents(boss, helper, [second.slug])
    Agent.objects.update(calls_per_minute=100_000)
    workflow = save_workflow(boss, WorkflowSpec(name="pays", source=SOURCE))

    def go():
        written.write_text("")
        return run_workflow(boss, workflow, {"key": "own"}).session

    return go


def check(written, session, where, *, yes):
    """Check that each step was made once, or said to be unknown, which ends the run."""
    done = Counter(written.read_text().splitlines())
    session.refresh_from_db()
    in_order(session, where)
    run = WorkflowRun.objects.get(session=session)
    steps = [one for one in session.steps.order_by("seq") if "step" in one.payload]
    names = [one.payload["step"] for one in steps]
    pay = steps[0]
    if session.status == Session.Status.DONE:
        assert (names, run.outputs) == (STEPS, {"said": "get_balance last"}), where
        assert done["charge own"] >= 1, where
        assert 1 <= done["get_balance last"] <= 2, where
        assert session.children.get().status == Session.Status.DONE, where
    else:
        assert (session.status, names) == (Session.Status.FAILED, ["pay"]), where
        assert (pay.state, run.outputs) == (Step.State.UNKNOWN, None), where
        assert session.error_code in ("outcome_unknown", "answer_lost"), where
        assert done.keys() <= {"charge own"}, where
    repeated = yes and Approval.objects.filter(session__in=(session, *session.children.all()))
    most = 1 + bool(repeated)
    assert done["charge own"] <= most, where
    assert done["charge asked"] <= most, where
    assert done["charge never"] == 0, where


def test_a_killed_run_executes_each_step_once(begin, written, mortals):
    table(begin, mortals(), 3, partial(check, written))
