"""Agents with many tools: their model searches, and is shown what it found from then on (X11)."""

import pytest

from agents.calls import Request, call
from agents.governance.snapshots import snapshots
from agents.models import Agent, Session, Step
from agents.registration import AgentSpec, alter_agent
from agents.sessions import requests
from agents.sessions.past import MOST_FOUND, history, told
from agents.sessions.prompts import instructions
from agents.sessions.runner import SessionRunner
from agents.tool_policies import PolicyText, set_policy
from bonobot.ledger.models import AuditRow
from bonobot.lib.problems import NotFound
from bonobot.lib.runtime import runtime
from tests.agents import casting

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def many(acme, helper, workshop):
    """The agent with more tools than it is shown at once."""
    boss = casting.administrator(acme)
    return alter_agent(boss, helper, AgentSpec(name=helper.name, tool_search_above=2))


@pytest.fixture
def say(acme, many):
    """A function that gives the agent a message and returns the session at rest."""
    runner = SessionRunner()

    def said(text, session=None):
        boss = casting.administrator(acme)
        if session is None:
            session = requests.start(boss, many, text)
        else:
            requests.send(boss, session, text)
        runtime().call(_rest, runner, session.pk)
        session.refresh_from_db()
        assert session.status == Session.Status.DONE, session.error_detail
        return session

    yield said
    runtime().call(runner.drain)


async def _rest(runner, session_id):
    if (task := await runner.take(session_id)) is not None:
        await task


def shown(agent, session=None):
    """Return the names of the tools that the model is shown now."""
    snapshot = snapshots().current("agent", agent.pk)
    found = history(session.pk).found if session else ()
    return [tool.name for tool in snapshot.shown(found)]


def test_what_is_found_is_shown_from_then_on_by_the_rows_alone(many, say):
    assert shown(many) == ["find_tools", "read_result"]
    session = say('/find_tools {"query": "echo a text", "limit": 1}')
    assert shown(many, session) == ["find_tools", "mcp_workshop_echo", "read_result"]
    step = session.steps.get(kind=Step.Kind.CALL)
    assert "mcp_workshop_echo: " in step.payload["text"]
    say('/mcp_workshop_echo {"text": "hi"}', session)
    assert "mcp_workshop_echo" in shown(many, session)
    row = AuditRow.objects.get(tool_name="find_tools")
    assert (row.decision, row.outcome, row.resource_type) == ("allow", "ok", "builtin_tool")


def test_what_policy_forbids_is_neither_found_nor_shown(acme, many, say):
    session = say('/find_tools {"query": "echo a text", "limit": 20}')
    boss = casting.administrator(acme)
    set_policy(boss, many, PolicyText("denylist", deny=("mcp_workshop_echo",)))
    assert "mcp_workshop_echo" not in shown(many, session)
    later = say('/find_tools {"query": "echo a text", "limit": 20}')
    assert "mcp_workshop_echo" not in later.steps.get(kind=Step.Kind.CALL).payload["text"]


def test_a_search_for_nothing_that_there_is_says_so(many, say):
    step = say('/find_tools {"query": "zebra"}').steps.get(kind=Step.Kind.CALL)
    assert step.payload["found"] == []
    assert "No tool fits these words" in step.payload["text"]


def test_the_prompt_says_that_there_are_more(many):
    snapshot = snapshots().current("agent", many.pk)
    hidden = len(snapshot.offered()) - 2
    given = instructions("", snapshot, (), shown=snapshot.shown(()))
    assert f"You can call {hidden} tools more than you are shown." in given
    assert "more than you are shown" not in instructions("", snapshot, ())


@pytest.mark.parametrize("above", [0, 1000])
def test_with_few_tools_or_switched_off_all_are_shown_and_there_is_no_search(acme, many, above):
    boss = casting.administrator(acme)
    alter_agent(boss, many, AgentSpec(name=many.name, tool_search_above=above))
    assert "find_tools" not in shown(many)
    assert "mcp_workshop_echo" in shown(many)
    asked = Request(
        principal=boss,
        tool="find_tools",
        arguments={"query": "echo"},
        via="test",
        holder="test:search",
        agent_id=many.pk,
    )
    with pytest.raises(NotFound, match="has no tool"):
        runtime().call(call, asked)


def test_where_policy_keeps_the_search_away_all_are_shown(acme, many):
    boss = casting.administrator(acme)
    set_policy(boss, many, PolicyText("allowlist", allow=("mcp_workshop_*",)))
    assert "find_tools" not in shown(many)
    assert "mcp_workshop_echo" in shown(many)


def test_the_latest_found_stay_and_a_called_one_counts_as_found_again():
    def step(name, *found):
        payload = {"name": name, "text": "", "found": list(found)}
        return Step(seq=1, kind=Step.Kind.CALL, state=Step.State.DONE, payload=payload)

    first = [f"t{number}" for number in range(MOST_FOUND)]
    past = told([step("find_tools", *first), step("t0"), step("find_tools", "new")])
    assert len(past.found) == MOST_FOUND
    assert past.found[-2:] == ("t0", "new")
    assert "t1" not in past.found
    assert Agent._meta.get_field("tool_search_above").default == MOST_FOUND
