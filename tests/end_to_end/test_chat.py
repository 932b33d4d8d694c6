"""The chat of an agent in a browser."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect
from pytest_django.live_server_helper import LiveServer

from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.writer.writer_thread import get_writer
from tests import factories
from tests.browser import DESKTOP, PHONE, open_context
from tests.end_to_end.accounts import create_member, sign_in

pytestmark = [
    pytest.mark.browser,
    pytest.mark.whole,
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def agent(acme: Organization) -> Agent:
    return factories.create_agent(acme, "helper", description="Answers questions of customers.")


@pytest.fixture
def olga(acme: Organization, live_server: LiveServer, module_browser: Browser) -> Iterator[Page]:
    """The browser of an operator, signed in."""
    with open_context(module_browser, live_server.url) as page:
        sign_in(page, create_member(acme, Role.OPERATOR), acme, live_server.url)
        yield page
    get_writer().close()


@pytest.mark.parametrize(("size", "highest"), [(DESKTOP, 72), (PHONE, 104)], ids=["desk", "phone"])
def test_the_head_of_an_agent_is_low_and_stays_where_it_is_on_each_tab(
    olga: Page, agent: Agent, size: ViewportSize, highest: int
) -> None:
    olga.set_viewport_size(size)
    olga.goto(f"/admin/agents/{agent.pk}/change/")
    chat = olga.locator(".bb-main-side").bounding_box()
    bar = olga.locator("header").first.bounding_box()
    assert chat
    assert bar
    assert chat["y"] - (bar["y"] + bar["height"]) <= highest
    expect(olga.get_by_role("heading", name="Helper", exact=True)).to_be_visible()
    expect(olga.get_by_text(agent.description)).to_be_hidden()
    expect(olga.get_by_role("switch", name="Enable or disable")).to_be_visible()
    expect(olga.get_by_role("button", name="Send")).to_be_in_viewport()
    assert olga.evaluate("document.documentElement.scrollWidth") <= size["width"]
    tabs = olga.get_by_role("navigation", name="Page sections")
    place = tabs.bounding_box()
    tabs.get_by_text("Tools").click()
    expect(olga.locator("#matrix, .bb-empty").first).to_be_visible()
    assert tabs.bounding_box() == place
