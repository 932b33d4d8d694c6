"""The matrix of an agent's tools: what it shows, saves and refuses."""

import re
from typing import Any

import pytest
from django.utils import timezone

from agents.agent_tools.services import save_settings
from agents.agent_tools.settings import Setting, ToolKey
from agents.calls.snapshots import get_snapshot_cache
from agents.models import Agent, AgentServer
from agents.policies.services import PolicySpec, load_policy_spec, set_policy
from agents.services import attach_server
from bonobot.accounts.admin_base.form_versions import VERSION_FIELD, parse_forms
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.flow_labels.effective_labels import set_labels
from mcp_servers.models import Server
from tests import admin_client, factories

pytestmark = pytest.mark.django_db
TOKEN = re.compile(rf'name="{VERSION_FIELD}" value="([^"]*)"')


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def administrator(acme: Organization) -> Principal:
    return factories.build_administrator(acme)


@pytest.fixture
def server(acme: Organization, administrator: Principal) -> Server:
    server = admin_client.create_web_server(acme)
    for name in ("add", "echo"):
        admin_client.declare_tool(server, name, annotations={"readOnlyHint": True})
    approve_definitions(administrator, server)
    admin_client.declare_tool(server, "new")
    return server


@pytest.fixture
def helper(acme: Organization, administrator: Principal, server: Server) -> Agent:
    agent = factories.create_agent(acme, mode="none")
    attach_server(administrator, agent, server)
    return agent


@pytest.fixture
def operator(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OPERATOR)


def read_form(page: str, agent: Agent) -> dict[str, Any]:
    """Return what a browser posts for the matrix as it was opened."""
    path = admin_client.build_url("agents_agent_servers", agent.pk)
    [form] = [form for form in parse_forms(page, path) if "tool-mcp_web_add" in form.controls]
    token = TOKEN.search(page, form.insert_at - 5_000)
    assert token
    return {name: control.values for name, control in form.controls.items()} | {
        VERSION_FIELD: token[1]
    }


def decide(agent: Agent, *names: str) -> list[str]:
    snapshot = get_snapshot_cache().load_current("agent", agent.pk)
    return [snapshot.tools[f"mcp_web_{name}"].decision.verdict for name in names]


def test_the_tooltip_of_a_label_says_why_the_tool_has_it(
    administrator: Principal, server: Server, helper: Agent, operator: admin_client.AdminClient
) -> None:
    row = server.definitions.get(name="echo")
    set_labels(administrator, server, [row], ["sends_out"])
    page = operator.get("agents_agent_servers", helper.pk)
    for tooltip in (
        "Read-only: declared by the server",
        "External effect: set by a person in your organization",
        "Private data: from the server&#x27;s preset, or suggested from the definition",
        "Read-only: defined by Bonobot",
    ):
        assert f'title="{tooltip}"' in page
    assert "/docs/flow-labels#sources-of-labels" in page


def test_tools_of_disabled_toolsets_are_counted_instead_of_listed(
    helper: Agent, operator: admin_client.AdminClient
) -> None:
    page = operator.get("agents_agent_servers", helper.pk)
    assert "run_shell" not in page
    assert "21 more in disabled toolsets" in admin_client.get_text(page)
    assert "No servers attached" not in page


def test_an_agent_can_be_disabled_from_its_tools(
    helper: Agent, operator: admin_client.AdminClient
) -> None:
    page = operator.get("agents_agent_servers", helper.pk)
    switch = page[page.index('class="bb-switch"') :].split(">")[0]
    assert 'aria-checked="true"' in switch
    assert "disabled" not in switch


def test_an_agent_without_servers_is_offered_some(
    acme: Organization, server: Server, operator: admin_client.AdminClient
) -> None:
    page = operator.get("agents_agent_servers", factories.create_agent(acme).pk)
    text = admin_client.get_text(page)
    assert "No servers attached Attach a server so that this agent can call its tools." in text
    assert page.count('class="bb-menu bb-attach-menu"') == 1


def test_servers_whose_tools_are_known_are_offered_first(
    acme: Organization, server: Server, operator: admin_client.AdminClient
) -> None:
    admin_client.create_web_server(acme, "another")
    page = admin_client.get_text(
        operator.get("agents_agent_servers", factories.create_agent(acme).pk)
    )
    assert page.index("another") < page.index(server.name, page.index("Attach server"))
    Server.objects.filter(pk=server.pk).update(discovered_at=timezone.now())
    Server.objects.exclude(pk=server.pk).update(
        discovered_at=None, status="error", status_code="server_unreachable"
    )
    page = admin_client.get_text(
        operator.get("agents_agent_servers", factories.create_agent(acme, "second").pk)
    )
    assert page.index("another") > page.index(server.name, page.index("Attach server"))
    assert "another Couldn't connect" in page


