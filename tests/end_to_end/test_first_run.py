"""From an empty organization to an agent that used a tool, in a large and a small browser."""

import json
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from bonobot.accounts.models import Membership, User
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from tests import factories
from tests.browser import DESKTOP, PHONE, take_screenshot
from tests.processes import Process

pytestmark = [pytest.mark.browser, pytest.mark.worker]
PATIENCE_MS = 60_000
CONFIGURATION = {
    "mcpServers": {"time": {"command": sys.executable, "args": [str(factories.CLOCK)]}}
}


@pytest.fixture
def anna(transactional_db: None, page: Page) -> Iterator[Page]:
    """The platform administrator's browser; an error in its console fails the test."""
    administrator = User.objects.create_superuser("anna", password="pw-for-tests")
    Membership.objects.create(
        organization=factories.create_organization(), user=administrator, role=Role.OWNER
    )
    faults: list[str] = []
    page.on(
        "console", lambda message: faults.append(message.text) if message.type == "error" else None
    )
    page.goto("/")
    page.get_by_label("Username").fill("anna")
    page.get_by_label("Password").fill("pw-for-tests")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Dashboard")).to_be_visible()
    yield page
    assert not faults


def check_layout(page: Page, name: str) -> None:
    """Check that the page fits a large and a small screen, and take pictures."""
    for size, view in (("desk", DESKTOP), ("phone", PHONE)):
        page.set_viewport_size(view)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= view["width"], (name, size, width)
        take_screenshot(page, f"first-run-{name}-{size}")
    page.set_viewport_size(DESKTOP)


def test_the_first_steps_lead_to_an_agent_that_uses_a_tool(anna: Page, worker: Process) -> None:
    anna.get_by_role("link", name="Continue: Connect a server").click()
    anna.locator("textarea[name=text]").fill(json.dumps(CONFIGURATION))
    check_layout(anna, "connect")
    anna.get_by_role("button", name="Preview").click()
    anna.get_by_role("button", name="Add selected").click()
    expect(anna.locator("body")).to_contain_text("2 definitions to review", timeout=PATIENCE_MS)
    anna.get_by_role("link", name="Continue", exact=True).click()

    panel = anna.locator("[data-server=time]")
    panel.locator("summary", has_text="get_current_time").click()
    expect(panel).to_contain_text("IANA timezone")
    check_layout(anna, "approve")
    panel.get_by_role("button", name="Approve 2").click()
    expect(anna.get_by_role("heading", name="Add model")).to_be_visible()
    anna.get_by_role("textbox", name="Name").fill("Nobody's")
    anna.get_by_role("textbox", name="URL").fill("http://127.0.0.1:9/v1")
    anna.get_by_role("textbox", name="Model").fill("m")
    anna.get_by_label("Allow private or loopback address").check()
    anna.get_by_role("button", name="Save and test").click()
    expect(anna.locator("body")).to_contain_text("model_unreachable", timeout=PATIENCE_MS)
    check_layout(anna, "model-failed")
    anna.get_by_role("button", name="Use offline model").click()
    expect(anna.locator("body")).to_contain_text("The offline model was added.")
    anna.get_by_role("textbox", name="Name").fill("Clock")
    anna.get_by_role("combobox", name="Model").select_option(label="Offline")
    check_layout(anna, "agent")
    anna.get_by_role("button", name="Create agent").click()
    anna.get_by_label("Message").fill('/mcp_time_get_current_time {"timezone": "UTC"}')
    check_layout(anna, "ask")
    anna.get_by_role("button", name="Send").click()
    expect(anna.locator("[data-part=state]")).to_contain_text("completed", timeout=PATIENCE_MS)
    assert AuditRow.objects.get(tool_name="get_current_time").outcome == "ok"

    anna.goto("/admin/")
    expect(anna.locator("body")).not_to_contain_text("First steps")
    check_layout(anna, "dashboard")
    anna.set_viewport_size(PHONE)
    expect(anna.get_by_role("heading", name="Most used tools")).to_be_visible()
    anna.goto("/admin/first-run/")
    expect(anna.locator("body")).to_contain_text("Setup complete")
