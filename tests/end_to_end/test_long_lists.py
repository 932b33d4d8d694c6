"""Long lists: what is done with many rows stays in reach without scrolling back."""

import itertools
import json
import re
from collections.abc import Iterator

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from agents.approvals.services import resolve_approval
from agents.models import Agent, Approval
from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.roles import Role
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.admin.review_new_servers import build_added_url
from mcp_servers.admin.servers import POOL_DESTINATION
from mcp_servers.models import Server
from tests import admin_client, factories, large_organization
from tests.browser import PHONE, open_context
from tests.end_to_end.accounts import create_member, sign_in

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True), pytest.mark.whole]

WIDTHS = (1440, 375)
MAX_ROW_HEIGHT = 72  # pixels of three lines with the space around them
# What the stream of live updates announces.
CHANGED_APPROVALS = """document.dispatchEvent(
  new CustomEvent("bonobot:change", { detail: { topic: "approvals", first: false } })
)"""


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def olga(acme: Organization, live_server: LiveServer, module_browser: Browser) -> Iterator[Page]:
    """The browser of an owner, signed in."""
    with open_context(module_browser, live_server.url) as page:
        sign_in(page, create_member(acme, Role.OWNER), acme, live_server.url)
        yield page
    get_writer().close()


def test_300_tools_are_reviewed_and_set_without_scrolling_back(
    olga: Page, acme: Organization
) -> None:
    agent = factories.create_agent(acme)
    server = admin_client.create_web_server(acme)
    large_organization.declare_tools([server], 300)
    large_organization.attach_servers(agent, [server])
    for width in WIDTHS:
        olga.set_viewport_size({"width": width, "height": 800})
        olga.goto(f"/admin/mcp-servers/{server.pk}/definitions/?state=waiting")
        olga.locator("input[name=seen]").last.check()
        approve = olga.get_by_role("button", name="Approve selected")
        expect(approve).to_be_in_viewport()
        approve.click(trial=True)  # nothing covers it
        olga.goto(f"/admin/agents/{agent.pk}/servers/")
        olga.locator("tr[data-find-item] input.bb-tick").nth(250).check()
        allow = olga.locator("[data-matrix-bar] .bb-bulk button:visible").first
        expect(allow).to_be_in_viewport()
        allow.click(trial=True)


def test_definitions_of_several_new_servers_are_counted_with_their_servers(
    olga: Page, acme: Organization
) -> None:
    servers = [admin_client.create_web_server(acme, name) for name in ("web", "mail")]
    for server in servers:
        for name in ("add", "sub"):
            admin_client.declare_tool(server, name)
    Server.objects.update(discovered_at=timezone.now())
    olga.goto(build_added_url(POOL_DESTINATION, servers))
    bar = olga.locator("[data-selection-bar]")
    boxes = olga.locator("input[name=seen]")
    expect(boxes).to_have_count(4)
    for box in boxes.all():
        box.check()
    expect(bar).to_contain_text(re.compile(r"4\s+selected\s+on\s+2\s+of 2 servers"))
    for box in boxes.all()[2:]:
        box.uncheck()
    expect(bar).to_contain_text(re.compile(r"2\s+selected\s+on\s+1\s+of 2 servers"))


def test_approve_selected_needs_a_selection(olga: Page, acme: Organization) -> None:
    server = admin_client.create_web_server(acme)
    for name in ("add", "sub"):
        admin_client.declare_tool(server, name)
    olga.goto(f"/admin/mcp-servers/{server.pk}/tools/")
    select_all = olga.locator("[data-tick-all=seen]")
    approve = olga.locator("[data-selection-bar] button")
    expect(approve).to_be_disabled()
    olga.locator("input[name=seen]").first.check()
    expect(approve).to_be_enabled()
    assert select_all.evaluate("box => box.indeterminate")
    olga.locator("input[name=seen]").last.check()
    expect(select_all).to_be_checked()
    select_all.uncheck()
    expect(approve).to_be_disabled()


def test_bars_at_the_top_dont_cover_what_a_link_or_a_key_scrolls_to(
    olga: Page, acme: Organization
) -> None:
    server = admin_client.create_web_server(acme)
    large_organization.declare_tools([server], 300)
    olga.set_viewport_size({"width": 1440, "height": 800})
    olga.goto(f"/admin/mcp-servers/{server.pk}/definitions/?state=waiting")
    row = olga.locator(".bb-def > details").nth(30)
    olga.goto(f"{olga.url}#{row.get_attribute('id')}")
    bar = olga.locator(".bb-defs > header").first.bounding_box()
    box = row.bounding_box()
    assert bar is not None
    assert box is not None
    assert box["y"] >= bar["y"] + bar["height"]


