"""Change notifications: clients get those of their own catalog."""

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
from tests.agents.gateway.conftest import GatewayClient

pytestmark = pytest.mark.django_db(transaction=True)

TOOLS = "notifications/tools/list_changed"
BAD = -32602
LONG_S = 30


def authenticate(organization: Organization) -> tuple[AuthenticatedClient, Token]:
    token, text = create_token(
        factories.build_administrator(organization), name="listens", role=Role.OPERATOR
    )
    return get_runtime().call(
        authenticate_client, text, GatewayAddress("agent", "helper"), ""
    ), token


def list_notifications(client: AuthenticatedClient, change: Callable[[], object]) -> list[str]:
    """Return the notifications after a change, until that of tools or the end of the stream.

    Other notifications may come first if the stream polls during the change.
    """

    async def listen() -> list[str]:
        streams = GatewayDispatcher().change_streams
        async with aclosing(streams.iterate_notifications(client, TOPICS, dict)) as stream:
            assert await anext(stream) == ("", {})
            await get_runtime().run_orm(change)
            methods: list[str] = []
            try:
                async with asyncio.timeout(LONG_S):
                    async for get_method, _ in stream:
                        methods.append(get_method)
                        if get_method == TOOLS:
                            break
            finally:
                streams.stop()
            return methods

    return get_runtime().call(listen)


def test_a_policy_that_removes_a_tool_is_notified(
    acme: Organization, helper: Agent, workshop: Server
) -> None:
    administrator, (client, _) = factories.build_administrator(acme), authenticate(acme)
    policy = PolicySpec("denylist", deny=("mcp_workshop_add",))
    assert list_notifications(client, lambda: set_policy(administrator, helper, policy)) == [TOOLS]


def test_a_revoked_definition_is_notified(
    acme: Organization, helper: Agent, workshop: Server
) -> None:
    administrator, (client, _) = factories.build_administrator(acme), authenticate(acme)
    echo = workshop.definitions.get(name="echo")
    assert list_notifications(client, lambda: reset_review(administrator, echo)) == [TOOLS]


def test_a_revoked_token_ends_its_stream(
    acme: Organization, helper: Agent, workshop: Server
) -> None:
    administrator, (client, token) = factories.build_administrator(acme), authenticate(acme)
    assert list_notifications(client, lambda: revoke_token(administrator, token)) == []


def test_a_change_without_visible_effect_isnt_notified(
    acme: Organization, helper: Agent, workshop: Server
) -> None:
    administrator, (client, _) = factories.build_administrator(acme), authenticate(acme)

    def change() -> None:
        create_token(administrator, name="another", role=Role.MEMBER)

    async def listen() -> None:
        streams = GatewayDispatcher().change_streams
        async with aclosing(streams.iterate_notifications(client, TOPICS, dict)) as stream:
            await anext(stream)
            await get_runtime().run_orm(change)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3 * POLL_INTERVAL_S):
                    await anext(stream)
        streams.stop()

    get_runtime().call(listen)


def test_a_changed_session_is_notified_to_its_watchers(acme: Organization, helper: Agent) -> None:
    administrator = factories.build_administrator(acme)
    _, text = create_token(administrator, name="watches", role=Role.OWNER)
    client = get_runtime().call(authenticate_client, text, GatewayAddress("organization"), "")
    session = factories.create_answered_session(helper)
    uri = f"bonobot://sessions/{session.pk}"

    async def listen() -> tuple[str, dict[str, str]]:
        streams = GatewayDispatcher().change_streams
        watched = await watch_resources(client, [uri])
        async with aclosing(streams.iterate_notifications(client, (), lambda: watched)) as stream:
            await anext(stream)
            await get_runtime().run_orm(send_message, administrator, session, "And then?")
            async with asyncio.timeout(LONG_S):
                notification = await anext(stream)
        streams.stop()
        return notification

    assert get_runtime().call(listen) == ("notifications/resources/updated", {"uri": uri})


