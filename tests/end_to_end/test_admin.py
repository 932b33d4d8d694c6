"""The administrator's path in a real browser, with a real server, a real worker and a real web."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import ConsoleMessage, Locator, Page, expect

from agents.models import Agent, Session
from agents.registration import EndpointSpec, save_endpoint
from bonobot.ledger.models import AuditRow
from bonobot.tenancy.models import Membership, Organization, User
from bonobot.tenancy.roles import Role
from mcp_servers.models import Server
from tests import processes
from tests.agents import casting
from tests.eventually import eventually
from tests.processes import Process

pytestmark = [pytest.mark.browser, pytest.mark.worker]
PATIENCE_MS = 60_000


@pytest.fixture
def acme(transactional_db: None) -> Organization:
    """An organization with the offline model and its platform administrator, anna."""
    made = casting.organization()
    boss = User.objects.create_superuser("anna", password="pw-for-tests")
    Membership.objects.create(organization=made, user=boss, role=Role.OWNER)
    save_endpoint(
        casting.administrator(made), EndpointSpec(name="Offline", kind="offline", model="offline")
    )
    return made


@pytest.fixture
def anna(acme: Organization, page: Page) -> Iterator[Page]:
    """Her browser, signed in; an error in its console fails the test."""
    faults: list[str] = []

    def listen(message: ConsoleMessage) -> None:
        if message.type == "error":
            faults.append(message.text)

    page.on("console", listen)
    page.goto("/")
    page.get_by_label("Username").fill("anna")
    page.get_by_label("Password").fill("pw-for-tests")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Acme")).to_be_visible()
    yield page
    assert not faults


@pytest.fixture
def everything(
    node_server: Callable[[str], str], running: list[Process], tmp_path: Path
) -> tuple[Process, str]:
    """The reference server over Streamable HTTP, and its URL."""
    port = processes.unused_port()
    process = processes.start(
        "everything",
        [node_server("mcp-server-everything"), "streamableHttp"],
        folder=tmp_path,
        env={"PATH": os.environ["PATH"], "PORT": str(port)},
    )
    running.append(process)
    eventually(
        lambda: process.require() and f"{port}" in process.log(), within=60, what="the server"
    )
    return process, f"http://127.0.0.1:{port}/mcp"


def add_by_pasting(page: Page, url: str) -> None:
    page.goto("/admin/mcp_servers/server/add/paste/")
    page.locator("textarea[name=text]").fill(
        json.dumps({"mcpServers": {"everything": {"url": url}, "broken": {"url": "ftp://x"}}})
    )
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("[data-entry=broken]")).to_contain_text("bad_url")
    page.locator("[data-entry=everything]").get_by_label("Allow the private address").check()
    page.get_by_role("button", name="Add and connect what is ticked").click()


def give_two_tools(page: Page) -> Locator:
    page.get_by_role("link", name="Give it servers").click()
    page.get_by_label("everything").check()
    page.get_by_role("button", name="Choose what it gets").click()
    panel = page.locator("[data-server=everything]")
    panel.get_by_label("Search Tools of everything").fill("get-sum")
    expect(panel.get_by_label("echo", exact=True)).to_be_hidden()
    panel.get_by_label("select all shown").check()
    panel.get_by_label("Search Tools of everything").fill("")
    panel.get_by_label("echo", exact=True).check()
    expect(panel.get_by_role("status").first).to_contain_text("2 of 15 chosen")
    panel.locator("tr", has_text="get-sum").get_by_text("Arguments").click()
    expect(panel.locator("tr", has_text="get-sum")).to_contain_text("First number")
    page.get_by_role("button", name="Save the choice").click()
    return page.locator("[data-server=everything]")


def ask(page: Page, text: str) -> None:
    page.get_by_role("link", name="Chat").click()
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Run").click()
    expect(page.locator("[data-part=state]")).to_contain_text("done", timeout=PATIENCE_MS)


@pytest.mark.npm
def test_an_administrator_connects_a_server_and_sees_an_agent_use_it(
    anna: Page, worker: Process, everything: tuple[Process, str]
) -> None:
    process, url = everything
    add_by_pasting(anna, url)
    anna.get_by_role("link", name="Read and approve").first.click(timeout=PATIENCE_MS)
    anna.get_by_role("button", name="Approve these").click()
    expect(anna.locator("body")).to_contain_text("were approved")

    anna.goto("/admin/agents/agent/add/")
    anna.get_by_label("Name").fill("Tester")
    anna.get_by_role("button", name="Make the agent").click()
    panel = give_two_tools(anna)
    expect(panel).to_contain_text("2 chosen")
    anna.get_by_role("link", name="Policy").click()
    anna.locator("input[name=mode][value=all]").check()
    anna.get_by_role("button", name="Save the policy").click()
    expect(anna.locator("body")).to_contain_text(re.compile(r"3 of \d+ can be called now"))

    ask(anna, '/mcp_everything_echo {"message": "hello <b>there</b>"}')
    call = anna.locator("details.bb-call")
    call.locator("summary").click()
    expect(call).to_contain_text("Echo: hello <b>there</b>")
    expect(call).to_contain_text("decision: allow")

    anna.goto(f"/admin/agents/session/{Session.objects.get().pk}/change/")
    expect(anna.locator("[data-steps]")).to_contain_text("mcp_everything_echo")
    anna.locator("details.bb-call summary").click()
    anna.locator("details.bb-call").get_by_role("link", name="audit").click()
    expect(anna.locator("body")).to_contain_text("№")
    assert AuditRow.objects.get(tool_name="echo").outcome == "ok"

    process.kill()
    anna.goto(f"/admin/mcp_servers/server/{Server.objects.get().pk}/change/")
    anna.get_by_role("button", name="Test").click()
    expect(anna.locator("body")).to_contain_text("server_unreachable", timeout=PATIENCE_MS)
    anna.goto(f"/admin/agents/agent/{Agent.objects.get().pk}/change/")
    ask(anna, '/mcp_everything_get_sum {"a": 2, "b": 3}')
    expect(anna.locator("[data-steps]")).to_contain_text("server_unreachable")
    expect(anna.locator("[data-steps]")).to_contain_text("is not reachable now")


def test_a_conversation_goes_on_without_a_reload_and_is_cancelled(
    anna: Page, acme: Organization, worker: Process
) -> None:
    agent = casting.agent(acme)
    anna.goto(f"/admin/agents/agent/{agent.pk}/change/")
    ask(anna, "What can you do?")
    address = anna.url
    anna.get_by_label("Another message").fill("And now?")
    anna.get_by_label("Another message").press("Enter")
    expect(anna.locator("[data-part=state]")).to_contain_text("done", timeout=PATIENCE_MS)
    expect(anna.locator("[data-kind=message]")).to_have_count(2)
    assert anna.url == address
    anna.get_by_role("button", name="Retry").last.click()
    replaced = anna.get_by_role("button", name="replaced steps")
    expect(replaced).to_be_visible(timeout=PATIENCE_MS)
    expect(anna.locator("[data-part=state]")).to_contain_text("done", timeout=PATIENCE_MS)
    expect(anna.locator("[data-kind=message]:visible")).to_have_count(2)
    replaced.click()
    expect(anna.locator("[data-kind=message]:visible")).to_have_count(3)


def test_the_form_shows_the_fields_of_the_chosen_transport(anna: Page) -> None:
    anna.goto("/admin/mcp_servers/server/add/")
    expect(anna.get_by_label("URL", exact=True)).to_be_visible()
    expect(anna.get_by_label("Command")).to_be_hidden()
    anna.get_by_label("stdio").check()
    expect(anna.get_by_label("Command")).to_be_visible()
    expect(anna.get_by_label("URL", exact=True)).to_be_hidden()
    anna.get_by_label("HTTP").check()
    anna.get_by_text("More about the connection").click()
    anna.get_by_role("button", name="Add a row").click()
    anna.get_by_label("Name", exact=True).last.fill("X-Team")
    anna.get_by_label("Value", exact=True).fill("geheim")
    anna.get_by_label("Sign-in").select_option("bearer_token")
    expect(anna.get_by_label("Bearer token")).to_be_visible()
    anna.locator("#id_name").fill("weather")
    anna.get_by_label("URL", exact=True).fill("ftp://x")
    anna.get_by_role("button", name="Add and connect").click()
    expect(anna.locator("[data-field=url]")).to_contain_text("bad_url")
    assert not Server.objects.exists()
