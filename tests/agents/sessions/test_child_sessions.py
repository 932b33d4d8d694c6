"""Agents that call agents: depth limit, budget of the root, shared labels."""

import asyncio
from itertools import pairwise
from uuid import uuid4

import pytest
from django.db import transaction
from django.utils import timezone

from agents.approvals.services import resolve_approval
from agents.assignments import set_callable_agents
from agents.budgets.services import BudgetLine, list_budget_use, set_budgets
from agents.calls.explain import explain_call
from agents.calls.snapshots import get_snapshot_cache
from agents.flow_labels.services import list_session_labels
from agents.llm import interface as llm_interface
from agents.models import Approval, Runner, Session, Step
from agents.policies.services import PolicySpec, set_policy
from agents.services import AgentSpec, update_agent
from agents.sessions import child_sessions, leases, worker
from agents.sessions import services as sessions
from agents.sessions.export import build_report
from agents.sessions.worker import SessionRunner
from agents.wakeups import wake_parent
from bonobot.accounts.roles import Role
from bonobot.core.runtime import get_runtime
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.effective_labels import set_labels
from tests import factories, rest
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)


class ScriptedModel:
    """A model that calls the tool named in the user's message, or repeats the last message."""

    async def request(self, request):
        """Call the tool of the newest user message, then repeat its result."""
        messages, tools = request.messages, request.tools
        number = 1 + sum(item["role"] == "assistant" for item in messages)
        last = messages[-1]
        name, _, remaining = last["text"].partition(": ")
        tool_names = {item.name for item in tools}
        if last["role"] == "user" and name in tool_names:
            key = "message" if name.startswith("ask_") else "text"
            arguments = {key: remaining}
            calls = (
                llm_interface.ToolCall(
                    0, name, arguments, str(arguments), llm_interface.build_call_id(number, 0)
                ),
            )
            text = ""
        else:
            calls, text = (), f"{last['text'].strip()}!"
        message = llm_interface.build_assistant_message(number, text, calls)
        usage = llm_interface.TokenUsage(10, 5)
        finish = "content_filter" if last["text"] == "forbidden" else "stop"
        return llm_interface.ModelReply(
            text, calls, usage, "tool_calls" if calls else finish, message
        )


@pytest.fixture(autouse=True)
def _use_scripted_model(monkeypatch):
    monkeypatch.setattr(llm_interface, "build_model", lambda endpoint: ScriptedModel())


