"""From an empty installation to a governed call, in a large and a small browser."""

import json
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from bonobot.accounts.first_account import build_first_account_path
from bonobot.accounts.models import Organization
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
    """A browser at the form of the first account; an error in its console fails the test."""
    faults: list[str] = []
    page.on(
        "console", lambda message: faults.append(message.text) if message.type == "error" else None
    )
    page.goto(build_first_account_path())
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


def check_definition_lines(page: Page) -> None:
    """Check that each definition to review is one line across the whole card."""
    card_width = page.locator(".bb-result").evaluate("card => card.clientWidth")
    for line in page.locator(".bb-result li").all():
        box = line.bounding_box()
        assert box is not None
        assert box["height"] < 56
        assert box["width"] > card_width * 0.9


def test_the_first_steps_lead_to_a_governed_call_in_five_clicks(
    anna: Page, worker: Process
) -> None:
    check_layout(anna, "account")
    anna.get_by_label("Organization").fill("Acme")
    anna.get_by_label("Username").fill("anna")
    anna.get_by_label("Password").fill("pw-for-tests")
    anna.get_by_role("button", name="Create account").click()
    expect(anna.locator("body")).to_contain_text("1 of 3 steps done.")
    check_layout(anna, "connect")
    anna.get_by_role("link", name="Paste JSON").click()
    anna.locator("textarea[name=text]").fill(json.dumps(CONFIGURATION))
    anna.get_by_role("button", name="Add and connect").click()
    expect(anna.locator("body")).to_contain_text("2 definitions to review", timeout=PATIENCE_MS)
    check_definition_lines(anna)
    check_layout(anna, "added")
    anna.get_by_role("button", name="Approve selected").click()
    expect(anna.locator("body")).to_contain_text("time: 2 tools approved")
    check_layout(anna, "ask")
    anna.get_by_role("button", name="Create agent and send").click()
    # The call appears without a reload.
    expect(anna.locator(".bb-first-log")).to_contain_text("Succeeded", timeout=PATIENCE_MS)
    expect(anna.get_by_role("heading", name="Your first governed call")).to_be_visible()
    assert AuditRow.objects.get(tool_name="get_current_time").outcome == "ok"
    check_layout(anna, "done")
    anna.get_by_role("link", name="Open dashboard").click()
    expect(anna.locator("body")).not_to_contain_text("First steps")
    check_layout(anna, "dashboard")
    anna.set_viewport_size(PHONE)
    expect(anna.get_by_role("heading", name="Most used tools")).to_be_visible()


@pytest.mark.whole
def test_an_answer_that_arrives_late_does_not_replace_a_newer_one(
    owner: Page, acme: Organization
) -> None:
    session = factories.create_answered_session(factories.create_agent(acme))
    owner.goto(f"/admin/first-run/?session={session.pk}")
    held: list[Route] = []

    def answer(route: Route) -> None:
        """Hold the first answer until the second one is shown."""
        held.append(route)
        if len(held) == 2:
            route.fulfill(body='<div data-part="first-run">Succeeded</div>')

    owner.route("**/admin/first-run/**", answer)
    for topic in ("audit", "sessions"):
        owner.evaluate(
            """topic => document.dispatchEvent(
              new CustomEvent("bonobot:change", { detail: { topic } }))""",
            topic,
        )
    part = owner.locator("[data-part=first-run]")
    expect(part).to_have_text("Succeeded")
    with owner.expect_response("**/admin/first-run/**"):
        held[0].fulfill(body='<div data-part="first-run">Running</div>')
    owner.evaluate("new Promise((done) => setTimeout(done))")
    expect(part).to_have_text("Succeeded")
    owner.unroute("**/admin/first-run/**")
