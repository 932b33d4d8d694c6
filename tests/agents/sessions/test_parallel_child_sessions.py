"""Several child sessions of one model turn: at the same time, within a limit."""

import asyncio
import gc

import pytest

from agents.assignments import set_callable_agents
from agents.budgets.services import BudgetLine, set_budgets
from agents.llm import interface as llm_interface
from agents.models import Inbox, Session, Step
from agents.sessions import child_sessions
from agents.sessions import services as sessions
from agents.sessions.worker import SessionRunner
from bonobot.core.runtime import get_runtime
from tests import factories
from tests.agents.sessions.client_request_sessions import run_session
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)

TASKS = tuple(f"task {number}" for number in range(4))


class ParallelModel:
    """A model that asks another agent for each task in one turn, and as that agent meets others.

    The second of two that meet answers first.
    """

    def __init__(self) -> None:
        self.meeting = asyncio.Barrier(2)
        self.running = self.most_running = 0

    async def request(self, request):
        """Return the calls, the answer to a task, or the results."""
        messages = request.messages
        last, turn = messages[-1], 1 + sum(item["role"] == "assistant" for item in messages)
        calls = ()
        if last["text"] == "all":
            calls = tuple(self._build_call(turn, index) for index in range(len(TASKS)))
            text = ""
        elif last["role"] == "tool":
            text = " ".join(item["text"] for item in messages[-len(TASKS) :])
        else:
            text = await self._run_task(last["text"])
        message = llm_interface.build_assistant_message(turn, text, calls)
        usage = llm_interface.TokenUsage(10, 5)
        finish = "tool_calls" if calls else "stop"
        return llm_interface.ModelReply(text, calls, usage, finish, message)

    async def _run_task(self, task):
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            place = await self.meeting.wait()
            for _ in range(20 * (1 - place)):
                await asyncio.sleep(0)
        finally:
            self.running -= 1
        return f"{task} done"

    def _build_call(self, turn, index):
        arguments = {"message": TASKS[index]}
        call_id = llm_interface.build_call_id(turn, index)
        return llm_interface.ToolCall(index, "ask_second", arguments, str(arguments), call_id)


@pytest.fixture
def model(monkeypatch, settings):
    settings.BONOBOT_PARALLEL_CHILD_SESSIONS = 2
    parallel_model = ParallelModel()
    monkeypatch.setattr(llm_interface, "build_model", lambda endpoint: parallel_model)
    return parallel_model


@pytest.fixture
def administrator(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def session(acme, administrator, helper):
    """A session that will ask another agent for four tasks."""
    second = factories.create_agent(acme, "second")
    set_callable_agents(administrator, helper, [second.slug])
    return sessions.start_session(administrator, helper, "all")


def test_child_sessions_of_one_turn_run_at_once_within_the_limit(runner, model, session):
    session = run_session(session, runner)
    assert session.status == Session.Status.DONE, session.error_detail
    answer = session.steps.get(kind=Step.Kind.END).payload["answer"]
    assert answer == " ".join(f"{task} done" for task in TASKS), "in the order of the calls"
    assert model.most_running == 2
    assert session.children.count() == len(TASKS)


def test_a_budget_that_covers_all_child_sessions_lets_all_end(
    runner, model, administrator, helper, session
):
    # Two turns of the parent and four of its children, 15 tokens each, and what is reserved.
    set_budgets(administrator, helper, [BudgetLine("tokens", "total", 100_000, each_session=True)])
    session = run_session(session, runner)
    assert session.status == Session.Status.DONE, session.error_detail
    assert {child.status for child in session.children.all()} == {"done"}


def test_a_stop_ends_running_children_and_starts_no_others(runner, model, administrator, session):
    model.meeting = asyncio.Barrier(99)
    task = get_runtime().call(runner.claim_and_run, session.pk)
    eventually(lambda: model.running == 2)
    sessions.cancel_session(administrator, session)
    get_runtime().call(asyncio.wait, [task])
    eventually(lambda: not session.children.exclude(status="cancelled").exists())
    session.refresh_from_db()
    assert (session.status, session.children.count()) == ("cancelled", 2)
    assert not Inbox.objects.filter(session__parent=session, kind="message", processed_at=None)


def test_a_stopping_worker_hands_a_parent_over_without_waiting_for_its_children(
    runner, model, session
):
    stopping_runner = SessionRunner()
    model.meeting = asyncio.Barrier(99)
    get_runtime().call(stopping_runner.claim_and_run, session.pk)
    eventually(lambda: model.running == 2)
    get_runtime().call(stopping_runner.drain, 60, timeout_s=5)
    assert set(Session.objects.values_list("status", flat=True)) == {"queued"}
    assert session.children.count() == 2
    model.meeting = asyncio.Barrier(2)
    session = run_session(session, runner)
    assert session.status == Session.Status.DONE, session.error_detail
    answer = session.steps.get(kind=Step.Kind.END).payload["answer"]
    assert answer == " ".join(f"{task} done" for task in TASKS), "each answer once"
    assert session.children.count() == session.steps.filter(kind="call").count() == len(TASKS)


def test_a_parent_is_woken_when_its_child_ends(runner, model, administrator, session, monkeypatch):
    monkeypatch.setattr("bonobot.core.message_bus.POLL_INTERVAL_S", 60)
    monkeypatch.setattr("bonobot.core.message_bus.FALLBACK_POLL_INTERVAL_S", 60)
    assert run_session(session, runner).status == Session.Status.DONE


def test_limits_of_ended_sessions_are_not_kept(runner, model, session):
    run_session(session, runner)
    gc.collect()  # tracebacks of canceled waiters are reference cycles
    assert not list(child_sessions._child_limits)
