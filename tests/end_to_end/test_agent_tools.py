"""The matrix of an agent with 400 tools in a real browser: mouse, keys, a small screen."""

from time import monotonic

import pytest
from django.conf import settings
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from agents.admin.live_updates import read_versions
from agents.models import Agent
from agents.policies.services import PolicySpec, load_policy_spec, set_policy
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.models import Definition
from tests import admin_client, factories
from tests.axe import AXE
from tests.browser import PATIENCE_MS, PHONE, open_page, take_screenshot
from tests.end_to_end.test_people import check_page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.npm,
    pytest.mark.whole,
    pytest.mark.django_db(transaction=True),
]

SERVERS, TOOLS = 4, 100
TOOL_NAMES = ("add", "divide", "subtract")
MAX_LOAD_S = 10.0  # the page takes less than 2 s on an idle machine


def test_hundreds_of_tools_are_set_by_server_by_selection_and_one_by_one(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = factories.create_organization()
    admin, agent = admin_client.sign_in(acme, Role.OWNER), factories.create_agent(acme)
    administrator = factories.build_administrator(acme)
    for number in range(SERVERS):
        server = admin_client.create_web_server(acme, f"web{number}")
        definition = admin_client.declare_tool(server, "tool000")
        rows = [
            Definition(
                **{name: getattr(definition, name) for name in ("kind", "payload", "digest")},
                organization=acme,
                server=server,
                name=f"tool{tool:03}",
                description=f"Does what tool {tool} does.",
                schema_verdict="inline",
            )
            for tool in range(1, TOOLS)
        ]
        Definition.objects.bulk_create(rows)
        approve_definitions(administrator, server)
        factories.attach_server(administrator, agent, server)
    set_policy(administrator, agent, PolicySpec("allowlist"))
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    admin.get("agents_agent_servers", agent.pk)  # the tools get their names
    with open_page(live_server.url) as page:
        page.add_init_script(path=AXE)
        cookie = admin.client.cookies[settings.SESSION_COOKIE_NAME]
        page.context.add_cookies(
            [{"name": cookie.key, "value": cookie.value, "url": live_server.url}]
        )
        page.goto(f"/admin/agents/{agent.pk}/servers/")
        started = monotonic()
        page.reload()
        duration = monotonic() - started
        group = page.locator("[data-group]", has_text="web3")
        expect(group).to_contain_text(f"{TOOLS} deny")
        expect(group.locator("[data-find-item]")).to_have_count(0)
        group.get_by_role("link", name="Show tools").click()
        expect(group.locator("[data-find-item]")).to_have_count(TOOLS)

        # The default of the server, a selection of two tools, and one tool with the keyboard.
        bar = page.locator("[data-save-bar]")
        expect(bar).to_be_hidden()
        group.locator(".bb-mx-group").get_by_text("Ask", exact=True).click()
        expect(group).to_contain_text(f"{TOOLS} ask", timeout=PATIENCE_MS)
        page.keyboard.press("/")
        page.keyboard.type("tool01")
        expect(page.locator("[data-find-item]:visible")).to_have_count(10)
        for name in ("tool010", "tool011"):
            page.get_by_label(f"Select {name}").check()
        page.locator("[data-bulk]").get_by_role("button", name="Allow").click()
        page.get_by_role("radiogroup", name="tool012").get_by_label("Inherited").focus()
        page.keyboard.press("ArrowRight")
        expect(group).to_contain_text(f"2 allow {TOOLS - 3} ask 1 deny", timeout=PATIENCE_MS)
        expect(bar).to_contain_text("4 unsaved changes")
        expect(bar).to_contain_text("tool010, tool011: inherited to allow")
        expect(bar).to_contain_text("tool012: inherited to deny")
        faults = check_page(page)
        take_screenshot(page, "matrix-many-desk")
        page.keyboard.press("Control+s")
        expect(page.locator("body")).to_contain_text("Saved.", timeout=PATIENCE_MS)
        spec = load_policy_spec(Agent.objects.get())
        assert spec == PolicySpec(
            "allowlist",
            allow=("mcp_web3_tool010", "mcp_web3_tool011"),
            ask=("mcp_web3:default",),
            deny=("mcp_web3_tool012",),
        )

        page.set_viewport_size(PHONE)
        page.goto(f"/admin/agents/{agent.pk}/servers/?q=web3+tool012")
        expect(page.locator("[data-find-item]")).to_have_count(1)
        page.get_by_role("radiogroup", name="tool012").get_by_text("Ask", exact=True).click()
        expect(bar).to_contain_text("tool012: deny to ask")
        take_screenshot(page, "matrix-found-phone")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    get_writer().close()
    assert not faults, "\n".join(faults)
    assert duration < MAX_LOAD_S


def test_changes_of_others_replace_the_rows_or_are_counted_while_settings_are_changed(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = factories.create_organization()
    admin, agent = admin_client.sign_in(acme, Role.OWNER), factories.create_agent(acme)
    administrator = factories.build_administrator(acme)
    server = admin_client.create_web_server(acme)
    for name in ("add", "divide", "subtract"):
        admin_client.declare_tool(server, name)
    approve_definitions(administrator, server)
    factories.attach_server(administrator, agent, server)
    set_policy(administrator, agent, PolicySpec("allowlist"))
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    admin.get("agents_agent_servers", agent.pk)  # the tools get their names
    with open_page(live_server.url) as page:
        cookie = admin.client.cookies[settings.SESSION_COOKIE_NAME]
        page.context.add_cookies(
            [{"name": cookie.key, "value": cookie.value, "url": live_server.url}]
        )
        page.goto(f"/admin/agents/{agent.pk}/servers/")
        rows = page.locator("[data-find-item]", has=page.locator(".bb-mx-pick"))
        add, divide, subtract = (rows.filter(has_text=name) for name in TOOL_NAMES)
        change = page.locator("[data-matrix-changes]")

        # Without unsaved changes, the rows are replaced; folded groups and filters stay.
        set_policy(administrator, agent, PolicySpec("allowlist", allow=("mcp_web_add",)))
        report_change(page, acme)
        expect(add.locator("[data-state]")).to_have_attribute("data-state", "allow")
        expect(page.locator('[data-filter-state="allow"]')).to_contain_text("1")
        expect(change).to_be_hidden()

        # With unsaved changes, they are counted, and kept when the rows are replaced.
        divide.get_by_text("Ask", exact=True).click()
        expect(divide.locator("[data-state]")).to_have_attribute("data-state", "ask")
        set_policy(administrator, agent, PolicySpec("allowlist", allow=("mcp_web_subtract",)))
        report_change(page, acme)
        expect(change).to_have_text("2 changes – Reload")
        expect(add.locator("[data-state]")).to_have_attribute("data-state", "allow")
        change.click()
        expect(change).to_be_hidden()
        expect(add.locator("[data-state]")).to_have_attribute("data-state", "deny")
        expect(subtract.locator("[data-state]")).to_have_attribute("data-state", "allow")
        expect(page.locator("[data-save-bar]")).to_contain_text("1 unsaved change")
        expect(divide.locator("[data-state]")).to_have_attribute("data-state", "ask")
        page.get_by_role("button", name="Save changes").click()
        page.wait_for_load_state()
        expect(page.locator("body")).not_to_contain_text("in the meantime")
        expect(divide.locator("[data-state]")).to_have_attribute("data-state", "ask")
        expect(subtract.locator("[data-state]")).to_have_attribute("data-state", "allow")


def report_change(page: Page, organization: Organization) -> None:
    """Report the current version as the page's stream does, which this server doesn't have."""
    version = read_versions(organization.pk, ["policies"])["policies"]
    event = f"{{topic: 'policies', version: '{version}', first: false}}"
    page.evaluate(f"document.dispatchEvent(new CustomEvent('bonobot:change', {{detail: {event}}}))")