def test_a_new_agent_is_notified_as_a_tool_change(acme: Organization) -> None:
    administrator = factories.build_administrator(acme)
    _, text = create_token(administrator, name="watches", role=Role.OWNER)
    client = get_runtime().call(authenticate_client, text, GatewayAddress("organization"), "")
    assert TOOLS in list_notifications(client, lambda: factories.create_agent(acme, "second"))


def test_changes_are_detected_after_a_database_outage(
    acme: Organization, helper: Agent, workshop: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    administrator, (client, _) = factories.build_administrator(acme), authenticate(acme)
    faults, load_generations = (
        iter((OperationalError, InterfaceError)),
        change_notifications.load_policy_generations,
    )

    def fail_first(organizations: list[UUID]) -> dict[UUID, int]:
        if (fault := next(faults, None)) is not None:
            raise fault("the database is away")
        return load_generations(organizations)

    monkeypatch.setattr(change_notifications, "load_policy_generations", fail_first)
    policy = PolicySpec("denylist", deny=("mcp_workshop_add",))
    assert list_notifications(client, lambda: set_policy(administrator, helper, policy)) == [TOOLS]
    assert next(faults, None) is None


def test_the_number_of_streams_per_process_is_limited(
    acme: Organization,
    helper: Agent,
    gateway_client: GatewayClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_notifications, "MAX_STREAMS", 1)
    params = {"notifications": {"toolsListChanged": True}}
    first = gateway_client.listen("/mcp/agents/helper", params)
    assert (first.next() or {})["params"]["notifications"] == {"toolsListChanged": True}
    reply = gateway_client.modern("/mcp/agents/helper", "subscriptions/listen", params)
    assert reply.error["code"] == BAD
    first.close()
    second = gateway_client.listen("/mcp/agents/helper", params)
    assert "method" in (second.next() or {})
    second.close()


@pytest.mark.parametrize("uris", [[7], ["a", None], ["a", "b"]])
def test_invalid_or_too_many_uris_are_refused(
    acme: Organization,
    helper: Agent,
    gateway_client: GatewayClient,
    monkeypatch: pytest.MonkeyPatch,
    uris: Any,
) -> None:
    monkeypatch.setattr(change_notifications, "MAX_WATCHED_RESOURCES", 1)
    params = {"notifications": {"resourceSubscriptions": uris}}
    reply = gateway_client.modern("/mcp/agents/helper", "subscriptions/listen", params)
    assert reply.error["code"] == BAD


def test_a_change_before_the_stream_opens_is_notified_when_it_opens(
    acme: Organization, helper: Agent, workshop: Server, gateway_client: GatewayClient
) -> None:
    administrator, session = (
        factories.build_administrator(acme),
        gateway_client.handshake("/mcp/agents/helper"),
    )
    assert session.ask("tools/list").result["tools"]
    set_policy(administrator, helper, PolicySpec("denylist", deny=("mcp_workshop_add",)))
    stream = session.follow()
    assert get_method(stream.next()) == TOOLS
    stream.close()
    set_policy(administrator, helper, PolicySpec("all"))  # also between two streams
    stream = session.follow()
    assert get_method(stream.next()) == TOOLS
    reset_review(administrator, workshop.definitions.get(name="echo"))  # and while a stream is open
    assert get_method(stream.next()) == TOOLS
    stream.close()


def test_a_known_list_isnt_notified_when_the_stream_opens(
    acme: Organization, helper: Agent, workshop: Server, gateway_client: GatewayClient
) -> None:
    administrator, session = (
        factories.build_administrator(acme),
        gateway_client.handshake("/mcp/agents/helper"),
    )
    for mode in ("denylist", "all"):
        set_policy(administrator, helper, PolicySpec(mode))
        session.ask("tools/list")
    stream = session.follow()
    reset_review(administrator, workshop.definitions.get(name="echo"))
    assert get_method(stream.next()) == TOOLS
    stream.close()


def get_method(message: dict[str, Any] | None) -> str:
    assert message is not None
    return str(message["method"])