def test_pasted_servers_are_selected_once_they_have_what_they_need(
    olga: Page, acme: Organization
) -> None:
    factories.create_http_server(acme, "https://203.0.114.1/old", "server-0")
    config: dict[str, dict[str, object]] = {
        f"server-{n}": {"url": f"https://203.0.114.{n}/mcp"} for n in range(50)
    }
    config["server-1"]["headers"] = {"X-Key": "${KEY}"}
    olga.goto("/admin/mcp-servers/add/paste/")
    olga.locator("textarea[name=text]").fill(json.dumps(config))
    olga.get_by_role("button", name="Preview").click()
    bar, select_all = olga.locator("[data-import-bar]"), olga.locator("[data-tick-all=add]")
    add = bar.locator("[data-import-add]")
    expect(bar).to_contain_text("48 selected 1 needs values")
    expect(add).to_have_text("Add 48 servers")
    # The two others can't be selected yet.
    assert select_all.evaluate("box => box.indeterminate")
    olga.locator("[name=parameter-KEY]").fill("secret")
    expect(add).to_have_text("Add 49 servers")
    olga.get_by_label("Another name").fill("another")
    expect(add).to_have_text("Add 50 servers")
    expect(select_all).to_be_checked()
    select_all.uncheck()
    expect(add).to_be_disabled()
    expect(add).to_be_in_viewport()


def test_the_numbers_of_the_matrix_follow_the_search(olga: Page, acme: Organization) -> None:
    agent = factories.create_agent(acme)
    server = admin_client.create_web_server(acme)
    for name in ("get_order", "list_orders", "delete_order_with_a_long_name"):
        admin_client.declare_tool(server, name)
    factories.attach_server(factories.build_administrator(acme), agent, server)
    olga.goto(f"/admin/agents/{agent.pk}/servers/")
    everything = olga.locator('[data-filter-state=""]')
    total = int(everything.locator("span").inner_text())
    olga.locator("[data-matrix-bar] input[type=search]").fill("delete")
    expect(everything).to_have_text("All 1")
    expect(olga.locator('[data-filter-state="deny"]')).to_have_text("Deny 1")
    olga.locator("[data-matrix-bar] input[type=search]").fill("")
    expect(everything).to_have_text(f"All {total}")


def test_previews_and_results_of_pasted_servers_are_pages_for_back_and_reload(
    olga: Page, acme: Organization
) -> None:
    config: dict[str, dict[str, object]] = {
        f"server-{n}": {"url": f"https://203.0.114.{n}/mcp", "disabled": True} for n in range(3)
    }
    config["server-1"]["headers"] = {"X-Key": "${KEY}"}
    olga.goto("/admin/mcp-servers/add/paste/")
    olga.locator("textarea[name=text]").fill(json.dumps(config))
    olga.get_by_role("button", name="Preview").click()
    rows = olga.locator("[data-entry]")
    expect(rows).to_have_count(3)
    olga.reload()
    expect(rows).to_have_count(3)
    olga.locator("[data-entry=server-2]").get_by_role("checkbox").uncheck()
    olga.get_by_role("button", name="Add 1 server").click()
    summary = olga.locator(".bb-head h2")
    result = "1 server added. It is disabled. 1 wasn't added. 1 wasn't selected."
    expect(summary).to_have_text(result)
    olga.reload()
    expect(summary).to_have_text(result)
    olga.go_back()  # to what is left
    expect(rows).to_have_count(2)
    olga.go_forward()
    olga.get_by_role("link", name="Add 2 remaining").click()
    expect(rows).to_have_count(2)
    expect(olga.get_by_role("button", name="Add 1 server")).to_be_visible()


def test_all_controls_above_pasted_servers_are_in_view_on_a_phone(
    acme: Organization, live_server: LiveServer, module_browser: Browser
) -> None:
    user = User.objects.create_superuser("root", password="pw")
    config: dict[str, object] = {f"local-{n}": {"url": f"http://10.0.0.{n}/"} for n in range(1, 29)}
    config["web"] = {"url": "https://203.0.114.1/mcp"}
    config["key"] = {"url": "https://203.0.114.2/mcp", "headers": {"X-Key": "${KEY}"}}
    config["broken"] = {"url": "ftp://x"}
    with open_context(module_browser, live_server.url) as page:
        sign_in(page, user, acme, live_server.url)
        page.set_viewport_size({"width": 375, "height": 800})
        page.goto("/admin/mcp-servers/add/paste/")
        page.locator("textarea[name=text]").fill(json.dumps(config))
        page.get_by_role("button", name="Preview").click()
        bar = page.locator("[data-row-filter]")
        for control in (bar.get_by_label("Allow all 28"), *bar.get_by_role("button").all()):
            box = control.bounding_box()
            assert box
            assert box["x"] + box["width"] <= 375
    get_writer().close()


