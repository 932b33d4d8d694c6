"""The editor of a policy: rules by effect, what they match, and what changes decide."""

import json
import re

import pytest

from agents.admin.affected_agents import count_agent_decisions, list_agents
from agents.admin.policy_editor import (
    build_policy_editor,
    build_stored_policy,
    load_organization_scope,
    load_scope,
)
from agents.models import AgentServer
from agents.policies.services import PolicySpec, RuleSpec, load_policy_spec, set_policy
from agents.services import attach_server
from bonobot.accounts.roles import Role
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.definition_reviews import approve_definitions
from tests import admin_client, factories
from tests.agents.audit_history import history

pytestmark = pytest.mark.django_db(transaction=True)
LARGE = {"properties": {"a": {"minimum": 20_000}}, "required": ["a"]}


@pytest.fixture
def acme():
    yield factories.create_organization()
    get_writer().close()


@pytest.fixture
def administrator(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def server(acme, administrator):
    new_server = admin_client.create_web_server(acme)
    for name in ("add", "drop_one", "drop_two"):
        admin_client.declare_tool(new_server, name)
    approve_definitions(administrator, new_server)
    return new_server


@pytest.fixture
def helper(acme, administrator, server):
    agent = factories.create_agent(acme)
    attach_server(administrator, agent, server)
    admin_client.sign_in(acme, Role.OWNER).get("agents_agent_policy", agent.pk)  # names the tools
    return agent


def list_rows(editor):
    return [
        (rule.effect, rule.tool, rule.state, str(rule.was), rule.matches)
        for group in editor.groups
        for rule in group.rules
    ]


def test_rules_are_grouped_by_effect_with_their_matches_and_calls(helper, server):
    history(helper, 3, server, "drop_one")
    spec = PolicySpec(
        "all",
        deny=("mcp_web_drop_*",),
        ask=(RuleSpec("mcp_web_add", LARGE),),
        allow=("mcp_web:default",),
    )
    editor = build_policy_editor(load_scope(helper), spec, spec)
    assert list_rows(editor) == [
        ("deny", "mcp_web_drop_*", "", "", 2),
        ("ask", "mcp_web_add", "", "", 1),
        ("allow", "mcp_web:default", "", "", 0),
    ]
    deny, ask, allow = (group.rules[0] for group in editor.groups)
    assert (deny.calls, deny.pattern, deny.server_name) == (3, "drop_*", "web")
    assert ask.words == "a ≥ 20,000"
    assert allow.is_default
    assert editor.changes == editor.changed_tools == ()
    assert editor.counts["deny"] == 2


def test_changes_say_what_they_decide(helper, server):
    history(helper, 2, server, "drop_two")
    stored = PolicySpec("all", ask=("mcp_web_add", "mcp_web_drop_one"))
    draft = PolicySpec("denylist", deny=("mcp_web_drop_*",), ask=(RuleSpec("mcp_web_add", LARGE),))
    editor = build_policy_editor(load_scope(helper), stored, draft)
    assert list_rows(editor) == [
        ("deny", "mcp_web_drop_*", "new", "", 2),
        ("ask", "mcp_web_add", "changed", "always", 1),
        ("ask", "mcp_web_drop_one", "removed", "", 1),
    ]
    assert editor.changes == (
        "mode: All to Denylist",
        "add web: was always",
        "drop_* web: new deny",
        "drop_one web: ask removed",
    )
    assert [(tool.name, tool.before, tool.after, tool.calls) for tool in editor.changed_tools] == [
        ("drop_two", "allow", "deny", 2),
        ("add", "ask", "allow", 0),
        ("drop_one", "ask", "deny", 0),
    ]
    assert (editor.newly["deny"], editor.newly["allow"], editor.changed_calls) == (2, 1, 2)


def test_an_invalid_rule_is_marked_and_changes_nothing(helper):
    stored, draft = PolicySpec("all"), PolicySpec("all", deny=("mcp_nowhere_*", "mcp_web_add"))
    editor = build_policy_editor(load_scope(helper), stored, draft)
    problems = {rule.tool: rule.problem for rule in editor.groups[0].rules}
    assert problems["mcp_nowhere_*"].code == "rule_unknown_server"
    assert problems["mcp_web_add"] is None
    assert editor.problem
    assert editor.changed_tools == ()


def test_only_deny_and_ask_rules_of_the_organization_count_for_agents(acme, server):
    stored, draft = PolicySpec("none"), PolicySpec("none", deny=("mcp_web_drop_*",))
    editor = build_policy_editor(load_organization_scope(acme), stored, draft)
    assert editor.counts["deny"] == 2
    assert {tool.after for tool in editor.changed_tools} == {"deny"}


def test_the_preview_shows_rules_and_effect_and_saves_nothing(acme, helper):
    owner = admin_client.sign_in(acme, Role.OWNER, "olga")
    fields = {"mode": "all", "deny": "mcp_web_drop_*"}
    agent_page = owner.post("agents_agent_policy_preview", helper.pk, **fields)
    organization_page = owner.post("organization_policy_preview", **fields)
    for page in (agent_page, organization_page):
        assert 'data-part="policy-changes" data-count="1"' in page
        text = admin_client.get_text(page)
        assert "2 tools change their decision" in text
        assert "drop_* web: new deny" in text
    assert load_policy_spec(helper) == load_policy_spec(acme) == PolicySpec("all")


def count_decisions(organization):
    rows = count_agent_decisions(
        list(list_agents(organization.pk)),
        load_organization_scope(organization).tools,
        build_stored_policy(organization),
    )
    return {row.agent.pk: row for row in rows}


def test_the_preview_lists_the_agents_whose_effective_decisions_change(
    acme, helper, server, administrator
):
    factories.create_agent(acme, "Bystander")
    selective = factories.create_agent(acme, "Selective")
    AgentServer.objects.create(
        organization=acme, agent=selective, server=server, allowed_tools=["drop_one"]
    )
    owner = admin_client.sign_in(acme, Role.OWNER, "olga")
    for agent in (helper, selective):
        set_policy(administrator, agent, PolicySpec("all"))
    page = owner.post("organization_policy_preview", mode="all", deny="mcp_web_drop_*")
    text = admin_client.get_text(page)
    assert "2 agents are affected" in text
    assert f"{helper.name} 2 tools" in text
    assert "Selective 1 tool" in text
    assert "Bystander" not in text
    set_policy(administrator, selective, PolicySpec("none"))
    set_policy(administrator, helper, PolicySpec("denylist", deny=("mcp_web_drop_one",)))
    page = owner.post("organization_policy_preview", mode="all", deny="mcp_web_drop_*")
    text = admin_client.get_text(page)
    assert "1 agent is affected" in text
    assert f"{helper.name} 1 tool" in text, "its own policy denies the other one anyway"
    assert "Selective" not in text
    page = owner.post("organization_policy_preview", mode="all", deny="mcp_web_drop_one")
    assert "No agent is affected." in admin_client.get_text(page)
    text = admin_client.get_text(owner.post("organization_policy_preview", mode="none"))
    assert "affected" not in text


def test_agents_beyond_the_limit_of_decisions_are_listed_without_numbers(
    acme, helper, administrator, monkeypatch
):
    monkeypatch.setattr("agents.admin.affected_agents.MAX_DECISIONS", 1)
    set_policy(administrator, helper, PolicySpec("all"))
    owner = admin_client.sign_in(acme, Role.OWNER, "olga")
    page = owner.post("organization_policy_preview", mode="all", deny="mcp_web_drop_*")
    text = admin_client.get_text(page)
    assert "1 agent is affected" in text
    assert f"{helper.name} 2 tools" not in text


def test_the_page_of_agents_counts_what_the_rules_and_their_own_policies_decide(
    acme, helper, administrator
):
    rules = PolicySpec("all", deny=("mcp_web_drop_one",), ask=("mcp_web_add",))
    set_policy(administrator, acme, rules)
    set_policy(administrator, helper, PolicySpec("denylist", deny=("mcp_web_drop_two",)))
    row = count_decisions(acme)[helper.pk]
    assert (row.denied, row.needing_approval) == (2, 1)
    page = admin_client.sign_in(acme, Role.AUDITOR).get("organization_policy_agents")
    assert re.search(rf"Denylist {row.tools} 2 1", admin_client.get_text(page))


def test_an_auditor_sees_values_without_controls(acme, helper, administrator):
    set_policy(administrator, helper, PolicySpec("denylist", deny=("mcp_web_add",)))
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    page = auditor.get("agents_agent_policy", helper.pk)
    assert "<fieldset" not in page
    assert 'name="mode"' not in page
    assert "data-edit-rule" not in page
    text = admin_client.get_text(page)
    assert "Mode Denylist" in text
    assert "Deny 1 Calls are denied" in text


def test_the_pages_of_an_agent_and_of_the_organization_count_the_same_tools(acme, helper, server):
    agent_id = helper.pk
    owner = admin_client.sign_in(acme, Role.OWNER, "olga")
    tools_page = owner.get("agents_agent_servers", agent_id)
    (total,) = re.findall(r'<span data-n="(\d+)">', tools_page)
    denied = re.findall(r'data-filter-state="deny".*?<span>(\d+)</span>', tools_page, re.DOTALL)
    policy_text = admin_client.get_text(owner.get("agents_agent_policy", agent_id))
    assert f"of {total} can be called now" in policy_text
    assert f"Deny {denied[0]}" in policy_text
    assert 'data-filter-state="off"' not in tools_page
    row = count_decisions(acme)[agent_id]
    assert (row.tools, row.denied) == (int(total), int(denied[0]))


def test_the_organizations_rules_show_what_each_agents_policy_decides(acme, helper, server):
    owner = admin_client.sign_in(acme, Role.OWNER, "olga")
    page = owner.get("organization_policy")
    assert re.search(r'bb-primary"\s+data-edit-rule', page)  # in the note that there are no rules
    text = admin_client.get_text(page)
    assert "tools of servers and built-in tools" in text
    assert re.search(r"Per agent \d", text)
    defaults = admin_client.get_text(owner.get("organization_policy_defaults"))
    assert "tools of servers" in defaults
    assert "built-in tools" not in defaults
    preview_url = admin_client.build_url("organization_policy_preview") + "?section=rules"
    page = owner.send(preview_url, {"mode": "all", "deny": "mcp_web_drop_one"})
    assert "drop_one was decided per agent block Deny" in admin_client.get_text(page)
    page = owner.post("agents_agent_policy_preview", helper.pk, mode="all", deny="mcp_web_drop_one")
    assert "drop_one allow to block Deny" in admin_client.get_text(page)


def test_a_rule_can_be_about_each_server_its_tools_and_built_in_tools(acme, helper):
    for owner in (helper, acme):
        stored = load_policy_spec(owner)
        choices = json.loads(build_policy_editor(load_scope(owner), stored, stored).suggested_rules)
        tools = ["add", "drop_one", "drop_two"]
        assert choices[:4] == [
            {"rule": "mcp_web_*", "name": "", "server": "web"},
            *({"rule": f"mcp_web_{name}", "name": name, "server": "web"} for name in tools),
        ]
        assert {"rule": "read_result", "name": "read_result", "server": ""} in choices[4:]
        set_policy(
            factories.build_administrator(acme),
            owner,
            PolicySpec("all", deny=tuple(choice["rule"] for choice in choices)),
        )
