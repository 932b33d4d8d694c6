"""The policy pages: approval rules, conditions, the preview, and the organization's policy."""

import re

import pytest

from agents.admin import policies
from agents.models import Agent
from agents.policies.services import PolicySpec, RuleSpec, load_policy_spec, set_policy
from agents.services import attach_server
from bonobot.accounts.roles import Role
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.models import Server
from tests import admin_client, factories

pytestmark = pytest.mark.django_db

LARGE = RuleSpec("mcp_web_add", {"properties": {"a": {"minimum": 100}}, "required": ["a"]})


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def administrator(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def helper(acme, administrator):
    agent = factories.create_agent(acme, mode="none")
    server = admin_client.create_web_server(acme)
    admin_client.declare_tool(server, "add")
    admin_client.declare_tool(server, "echo")
    approve_definitions(administrator, server)
    attach_server(administrator, agent, server)
    return agent


@pytest.fixture
def owner(acme):
    return admin_client.sign_in(acme, Role.OWNER)


def get_form_fields(owner, agent):
    """Return the form's fields as a browser would submit them."""
    response = owner.client.get(admin_client.build_url("agents_agent_policy", agent.pk))
    draft = response.context["draft"]
    fields = {"mode": draft.mode, **{effect: text for effect, _, text in draft.patterns}}
    fields |= {f"rule-{row.tool.name}": row.rule for row in draft.tool_rules}
    return fields | {
        "when-effect": [row.effect for row in draft.conditions],
        "when-tool": [row.tool for row in draft.conditions],
        "when-schema": [row.when for row in draft.conditions],
    }


@pytest.mark.parametrize(
    "policy",
    [
        PolicySpec("denylist", ask=("mcp_web_add", "mcp_web_e*"), deny=(LARGE, "mcp_web_echo")),
        PolicySpec(
            "all", allow=("mcp_web_add",), ask=("mcp_web_add", LARGE), deny=("mcp_web_add",)
        ),
        PolicySpec("allowlist", allow=("*", LARGE), ask=("mcp_*",), deny=("read_result",)),
    ],
)
def test_saving_the_shown_policy_changes_nothing(helper, administrator, owner, policy):
    set_policy(administrator, helper, policy)
    owner.get("agents_agent_policy", helper.pk)  # creates the tools' names
    before = load_policy_spec(helper)
    owner.post("agents_agent_policy", helper.pk, **get_form_fields(owner, helper))
    after = load_policy_spec(Agent.objects.get())
    assert after.mode == before.mode
    for effect in ("allow", "ask", "deny"):
        assert sorted(map(str, after.get_entries(effect))) == sorted(
            map(str, before.get_entries(effect))
        )


def test_an_ask_rule_and_a_condition_are_entered_in_the_form(helper, owner):
    fields = {
        "mode": "all",
        "rule-mcp_web_echo": "ask",
        "ask": "mcp_web_e*",
        "when-effect": ["deny", "ask", "allow"],
        "when-tool": ["mcp_web_add", "", "read_result"],
        "when-schema": ['{"required": ["a"]}', "", ""],
    }
    page = admin_client.get_text(owner.post("agents_agent_policy", helper.pk, **fields))
    policy = load_policy_spec(Agent.objects.get())
    assert set(policy.ask) == {"mcp_web_echo", "mcp_web_e*"}
    assert policy.deny == (RuleSpec("mcp_web_add", {"required": ["a"]}),)
    assert policy.allow == ("read_result",)
    assert "1 with approval" in page


@pytest.mark.parametrize("schema", ["{", "[]", '{"$ref": "#"}'])
def test_an_invalid_condition_is_refused_and_kept_in_the_form(helper, owner, schema):
    fields = {
        "mode": "all",
        "when-effect": "ask",
        "when-tool": "mcp_web_add",
        "when-schema": schema,
    }
    page = owner.post("agents_agent_policy", helper.pk, status=400, **fields)
    assert "unusable_condition" in page
    assert 'value="mcp_web_add"' in page
    assert load_policy_spec(helper).mode == "none"


def test_the_effective_policy_is_previewed_before_saving(helper, owner):
    owner.get("agents_agent_policy", helper.pk)
    fields = {"mode": "allowlist", "rule-mcp_web_add": "ask", "rule-mcp_web_echo": "allow"}
    page = owner.post("agents_agent_policy_preview", helper.pk, **fields)
    assert page.index("requires approval") < page.index("now-mcp_web_echo")
    assert "allowed" in page
    assert load_policy_spec(helper).mode == "none"


def test_many_tools_are_grouped_and_managed_by_group(
    acme, helper, administrator, owner, monkeypatch
):
    monkeypatch.setattr(policies, "PAGE_SIZE", 1)
    helper.builtin_tools = {"filesystem": {}}
    helper.save()
    page = owner.get("agents_agent_policy", helper.pk)
    group = f"all-{Server.objects.get().pk}"
    assert f'name="{group}"' in page
    assert "rule-mcp_web_add" not in page, "rows are loaded when the group is opened"
    rows = owner.get("agents_agent_policy_rows", helper.pk, group="builtin")
    assert rows.count("<tr data-find-item") == 1
    assert "page=2" in rows
    fields = {"mode": "all", group: "deny", "rule-mcp_web_echo": "ask", "deny": "read_result"}
    owner.post("agents_agent_policy", helper.pk, **fields)
    policy = load_policy_spec(Agent.objects.get())
    assert set(policy.deny) == {"mcp_web_add", "read_result"}
    assert policy.ask == ("mcp_web_echo",)
    results = owner.send(
        admin_client.build_url("agents_agent_policy", helper.pk) + "?q=mcp_web_add",
        {"mode": "all", group: "none"},
    )
    assert "rule-mcp_web_add" in results
    assert "rule-mcp_web_echo" not in results
    assert load_policy_spec(Agent.objects.get()).ask == ("mcp_web_echo",)
    assert "mcp_web_add" not in load_policy_spec(Agent.objects.get()).deny


@pytest.mark.parametrize(
    ("page", "effects"),
    [
        ("organization_policy", "A rule denies or asks about a tool"),
        ("organization_policy_defaults", "A rule allows a tool"),
    ],
)
def test_a_policy_without_rules_names_the_effects_that_they_can_have(owner, page, effects):
    assert effects in owner.get(page)


def test_defaults_have_the_mode_and_allow_rules_and_rules_have_the_others(acme, helper, owner):
    fields = {"mode": "allowlist", "deny": "mcp_web_add", "allow": "mcp_web_echo"}
    page = owner.post("organization_policy_defaults", **fields)
    assert "Only tools that a rule below allows." in page
    assert 'data-rule-row="mcp_web_echo' in page
    assert 'data-rule-row="mcp_web_add' not in page
    text = admin_client.get_text(page)
    assert re.search(r"Deny 1 \w+ Ask 0 \w+ Allow 1 Decisions about calls without", text)
    rules = owner.get("organization_policy")
    assert 'data-rule-row="mcp_web_add' in rules
    assert 'data-rule-row="mcp_web_echo' not in rules
    assert '<input type="hidden" name="mode" value="allowlist">' in rules
    assert load_policy_spec(acme).allow == ("mcp_web_echo",)


def test_the_organizations_policy_applies_to_every_agent(acme, helper, administrator, owner):
    set_policy(administrator, helper, PolicySpec("all"))
    owner.post("organization_policy", mode="all", deny="mcp_web_echo")
    assert load_policy_spec(acme) == PolicySpec("all", deny=("mcp_web_echo",))
    assert "denied_by_organization" in owner.get("agents_agent_policy", helper.pk)
    page = owner.post("organization_policy", status=400, mode="all", deny="mcp_nowhere_x")
    assert "rule_unknown_server" in page
    assert "mcp_nowhere_x</textarea>" in page


def test_other_roles_can_view_the_organizations_policy(acme):
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    page = auditor.get("organization_policy")
    assert "Save changes" not in page
    assert "Can be changed by: owner" in admin_client.get_text(page)
    auditor.post("organization_policy", status=403, mode="none")
    assert load_policy_spec(acme) == PolicySpec("all")


def test_the_chat_explains_why_an_agent_has_no_tools(acme, helper, owner):
    reason = f"{helper.name} can't call any tool yet. All 2 tools are set to Deny."
    remedy = "An operator or owner can choose tools on the agent's Tools tab."
    for name in ("agents_agent_policy", "agents_agent_change"):
        page = admin_client.get_text(owner.get(name, helper.pk))
        assert f"{reason} Choose tools" in page
        assert remedy not in page
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    page = admin_client.get_text(auditor.get("agents_agent_policy", helper.pk))
    assert f"{reason} {remedy}" in page
    assert "Choose tools" not in page


def test_a_policy_is_simulated_on_past_calls_before_saving(owner, helper) -> None:
    before = load_policy_spec(helper)
    fields = get_form_fields(owner, helper) | {"mode": "denylist", "do": "simulate"}
    page = admin_client.get_text(owner.post("agents_agent_policy", helper.pk, **fields))
    assert "Simulation results" in page
    assert "Not saved yet." in page
    helper.refresh_from_db()
    assert load_policy_spec(helper) == before
    assert 'value="denylist" checked' in owner.post("agents_agent_policy", helper.pk, **fields)


def test_the_configuration_shows_the_tokens_at_the_start_of_a_turn(owner, helper) -> None:
    Agent.objects.filter(pk=helper.pk).update(instructions="x" * 400)
    page = owner.get("agents_agent_configuration", helper.pk)
    assert 'data-tokens-of="id_instructions">100<' in page
    assert "A turn starts with about" in page
    assert "for the system prompt, which includes the instructions" in admin_client.get_text(page)