def test_120_calls_of_three_pages_are_approved_at_once(olga: Page, acme: Organization) -> None:
    agent = factories.create_agent(acme)
    for n in range(120):
        factories.create_approval(agent, own_name=f"call{n}")
    for width in WIDTHS:
        olga.set_viewport_size({"width": width, "height": 800})
        olga.goto("/admin/approvals/")
        check_selection(olga)
        olga.locator("[data-selection-actions]").get_by_role("button", name="Approve").click()
        confirm = olga.get_by_role("dialog").get_by_role("button", name="Approve all 120 calls")
        expect(confirm).to_be_in_viewport()
    confirm.click()
    expect(olga.locator("[data-toasts]")).to_contain_text("120 calls approved.")
    assert not Approval.objects.pending().exists()


def check_selection(page: Page) -> None:
    """Select calls of the shown page and of all pages, and leave all selected."""
    row = page.locator("[data-inbox-item]").nth(3)
    place = row.bounding_box()
    head = page.locator(".bb-pane-list .bb-pane-head")
    every = page.get_by_label("Select all shown")
    across = page.get_by_label("Select 70 calls on other pages, too")
    expect(across).to_be_hidden()
    expect(page.get_by_text("70 more calls on other pages")).to_be_visible()
    every.check()
    across.check()
    approve = page.locator("[data-selection-actions]").get_by_role("button", name="Approve")
    expect(approve).to_contain_text("120")
    row.get_by_role("checkbox").uncheck()
    expect(across).not_to_be_checked()
    expect(across).to_be_hidden()
    expect(approve).to_contain_text("49")
    every.check()
    expect(approve).to_contain_text("50")
    across.check()
    assert row.bounding_box() == place  # nothing moved
    for button in head.get_by_role("button").all():
        box, frame = button.bounding_box(), head.bounding_box()
        assert box
        assert frame
        assert frame["y"] <= box["y"] < box["y"] + box["height"] <= frame["y"] + frame["height"]


def test_calls_that_move_to_another_page_stay_selectable(olga: Page, acme: Organization) -> None:
    agent = factories.create_agent(acme)
    approvals = [factories.create_approval(agent, own_name=f"call{n}") for n in range(60)]
    olga.goto("/admin/approvals/?p=2")
    items = olga.locator("[data-inbox-item]")
    expect(items).to_have_count(10)
    administrator = factories.build_administrator(acme)
    resolve_approval(administrator, approvals[0], "deny")
    resolve_approval(administrator, approvals[59], "deny")
    olga.evaluate(CHANGED_APPROVALS)
    expect(items.last).to_have_attribute("data-gone", "")
    expect(items.first).not_to_have_attribute("data-gone", "")
    items.first.get_by_role("checkbox").check()


def test_the_message_about_an_answered_call_begins_with_its_name(
    olga: Page, acme: Organization
) -> None:
    agent = factories.create_agent(acme)
    for n in range(2):
        factories.create_approval(agent, own_name=f"call{n}")
    olga.goto("/admin/approvals/")
    olga.keyboard.press("a")
    message = "call0: Approved. It runs when the client retries the call."
    expect(olga.locator("[data-toasts]")).to_contain_text(message)
    expect(olga.locator("[data-inbox-item]")).to_have_count(1)


def test_the_actions_of_selected_rows_cover_no_row_and_a_cut_text_has_a_tooltip(
    olga: Page, acme: Organization
) -> None:
    servers = large_organization.add_servers(acme, 60)
    Server.objects.filter(pk=servers[0].pk).update(description="A long description. " * 30)
    olga.goto("/admin/mcp-servers/")
    rows, toggle = olga.locator("input.action-select"), olga.locator("#action-toggle")
    rows.first.check()
    assert toggle.evaluate("box => box.indeterminate")
    rows.first.press("Enter")  # activates no switch
    assert rows.first.is_checked()
    bar = olga.locator("#changelist-actions-wrapper")
    expect(bar).to_be_in_viewport(ratio=1)
    rows.last.scroll_into_view_if_needed()
    olga.mouse.wheel(0, 10_000)
    rows.last.click(trial=True)  # nothing covers it
    expect(bar).to_be_in_viewport(ratio=1)
    expect(olga.locator(".bb-pagination")).to_be_in_viewport()
    description = olga.get_by_text("A long description.").first
    description.hover()
    expect(olga.locator("[title*='A long description. A long']")).to_have_count(1)
    for number in range(1, 4):
        rows.nth(number).check()
    expect(bar.get_by_text("4 of 60 selected")).to_be_visible()
    with olga.expect_navigation():
        bar.get_by_role("button", name="Disable…").click()
    expect(olga.get_by_role("heading", level=1)).to_have_text("Disable these servers?")


