"""A call that waits for a person, answered in Chromium: inbox, question, yes or no, and on it goes.

The session parks in the database, with no worker holding it, and goes on by itself in a worker.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from agents.models import Agent, Approval, Session
from agents.sessions.reports import report
from agents.sessions.requests import start
from agents.tool_policies import PolicyText, set_policy
from bonobot.ledger.models import AuditRow
from bonobot.ledger.verify import verify
from bonobot.lib.runtime import runtime
from bonobot.tenancy.models import Membership, Organization, User
from bonobot.tenancy.principals import principal_for_user
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
COUNT = "mcp_workshop_count"
WORD = "Not today: <b>ask</b> again tomorrow."


@pytest.fixture
def acme(transactional_db: None) -> Organization:
    """An organization with a reviewer, rita, who answers what others ask."""
    made = casting.organization()
    rita = User.objects.create_user("rita", password="pw-for-tests", is_staff=True)
    Membership.objects.create(organization=made, user=rita, role=Role.REVIEWER)
    return made


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    """The file into which the workshop writes a line for each counted effect."""
    file = tmp_path / "effects"
    file.touch()
    return file


@pytest.fixture
def helper(acme: Organization, effects: Path) -> Iterator[Agent]:
    """An agent whose policy asks about the workshop's tool that leaves a trace."""
    agent = casting.agent(acme)
    config = {
        "command": sys.executable,
        "args": [str(WORKSHOP), "stdio"],
        "env": {"WORKSHOP_FILE": str(effects)},
    }
    spec = ServerSpec(name="workshop", transport_type="stdio", endpoint_config=config)
    casting.ready(acme, add(casting.administrator(acme), spec), agent)
    set_policy(casting.administrator(acme), agent, PolicyText("all", ask=(COUNT,)))
    yield agent
    runtime().call(connections().forget, Server.objects.get().pk)


@pytest.fixture
def rita(acme: Organization, page: Page) -> Page:
    """Her browser, signed in."""
    page.goto("/")
    page.get_by_label("Username").fill("rita")
    page.get_by_label("Password").fill("pw-for-tests")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Acme")).to_be_visible()
    return page


@pytest.fixture
def parked(acme: Organization, helper: Agent, worker: Process) -> Session:
    """A session that an operator began, and that waits for somebody else's answer."""
    olaf = User.objects.create_user("olaf", password="pw-for-tests")
    Membership.objects.create(organization=acme, user=olaf, role=Role.OPERATOR)
    session = start(principal_for_user(olaf, acme), helper, f'/{COUNT} {{"what": "one"}}')
    eventually(lambda: status_of(session) == Session.Status.WAITING, within=60)
    assert session.runner_id is None, "no worker holds it"
    return session


def status_of(session: Session) -> str:
    session.refresh_from_db()
    return str(session.status)


def open_question(page: Page) -> None:
    """Go from the inbox in the sidebar to the one question in it."""
    page.get_by_role("link", name="Approvals").first.click()
    row = page.locator("#result_list tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("Helper")
    row.get_by_role("link", name=COUNT).click()
    expect(page.get_by_role("heading", name="May this call be made?")).to_be_visible()
    expect(page.locator("pre.bb-code").first).to_contain_text('"what": "one"')


def test_a_call_is_approved_from_the_inbox_and_its_session_goes_on(
    acme: Organization, parked: Session, rita: Page, effects: Path
) -> None:
    open_question(rita)
    assert effects.read_text() == ""
    rita.locator("summary", has_text="Approve once").click()
    rita.get_by_role("button", name="Yes, approve this call").click()
    expect(rita.locator("body")).to_contain_text("pproved by rita")
    eventually(lambda: status_of(parked) == Session.Status.DONE, within=60)
    assert effects.read_text() == "one\n"
    rita.goto(f"/admin/agents/session/{parked.pk}/change/")
    rita.locator("details.bb-call summary").first.click()
    expect(rita.locator("details.bb-call").first).to_contain_text("counted one")
    assert Approval.objects.get().decided_by == "rita"
    assert AuditRow.objects.filter(tool_name="count", outcome="ok").count() == 1
    assert verify(acme.pk).ok


def test_a_call_is_denied_with_a_word_that_the_model_reads(
    acme: Organization, parked: Session, rita: Page, effects: Path
) -> None:
    open_question(rita)
    rita.locator("summary", has_text="Deny").click()
    rita.get_by_label("A word to the model").fill(WORD)
    rita.get_by_role("button", name="No, deny this call").click()
    expect(rita.locator(".bb-server-text").first).to_have_text(WORD)
    eventually(lambda: status_of(parked) == Session.Status.DONE, within=60)
    assert effects.read_text() == ""
    (call,) = report(parked.pk)["calls"]
    assert WORD in str(call)
    assert Approval.objects.get().state == Approval.State.DENIED
    assert verify(acme.pk).ok


def test_an_answer_in_the_conversation_goes_on_before_the_readers_eyes(
    acme: Organization, parked: Session, rita: Page, effects: Path
) -> None:
    rita.goto(f"/admin/agents/session/{parked.pk}/change/")
    call = rita.locator("details.bb-call")
    expect(call).to_contain_text("waits for a person")
    call.locator("summary", has_text="Approve for this session").click()
    call.get_by_role("button", name="Yes, for the whole session").click()
    expect(rita.locator("[data-part=state]")).to_contain_text("done", timeout=60_000)
    expect(rita.locator("details.bb-call").first).to_contain_text("counted one")
    assert effects.read_text() == "one\n"
    assert parked.grants.count() == 1
