"""Crashes of workflow runs, killed at each moment."""

from collections import Counter
from functools import partial

import pytest

from agents.assignments import set_callable_agents
from agents.models import Agent, Approval, Session, Step, WorkflowRun
from agents.workflows.runs import run_workflow
from agents.workflows.services import WorkflowSpec, save_workflow
from tests import factories
from tests.agents.crash_scenarios import assert_in_order, kill_at_each_moment

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
def start_run(acme, helper, counting, call_log):
    """Return a function that starts a run with an empty call log."""
    second = factories.create_agent(acme, "second")
    factories.approve_server(acme, counting, second)
    administrator = factories.build_administrator(acme)
    set_callable_agents(administrator, helper, [second.slug])
    Agent.objects.update(calls_per_minute=100_000)
    workflow = save_workflow(administrator, WorkflowSpec(name="pays", source=SOURCE))

    def go():
        call_log.write_text("")
        return run_workflow(administrator, workflow, {"key": "own"}).session

    return go


def check(call_log, session, context, *, approve):
    """Check that each step ran once, or ended the run with an unknown outcome."""
    counts = Counter(call_log.read_text().splitlines())
    session.refresh_from_db()
    assert_in_order(session, context)
    run = WorkflowRun.objects.get(session=session)
    steps = [step for step in session.steps.order_by("seq") if "step" in step.payload]
    names = [step.payload["step"] for step in steps]
    pay = steps[0]
    if session.status == Session.Status.DONE:
        assert (names, run.outputs) == (STEPS, {"said": "get_balance last"}), context
        assert counts["charge own"] >= 1, context
        assert 1 <= counts["get_balance last"] <= 2, context
        assert session.children.get().status == Session.Status.DONE, context
    else:
        assert (session.status, names) == (Session.Status.FAILED, ["pay"]), context
        assert (pay.state, run.outputs) == (Step.State.UNKNOWN, None), context
        assert session.error_code in ("outcome_unknown", "answer_lost"), context
        assert counts.keys() <= {"charge own"}, context
    repeated = approve and Approval.objects.filter(session__in=(session, *session.children.all()))
    limit = 1 + bool(repeated)
    assert counts["charge own"] <= limit, context
    assert counts["charge asked"] <= limit, context
    assert counts["charge never"] == 0, context


def test_a_killed_run_executes_each_step_once(start_run, call_log, start_crash_process):
    kill_at_each_moment(start_run, start_crash_process(), 3, partial(check, call_log))
