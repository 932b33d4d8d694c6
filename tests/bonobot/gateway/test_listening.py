"""Listening: who listens is told what changes for them, at once, and nothing of others."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import pytest

from agents.models import Agent
from agents.sessions.requests import send
from agents.tool_policies import PolicyText, set_policy
from bonobot.gateway.listening import LOOK_EVERY_S
from bonobot.gateway.places import Address
from bonobot.gateway.serving import Serving
from bonobot.gateway.visitors import Visitor, welcome
from bonobot.lib.runtime import runtime
from bonobot.tenancy.models import Organization, Token
from bonobot.tenancy.roles import Role
from bonobot.tenancy.tokens import issue, revoke
from mcp_servers.approval import withdraw
from mcp_servers.connections.changes import TOPICS
from mcp_servers.models import Server
from tests.agents import casting

pytestmark = pytest.mark.django_db(transaction=True)

TOOLS = "notifications/tools/list_changed"
LONG_S = 30


def visiting(where: Organization) -> tuple[Visitor, Token]:
    token, text = issue(casting.administrator(where), name="listens", role=Role.OPERATOR)
    return runtime().call(welcome, text, Address("agent", "helper"), ""), token


def heard(visitor: Visitor, change: Callable[[], object]) -> list[str]:
    """Return what is told after a change, up to the first notice or the end of the stream."""

    async def listen() -> list[str]:
        listening = Serving().listening
        async with aclosing(listening.notices(visitor, TOPICS, tuple)) as stream:
            assert await anext(stream) == ("", {})
            await runtime().orm(change)
            async with asyncio.timeout(LONG_S):
                try:
                    return [(await anext(stream))[0]]
                finally:
                    listening.stop()

    async def to_the_end() -> list[str]:
        try:
            return await listen()
        except StopAsyncIteration:
            return []

    return runtime().call(to_the_end)


def test_a_policy_that_takes_a_tool_away_is_told(
    acme: Organization, helper: Agent, workshop: Server
) -> None:
    boss, (visitor, _) = casting.administrator(acme), visiting(acme)
    policy = PolicyText("denylist", deny=("mcp_workshop_add",))
    assert heard(visitor, lambda: set_policy(boss, helper, policy)) == [TOOLS]


def test_a_definition_that_is_withdrawn_is_told(
    acme: Organization, helper: Agent, workshop: Server
) -> None:
    boss, (visitor, _) = casting.administrator(acme), visiting(acme)
    echo = workshop.definitions.get(name="echo")
    assert heard(visitor, lambda: withdraw(boss, echo)) == [TOOLS]


def test_a_revoked_token_ends_its_stream(
    acme: Organization, helper: Agent, workshop: Server
) -> None:
    boss, (visitor, token) = casting.administrator(acme), visiting(acme)
    assert heard(visitor, lambda: revoke(boss, token)) == []


def test_a_change_that_shows_nothing_new_is_not_told(
    acme: Organization, helper: Agent, workshop: Server
) -> None:
    boss, (visitor, _) = casting.administrator(acme), visiting(acme)

    def unseen() -> None:
        issue(boss, name="another", role=Role.MEMBER)

    async def listen() -> None:
        listening = Serving().listening
        async with aclosing(listening.notices(visitor, TOPICS, tuple)) as stream:
            await anext(stream)
            await runtime().orm(unseen)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3 * LOOK_EVERY_S):
                    await anext(stream)
        listening.stop()

    runtime().call(listen)


def test_a_session_that_goes_on_is_told_to_who_watches_it(
    acme: Organization, helper: Agent
) -> None:
    boss = casting.administrator(acme)
    _, text = issue(boss, name="watches", role=Role.OWNER)
    visitor = runtime().call(welcome, text, Address("organization"), "")
    session = casting.rested_session(helper)
    uri = f"bonobot://sessions/{session.pk}"

    async def listen() -> tuple[str, dict[str, str]]:
        listening = Serving().listening
        async with aclosing(listening.notices(visitor, (), lambda: [uri])) as stream:
            await anext(stream)
            await runtime().orm(send, boss, session, "And then?")
            async with asyncio.timeout(LONG_S):
                found = await anext(stream)
        listening.stop()
        return found

    assert runtime().call(listen) == ("notifications/resources/updated", {"uri": uri})


def test_a_new_agent_is_told_as_tools_of_the_organization(acme: Organization) -> None:
    boss = casting.administrator(acme)
    _, text = issue(boss, name="watches", role=Role.OWNER)
    visitor = runtime().call(welcome, text, Address("organization"), "")
    assert TOOLS in heard(visitor, lambda: casting.agent(acme, "second"))