def test_a_tool_that_is_allowed_can_be_called_at_once(
    helper: Agent, operator: admin_client.AdminClient
) -> None:
    fields = read_form(operator.get("agents_agent_servers", helper.pk), helper)
    fields |= {"tool-mcp_web_add": "allow", "tool-mcp_web_echo": "ask", "tool-read_result": "allow"}
    page = operator.post("agents_agent_servers", helper.pk, **fields)
    assert operator.messages[0].startswith("Saved. Effective immediately.")
    assert decide(helper, "add", "echo", "new") == ["allow", "ask", "deny"]
    assert load_policy_spec(helper) == PolicySpec(
        "allowlist", allow=("read_result", "mcp_web_add"), ask=("mcp_web_echo",)
    )
    assert 'data-part="decision-mcp_web_add"' in page


def test_saved_settings_and_selected_tools_can_be_undone(
    helper: Agent, server: Server, administrator: Principal, operator: admin_client.AdminClient
) -> None:
    attach_server(administrator, helper, server, allowed_tools=["echo"], denied_tools=["new"])
    page = operator.post("agents_agent_servers", helper.pk, **{"tool-mcp_web_add": "allow"})
    assert helper.agent_servers.get().allowed_tools == ["echo", "add"]
    (replaced,) = re.findall(r'name="replaced" value="([^"]+)"', page)
    operator.post("agents_agent_restore_policy", helper.pk, replaced=replaced)
    attached_server = helper.agent_servers.get()
    assert attached_server.allowed_tools == ["echo"]
    assert attached_server.denied_tools == ["new"]
    assert load_policy_spec(helper) == PolicySpec("none")
    operator.post("agents_agent_restore_policy", helper.pk, replaced=replaced)
    assert "The policy changed since then." in operator.messages[0]


def test_a_servers_default_holds_for_its_other_tools_and_is_shown_as_inherited(
    helper: Agent, server: Server, operator: admin_client.AdminClient
) -> None:
    fields = {f"default-{server.pk}": "ask", "tool-mcp_web_add": "allow", "tool-mcp_web_echo": ""}
    page = operator.post("agents_agent_servers", helper.pk, **fields)
    assert decide(helper, "add", "echo") == ["allow", "ask"]
    assert load_policy_spec(helper).ask == ("mcp_web:default",)
    assert 'aria-label="echo" data-inherited="ask"' in re.sub(r"\s+", " ", page)
    text = admin_client.get_text(page)
    assert "1 allow 1 ask 1 deny" in text
    assert "Inherited" in text


def test_each_inherited_value_names_and_links_its_source(
    helper: Agent, administrator: Principal, operator: admin_client.AdminClient
) -> None:
    set_policy(administrator, helper, PolicySpec("allowlist", allow=("mcp_web_e*",)))
    page = operator.get("agents_agent_servers", helper.pk)
    policy_url = admin_client.build_url("agents_agent_policy", helper.pk)
    assert f"{policy_url}?rule=e%2A" in admin_client.find_links(page, policy_url)
    assert policy_url in admin_client.find_links(page, policy_url)
    text = admin_client.get_text(page)
    assert "Rule: e*" in text
    # The mode is named once for each server, and rows only say that they inherit it.
    assert text.count("Mode: Allowlist") == page.count("data-group")
    assert text.count("Inherited") >= 2


def test_the_preview_shows_a_rule_of_the_organization_that_overrides_a_default(
    acme: Organization,
    helper: Agent,
    server: Server,
    administrator: Principal,
    operator: admin_client.AdminClient,
) -> None:
    set_policy(administrator, acme, PolicySpec("all", deny=("mcp_web_add",)))
    fields = read_form(operator.get("agents_agent_servers", helper.pk), helper)
    text = admin_client.get_text(operator.post("agents_agent_tools_preview", helper.pk, **fields))
    assert "Organization overrides" not in text
    fields |= {f"default-{server.pk}": "allow"}
    text = admin_client.get_text(operator.post("agents_agent_tools_preview", helper.pk, **fields))
    assert "Organization overrides 1 tool" in text
    assert "Organization denies it" in text