def test_a_member_is_found_among_a_thousand(olga: Page, acme: Organization) -> None:
    agent = factories.create_agent(acme)
    users = User.objects.bulk_create(User(username=f"person{n:04}") for n in range(1_000))
    Membership.objects.bulk_create(
        Membership(user=user, organization=acme, role=Role.MEMBER) for user in users
    )
    olga.goto(f"/admin/agents/{agent.pk}/configuration/")
    fields = olga.locator("details", has=olga.locator("input[name=members]"))
    fields.locator("summary").click()
    box = fields.bounding_box()
    assert box is not None
    assert box["height"] < 500
    fields.get_by_role("searchbox").fill("nobody")
    expect(fields.get_by_text("No results")).to_be_visible()
    fields.get_by_role("searchbox").fill("person0777")
    expect(fields.get_by_text("No results")).to_be_hidden()
    fields.get_by_role("searchbox").press("Enter")
    expect(fields.get_by_role("checkbox")).to_have_count(1)
    fields.get_by_role("checkbox").check()
    expect(fields.get_by_role("status").first).to_have_text("1 selected")
    save = olga.get_by_role("button", name="Save changes", exact=True)
    expect(save).to_be_in_viewport()
    with olga.expect_navigation():
        save.click()
    assert [user.username for user in Agent.objects.get().members.all()] == ["person0777"]


@pytest.mark.parametrize("path", ["agents", "sessions", "mcp-servers"])
def test_the_rows_of_a_list_have_two_lines_on_a_phone(
    olga: Page, acme: Organization, path: str
) -> None:
    agent = factories.create_agent(acme)
    factories.create_answered_session(agent)
    admin_client.create_web_server(acme)
    olga.set_viewport_size(PHONE)
    olga.goto(f"/admin/{path}/")
    row = olga.locator("#result_list tr.data-row").first.bounding_box()
    assert row
    assert row["height"] <= MAX_ROW_HEIGHT
    assert olga.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_reason_of_a_failure_is_one_line_and_the_tiles_of_the_history_are_apart(
    olga: Page, acme: Organization
) -> None:
    server = admin_client.create_web_server(acme)
    detail = "`web` can't be reached: " + "the connection was refused, " * 8
    Server.objects.filter(pk=server.pk).update(status="error", status_detail=detail)
    server.checks.create(organization=acme, kind="health", ok=False, detail=detail)
    olga.set_viewport_size({"width": 1440, "height": 900})
    olga.goto("/admin/mcp-servers/")
    row = olga.locator("#result_list tr.data-row").bounding_box()
    assert row
    assert row["height"] <= MAX_ROW_HEIGHT
    olga.goto(f"/admin/mcp-servers/{server.pk}/health/")
    for tile in olga.locator(".bb-tile").all():
        boxes = [part.bounding_box() or {} for part in tile.locator("> *").all()]
        for above, below in itertools.pairwise(boxes):
            assert above["y"] + above["height"] <= below["y"]


def test_members_have_one_row_of_tabs_and_whole_selected_rows_on_a_phone(
    olga: Page, acme: Organization
) -> None:
    olga.set_viewport_size(PHONE)
    olga.goto("/admin/members/")
    expect(olga.get_by_role("link", name="Invitations")).to_be_visible()
    expect(olga.locator(".bb-settings-navigation")).to_be_hidden()
    olga.locator("input.action-select").first.check()
    get_background = "item => getComputedStyle(item).backgroundColor"
    row = olga.locator("#result_list tr.data-row").first
    box = row.bounding_box()
    assert box
    assert box["height"] <= MAX_ROW_HEIGHT
    transparent = "rgba(0, 0, 0, 0)"
    assert row.evaluate(get_background) != transparent
    cells = row.locator("> :is(td, th)").all()
    assert {cell.evaluate(get_background) for cell in cells} == {transparent}
    olga.goto("/admin/tokens/")
    expect(olga.locator(".bb-settings-navigation")).to_be_visible()


def test_the_first_agent_replaces_an_empty_list_and_others_are_counted(
    olga: Page, acme: Organization
) -> None:
    changed_agents = CHANGED_APPROVALS.replace('"approvals"', '"agents"')
    olga.goto("/admin/agents/")
    expect(olga.get_by_text("No agents yet")).to_be_visible()
    factories.create_agent(acme)
    with olga.expect_navigation():
        olga.evaluate(changed_agents)
    expect(olga.get_by_role("link", name="Helper").first).to_be_visible()
    factories.create_agent(acme, "other")
    olga.evaluate(changed_agents)
    expect(olga.get_by_role("status").get_by_text("1 new")).to_be_visible()