@pytest.fixture
def administrator(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def runner(transactional_db):
    session_runner = SessionRunner()
    yield session_runner
    get_runtime().call(session_runner.drain)


@pytest.fixture
def agents(acme, administrator, helper):
    """A chain of agents, each of which can call the next one."""
    chain = [
        helper,
        *(factories.create_agent(acme, name) for name in ("second", "third", "fourth", "fifth")),
    ]
    for caller, called in pairwise(chain):
        set_callable_agents(administrator, caller, [called.slug])
    return chain


async def _run_until_rest(runner, session_id):
    await runner.claim_and_run(session_id)
    async with asyncio.timeout(30):
        while task := runner._tasks.get(session_id):
            await asyncio.wait([task])


def run(runner, administrator, agent, text):
    session = sessions.start_session(administrator, agent, text)
    get_runtime().call(_run_until_rest, runner, session.pk)
    session.refresh_from_db()
    return session


def test_an_agent_gets_the_answer_of_another_agent(runner, administrator, agents):
    session = run(runner, administrator, agents[0], "ask_second: hello")
    assert session.status == Session.Status.DONE, session.error_detail
    assert "hello!" in build_report(session.pk)["answer"]
    child = session.children.get()
    assert (child.agent.slug, child.depth, child.root_id) == ("second", 1, session.pk)
    assert child.started_by == session.started_by


def test_an_incomplete_answer_of_another_agent_is_marked(runner, administrator, agents):
    session = run(runner, administrator, agents[0], "ask_second: forbidden")
    text = session.steps.get(kind=Step.Kind.CALL).payload["text"]
    notice = "The answer is incomplete: the provider's content filter stopped it."
    assert f"forbidden!\n\n[{notice}]" in text
    assert build_report(session.children.get().pk)["notices"] == [notice]


def test_agent_calls_end_three_levels_below_the_root(runner, administrator, agents):
    text = "ask_second: ask_third: ask_fourth: ask_fifth: hello"
    session = run(runner, administrator, agents[0], text)
    assert Session.objects.filter(root_id=session.pk).count() == 3
    deepest = Session.objects.get(depth=3)
    call = deepest.steps.get(kind=Step.Kind.CALL)
    assert (call.state, call.payload["code"]) == ("failed", "too_deep")


def test_only_allowed_agents_can_be_called(acme, runner, administrator, helper, agents):
    set_callable_agents(administrator, helper, [])
    session = run(runner, administrator, helper, "ask_second: hello")
    assert not session.children.exists()
    set_callable_agents(administrator, helper, ["second"])
    set_policy(administrator, helper, PolicySpec("allowlist", allow=("read_result",)))
    assert not run(runner, administrator, helper, "ask_second: hello").children.exists()


def test_a_disabled_agent_isnt_offered_to_other_agents(runner, administrator, helper, agents):
    assert run(runner, administrator, helper, "ask_second: hello").children.count() == 1
    update_agent(administrator, agents[1], AgentSpec(name="Second", enabled=False))
    session = run(runner, administrator, helper, "ask_second: hello")
    assert session.steps.filter(kind=Step.Kind.CALL).count() == 0
    snapshot = get_snapshot_cache().load_current("agent", helper.pk)
    decision = explain_call(administrator, snapshot, snapshot.tools["ask_second"])
    assert (decision["code"], decision["remedy"]) == (
        "tool_disabled",
        "An operator can enable the agent or workflow that it starts.",
    )


def test_called_agents_spend_the_budget_of_the_root(runner, administrator, agents):
    root, child_agent = agents[:2]
    for agent in (root, child_agent):
        set_budgets(administrator, agent, [BudgetLine("tokens", "month", 1_000_000)])
    before = run(runner, administrator, root, "hello")
    session = run(runner, administrator, root, "ask_second: hello")
    spent = {agent.slug: list_budget_use(agent)[0].spent for agent in (root, child_agent)}
    assert spent == {"helper": 15 + 15 + 15 + 15, "second": 15}
    assert before.children.count() == 0
    set_budgets(administrator, root, [BudgetLine("tokens", "total", 20, each_session=True)])
    session = run(runner, administrator, root, "ask_second: hello")
    child = session.children.first()
    assert child is None or child.error_code == "budget_exhausted"
    assert session.status == Session.Status.FAILED


def test_sessions_of_a_tree_share_their_labels(runner, administrator, agents, workshop):
    root, child_agent = agents[:2]
    factories.attach_server(administrator, child_agent, workshop)
    rows = list(workshop.definitions.filter(name="echo"))
    set_labels(administrator, workshop, rows, [FlowLabel.UNTRUSTED_CONTENT])
    session = run(runner, administrator, root, "ask_second: mcp_workshop_echo: from anybody")
    assert [entry.label for entry in list_session_labels(session)] == [FlowLabel.UNTRUSTED_CONTENT]


def test_a_session_waits_for_its_child_and_continues_after_it(
    runner, administrator, agents, workshop
):
    root, child_agent = agents[:2]
    factories.attach_server(administrator, child_agent, workshop)
    set_policy(administrator, child_agent, PolicySpec("all", ask=("mcp_workshop_echo",)))
    session = run(runner, administrator, root, "ask_second: mcp_workshop_echo: once")
    child = session.children.get()
    assert child.status == session.status == Session.Status.WAITING
    resolve_approval(administrator, Approval.objects.get(), "approve")
    get_runtime().call(_run_until_rest, runner, child.pk)
    session.refresh_from_db()
    assert session.status == Session.Status.QUEUED, "the waiting session is queued"
    get_runtime().call(_run_until_rest, runner, session.pk)
    session.refresh_from_db()
    assert session.status == Session.Status.DONE
    assert session.children.count() == 1, "the repeated call uses the first child"
    assert "once" in build_report(session.pk)["answer"]


def test_an_approved_call_needs_no_second_approval_when_its_child_session_waits(
    runner, administrator, agents, workshop
):
    root, child_agent = agents[:2]
    factories.attach_server(administrator, child_agent, workshop)
    set_policy(administrator, root, PolicySpec("all", ask=("ask_second",)))
    set_policy(administrator, child_agent, PolicySpec("all", ask=("mcp_workshop_echo",)))
    session = run(runner, administrator, root, "ask_second: mcp_workshop_echo: once")
    resolve_approval(administrator, Approval.objects.get(), "approve")
    get_runtime().call(_run_until_rest, runner, session.pk)
    resolve_approval(administrator, Approval.objects.pending().get(), "approve")
    for waiting_session in (session.children.get(), session):
        get_runtime().call(_run_until_rest, runner, waiting_session.pk)
    session.refresh_from_db()
    assert session.status == Session.Status.DONE
    assert Approval.objects.count() == 2


def test_canceling_ends_child_sessions(runner, administrator, agents, workshop):
    root, child_agent = agents[:2]
    factories.attach_server(administrator, child_agent, workshop)
    set_policy(administrator, child_agent, PolicySpec("all", ask=("mcp_workshop_echo",)))
    session = run(runner, administrator, root, "ask_second: mcp_workshop_echo: once")
    sessions.cancel_session(administrator, session)
    get_runtime().call(_run_until_rest, runner, session.pk)
    child = session.children.get()
    get_runtime().call(_run_until_rest, runner, child.pk)
    eventually(lambda: Session.objects.get(pk=child.pk).status == Session.Status.CANCELLED)
    assert Session.objects.get(pk=session.pk).status == Session.Status.CANCELLED


def test_a_repeated_call_finds_its_child_session(acme, administrator, agents):
    session = sessions.start_session(administrator, agents[0], "hello")
    first, second = uuid4(), uuid4()
    step = Step.objects.create(
        session=session, seq=1, kind=Step.Kind.CALL, turn=1, index=0, call_id=first, payload={}
    )
    initializer = child_sessions.build_message_initializer(administrator, "hello")
    child = child_sessions.start_child(
        administrator, session.pk, first, agents[1].pk, "hello", initializer
    )
    Step.objects.filter(pk=step.pk).update(call_id=second)
    assert (
        child_sessions.start_child(
            administrator, session.pk, second, agents[1].pk, "hello", initializer
        )
        == child
    )
    assert session.children.get().inbox.count() == 1


def test_rest_sets_which_agents_an_agent_can_call(acme, agents):
    operator = rest.as_role(acme, Role.OPERATOR)
    assert operator.get("agents/helper/callable-agents").json["callable_agents"] == ["second"]
    assert (
        operator.put("agents/helper/callable-agents", {"callable_agents": ["nobody"]}).status == 404
    )
    response = operator.put(
        "agents/helper/callable-agents", {"callable_agents": ["third", "second"]}
    )
    assert response.json["callable_agents"] == ["second", "third"]
    names = [tool["name"] for tool in operator.get("agents/helper/tools").json["results"]]
    assert "ask_third" in names


def test_outside_a_session_no_agent_can_be_called(agents, call):
    assert call("ask_second", {"message": "hello"}).code == "no_session"


def test_a_parent_that_is_suspended_while_its_child_ends_is_woken(administrator, agents):
    parent = sessions.start_session(administrator, agents[0], "hello")
    child = Session.objects.create(
        organization=parent.organization, agent=agents[1], parent=parent, started_by="ann"
    )
    Session.objects.filter(pk=parent.pk).update(status=Session.Status.RUNNING)
    with transaction.atomic():
        wake_parent(child.pk)
        # The parent saw the child wait, and its transaction is committed only now.
        Session.objects.filter(pk=parent.pk).update(status=Session.Status.WAITING)
    parent.refresh_from_db()
    assert parent.status == Session.Status.QUEUED


def test_a_parent_continues_when_the_worker_of_its_child_died(
    runner, administrator, agents, monkeypatch
):
    monkeypatch.setattr(worker, "CANCEL_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(leases, "HEARTBEAT_INTERVAL_S", 0.02)
    dead_id = leases.register_runner()
    taken = []

    async def let_another_worker_die(session_id):
        if taken:
            await runner.claim_and_run(session_id)
            return
        await get_runtime().run_orm(leases.claim_session, session_id, dead_id)
        taken.append(session_id)
        stale = timezone.now() - leases.LEASE_DURATION
        await get_runtime().run_orm(Runner.objects.filter(pk=dead_id).update, heartbeat_at=stale)

    monkeypatch.setattr(child_sessions, "run_locally", let_another_worker_die)
    assert run(runner, administrator, agents[0], "ask_second: hello").status == Session.Status.DONE
    assert taken