def test_a_tool_that_isnt_selected_differs_from_a_tool_that_a_policy_denies(
    helper: Agent, server: Server, administrator: Principal, operator: admin_client.AdminClient
) -> None:
    attach_server(administrator, helper, server, allowed_tools=["echo", "new"])
    page = operator.get("agents_agent_servers", helper.pk)
    add, echo = (
        page.split(f'data-part="decision-mcp_web_{name}"', 1)[1].split("</td>", 1)[0]
        for name in ("add", "echo")
    )
    assert "Not selected" in add
    assert "Deny" not in add
    assert "Deny" in echo
    assert "Not selected" not in echo
    # The switch has the word of the decision, and a legend explains both.
    assert 'value="deny"' in page
    assert ">Off" not in re.sub(r"\s+", "", page)
    assert "The tool isn't selected for this agent." in page
    attach_server(administrator, helper, server)
    assert "Not selected" not in operator.get("agents_agent_servers", helper.pk)


def test_an_unreviewed_tool_links_to_its_review(
    helper: Agent, server: Server, operator: admin_client.AdminClient
) -> None:
    page = operator.post("agents_agent_servers", helper.pk, **{"tool-mcp_web_new": "allow"})
    review_url = admin_client.build_url("mcp_servers_server_tools", server.pk) + "?q=new"
    assert review_url in admin_client.find_links(page, review_url)


def test_the_policy_that_overrides_a_setting_is_named(
    acme: Organization,
    helper: Agent,
    administrator: Principal,
    operator: admin_client.AdminClient,
) -> None:
    set_policy(administrator, acme, PolicySpec("all", deny=("mcp_web_add",)))
    set_policy(administrator, helper, PolicySpec("allowlist", ask=("mcp_web_e*",)))
    fields = {"tool-mcp_web_add": "allow", "tool-mcp_web_echo": "allow"}
    text = admin_client.get_text(operator.post("agents_agent_servers", helper.pk, **fields))
    assert "Deny Organization policy" in text
    assert "Organization denies it" in text
    assert "A pattern asks" in text
    assert "Ask e*" in text
    assert load_policy_spec(helper).ask == ("mcp_web_e*",)


def test_the_preview_decides_like_the_saved_settings(
    helper: Agent, operator: admin_client.AdminClient
) -> None:
    fields = read_form(operator.get("agents_agent_servers", helper.pk), helper)
    fields |= {"tool-mcp_web_add": "ask"}
    preview = operator.post("agents_agent_tools_preview", helper.pk, **fields)
    assert decide(helper, "add") == ["deny"]
    cell = re.search(r'decision-mcp_web_add"\s+data-state="(\w+)"', preview)
    assert cell
    assert cell[1] == "ask"


def test_a_second_save_never_removes_a_deny_and_shows_who_changed_what(
    acme: Organization, helper: Agent, operator: admin_client.AdminClient
) -> None:
    set_policy(factories.build_administrator(acme), helper, PolicySpec("all"))
    fields = read_form(operator.get("agents_agent_servers", helper.pk), helper)
    mara = factories.create_member(acme, Role.OPERATOR, "mara")
    server_id = helper.agent_servers.get().server_id
    save_settings(mara, helper, {ToolKey("mcp", server_id, "add"): Setting.DENY}, {})
    fields |= {"tool-mcp_web_add": "allow", "tool-mcp_web_echo": "ask"}
    page = operator.post("agents_agent_servers", helper.pk, status=409, **fields)
    assert decide(helper, "add", "echo") == ["deny", "allow"]
    text = admin_client.get_text(page)
    assert "mara changed 1 setting in the meantime" in text
    assert "add: deny (you entered: allow)" in text  # once, in the bar at the bottom
    assert operator.messages == []
    merged = read_form(page, helper)
    assert (merged["tool-mcp_web_add"], merged["tool-mcp_web_echo"]) == (["deny"], ["ask"])
    operator.post("agents_agent_servers", helper.pk, **merged)
    assert decide(helper, "add", "echo") == ["deny", "ask"]


