"""Listening: who listens is told what changes for them, at once, and nothing of others."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any
from uuid import UUID

import pytest
from django.db import InterfaceError, OperationalError

from agents.gateway import change_notifications
from agents.gateway.authentication import AuthenticatedClient, authenticate_client
from agents.gateway.change_notifications import POLL_INTERVAL_S
from agents.gateway.dispatcher import GatewayDispatcher
from agents.gateway.resource_subscriptions import watch_resources
from agents.gateway.routes import GatewayAddress
from agents.models import Agent
from agents.policies.services import PolicySpec, set_policy
from agents.sessions.services import send_message
from bonobot.accounts.models import Organization, Token
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token, revoke_token
from bonobot.core.runtime import get_runtime
from mcp_servers.client.change_notifications import TOPICS
from mcp_servers.definition_reviews import reset_review
from mcp_servers.models import Server
from tests import factories
from tests.agents.gateway.conftest import Wire

pytestmark = pytest.mark.django_db(transaction=True)

TOOLS = "notifications/tools/list_changed"
BAD = -32602
LONG_S = 30


def visiting(where: Organization) -> tuple[AuthenticatedClient, Token]:
    token, text = create_token(
        factories.build_administrator(where), name="listens", role=Role.OPERATOR
    )
    return get_runtime().call(
        authenticate_client, text, GatewayAddress("agent", "helper"), ""
    ), token


def heard(visitor: AuthenticatedClient, change: Callable[[], object]) -> list[str]:
    """Return what is told after a change, up to the notice of tools or the end of the stream.

    A change that a look falls into is told of in parts, so others may come before.
    """

    async def listen() -> list[str]:
        there = GatewayDispatcher().change_streams
        async with aclosing(there.iterate_notifications(visitor, TOPICS, dict)) as stream:
            assert await anext(stream) == ("", {})
            await get_runtime().run_orm(change)
            told: list[str] = []
            try:
                async with asyncio.timeout(LONG_S):
                    async for method, _ in stream:
                        told.append(method)
                        if method == TOOLS:
                            break
            finally:
                there.stop()
            return told

    return get_runtime().call(listen)


def test_a_policy_that_removes_a_tool_is_notified(
    acme: Organization, helper: Agent, workshop: Server
) -> None:
    boss, (visitor, _) = factories.build_administrator(acme), visiting(acme)
    policy = PolicySpec("denylist", deny=("mcp_workshop_add",))
    assert heard(visitor, lambda: set_policy(boss, helper, policy)) == [TOOLS]


def test_a_revoked_definition_is_notified(
    acme: Organization, helper: Agent, workshop: Server
) -> None:
    boss, (visitor, _) = factories.build_administrator(acme), visiting(acme)
    echo = workshop.definitions.get(name="echo")
    assert heard(visitor, lambda: reset_review(boss, echo)) == [TOOLS]


def test_a_revoked_token_ends_its_stream(
    acme: Organization, helper: Agent, workshop: Server
) -> None:
    boss, (visitor, token) = factories.build_administrator(acme), visiting(acme)
    assert heard(visitor, lambda: revoke_token(boss, token)) == []


def test_a_change_without_visible_effect_isnt_notified(
    acme: Organization, helper: Agent, workshop: Server
) -> None:
    boss, (visitor, _) = factories.build_administrator(acme), visiting(acme)

    def unseen() -> None:
        create_token(boss, name="another", role=Role.MEMBER)

    async def listen() -> None:
        there = GatewayDispatcher().change_streams
        async with aclosing(there.iterate_notifications(visitor, TOPICS, dict)) as stream:
            await anext(stream)
            await get_runtime().run_orm(unseen)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3 * POLL_INTERVAL_S):
                    await anext(stream)
        there.stop()

    get_runtime().call(listen)


def test_a_changed_session_is_notified_to_its_watchers(acme: Organization, helper: Agent) -> None:
    boss = factories.build_administrator(acme)
    _, text = create_token(boss, name="watches", role=Role.OWNER)
    visitor = get_runtime().call(authenticate_client, text, GatewayAddress("organization"), "")
    session = factories.create_answered_session(helper)
    uri = f"bonobot://sessions/{session.pk}"

    async def listen() -> tuple[str, dict[str, str]]:
        there = GatewayDispatcher().change_streams
        watched = await watch_resources(visitor, [uri])
        async with aclosing(there.iterate_notifications(visitor, (), lambda: watched)) as stream:
            await anext(stream)
            await get_runtime().run_orm(send_message, boss, session, "And then?")
            async with asyncio.timeout(LONG_S):
                found = await anext(stream)
        there.stop()
        return found

    assert get_runtime().call(listen) == ("notifications/resources/updated", {"uri": uri})


def test_a_new_agent_is_notified_as_a_tool_change(acme: Organization) -> None:
    boss = factories.build_administrator(acme)
    _, text = create_token(boss, name="watches", role=Role.OWNER)
    visitor = get_runtime().call(authenticate_client, text, GatewayAddress("organization"), "")
    assert TOOLS in heard(visitor, lambda: factories.create_agent(acme, "second"))


def test_changes_are_detected_after_a_database_outage(
    acme: Organization, helper: Agent, workshop: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    boss, (visitor, _) = factories.build_administrator(acme), visiting(acme)
    looks, look = (
        iter((OperationalError, InterfaceError)),
        change_notifications.load_policy_generations,
    )

    def away(organizations: list[UUID]) -> dict[UUID, int]:
        if (fault := next(looks, None)) is not None:
            raise fault("the database is away")
        return look(organizations)

    monkeypatch.setattr(change_notifications, "load_policy_generations", away)
    policy = PolicySpec("denylist", deny=("mcp_workshop_add",))
    assert heard(visitor, lambda: set_policy(boss, helper, policy)) == [TOOLS]
    assert next(looks, None) is None


def test_the_number_of_streams_per_process_is_limited(
    acme: Organization, helper: Agent, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_notifications, "MAX_STREAMS", 1)
    wanted = {"notifications": {"toolsListChanged": True}}
    first = wire.listen("/mcp/agents/helper", wanted)
    assert (first.next() or {})["params"]["notifications"] == {"toolsListChanged": True}
    refused = wire.modern("/mcp/agents/helper", "subscriptions/listen", wanted)
    assert refused.error["code"] == BAD
    first.close()
    again = wire.listen("/mcp/agents/helper", wanted)
    assert "method" in (again.next() or {})
    again.close()


@pytest.mark.parametrize("uris", [[7], ["a", None], ["a", "b"]])
def test_invalid_or_too_many_uris_are_refused(
    acme: Organization, helper: Agent, wire: Wire, monkeypatch: pytest.MonkeyPatch, uris: Any
) -> None:
    monkeypatch.setattr(change_notifications, "MAX_WATCHED_RESOURCES", 1)
    wanted = {"notifications": {"resourceSubscriptions": uris}}
    refused = wire.modern("/mcp/agents/helper", "subscriptions/listen", wanted)
    assert refused.error["code"] == BAD


def test_a_change_before_the_stream_opens_is_notified_when_it_opens(
    acme: Organization, helper: Agent, workshop: Server, wire: Wire
) -> None:
    boss, session = factories.build_administrator(acme), wire.handshake("/mcp/agents/helper")
    assert session.ask("tools/list").result["tools"]
    set_policy(boss, helper, PolicySpec("denylist", deny=("mcp_workshop_add",)))
    stream = session.follow()
    assert method(stream.next()) == TOOLS
    stream.close()
    set_policy(boss, helper, PolicySpec("all"))  # between two streams it is the same
    stream = session.follow()
    assert method(stream.next()) == TOOLS
    reset_review(boss, workshop.definitions.get(name="echo"))  # and while one is open
    assert method(stream.next()) == TOOLS
    stream.close()


def test_a_known_list_isnt_notified_when_the_stream_opens(
    acme: Organization, helper: Agent, workshop: Server, wire: Wire
) -> None:
    boss, session = factories.build_administrator(acme), wire.handshake("/mcp/agents/helper")
    for mode in ("denylist", "all"):
        set_policy(boss, helper, PolicySpec(mode))
        session.ask("tools/list")
    stream = session.follow()
    reset_review(boss, workshop.definitions.get(name="echo"))
    assert method(stream.next()) == TOOLS
    stream.close()


def method(message: dict[str, Any] | None) -> str:
    assert message is not None
    return str(message["method"])
