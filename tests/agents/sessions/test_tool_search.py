"""Agents with many tools: their model searches, and is shown what it found from then on."""

import pytest

from agents.calls.pipeline import CallRequest, make_call
from agents.calls.snapshots import get_snapshot_cache
from agents.models import Agent, Session, Step
from agents.policies.services import PolicySpec, set_policy
from agents.services import AgentSpec, update_agent
from agents.sessions import services as sessions
from agents.sessions.history import MAX_FOUND_TOOLS, build_history, load_history
from agents.sessions.system_prompt import build_instructions
from agents.sessions.worker import SessionRunner
from bonobot.core.problems import NotFound
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def many(acme, helper, workshop):
    """The agent with more tools than it is shown at once."""
    boss = factories.build_administrator(acme)
    return update_agent(boss, helper, AgentSpec(name=helper.name, tool_search_above=2))


@pytest.fixture
def say(acme, many):
    """A function that gives the agent a message and returns the session at rest."""
    runner = SessionRunner()

    def said(text, session=None):
        boss = factories.build_administrator(acme)
        if session is None:
            session = sessions.start_session(boss, many, text)
        else:
            sessions.send_message(boss, session, text)
        get_runtime().call(_rest, runner, session.pk)
        session.refresh_from_db()
        assert session.status == Session.Status.DONE, session.error_detail
        return session

    yield said
    get_runtime().call(runner.drain)


async def _rest(runner, session_id):
    if (task := await runner.claim_and_run(session_id)) is not None:
        await task


def shown(agent, session=None):
    """Return the names of the tools that the model is shown now."""
    snapshot = get_snapshot_cache().load_current("agent", agent.pk)
    found = load_history(session.pk).found_tools if session else ()
    return [tool.name for tool in snapshot.list_shown_tools(found)]


def test_found_tools_stay_available_in_later_turns(many, say):
    assert shown(many) == ["find_tools", "read_result"]
    session = say('/find_tools {"query": "echo a text", "limit": 1}')
    assert shown(many, session) == ["find_tools", "mcp_workshop_echo", "read_result"]
    step = session.steps.get(kind=Step.Kind.CALL)
    assert "mcp_workshop_echo: " in step.payload["text"]
    say('/mcp_workshop_echo {"text": "hi"}', session)
    assert "mcp_workshop_echo" in shown(many, session)
    row = AuditRow.objects.get(tool_name="find_tools")
    assert (row.decision, row.outcome, row.resource_type) == ("allow", "ok", "builtin_tool")


def test_denied_tools_are_neither_found_nor_available(acme, many, say):
    session = say('/find_tools {"query": "echo a text", "limit": 20}')
    boss = factories.build_administrator(acme)
    set_policy(boss, many, PolicySpec("denylist", deny=("mcp_workshop_echo",)))
    assert "mcp_workshop_echo" not in shown(many, session)
    later = say('/find_tools {"query": "echo a text", "limit": 20}')
    assert "mcp_workshop_echo" not in later.steps.get(kind=Step.Kind.CALL).payload["text"]


def test_a_search_without_results_says_so(many, say):
    step = say('/find_tools {"query": "zebra"}').steps.get(kind=Step.Kind.CALL)
    assert step.payload["found"] == []
    assert "No tool fits these words" in step.payload["text"]


def test_the_prompt_mentions_that_there_are_more_tools(many):
    snapshot = get_snapshot_cache().load_current("agent", many.pk)
    hidden = len(snapshot.list_callable_tools()) - 2
    given = build_instructions("", snapshot, (), shown_tools=snapshot.list_shown_tools(()))
    assert f"You can call {hidden} tools more than you are shown." in given
    assert "more than you are shown" not in build_instructions("", snapshot, ())


@pytest.mark.parametrize("above", [0, 1000])
def test_with_few_tools_or_disabled_search_all_tools_are_available(acme, many, above):
    boss = factories.build_administrator(acme)
    update_agent(boss, many, AgentSpec(name=many.name, tool_search_above=above))
    assert "find_tools" not in shown(many)
    assert "mcp_workshop_echo" in shown(many)
    asked = CallRequest(
        principal=boss,
        tool="find_tools",
        arguments={"query": "echo"},
        via="test",
        holder="test:search",
        agent_id=many.pk,
    )
    with pytest.raises(NotFound, match="has no tool"):
        get_runtime().call(make_call, asked)


def test_all_tools_are_available_if_the_policy_denies_the_search(acme, many):
    boss = factories.build_administrator(acme)
    set_policy(boss, many, PolicySpec("allowlist", allow=("mcp_workshop_*",)))
    assert "find_tools" not in shown(many)
    assert "mcp_workshop_echo" in shown(many)


def test_the_latest_found_tools_stay_and_a_call_counts_as_found():
    def step(name, *found):
        payload = {"name": name, "text": "", "found": list(found)}
        return Step(seq=1, kind=Step.Kind.CALL, state=Step.State.DONE, payload=payload)

    first = [f"t{number}" for number in range(MAX_FOUND_TOOLS)]
    past = build_history([step("find_tools", *first), step("t0"), step("find_tools", "new")])
    assert len(past.found_tools) == MAX_FOUND_TOOLS
    assert past.found_tools[-2:] == ("t0", "new")
    assert "t1" not in past.found_tools
    assert Agent._meta.get_field("tool_search_above").default == MAX_FOUND_TOOLS