def test_an_own_deny_stays_in_the_form_if_someone_else_allows_more_in_the_meantime(
    acme: Organization, helper: Agent, operator: admin_client.AdminClient
) -> None:
    fields = read_form(operator.get("agents_agent_servers", helper.pk), helper)
    mara = factories.create_member(acme, Role.OPERATOR, "mara")
    server_id = helper.agent_servers.get().server_id
    save_settings(mara, helper, {ToolKey("mcp", server_id, "add"): Setting.ALLOW}, {})
    fields |= {"tool-mcp_web_add": "deny"}
    page = operator.post("agents_agent_servers", helper.pk, status=409, **fields)
    assert decide(helper, "add") == ["allow"], "nothing is saved"
    assert read_form(page, helper)["tool-mcp_web_add"] == ["deny"]
    assert 'data-saved="[&quot;allow&quot;]"' in page


def test_a_conflict_about_the_only_change_shows_the_whole_page_with_the_saved_values(
    acme: Organization, helper: Agent, operator: admin_client.AdminClient
) -> None:
    fields = read_form(operator.get("agents_agent_servers", helper.pk), helper)
    mara = factories.create_member(acme, Role.OPERATOR, "mara")
    server_id = helper.agent_servers.get().server_id
    save_settings(mara, helper, {ToolKey("mcp", server_id, "add"): Setting.ASK}, {})
    fields |= {"tool-mcp_web_add": "allow"}
    page = operator.post("agents_agent_servers", helper.pk, status=409, **fields)
    assert "agent-tools.css" in page
    assert "bb-sidebar" in page or 'id="nav-sidebar"' in page
    assert read_form(page, helper)["tool-mcp_web_add"] == ["ask"]
    assert 'data-field-name="tool-mcp_web_add"' in page  # beside the setting, with the own value
    assert 'data-own="[&quot;allow&quot;]"' in page
    assert page.count("Not saved.") == 1
    assert "Your other changes" not in page
    assert "The form shows the current values." in page


def test_an_unknown_setting_is_refused(helper: Agent, operator: admin_client.AdminClient) -> None:
    page = operator.post(
        "agents_agent_servers", helper.pk, status=400, **{"tool-mcp_web_add": "maybe"}
    )
    assert "maybe" in page


def test_servers_are_attached_on_the_same_screen(
    acme: Organization, helper: Agent, server: Server, operator: admin_client.AdminClient
) -> None:
    other_server = admin_client.create_web_server(acme, "other")
    assert "other" in admin_client.get_text(operator.get("agents_agent_servers", helper.pk))
    operator.post("agents_agent_attach_selected", helper.pk, server=str(other_server.pk))
    assert helper.agent_servers.count() == 2
    foreign = admin_client.create_web_server(factories.create_organization("foreign"))
    for server_id in (foreign.pk, server.pk):
        operator.post("agents_agent_attach_selected", helper.pk, status=404, server=str(server_id))
    assert AgentServer.objects.count() == 2


def test_a_reviewer_sees_the_settings_and_cant_change_them(
    acme: Organization, helper: Agent
) -> None:
    reviewer = admin_client.sign_in(acme, Role.REVIEWER)
    page = reviewer.get("agents_agent_servers", helper.pk)
    assert "Save changes" not in page
    assert "Attach server" not in page
    assert 'type="radio"' not in page
    assert "Deny Policy mode: none" in admin_client.get_text(page)
    reviewer.post("agents_agent_servers", helper.pk, status=403, **{"tool-mcp_web_add": "allow"})
    assert load_policy_spec(helper) == PolicySpec("none")


def test_a_change_is_recorded_once_and_nothing_without_a_change(
    helper: Agent, operator: admin_client.AdminClient
) -> None:
    fields = read_form(operator.get("agents_agent_servers", helper.pk), helper)
    entries = AuditRow.objects.filter(event_type="change", resource_id=str(helper.pk))
    count = entries.count()
    operator.post("agents_agent_servers", helper.pk, **fields)
    assert entries.count() == count
    operator.post("agents_agent_servers", helper.pk, **{"tool-mcp_web_add": "deny"})
    assert entries.count() == count + 1


def test_the_matrix_uses_the_same_queries_for_any_number_of_tools(
    acme: Organization,
    helper: Agent,
    administrator: Principal,
    operator: admin_client.AdminClient,
    django_assert_max_num_queries: Any,
) -> None:
    for number in range(3):
        more = admin_client.create_web_server(acme, f"more{number}")
        for tool in range(20):
            admin_client.declare_tool(more, f"tool{tool}")
        attach_server(administrator, helper, more)
    operator.get("agents_agent_servers", helper.pk)
    with django_assert_max_num_queries(28):
        page = operator.get("agents_agent_servers", helper.pk)
    assert "mcp_more2_tool19" in page
