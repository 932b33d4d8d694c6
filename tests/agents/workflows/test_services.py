"""Workflow runs: governed steps, approvals, crashes, limits, nesting."""

import asyncio
import json

import pytest

from agents.approvals.services import resolve_approval
from agents.assignments import set_callable_agents
from agents.models import Approval, Session, Step, Workflow, WorkflowRun
from agents.policies.services import PolicySpec, set_policy
from agents.services import AgentSpec, update_agent
from agents.sessions import leases, step_store
from agents.sessions import services as sessions
from agents.sessions.worker import SessionRunner
from agents.workflows.runs import run_workflow
from agents.workflows.services import WorkflowSpec, approve_workflow, save_workflow
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
def administrator(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def runner(transactional_db):
    session_runner = SessionRunner()
    yield session_runner
    get_runtime().call(session_runner.drain)


@pytest.fixture
def save(administrator):
    """Return a function that saves a workflow."""

    def save_source(source=ECHO, name="echoes", **more):
        existing = Workflow.objects.filter(name=name).first()
        return save_workflow(
            administrator, WorkflowSpec(name=name, source=source, **more), existing
        )

    return save_source


async def _until_rest(runner, session_id):
    await runner.claim_and_run(session_id)
    async with asyncio.timeout(30):
        while task := runner._tasks.get(session_id):
            await asyncio.wait([task])


@pytest.fixture
def run_until_rest(runner):
    """Return a function that continues a run until it rests."""

    def go(run):
        get_runtime().call(_until_rest, runner, run.session_id)
        return WorkflowRun.objects.select_related("session").get(pk=run.pk)

    return go


def list_calls(run):
    return list(Step.objects.filter(session_id=run.session_id, kind=Step.Kind.CALL).order_by("seq"))


def test_the_audit_log_names_the_agents_that_a_workflow_was_attached_to(helper, save):
    save(agents=["helper"])
    entry = AuditRow.objects.get(action="workflow_created")
    assert json.loads(entry.opened)["details"]["agents"] == ["helper"]


def test_a_run_passes_results_from_step_to_step(administrator, save, workshop, run_until_rest):
    run = run_until_rest(run_workflow(administrator, save(), {"text": "x"}))
    assert run.session.status == Session.Status.DONE, run.session.error_detail
    assert run.outputs == {"said": "two one x"}
    first, second = list_calls(run)
    assert (first.payload["step"], second.payload["step"]) == ("first", "second")
    assert second.payload["arguments"] == {"text": "two one x"}
    rows = AuditRow.objects.filter(session_id=run.session_id, action="agent_tool_call")
    assert rows.count() == 2, "each step was recorded"
    with pytest.raises(Conflict) as caught:
        sessions.send_message(administrator, run.session, "Hello?")
    assert caught.value.code == "workflow_run"


def test_inputs_are_validated_before_the_run_starts(administrator, save, workshop, helper):
    workflow = save()
    for invalid in ({}, {"text": 1}):
        with pytest.raises(InvalidInput) as caught:
            run_workflow(administrator, workflow, invalid)
        assert caught.value.code == "invalid_arguments"
    with pytest.raises(InvalidInput) as caught:
        run_workflow(administrator, workflow, {"text": "x" * 20_000})
    assert caught.value.code == "inputs_too_large"
    member = factories.create_member(helper.organization, Role.MEMBER)
    with pytest.raises(Forbidden):
        run_workflow(member, workflow, {"text": "x"})
    save_workflow(administrator, WorkflowSpec(name="echoes", enabled=False), workflow)
    with pytest.raises(Conflict) as disabled:
        run_workflow(administrator, Workflow.objects.get(), {"text": "x"})
    assert disabled.value.code == "workflow_disabled"
    assert not Session.objects.exists()


def test_a_denied_step_ends_the_run_with_its_id(
    administrator, helper, save, workshop, run_until_rest
):
    set_policy(administrator, helper, PolicySpec("denylist", deny=("mcp_workshop_echo",)))
    run = run_until_rest(run_workflow(administrator, save(), {"text": "x"}))
    assert run.session.status == Session.Status.FAILED
    assert run.session.error_code == "denied_by_policy"
    assert "`first`" in run.session.error_detail
    lenient = ECHO.replace('${/inputs/text}"}}', '${/inputs/text}"}, on_error: continue}')
    lenient = lenient.replace("${/steps/first/text}", "${/steps/first/code}")
    set_policy(administrator, helper, PolicySpec("denylist", deny=("mcp_workshop_ec*",)))
    run = run_until_rest(run_workflow(administrator, save(lenient, "lenient"), {"text": "x"}))
    assert len(list_calls(run)) == 2, "a step with on_error: continue doesn't end the run"
    assert list_calls(run)[1].payload["arguments"] == {"text": "two denied_by_policy"}


def test_a_run_uses_the_definition_of_its_start(administrator, save, workshop, run_until_rest):
    run = run_workflow(administrator, save(), {"text": "x"})
    changed = save(ECHO.replace("two ", "changed "))
    assert changed.version == 2
    assert run_until_rest(run).outputs == {"said": "two one x"}
    second = run_until_rest(run_workflow(administrator, changed, {"text": "x"}))
    assert second.outputs == {"said": "changed one x"}


def test_a_step_waits_for_approval_and_continues(
    administrator, helper, save, workshop, run_until_rest
):
    set_policy(administrator, helper, PolicySpec("all", ask=("mcp_workshop_echo",)))
    run = run_until_rest(run_workflow(administrator, save(), {"text": "x"}))
    assert run.session.status == Session.Status.WAITING
    resolve_approval(administrator, Approval.objects.get(), "approve")
    run = run_until_rest(run)
    assert run.session.status == Session.Status.WAITING, "the second step needs approval, too"
    resolve_approval(administrator, Approval.objects.pending().get(), "deny", "Enough.")
    run = run_until_rest(run)
    assert (run.session.status, run.session.error_code) == ("failed", "approval_denied")
    assert [step.state for step in list_calls(run)] == ["done", "failed"]


def test_another_process_continues_a_run_from_its_rows(
    administrator, save, workshop, runner, run_until_rest
):
    run = run_workflow(administrator, save(), {"text": "x"})
    dead_runner = leases.register_runner()
    lease = leases.claim_session(run.session_id, dead_runner)
    step_store.append_step(lease, Step.Kind.MESSAGE, {"text": "{}", "by": "x"})
    completed_call = {
        "name": "mcp_workshop_echo",
        "arguments": {},
        "step": "first",
        "text": "from before",
    }
    step_store.append_step(lease, Step.Kind.CALL, completed_call, turn=1)
    leases.stop_runner(dead_runner)
    completed_call = run_until_rest(run)
    assert completed_call.outputs == {"said": "two from before"}
    assert len(list_calls(completed_call)) == 2, "the completed step isn't repeated"


def test_a_skipped_step_is_recorded_once(administrator, save, workshop, run_until_rest):
    source = ECHO.replace("{id: first,", "{id: first, when: {/inputs/text: {const: y}},")
    source = source.replace("${/steps/first/text}", "${/steps/first/state}")
    run = run_until_rest(run_workflow(administrator, save(source), {"text": "x"}))
    assert run.outputs == {"said": "two skipped"}
    notices = Step.objects.filter(session_id=run.session_id, kind=Step.Kind.NOTICE)
    assert [notice.payload["step"] for notice in notices if "step" in notice.payload] == ["first"]


def test_a_run_has_a_time_limit(administrator, save, workshop, run_until_rest):
    wait = "{id: a, call: mcp_workshop_wait, arguments: {seconds: 30}}"
    slow = f"agent: helper\nmax_run_s: 1\nsteps: [{wait}]\n"
    run = run_until_rest(run_workflow(administrator, save(slow, "slow"), {}))
    assert (run.session.status, run.session.error_code) == ("failed", "time_exhausted")


def test_a_step_sends_a_message_to_an_agent(acme, administrator, helper, save, run_until_rest):
    writer = factories.create_agent(acme, "writer")
    set_callable_agents(administrator, helper, [writer.slug])
    source = "agent: helper\nsteps: [{id: ask, agent: writer, message: Hello}]\n"
    run = run_until_rest(run_workflow(administrator, save(source), {}))
    assert run.session.status == Session.Status.DONE, run.session.error_detail
    child = run.session.children.get()
    assert (child.agent_id, child.depth) == (writer.pk, 1)


def test_an_approved_workflow_is_a_tool_of_its_agents(
    acme, administrator, helper, save, workshop, call
):
    other_agent = factories.create_agent(acme, "other")
    workflow = save(agents=[other_agent.slug])
    with pytest.raises(Problem) as caught:
        call("workflow_echoes", {"text": "x"}, agent_id=other_agent.pk)
    assert caught.value.code == "not_approved"
    reviewer = factories.create_member(acme, Role.REVIEWER)
    approve_workflow(reviewer, workflow, workflow.digest)
    with pytest.raises(Problem) as caught:
        call("workflow_echoes", {"text": 1}, agent_id=other_agent.pk)
    assert caught.value.code == "invalid_arguments"
    assert call("workflow_echoes", {"text": "x"}, agent_id=other_agent.pk).code == "no_session"
    save(ECHO.replace("two", "three"), agents=[other_agent.slug])
    with pytest.raises(Problem) as changed:
        call("workflow_echoes", {"text": "x"}, agent_id=other_agent.pk)
    assert changed.value.code == "definition_changed"
    with pytest.raises(Conflict):
        approve_workflow(reviewer, workflow, workflow.digest)
    with pytest.raises(Forbidden):
        approve_workflow(factories.create_member(acme, Role.OPERATOR), workflow)


def test_a_workflow_can_run_another_workflow(
    acme, administrator, helper, save, workshop, run_until_rest
):
    inner = save(agents=[helper.slug])
    approve_workflow(administrator, inner)
    source = """\
agent: helper
steps: [{id: inner, call: workflow_echoes, arguments: {text: deep}}]
outputs: {said: "${/steps/inner/output/said}"}
"""
    run = run_until_rest(run_workflow(administrator, save(source, "outer"), {}))
    assert run.outputs == {"said": "two one deep"}
    child = WorkflowRun.objects.get(session__parent=run.session_id)
    assert (child.via, child.session.root_id) == ("agent", run.session_id)


def test_disabled_workflows_and_agents_dont_run(administrator, helper, save, workshop):
    workflow = save()
    update_agent(administrator, helper, AgentSpec(name=helper.name, enabled=False))
    with pytest.raises(Conflict) as caught:
        run_workflow(administrator, workflow, {"text": "x"})
    assert caught.value.code == "agent_disabled"
