"""The policy of an agent in a real browser: rules in a dialog, 1,000 tools, a small screen."""

from time import monotonic

import pytest
from django.conf import settings
from playwright.sync_api import expect
from pytest_django.live_server_helper import LiveServer

from agents.models import Agent
from agents.policies.services import PolicySpec, RuleSpec, load_policy_spec, set_policy
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
    pytest.mark.django_db(transaction=True),
    pytest.mark.whole,
]

SERVERS, TOOLS = 4, 250
MAX_LOAD_S = 10.0  # the page takes less than 2 s on an idle machine


def test_a_thousand_tools_are_managed_by_their_servers(
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
    set_policy(administrator, agent, PolicySpec("all"))
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    with open_page(live_server.url) as page:
        page.add_init_script(path=AXE)
        cookie = admin.client.cookies[settings.SESSION_COOKIE_NAME]
        page.context.add_cookies(
            [{"name": cookie.key, "value": cookie.value, "url": live_server.url}]
        )
        page.goto(f"/admin/agents/{agent.pk}/policy/")
        started = monotonic()
        page.reload()
        duration = monotonic() - started
        group = page.locator("[data-group]", has_text="web3")
        expect(group).to_contain_text(f"{TOOLS} of {TOOLS} can be called")
        expect(group.locator("[data-find-item]")).to_have_count(0)

        group.locator("[data-folds]").focus()
        page.keyboard.press("Enter")
        expect(group.locator("[data-find-item]")).to_have_count(200)
        group.get_by_label("Rule for all tools of web3").select_option("deny")
        count = group.locator("[data-part^=count]")
        expect(count).to_have_text(f"0 of {TOOLS} can be called", timeout=PATIENCE_MS)
        row = group.locator("[data-find-item]", has_text="tool007")
        row.get_by_text("Ask", exact=True).click()
        expect(row).to_contain_text("requires approval", timeout=PATIENCE_MS)
        faults = check_page(page)
        take_screenshot(page, "policy-many-desk")
        group.get_by_role("button", name="more").click()
        expect(group.locator("[data-find-item]")).to_have_count(TOOLS)
        expect(group.locator("input[value=deny]:checked")).to_have_count(TOOLS - 1)
        page.get_by_role("button", name="Save changes").click()
        expect(page.locator("body")).to_contain_text("Saved.")
        text = load_policy_spec(Agent.objects.get())
        assert (len(text.deny), text.ask) == (TOOLS - 1, ("mcp_web3_tool007",))

        page.set_viewport_size(PHONE)
        page.get_by_label("Search all tools").fill("web3 tool007")
        page.keyboard.press("Enter")
        expect(page.locator("[data-find-item]")).to_have_count(1)
        take_screenshot(page, "policy-found-phone")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    get_writer().close()
    assert not faults, "\n".join(faults)
    assert duration < MAX_LOAD_S


def test_rules_are_edited_in_a_dialog_with_their_effect(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = factories.create_organization()
    admin, agent = admin_client.sign_in(acme, Role.OWNER), factories.create_agent(acme)
    administrator = factories.build_administrator(acme)
    server = admin_client.create_web_server(acme)
    for name in ("add", "drop_one", "drop_two"):
        admin_client.declare_tool(server, name)
    approve_definitions(administrator, server)
    factories.attach_server(administrator, agent, server)
    set_policy(administrator, agent, PolicySpec("all", ask=("mcp_web_add", "mcp_web_drop_*")))
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    with open_page(live_server.url) as page:
        page.add_init_script(path=AXE)
        cookie = admin.client.cookies[settings.SESSION_COOKIE_NAME]
        page.context.add_cookies(
            [{"name": cookie.key, "value": cookie.value, "url": live_server.url}]
        )
        page.goto(f"/admin/agents/{agent.pk}/policy/")
        bar, effect = page.locator("[data-save-bar]"), page.locator(".bb-effect")
        expect(bar).to_be_hidden()

        page.get_by_label("Edit the rule mcp_web_drop_*").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_text("Deny", exact=True).click()
        faults = check_page(page)
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        page.get_by_label("Edit the rule mcp_web_drop_*").click()
        dialog.get_by_text("Deny", exact=True).click()
        dialog.locator("textarea").fill("[")
        dialog.get_by_role("button", name="Apply").click()
        expect(dialog.get_by_role("alert")).to_contain_text("must be a JSON object")
        dialog.locator("textarea").fill("")
        dialog.get_by_role("button", name="Apply").click()
        expect(effect).to_contain_text("2 tools change their decision", timeout=PATIENCE_MS)
        expect(bar).to_contain_text("drop_* web: was ask")

        page.get_by_label("Edit the rule mcp_web_add").click()
        dialog.get_by_role("button", name="Remove rule").click()
        expect(bar).to_contain_text("2 unsaved changes", timeout=PATIENCE_MS)
        page.get_by_label("Restore the rule mcp_web_add").click()
        expect(bar).to_contain_text("1 unsaved change", timeout=PATIENCE_MS)

        page.get_by_role("button", name="Add rule").click()
        expect(dialog.get_by_label("Tool or pattern")).to_be_focused()
        expect(dialog.locator("[role=listbox]")).to_be_hidden()
        dialog.get_by_label("Tool or pattern").fill("web add")
        expect(dialog.locator("[role=option]")).to_have_text("addweb")
        dialog.get_by_label("Tool or pattern").fill("read_result")
        expect(dialog.locator("[role=option]")).to_have_text("read_resultbuilt-in")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(dialog.locator("[role=listbox]")).to_be_hidden()
        dialog.get_by_label("Argument").fill("a")
        dialog.get_by_label("Comparison").select_option("is set")
        dialog.get_by_role("button", name="Add rule").click()
        expect(bar).to_contain_text("read_result: new ask", timeout=PATIENCE_MS)

        page.get_by_role("button", name="Add rule").click()
        dialog.get_by_label("Tool or pattern").press_sequentially("drop")
        expect(dialog.locator("[role=listbox]")).to_be_visible()
        add = dialog.get_by_role("button", name="Add rule")
        box = add.bounding_box()
        take_screenshot(page, "rule-dialog-suggestions")
        add.click()  # the button stays under the pointer while the list closes
        expect(dialog).to_be_hidden()
        row = page.locator("[data-rule-row]", has_text="Matches no tools.")
        expect(row).to_contain_text("drop", timeout=PATIENCE_MS)
        row.get_by_role("button", name="Edit").click()
        expect(dialog.locator("[role=listbox]")).to_be_hidden()
        assert dialog.get_by_role("button", name="Apply").bounding_box()["y"] == box["y"]
        dialog.get_by_role("button", name="Remove rule").click()
        expect(row).to_have_count(0, timeout=PATIENCE_MS)
        faults += check_page(page)
        page.keyboard.press("Control+s")
        expect(page.locator("body")).to_contain_text("Saved.")
    get_writer().close()
    policy = load_policy_spec(agent)
    assert policy.deny == ("mcp_web_drop_*",)
    condition = {"properties": {"a": {}}, "required": ["a"]}
    assert set(policy.ask) == {"mcp_web_add", RuleSpec("read_result", condition)}
    assert not faults, "\n".join(faults)
