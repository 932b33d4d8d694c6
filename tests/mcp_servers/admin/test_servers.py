"""The server list and its bulk actions."""

import re
from datetime import timedelta
from html import unescape
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from agents.services import attach_server
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.ledger.models import AuditRow
from mcp_servers import discovery, services
from mcp_servers.admin import server_details, uptime_bar
from mcp_servers.admin import servers as listing
from mcp_servers.discovery import DiscoveryAttempt, DiscoveryResult
from mcp_servers.health.server_status import record_contact, record_failure
from mcp_servers.health.uptime import UptimeSegment
from mcp_servers.models import ChangeSubscription, Definition, Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from mcp_servers.subscriptions import leases
from tests import admin_client, factories
from tests.agents.admin.test_audit import create_call

pytestmark = pytest.mark.django_db
RESULT = DiscoveryResult(
    tools=("add",),
    new=1,
    changed=0,
    removed=0,
    pending_review=1,
    refused=0,
    latency_ms=7,
    notices=(),
)


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def browser(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OWNER)


def run_action(
    browser: admin_client.AdminClient, action: str, *servers: Server, **more: str
) -> str:
    selected = [str(server.pk) for server in servers]
    fields = {"action": action, "_selected_action": selected, **more}
    return browser.post("mcp_servers_server_changelist", **fields)


def test_a_row_shows_state_tools_and_pending_reviews(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme)
    admin_client.declare_tool(server, "add")
    admin_client.declare_tool(server, "echo")
    Server.objects.filter(pk=server.pk).update(
        status="needs_reauth", status_code="needs_reauth", status_detail="The token is old."
    )
    page = browser.get("mcp_servers_server_changelist")
    assert "needs new credentials" in page
    assert "The token is old." in page
    assert "2 to review" in page


def test_the_list_says_why_a_server_failed_below_its_description(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme, "broken")
    rows = Server.objects.filter(pk=server.pk)
    rows.update(description="Issues", status="error", status_detail="The name isn't known.")
    page = browser.get("mcp_servers_server_changelist")
    assert page.count('title="The name isn&#x27;t known."') == 2  # of the status, and of the line
    text = admin_client.get_text(page)
    assert "HTTP · Issues The name isn't known." in text
    rows.update(enabled=False)
    text = admin_client.get_text(browser.get("mcp_servers_server_changelist"))
    assert "HTTP · Issues" in text
    assert "The name isn't known." not in text


def test_the_output_of_an_installer_is_collapsed_and_the_remedy_is_shown(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme, "files")
    output = " ".join(f"npm error line {n} of a long report" for n in range(40))
    detail = f"`files` couldn't be installed: {output}. Check the package name."
    fields = {"status": "error", "status_code": "installation_failed", "status_detail": detail}
    Server.objects.filter(pk=server.pk).update(**fields)
    page = browser.get("mcp_servers_server_change", server.pk)
    shown, collapsed = page.split('<details class="bb-output">', 1)
    assert "line 9" not in shown
    assert "<p>Check the package name.</p>" in shown
    lines = collapsed.split("<pre", 1)[1].split("</pre>", 1)[0].splitlines()
    assert "npm error line 39 of a long report." in lines


def test_the_overview_names_the_definition_review_like_the_form(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme)
    overview = admin_client.get_text(browser.get("mcp_servers_server_change", server.pk))
    assert "Definition review Review each definition" in overview
    form = browser.get("mcp_servers_server_configuration", server.pk)
    assert "Definition review" in admin_client.get_text(form)


def test_all_definitions_belong_to_the_tab_of_the_tools(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme)
    page = browser.get("mcp_servers_server_definitions", server.pk)
    tabs = page.split('<nav class="bb-tabs"', 1)[1].split("</nav>", 1)[0]
    assert "Tools" in tabs.split('aria-current="page"', 1)[1].split("</a>", 1)[0]


