"""German words are longer than English ones: screens that they made too wide or too high."""

import pytest
from django.urls import reverse
from playwright.sync_api import Locator, Page, expect

from bonobot.accounts.models import Organization
from mcp_servers.models import Server
from tests import admin_client, factories, large_organization
from tests.browser import PHONE

pytestmark = [pytest.mark.browser, pytest.mark.whole]


@pytest.fixture
def german(owner: Page) -> Page:
    """The browser of an owner who reads German."""
    owner.set_extra_http_headers({"Accept-Language": "de"})
    return owner


def has_whole_placeholder(search: Locator) -> bool:
    """Return whether a search field, which is changed, shows all of its placeholder."""
    # Without the button that clears a search.
    script = "field.type = 'text'; field.value = field.placeholder;"
    measure = "return field.scrollWidth <= field.clientWidth;"
    return bool(search.evaluate(f"field => {{ {script} {measure} }}"))


def read_boxes(page: Page, *selectors: str) -> list[dict[str, float]]:
    """Return where elements are, at one moment: an update can replace them in the meantime."""
    script = (
        "names => names.map(name => document.querySelector(name).getBoundingClientRect().toJSON())"
    )
    boxes: list[dict[str, float]] = page.evaluate(script, list(selectors))
    return boxes


def test_no_screen_is_wider_than_a_phone(acme: Organization, german: Page) -> None:
    agent = factories.create_agent(acme)
    server = admin_client.create_web_server(acme, "files")
    admin_client.declare_tool(server, "read_file")
    factories.attach_server(factories.build_administrator(acme), agent, server)
    factories.create_approval(agent)
    output = "npm error " + "x" * 500
    detail = f"`files` couldn't be installed: {output}. Check the package name."
    fields = {"status": "error", "status_code": "installation_failed", "status_detail": detail}
    Server.objects.filter(pk=server.pk).update(**fields)
    german.set_viewport_size(PHONE)
    for name, arguments in (
        ("agents_agent_servers", [agent.pk]),
        ("agents_agent_policy", [agent.pk]),
        ("agents_approval_changelist", []),
        ("agents_elicitationrequest_changelist", []),
        ("ledger_auditrow_changelist", []),
        ("mcp_servers_server_change", [server.pk]),
        ("organization_policy", []),
    ):
        german.goto(reverse(f"admin:{name}", args=arguments))
        assert german.locator("html").get_attribute("lang") == "de"
        for summary in german.locator(".bb-output > summary").all():
            summary.click()
        width = german.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"], name


def test_names_and_decisions_of_the_matrix_are_whole_on_a_phone(
    acme: Organization, german: Page
) -> None:
    agent, server = factories.create_agent(acme), admin_client.create_web_server(acme, "files")
    admin_client.declare_tool(server, "broken_report")
    factories.attach_server(factories.build_administrator(acme), agent, server)
    german.set_viewport_size(PHONE)
    german.goto(reverse("admin:agents_agent_servers", args=[agent.pk]))
    row = german.locator("[data-find-item]", has_text="broken_report")
    name = row.locator(".bb-mx-name > span").first
    expect(name).to_be_visible()  # the page's script shows the rows
    assert name.evaluate("item => item.getClientRects().length") == 1
    link = row.get_by_role("link", name="Prüfen")
    box = link.evaluate("item => [item.scrollWidth, item.clientWidth, item.offsetWidth]")
    assert box[0] <= box[2]
    assert link.evaluate("item => item.getBoundingClientRect().right") <= row.locator(
        ".bb-mx-decision"
    ).evaluate("item => item.getBoundingClientRect().right")
    # The switch has a line of its own, in the rows of servers as well.
    overlaps = german.evaluate(
        """() => [...document.querySelectorAll("#matrix tr:has(.bb-switch3)")]
        .filter(row => row.checkVisibility())
        .map(row => row.querySelector(".bb-mx-decision").getBoundingClientRect().bottom
            > row.querySelector(".bb-switch3").getBoundingClientRect().top)"""
    )
    assert overlaps
    assert not any(overlaps)
    legend = german.locator(".bb-label-legend").first
    expect(legend).to_be_hidden()
    german.get_by_text("Labels und Entscheidungen").click()
    expect(legend).to_be_visible()


def test_usage_fits_a_small_desktop(acme: Organization, german: Page) -> None:
    agent, server = factories.create_agent(acme), admin_client.create_web_server(acme)
    large_organization.create_calls(acme, agent, [server], 40)
    factories.create_approval(agent)  # a note below the number of calls
    german.set_viewport_size({"width": 1280, "height": 800})
    german.goto(reverse("admin:usage"))
    scroll = german.locator(".bb-scroll").last
    assert scroll.evaluate("item => item.scrollWidth <= item.clientWidth")
    assert german.locator(".bb-tile-trend").count() == 1
    tops = german.locator(".bb-tile > b").evaluate_all(
        "items => items.map((item) => item.getBoundingClientRect().top)"
    )
    assert len(set(tops)) == 1


def test_bars_have_one_line_on_a_desktop(acme: Organization, german: Page) -> None:
    factories.create_approval(factories.create_agent(acme))
    german.set_viewport_size({"width": 1440, "height": 900})
    for name, bar in (
        ("ledger_auditrow_changelist", ".bb-audit-bar"),
        ("agents_approval_changelist", ".bb-actions"),
    ):
        german.goto(reverse(f"admin:{name}"))
        box = german.locator(bar).first.bounding_box()
        assert box is not None
        assert box["height"] <= 64
        assert box["x"] + box["width"] <= 1440


def test_the_audit_log_has_all_quick_filters_and_one_line_of_ranges_on_a_desktop(
    acme: Organization, german: Page
) -> None:
    factories.create_approval(factories.create_agent(acme))
    german.set_viewport_size({"width": 1440, "height": 900})
    german.goto(reverse("admin:ledger_auditrow_changelist"))
    assert german.locator(".bb-quick-filters a:visible").count() == 3
    box = german.locator(".bb-audit-bar").first.bounding_box()
    assert box is not None
    assert box["height"] <= 40
    box = german.locator(".bb-audit-bar:has(.bb-audit-ends)").bounding_box()
    assert box is not None
    assert box["height"] <= 40
    assert has_whole_placeholder(german.locator("[data-search]"))


def test_the_search_and_the_settings_of_the_matrix_are_whole_and_selected_rows_move_nothing(
    acme: Organization, german: Page
) -> None:
    agent, server = factories.create_agent(acme), admin_client.create_web_server(acme)
    large_organization.declare_tools([server], 306)
    factories.attach_server(factories.build_administrator(acme), agent, server)
    german.set_viewport_size({"width": 1440, "height": 900})
    german.goto(reverse("admin:agents_agent_servers", args=[agent.pk]))
    # Selected rows don't move the menu, and what is set isn't over its source.
    tool = german.locator("[data-pick]").first
    expect(tool).to_be_visible()
    boxes = read_boxes(german, ".bb-attach-menu", "[data-pick]")
    tool.check()
    expect(german.locator("[data-bulk]")).to_be_visible()
    assert read_boxes(german, ".bb-attach-menu", "[data-pick]") == boxes
    setting = german.locator(".bb-mx-setting").first
    assert setting.evaluate("cell => cell.scrollWidth <= cell.clientWidth")
    assert has_whole_placeholder(german.locator("input[type=search][name=q]"))
