"""Agents with many tools: the model searches tools, and found tools stay available."""

import pytest

from agents.builtin_tools.registry import BUILTIN_TOOLS
from agents.builtin_tools.toolsets.find_tools import MAX_FOUND_TOOLS
from agents.calls.pipeline import CallRequest, make_call
from agents.calls.snapshots import get_snapshot_cache
from agents.models import Agent, Session, Step
from agents.policies.services import PolicySpec, set_policy
from agents.services import AgentSpec, update_agent
from agents.sessions import services as sessions
from agents.sessions.history import build_history, load_history
from agents.sessions.system_prompt import build_instructions
from agents.sessions.worker import SessionRunner
from bonobot.core.problems import NotFound
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def search_agent(acme, helper, workshop):
    """The agent with more tools than the limit for tool search."""
    administrator = factories.build_administrator(acme)
    return update_agent(administrator, helper, AgentSpec(name=helper.name, tool_search_above=2))


@pytest.fixture
def send_message(acme, search_agent):
    """Return a function that sends a message and runs the session until it rests."""
    runner = SessionRunner()

    def send(text, session=None):
        administrator = factories.build_administrator(acme)
        if session is None:
            session = sessions.start_session(administrator, search_agent, text)
        else:
            sessions.send_message(administrator, session, text)
        get_runtime().call(_run_until_rest, runner, session.pk)
        session.refresh_from_db()
        assert session.status == Session.Status.DONE, session.error_detail
        return session

    yield send
    get_runtime().call(runner.drain)


async def _run_until_rest(runner, session_id):
    if (task := await runner.claim_and_run(session_id)) is not None:
        await task


def list_shown_names(agent, session=None):
    """Return the names of the tools that the model is shown."""
    snapshot = get_snapshot_cache().load_current("agent", agent.pk)
    found_tools = load_history(session.pk).found_tools if session else ()
    return [tool.name for tool in snapshot.list_shown_tools(found_tools)]


def test_found_tools_stay_available_in_later_turns(search_agent, send_message):
    first_names = list_shown_names(search_agent)
    assert {"find_tools", "read_result"} <= set(first_names) <= set(BUILTIN_TOOLS)
    session = send_message('/find_tools {"query": "echo a text", "limit": 1}')
    assert list_shown_names(search_agent, session) == sorted([*first_names, "mcp_workshop_echo"])
    step = session.steps.get(kind=Step.Kind.CALL)
    assert "mcp_workshop_echo: " in step.payload["text"]
    send_message('/mcp_workshop_echo {"text": "hi"}', session)
    assert "mcp_workshop_echo" in list_shown_names(search_agent, session)
    row = AuditRow.objects.get(tool_name="find_tools")
    assert (row.decision, row.outcome, row.resource_type) == ("allow", "ok", "builtin_tool")


def test_denied_tools_are_neither_found_nor_available(acme, search_agent, send_message):
    session = send_message('/find_tools {"query": "echo a text", "limit": 20}')
    administrator = factories.build_administrator(acme)
    set_policy(administrator, search_agent, PolicySpec("denylist", deny=("mcp_workshop_echo",)))
    assert "mcp_workshop_echo" not in list_shown_names(search_agent, session)
    second = send_message('/find_tools {"query": "echo a text", "limit": 20}')
    assert "mcp_workshop_echo" not in second.steps.get(kind=Step.Kind.CALL).payload["text"]


def test_a_search_without_results_says_so(search_agent, send_message):
    step = send_message('/find_tools {"query": "zebra"}').steps.get(kind=Step.Kind.CALL)
    assert step.payload["found"] == []
    assert "No tools match" in step.payload["text"]


def test_the_prompt_mentions_that_there_are_more_tools(search_agent):
    snapshot = get_snapshot_cache().load_current("agent", search_agent.pk)
    shown_tools = snapshot.list_shown_tools(())
    hidden = len(snapshot.list_callable_tools()) - len(shown_tools)
    prompt = build_instructions("", snapshot, (), shown_tools=shown_tools)
    assert f"You can call {hidden} more tools that aren't shown to you." in prompt
    assert "aren't shown to you" not in build_instructions("", snapshot, ())


@pytest.mark.parametrize("above", [0, 1000])
def test_with_few_tools_or_disabled_search_all_tools_are_available(acme, search_agent, above):
    administrator = factories.build_administrator(acme)
    update_agent(
        administrator, search_agent, AgentSpec(name=search_agent.name, tool_search_above=above)
    )
    assert "find_tools" not in list_shown_names(search_agent)
    assert "mcp_workshop_echo" in list_shown_names(search_agent)
    request = CallRequest(
        principal=administrator,
        tool="find_tools",
        arguments={"query": "echo"},
        via="test",
        holder="test:search",
        agent_id=search_agent.pk,
    )
    with pytest.raises(NotFound, match="has no tool"):
        get_runtime().call(make_call, request)


def test_all_tools_are_available_if_the_policy_denies_the_search(acme, search_agent):
    administrator = factories.build_administrator(acme)
    set_policy(administrator, search_agent, PolicySpec("allowlist", allow=("mcp_workshop_*",)))
    assert "find_tools" not in list_shown_names(search_agent)
    assert "mcp_workshop_echo" in list_shown_names(search_agent)


def test_the_latest_found_tools_stay_and_a_call_counts_as_found():
    def build_step(name, *found_tools):
        payload = {"name": name, "text": "", "found": list(found_tools)}
        return Step(seq=1, kind=Step.Kind.CALL, state=Step.State.DONE, payload=payload)

    first = [f"t{number}" for number in range(MAX_FOUND_TOOLS)]
    history = build_history(
        [build_step("find_tools", *first), build_step("t0"), build_step("find_tools", "new")]
    )
    assert len(history.found_tools) == MAX_FOUND_TOOLS
    assert history.found_tools[-2:] == ("t0", "new")
    assert "t1" not in history.found_tools
    assert Agent._meta.get_field("tool_search_above").default == MAX_FOUND_TOOLS
