"""Servers attached and detached during a session: effects on calls, turns and notices."""

import asyncio

import pytest

from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Session, Step
from agents.services import attach_server, set_attachment_enabled
from agents.sessions import services as sessions
from agents.sessions.connect_servers import compare_servers
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.definition_reviews import approve_definitions
from tests import admin_client, factories
from tests.agents.llm.openai_server import Says, Waits
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)
ECHO = Says(calls=(("c", "mcp_workshop_echo", '{"text": "hi"}'),))
A, B = "0191f2d0-7f0c-7c3e-9d1f-0d5f2b8f6a11", "0191f2d0-7f0c-7c3e-9d1f-0d5f2b8f6a12"


def test_added_and_removed_tools_are_reported_in_one_line_each():
    assert compare_servers(None, {A: "git"}) == compare_servers({A: "git"}, {A: "renamed"}) == []
    removed, added = compare_servers({A: "git"}, {B: "web"})
    assert (removed.code, str(removed.server_id)) == ("server_disconnected", A)
    assert (added.code, str(added.server_id)) == ("server_connected", B)
    assert "git" in removed.text
    assert "web" in added.text


@pytest.fixture
def fake(fake, acme, helper):
    """The server of the agent's model endpoint."""
    spec = ModelEndpointSpec(
        name="Fake", base_url=fake.url, model="house-model", allow_private=True
    )
    helper.model_endpoint = save_endpoint(factories.build_administrator(acme), spec)
    helper.save()
    return fake


def read_prompt_and_tools(request):
    """Return the system prompt of a request and the names of its tools."""
    return request["messages"][0]["content"], {
        tool["function"]["name"] for tool in request.get("tools", ())
    }


def list_holders(server):
    """Return the holders of the server's running processes."""

    async def read_entries():
        entries = get_connection_pool()._stdio_pool._entries
        return [
            key[1] for key, entry in entries.items() if key[0] == server.pk and entry.connection
        ]

    return get_runtime().call(read_entries)


def test_servers_can_be_detached_and_attached_during_a_session(
    acme, helper, workshop, fake, runner
):
    administrator = factories.build_administrator(acme)
    clock = admin_client.create_web_server(acme, "clock")
    admin_client.declare_tool(clock, "get_time")
    approve_definitions(administrator, clock)
    second, third = Waits(then=ECHO), Waits(then=Says("done"))
    fake.script = [ECHO, second, third]
    session = sessions.start_session(administrator, helper, "go")
    task = get_runtime().call(runner.claim_and_run, session.pk)
    eventually(lambda: len(fake.requests) == 2, within=20)
    holder = f"session:{session.pk}"
    assert holder in list_holders(workshop)

    set_attachment_enabled(administrator, helper, workshop, enabled=False)
    attach_server(administrator, helper, clock)
    get_runtime().loop.call_soon_threadsafe(second.release.set)
    eventually(lambda: len(fake.requests) == 3, within=20)
    assert holder not in list_holders(workshop)
    get_runtime().loop.call_soon_threadsafe(third.release.set)
    get_runtime().call(asyncio.wait, [task], timeout=20)

    session.refresh_from_db()
    assert session.status == Session.Status.DONE
    allowed, denied = session.steps.filter(kind=Step.Kind.CALL).order_by("seq")
    assert (allowed.state, denied.payload["code"]) == (Step.State.DONE, "not_attached")
    notices = session.steps.filter(kind=Step.Kind.NOTICE).order_by("seq")
    codes = [notice.payload["code"] for notice in notices]
    assert codes == ["server_disconnected", "server_connected"]
    (_, before), (prompt, after) = (
        read_prompt_and_tools(fake.requests[1]),
        read_prompt_and_tools(fake.requests[2]),
    )
    assert "mcp_workshop_echo" in before - after
    assert "mcp_clock_get_time" in after - before
    for notice in notices:
        assert f"Since your last turn: {notice.payload['text']}" in prompt
    assert "Since your last turn" not in read_prompt_and_tools(fake.requests[1])[0]


def test_changes_between_two_messages_are_reported_with_the_next_one(
    acme, helper, workshop, fake, run_to_rest
):
    administrator = factories.build_administrator(acme)
    fake.script = [Says("one"), Says("two")]
    session = sessions.start_session(administrator, helper, "go")
    run_to_rest(session)
    set_attachment_enabled(administrator, helper, workshop, enabled=False)
    sessions.send_message(administrator, session, "again")
    run_to_rest(session)
    assert "workshop was disconnected" in read_prompt_and_tools(fake.requests[1])[0]
    assert session.steps.filter(kind=Step.Kind.NOTICE).count() == 1
