"""Runs: each step through the door, durable, parked for people, ended by their bounds."""

import asyncio

import pytest

from agents.approvals.services import resolve_approval
from agents.callable_agents import set_callable_agents
from agents.models import Approval, Session, Step, Workflow, WorkflowRun
from agents.policies.services import PolicySpec, set_policy
from agents.services import AgentSpec, update_agent
from agents.sessions import leases, step_store
from agents.sessions import services as sessions
from agents.sessions.worker import SessionRunner
from agents.workflows.services import WorkflowSpec, approve_workflow, run_workflow, save_workflow
from bonobot.accounts.roles import Role
from bonobot.core.problems import Conflict, Forbidden, InvalidInput, Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)

ECHO = """\
agent: helper
inputs: {type: object, properties: {text: {type: string}}, required: [text]}
steps:
  - {id: first, call: mcp_workshop_echo, arguments: {text: "one ${/inputs/text}"}}
  - {id: second, call: mcp_workshop_echo, arguments: {text: "two ${/steps/first/text}"}}
outputs: {said: "${/steps/second/text}"}
"""


@pytest.fixture
def boss(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def runner(transactional_db):
    one = SessionRunner()
    yield one
    get_runtime().call(one.drain)


@pytest.fixture
def write(boss):
    """A function that writes a workflow."""

    def make(source=ECHO, name="echoes", **more):
        old = Workflow.objects.filter(name=name).first()
        return save_workflow(boss, WorkflowSpec(name=name, source=source, **more), old)

    return make


async def _until_rest(runner, session_id):
    await runner.claim_and_run(session_id)
    async with asyncio.timeout(30):
        while task := runner._tasks.get(session_id):
            await asyncio.wait([task])


@pytest.fixture
def carry_out(runner):
    """A function that takes a run on until it rests."""

    def go(run):
        get_runtime().call(_until_rest, runner, run.session_id)
        return WorkflowRun.objects.select_related("session").get(pk=run.pk)

    return go


def calls_of(run):
    return list(Step.objects.filter(session_id=run.session_id, kind=Step.Kind.CALL).order_by("seq"))


def test_a_run_passes_results_from_step_to_step(boss, write, workshop, carry_out):
    done = carry_out(run_workflow(boss, write(), {"text": "x"}))
    assert done.session.status == Session.Status.DONE, done.session.error_detail
    assert done.outputs == {"said": "two one x"}
    first, second = calls_of(done)
    assert (first.payload["step"], second.payload["step"]) == ("first", "second")
    assert second.payload["arguments"] == {"text": "two one x"}
    rows_of = AuditRow.objects.filter(session_id=done.session_id, action="agent_tool_call")
    assert rows_of.count() == 2, "each step went through the door"
    with pytest.raises(Conflict) as refused:
        sessions.send_message(boss, done.session, "Hello?")
    assert refused.value.code == "workflow_run"


def test_inputs_are_validated_before_the_run_starts(boss, write, workshop, helper):
    workflow = write()
    for wrong in ({}, {"text": 1}):
        with pytest.raises(InvalidInput) as refused:
            run_workflow(boss, workflow, wrong)
        assert refused.value.code == "invalid_arguments"
    with pytest.raises(InvalidInput) as refused:
        run_workflow(boss, workflow, {"text": "x" * 20_000})
    assert refused.value.code == "inputs_too_large"
    member = factories.create_member(helper.organization, Role.MEMBER)
    with pytest.raises(Forbidden):
        run_workflow(member, workflow, {"text": "x"})
    save_workflow(boss, WorkflowSpec(name="echoes", enabled=False), workflow)
    with pytest.raises(Conflict) as off:
        run_workflow(boss, Workflow.objects.get(), {"text": "x"})
    assert off.value.code == "workflow_disabled"
    assert not Session.objects.exists()


def test_a_denied_step_ends_the_run_and_is_named(boss, helper, write, workshop, carry_out):
    set_policy(boss, helper, PolicySpec("denylist", deny=("mcp_workshop_echo",)))
    failed = carry_out(run_workflow(boss, write(), {"text": "x"}))
    assert failed.session.status == Session.Status.FAILED
    assert failed.session.error_code == "denied_by_policy"
    assert "`first`" in failed.session.error_detail
    lenient = ECHO.replace('${/inputs/text}"}}', '${/inputs/text}"}, on_error: continue}')
    lenient = lenient.replace("${/steps/first/text}", "${/steps/first/code}")
    set_policy(boss, helper, PolicySpec("denylist", deny=("mcp_workshop_ec*",)))
    failed = carry_out(run_workflow(boss, write(lenient, "lenient"), {"text": "x"}))
    assert len(calls_of(failed)) == 2, "what may fail doesn't end it"
    assert calls_of(failed)[1].payload["arguments"] == {"text": "two denied_by_policy"}


def test_a_run_uses_the_definition_of_its_start(boss, write, workshop, carry_out):
    run = run_workflow(boss, write(), {"text": "x"})
    changed = write(ECHO.replace("two ", "changed "))
    assert changed.version == 2
    assert carry_out(run).outputs == {"said": "two one x"}
    later = carry_out(run_workflow(boss, changed, {"text": "x"}))
    assert later.outputs == {"said": "changed one x"}


def test_a_step_waits_for_approval_and_continues(boss, helper, write, workshop, carry_out):
    set_policy(boss, helper, PolicySpec("all", ask=("mcp_workshop_echo",)))
    run = carry_out(run_workflow(boss, write(), {"text": "x"}))
    assert run.session.status == Session.Status.WAITING
    resolve_approval(boss, Approval.objects.get(), "approve")
    run = carry_out(run)
    assert run.session.status == Session.Status.WAITING, "the second step is asked about, too"
    resolve_approval(boss, Approval.objects.waiting().get(), "deny", "Enough.")
    run = carry_out(run)
    assert (run.session.status, run.session.error_code) == ("failed", "approval_denied")
    assert [step.state for step in calls_of(run)] == ["done", "failed"]


def test_another_process_continues_a_run_from_its_rows(boss, write, workshop, runner, carry_out):
    run = run_workflow(boss, write(), {"text": "x"})
    dead = leases.register_runner()
    hold = leases.claim_session(run.session_id, dead)
    step_store.append_step(hold, Step.Kind.MESSAGE, {"text": "{}", "by": "x"})
    done = {"name": "mcp_workshop_echo", "arguments": {}, "step": "first", "text": "from before"}
    step_store.append_step(hold, Step.Kind.CALL, done, turn=1)
    leases.stop_runner(dead)
    done = carry_out(run)
    assert done.outputs == {"said": "two from before"}
    assert len(calls_of(done)) == 2, "what was done isn't repeated"


def test_a_skipped_step_is_recorded_once(boss, write, workshop, carry_out):
    source = ECHO.replace("{id: first,", "{id: first, when: {/inputs/text: {const: y}},")
    source = source.replace("${/steps/first/text}", "${/steps/first/state}")
    done = carry_out(run_workflow(boss, write(source), {"text": "x"}))
    assert done.outputs == {"said": "two skipped"}
    notices = Step.objects.filter(session_id=done.session_id, kind=Step.Kind.NOTICE)
    assert [one.payload["step"] for one in notices if "step" in one.payload] == ["first"]


def test_a_run_has_a_time_limit(boss, write, workshop, carry_out):
    wait = "{id: a, call: mcp_workshop_wait, arguments: {seconds: 30}}"
    slow = f"agent: helper\nmax_run_s: 1\nsteps: [{wait}]\n"
    run = carry_out(run_workflow(boss, write(slow, "slow"), {}))
    assert (run.session.status, run.session.error_code) == ("failed", "time_exhausted")


def test_a_step_sends_a_message_to_an_agent(acme, boss, helper, write, carry_out):
    writer = factories.create_agent(acme, "writer")
    set_callable_agents(boss, helper, [writer.slug])
    source = "agent: helper\nsteps: [{id: ask, agent: writer, message: Hello}]\n"
    done = carry_out(run_workflow(boss, write(source), {}))
    assert done.session.status == Session.Status.DONE, done.session.error_detail
    child = done.session.children.get()
    assert (child.agent_id, child.depth) == (writer.pk, 1)


def test_an_approved_workflow_is_a_tool_of_its_agents(acme, boss, helper, write, workshop, call):
    other = factories.create_agent(acme, "other")
    workflow = write(agents=[other.slug])
    with pytest.raises(Problem) as refused:
        call("workflow_echoes", {"text": "x"}, agent_id=other.pk)
    assert refused.value.code == "not_approved"
    reviewer = factories.create_member(acme, Role.REVIEWER)
    approve_workflow(reviewer, workflow, workflow.digest)
    with pytest.raises(Problem) as refused:
        call("workflow_echoes", {"text": 1}, agent_id=other.pk)
    assert refused.value.code == "invalid_arguments"
    assert call("workflow_echoes", {"text": "x"}, agent_id=other.pk).code == "no_session"
    write(ECHO.replace("two", "three"), agents=[other.slug])
    with pytest.raises(Problem) as changed:
        call("workflow_echoes", {"text": "x"}, agent_id=other.pk)
    assert changed.value.code == "definition_changed"
    with pytest.raises(Conflict):
        approve_workflow(reviewer, workflow, workflow.digest)
    with pytest.raises(Forbidden):
        approve_workflow(factories.create_member(acme, Role.OPERATOR), workflow)


def test_a_workflow_can_run_another_workflow(acme, boss, helper, write, workshop, carry_out):
    inner = write(agents=[helper.slug])
    approve_workflow(boss, inner)
    source = """\
agent: helper
steps: [{id: inner, call: workflow_echoes, arguments: {text: deep}}]
outputs: {said: "${/steps/inner/output/said}"}
"""
    done = carry_out(run_workflow(boss, write(source, "outer"), {}))
    assert done.outputs == {"said": "two one deep"}
    child = WorkflowRun.objects.get(session__parent=done.session_id)
    assert (child.via, child.session.root_id) == ("agent", done.session_id)


def test_disabled_workflows_and_agents_dont_run(boss, helper, write, workshop):
    workflow = write()
    update_agent(boss, helper, AgentSpec(name=helper.name, enabled=False))
    with pytest.raises(Conflict) as refused:
        run_workflow(boss, workflow, {"text": "x"})
    assert refused.value.code == "agent_disabled"
