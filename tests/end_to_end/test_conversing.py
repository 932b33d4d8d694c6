"""A conversation as its reader has it: asked in the middle, cancelled, taken home, tried again."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from agents.models import Agent, Session, Step
from agents.models.recordings import Replay
from bonobot.lib.runtime import runtime
from bonobot.tenancy.models import Organization
from bonobot.tenancy.roles import Role
from mcp_servers.configuration import ServerSpec
from mcp_servers.connections.pool import connections
from mcp_servers.models import Server
from mcp_servers.registration import add
from tests.agents import casting
from tests.agents.conftest import WORKSHOP
from tests.eventually import eventually
from tests.processes import Process

pytestmark = [pytest.mark.browser, pytest.mark.worker]
PATIENCE_MS = 60_000
FORM = {"method": "elicitation/create", "params": casting.FORM}


@pytest.fixture
def acme(transactional_db: None) -> Organization:
    return casting.organization()


@pytest.fixture
def helper(acme: Organization, tmp_path: Path) -> Iterator[Agent]:
    """An agent with a server that asks, and one that takes as long as it is told."""
    agent = casting.agent(acme)
    for name, script, more in (
        ("asker", "asker.py", "modern"),
        ("workshop", "workshop.py", "stdio"),
    ):
        config = {
            "command": sys.executable,
            "args": [str(WORKSHOP.with_name(script)), more],
            "env": {
                "ASKER_FILE": str(tmp_path / "asker"),
                "WORKSHOP_FILE": str(tmp_path / "workshop"),
            },
        }
        spec = ServerSpec(name=name, transport_type="stdio", endpoint_config=config)
        casting.ready(acme, add(casting.administrator(acme), spec), agent)
    yield agent
    for server in Server.objects.all():
        runtime().call(connections().forget, server.pk)


@pytest.fixture
def olga(acme: Organization, helper: Agent, page: Page) -> Page:
    """The browser of an owner, before the agent's chat."""
    casting.person(acme, Role.OWNER, "olga")
    page.goto(f"/admin/agents/agent/{helper.pk}/change/")
    page.get_by_label("Username").fill("olga")
    page.get_by_label("Password").fill("pw-for-tests")
    page.get_by_role("button", name="Log in").click()
    return page


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Run").click()


def test_a_conversation_asks_is_cancelled_is_taken_home_and_tried_again(
    olga: Page, worker: Process
) -> None:
    state = olga.locator("[data-part=state]")
    rounds = [{"inputRequests": {"0": FORM}}]
    say(olga, f"/mcp_asker_script {json.dumps({'rounds': rounds})}")
    asked = olga.locator("[data-kind=notice]")
    expect(asked).to_contain_text("Which region?", timeout=PATIENCE_MS)
    asked.get_by_label("Region").select_option("eu")
    asked.get_by_role("button", name="Send to the server").click()
    expect(state).to_contain_text("done", timeout=PATIENCE_MS)
    expect(asked.get_by_label("Region")).to_have_count(0)
    expect(olga.locator("details.bb-call").last).to_contain_text('"eu"')

    with olga.expect_download() as taken:
        state.get_by_role("link", name="Markdown").click()
    assert "Which region?" in taken.value.path().read_text(encoding="utf-8")
    with olga.expect_download() as taken:
        state.get_by_role("link", name="JSON").click()
    assert json.loads(taken.value.path().read_text(encoding="utf-8"))

    olga.goto(f"/admin/agents/session/{Session.objects.get().pk}/change/")
    olga.get_by_role("button", name="Record").click()
    olga.get_by_role("button", name="Replay", exact=True).click()
    eventually(lambda: Replay.objects.get().status == Replay.Status.DONE, within=60)

    olga.goto(f"/admin/agents/agent/{Agent.objects.get().pk}/change/")
    say(olga, '/mcp_workshop_wait {"seconds": 300}')
    expect(olga.locator("details.bb-call")).to_contain_text("running", timeout=PATIENCE_MS)
    state.get_by_role("button", name="Cancel").click()
    expect(state).to_contain_text("cancelled", timeout=PATIENCE_MS)
    assert Session.objects.latest("created_at").status == Session.Status.CANCELLED


def test_a_turn_that_ended_without_a_word_leaves_no_trace(helper: Agent, olga: Page) -> None:
    session = casting.rested_session(helper)
    turn = Step.objects.filter(session=session, kind=Step.Kind.MODEL)
    said = turn.get().payload
    turn.update(state=Step.State.INTENT, payload={})
    Session.objects.filter(pk=session.pk).update(status=Session.Status.RUNNING)
    olga.goto(f"/admin/agents/session/{session.pk}/change/")
    thinking = olga.get_by_label("The model is thinking")
    expect(thinking).to_be_visible()

    turn.update(state=Step.State.DONE, payload={**said, "text": ""})
    Session.objects.filter(pk=session.pk).update(status=Session.Status.DONE)
    expect(olga.locator("[data-part=state]")).to_contain_text("done", timeout=PATIENCE_MS)
    expect(thinking).to_have_count(0)