def test_a_server_that_was_never_discovered_has_no_zeros(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme, "unseen")
    Server.objects.filter(pk=server.pk).update(discovered_at=None)
    row = browser.get("mcp_servers_server_changelist", q="unseen")
    cell = row[row.index('class="field-tool_count') :]
    assert cell[cell.index(">") + 1 :].lstrip().startswith("–")
    page = browser.get("mcp_servers_server_definitions", server.pk)
    assert "0 definitions" not in page
    assert admin_client.build_url("mcp_servers_server_refresh", server.pk) in page


def test_an_empty_list_explains_how_to_begin(browser: admin_client.AdminClient) -> None:
    page = browser.get("mcp_servers_server_changelist")
    assert "No servers yet" in page
    assert admin_client.build_url("mcp_servers_server_paste") in page


def test_the_list_has_failing_servers_first_and_counts_them(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    servers = [admin_client.create_web_server(acme, name) for name in ("a", "b", "c", "d")]
    problem = {"status_detail": "c can't be reached: the connection was refused. Start it."}
    for server, status in zip(servers[1:], ("connected", "error", "needs_reauth"), strict=True):
        Server.objects.filter(pk=server.pk).update(status=status, **problem)
    for name in ("add", "echo"):
        admin_client.declare_tool(servers[0], name)
    page = browser.get("mcp_servers_server_changelist")
    text = admin_client.get_text(page)
    assert "All 4 Failing 2 2 definitions to review" in text
    names = re.findall(r'<strong class="bb-ellipsis">(\w)</strong>', page)
    assert names == ["c", "d", "a", "b"]
    # The reason doesn't replace what the server is.
    url = servers[2].endpoint_config["url"]
    assert f"HTTP · {url} c can't be reached: the connection was refused. Start it." in text
    [link] = re.findall(r'href="(\?status[^"]*)" *>Failing', page)
    shown = browser.open(admin_client.build_url("mcp_servers_server_changelist") + unescape(link))
    assert re.findall(r'<strong class="bb-ellipsis">(\w)</strong>', shown) == ["c", "d"]
    assert re.search(r'aria-current="true">Failing 2', shown)


def test_the_filters_show_their_choices(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    admin_client.create_web_server(acme)
    page = browser.get("mcp_servers_server_changelist", status__exact="connected")
    filters = page[page.index('id="changelist-filter"') :]
    text = admin_client.get_text(filters)
    assert "status Connecting Connected Not connected yet Failed" in text
    assert "By status" not in text
    assert re.search(r'value="connected"[^>]*checked', filters)


def test_servers_are_filtered_by_pending_reviews(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    admin_client.declare_tool(admin_client.create_web_server(acme, "busy"))
    admin_client.create_web_server(acme, "calm")
    page = admin_client.get_text(browser.get("mcp_servers_server_changelist", waiting="yes"))
    assert "busy" in page
    assert "calm" not in page


def test_a_search_finds_a_server_by_its_tool(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    admin_client.declare_tool(admin_client.create_web_server(acme, "weather"), "forecast")
    admin_client.create_web_server(acme, "clock")
    page = admin_client.get_text(browser.get("mcp_servers_server_changelist", q="forecast"))
    assert "weather" in page
    assert "clock" not in page


def test_the_switch_enables_and_disables_and_is_recorded(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme)
    browser.post("mcp_servers_server_toggle", server.pk, enabled="0")
    server.refresh_from_db()
    assert (server.enabled, server.status) == (False, "disabled")
    assert AuditRow.objects.filter(action="server_disabled", actor_id=browser.user.pk).count() == 1


def test_a_reviewer_sees_no_switch_and_cant_use_it(acme: Organization) -> None:
    server = admin_client.create_web_server(acme)
    reviewer = admin_client.sign_in(acme, Role.REVIEWER)
    owner = admin_client.sign_in(acme, Role.OWNER)
    for browser, may_delete in ((owner, True), (reviewer, False)):
        page = admin_client.get_text(browser.get("mcp_servers_server_change", server.pk))
        assert ("Delete" in page) is may_delete
    page = reviewer.post("mcp_servers_server_toggle", server.pk, enabled="0", status=403)
    assert "forbidden" in page
    assert Server.objects.get().enabled


def test_actions_require_post_requests(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    browser.get("mcp_servers_server_toggle", admin_client.create_web_server(acme).pk, status=405)


def test_many_servers_are_disabled_and_enabled(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    servers = (
        admin_client.create_web_server(acme, "one"),
        admin_client.create_web_server(acme, "two"),
    )
    attach_server(factories.build_administrator(acme), factories.create_agent(acme), servers[0])
    assert "Helper → one" in admin_client.get_text(run_action(browser, "disable_chosen", *servers))
    assert Server.objects.enabled().count() == 2
    run_action(browser, "disable_chosen", *servers, confirmed="1")
    assert not Server.objects.enabled().exists()
    run_action(browser, "enable_chosen", *servers)
    assert Server.objects.enabled().count() == 2


def test_a_server_that_cant_be_deleted_doesnt_stop_the_others(
    acme: Organization, browser: admin_client.AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = [admin_client.create_web_server(acme, name) for name in ("one", "two", "three")]
    real = services.delete_server

    def delete_server(principal: Principal, server: Server) -> None:
        if server.slug == "two":
            raise Problem("The database is locked.", code="busy", remedy="Try again.")
        real(principal, server)

    monkeypatch.setattr(services, "delete_server", delete_server)
    page = admin_client.get_text(run_action(browser, "remove_chosen", *servers, confirmed="1"))
    assert [server.slug for server in Server.objects.all()] == ["two"]
    assert "two: The database is locked. Try again. busy" in page
    assert page.count("was deleted.") == 2


def test_testing_many_servers_shows_each_result(
    acme: Organization, browser: admin_client.AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = (
        admin_client.create_web_server(acme, "good"),
        admin_client.create_web_server(acme, "bad"),
    )
    problem = Problem("Nobody answers.", code="server_unreachable", remedy="Start it.")
    outcomes = {
        good.pk: DiscoveryAttempt(good, result=RESULT),
        bad.pk: DiscoveryAttempt(bad, problem=problem),
    }
    monkeypatch.setattr(
        listing,
        "discover_servers",
        lambda servers, **options: [outcomes[server.pk] for server in servers],
    )
    page = admin_client.get_text(run_action(browser, "test_chosen", good, bad))
    assert "good: 1 tool, responded in 7 ms, 1 new, 1 pending review." in page
    assert "bad: Nobody answers. Start it. server_unreachable" in page


def test_an_operator_has_no_approve_action(acme: Organization) -> None:
    server = admin_client.create_web_server(acme)
    admin_client.declare_tool(server)
    operator = admin_client.sign_in(acme, Role.OPERATOR)
    assert "approve_chosen" not in operator.get("mcp_servers_server_changelist")
    fields = {"action": "approve_chosen", "_selected_action": str(server.pk)}
    operator.post("mcp_servers_server_changelist", status=403, **fields)
    assert not Definition.objects.callable().exists()


def test_deleting_asks_first_and_lists_what_is_deleted_too(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme)
    admin_client.declare_tool(server)
    attach_server(factories.build_administrator(acme), factories.create_agent(acme), server)
    page = admin_client.get_text(run_action(browser, "remove_chosen", server))
    assert "Helper → web" in page
    assert "1 definition" in page
    assert "Delete web?" in page
    assert "Also deleted 1 attached server" in page
    assert "tool name" not in page  # what people never see as an object isn't listed
    assert Server.objects.count() == 1
    run_action(browser, "remove_chosen", server, confirmed="1")
    assert Server.objects.count() == 0
    assert AuditRow.objects.filter(action="server_deleted", resource_name="web").count() == 1


def test_deleting_a_few_servers_gives_one_message_that_undoes_all_of_it(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    servers = [admin_client.create_web_server(acme, name) for name in ("one", "two", "three")]
    page = run_action(browser, "remove_chosen", *servers[:2], confirmed="1")
    assert len(browser.messages) == 1
    assert browser.messages[0].startswith("2 servers were deleted.")
    assert page.count(">Undo</button>") == 1
    form = page.split("2 servers were deleted.", 1)[1].split("</form>", 1)[0]
    ids = re.findall(r'name="_selected_action" value="([^"]+)"', form)
    assert len(ids) == 2
    servers_url = admin_client.build_url("mcp_servers_server_changelist")
    answer = browser.client.post(
        admin_client.build_url("tenancy_deletion_changelist"),
        {"action": "restore_chosen", "_selected_action": ids},
        headers={"Referer": f"http://testserver{servers_url}"},
    )
    assert answer["Location"] == servers_url
    assert {server.slug for server in Server.objects.all()} == {"one", "two", "three"}


@pytest.mark.parametrize("action", ["approve_chosen", "disable_chosen", "remove_chosen"])
def test_a_confirmation_is_a_page_that_can_be_loaded_again(
    acme: Organization, browser: admin_client.AdminClient, action: str
) -> None:
    servers = [admin_client.create_web_server(acme, name) for name in ("one", "two")]
    for server in (*servers, admin_client.create_web_server(acme, "other")):
        admin_client.declare_tool(server)
    list_url = admin_client.build_url("mcp_servers_server_changelist")
    fields = {"action": action, "_selected_action": [str(server.pk) for server in servers]}
    answer = browser.client.post(list_url, fields)
    assert answer.status_code == 302
    for _ in range(2):
        page = browser.client.get(answer["Location"])
        text = admin_client.get_text(page.content.decode())
        assert page.status_code == 200
        assert "one" in text
        assert "two" in text
        assert "other" not in text
    # The same selection after one of the servers was deleted, and after all of them were.
    servers[0].delete()
    text = admin_client.get_text(browser.client.get(answer["Location"]).content.decode())
    assert "two" in text
    assert "one " not in text
    servers[1].delete()
    assert browser.client.get(answer["Location"])["Location"] == list_url


def test_the_confirmation_for_all_servers_of_a_filtered_list_has_those_of_the_filter(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    for name in ("web1", "web2", "mail"):
        admin_client.create_web_server(acme, name)
    list_url = admin_client.build_url("mcp_servers_server_changelist")
    one = Server.objects.get(name="web1")
    fields = {"action": "remove_chosen", "_selected_action": str(one.pk), "select_across": "1"}
    answer = browser.client.post(f"{list_url}?q=web", fields)
    page = browser.client.get(answer["Location"]).content.decode()
    assert "Delete 2 servers" in admin_client.get_text(page)
    assert "mail" not in admin_client.get_text(page.split("bb-panel", 1)[1])


def test_a_confirmation_needs_the_permission_of_its_action(acme: Organization) -> None:
    server = admin_client.create_web_server(acme)
    reviewer = admin_client.sign_in(acme, Role.REVIEWER)
    for name, status in (("confirm_delete", 403), ("confirm_approve", 200)):
        url = admin_client.build_url(f"mcp_servers_server_{name}")
        assert reviewer.client.get(f"{url}?servers={server.pk}").status_code == status


def test_a_server_is_deleted_after_confirmation(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme)
    browser.get("mcp_servers_server_delete", server.pk)
    assert Server.objects.count() == 1
    browser.post("mcp_servers_server_delete", server.pk, confirmed="1")
    assert Server.objects.count() == 0


def test_the_overview_shows_the_connection_without_secrets(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    spec = ServerSpec(
        name="web",
        transport_type="http",
        endpoint_config={"url": "https://x.example/mcp", "headers": {"X-Team": "geheim-1"}},
        auth_config={"type": "bearer_token", "token": "geheim-2"},
    )
    server = create_server(factories.build_administrator(acme), spec)
    for name in ("change", "configuration"):
        page = browser.get(f"mcp_servers_server_{name}", server.pk)
        assert "X-Team" in page
        assert "geheim" not in page


def test_the_overview_says_once_that_a_server_has_no_change_notifications(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme)
    holder = uuid4()
    leases.store_change_topics(server, {"tools": {"listChanged": True}})
    leases.claim_servers(holder, 1)
    problem = Problem("No stream.", code="not_offered", remedy="Refreshed periodically.")
    leases.mark_stream_refused(holder, server.pk, problem)
    page = browser.get("mcp_servers_server_change", server.pk)
    row = page.split("Change notifications</dt>")[1].split("</dd>")[0]
    text = "The server has no stream of change notifications."
    assert admin_client.get_text(row).strip().startswith(text)
    assert "not_offered" not in row
    assert "Refreshed periodically" not in row
    ChangeSubscription.objects.update(refused_at=None, holder=holder, heartbeat_at=timezone.now())
    row = browser.get("mcp_servers_server_change", server.pk)
    row = row.split("Change notifications</dt>")[1].split("</dd>")[0]
    assert admin_client.get_text(row).split()[-1] == "not_offered"  # after the sentence


def test_the_overview_counts_the_calls_of_the_last_day_and_only_kinds_that_the_server_has(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme, "crm")
    for outcome, minutes in (("ok", 5), ("error", 10), ("ok", 60 * 30)):
        create_call(
            acme,
            server_id=server.pk,
            outcome=outcome,
            opened_at=timezone.now() - timedelta(minutes=minutes),
        )
    page = admin_client.get_text(browser.get("mcp_servers_server_change", server.pk))
    assert "Calls, 24 hours 2 Failed, 24 hours 1" in page
    assert "Resource templates" not in page
    assert "Tools" in page


def test_the_latest_calls_show_the_code_of_a_call_only_if_it_did_not_succeed(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme, "crm")
    create_call(acme, server_id=server.pk, outcome="ok", code="approval_required")
    create_call(acme, server_id=server.pk, outcome="refused", code="rate_limited")
    page = admin_client.get_text(browser.get("mcp_servers_server_calls", server.pk))
    assert "rate_limited" in page
    assert "approval_required" not in page


def test_connection_events_are_listed_in_the_history_as_in_the_audit_log_and_not_as_calls(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme, "crm")
    create_call(acme, server_id=server.pk, tool_name="find_customer")
    record_failure(server.pk, "health", Problem("No answer.", code="server_unreachable"))
    record_contact(server, "health", 5)
    page = browser.get("mcp_servers_server_calls", server.pk)
    calls = admin_client.get_text(page)
    assert "find_customer" in calls
    assert "server_connect" not in calls
    assert f"?server_id={server.pk}&amp;kind=call" in page
    history = admin_client.get_text(browser.get("mcp_servers_server_health", server.pk))
    failed, connected = "Server connection failed server_unreachable", "Server connected –"
    assert failed in history
    assert "up up for a part of the time down not checked" in history  # the legend
    checks = browser.get("mcp_servers_server_change", server.pk)
    assert re.search(r'data-tone="bad"\s+title="[^"]* · No answer."', checks)
    assert history.index(connected) < history.index(failed)
    assert "server_connect" not in history


def test_a_failing_server_leads_to_its_configuration(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme, "crm")
    Server.objects.filter(pk=server.pk).update(status="error", status_code="server_unreachable")
    page = browser.get("mcp_servers_server_change", server.pk)
    note = page.split('role="alert"', 1)[1].split("<section", 1)[0]
    assert admin_client.build_url("mcp_servers_server_configuration", server.pk) in note


def test_a_server_whose_package_is_being_installed_has_not_failed(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme)
    record_failure(server.pk, "health", Problem("Installing.", code="server_installing"))
    page = browser.get("mcp_servers_server_change", server.pk)
    assert "The package is being installed." in page
    assert 'role="alert"' not in page
    page = browser.get("mcp_servers_server_changelist")
    assert "Failed" not in admin_client.get_text(page[: page.index('id="changelist-filter"')])


def test_testing_the_connection_returns_a_page_fragment(
    acme: Organization, browser: admin_client.AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = admin_client.create_web_server(acme)
    monkeypatch.setattr(
        server_details,
        "discover_servers",
        lambda servers, **options: [DiscoveryAttempt(server, result=RESULT)],
    )
    connect_url = admin_client.build_url("mcp_servers_server_connect", server.pk)
    page = browser.send(f"{connect_url}?page=change", {})
    assert "1 tool, responded in 7 ms" in page
    assert 'data-then="' in page
    assert "nav-sidebar" not in page
    overview = admin_client.get_text(browser.get("mcp_servers_server_change", server.pk))
    assert "web: 1 tool, responded in 7 ms" in overview


@pytest.mark.django_db(transaction=True)
def test_a_server_that_is_deleted_during_its_test_is_reported_as_missing(
    acme: Organization, browser: admin_client.AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete_and_discover(servers: list[Server], **options: Any) -> list[DiscoveryAttempt]:
        Server.objects.filter(pk=servers[0].pk).delete()
        return discovery.discover_servers(servers, **options)

    server = admin_client.create_web_server(acme)
    monkeypatch.setattr(server_details, "discover_servers", delete_and_discover)
    assert "<code>not_found</code>" in browser.post(
        "mcp_servers_server_connect", server.pk, status=404
    )


def test_a_failed_connection_links_to_the_field_to_correct(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme)
    for status, auth, tab in (
        (Server.Status.ERROR, "none", "configuration"),
        (Server.Status.NEEDS_REAUTH, "none", "configuration"),
        (Server.Status.NEEDS_REAUTH, "bearer_token", "credentials"),
    ):
        Server.objects.update(auth_type=auth, status=status, status_code="server_unreachable")
        page = browser.get("mcp_servers_server_change", server.pk)
        note = page.partition('class="bb-note"')[2].partition("</section>")[0]
        assert admin_client.find_links(
            note, admin_client.build_url(f"mcp_servers_server_{tab}", server.pk)
        )


def test_the_result_of_a_connection_names_the_problem_and_the_new_state(
    acme: Organization, browser: admin_client.AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = admin_client.create_web_server(acme)
    failed = DiscoveryAttempt(server, problem=Problem("It failed.", code="server_unreachable"))
    monkeypatch.setattr(server_details, "discover_servers", lambda *_, **__: [failed])
    connect_url = admin_client.build_url("mcp_servers_server_connect", server.pk)
    result = browser.send(f"{connect_url}?page=added", {})
    assert "It failed." in result
    assert f'data-part="state-{server.pk}"' in result
    assert "data-then" not in result


def test_a_failure_of_one_server_doesnt_affect_others(
    acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def discover(server_id: object, **options: object) -> DiscoveryResult:
        if server_id == servers[0].pk:
            raise Problem("no", code="server_unreachable")
        return RESULT

    servers = [Server(name="bad"), Server(name="good")]
    monkeypatch.setattr(discovery, "run_discovery", discover)
    first, second = discovery.discover_servers(
        servers, actor=factories.build_administrator(acme).actor, kind="test"
    )
    assert first.problem is not None
    assert second.result == RESULT


def test_an_uptime_bar_says_in_words_how_often_the_server_failed() -> None:
    now = timezone.now()
    segments = [UptimeSegment(now, now, uptime) for uptime in (None, 100.0, 75.0, 0.0)]
    html = uptime_bar.render_uptime_bar(segments)
    assert "Server availability: failures in 2 of 3 checked periods" in html
    assert "not checked" in html


@pytest.mark.parametrize("action", ["approve_chosen", "disable_chosen", "remove_chosen"])
def test_the_button_of_a_confirmation_is_in_the_bar_pinned_to_the_bottom_of_its_form(
    acme: Organization, action: str
) -> None:
    servers = [admin_client.create_web_server(acme, f"web-{n}") for n in range(4)]
    for server in servers:
        admin_client.declare_tool(server, "forecast")
    page = run_action(admin_client.sign_in(acme, Role.OWNER), action, *servers)
    form = page[page.index(f'value="{action}"') : page.index("bb-save-bar")]
    # The bar sticks while its form is in sight, so that the form includes the panels.
    assert all(server.name in form for server in servers)
    assert "</form>" not in form
    bar = page[page.index("bb-save-bar") :].partition("</form>")[0]
    assert "<button" in bar
    assert "4 servers" in bar
