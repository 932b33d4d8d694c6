"""The policy form: one table of MCP and built-in tools, with single rules and patterns."""

import re
from dataclasses import replace
from typing import Any

import pytest

from agents.admin import policies
from agents.agent_tools.restore_policy import save_policy
from agents.builtin_tools.registry import BUILTIN_TOOLS
from agents.models import Agent
from agents.policies.services import PolicySpec, load_policy_spec, set_policy
from agents.services import attach_server
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from mcp_servers.definition_reviews import approve_definitions
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    agent, administrator = (
        factories.create_agent(acme, mode="none"),
        factories.build_administrator(acme),
    )
    server = admin_client.create_web_server(acme)
    admin_client.declare_tool(server, "add")
    admin_client.declare_tool(server, "echo")
    approve_definitions(administrator, server)
    attach_server(administrator, agent, server)
    return agent


@pytest.fixture
def operator(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OPERATOR)


def test_mcp_and_built_in_tools_are_in_one_table_with_the_reason(
    helper: Agent, operator: admin_client.AdminClient
) -> None:
    page = admin_client.get_text(operator.get("agents_agent_policy", helper.pk))
    assert "mcp_web_add" in page
    assert "read_result" in page
    assert "blocks every tool, including" in page


def test_single_tools_and_patterns_become_rules(
    helper: Agent, operator: admin_client.AdminClient
) -> None:
    fields = {
        "mode": "allowlist",
        "rule-mcp_web_add": "allow",
        "rule-mcp_web_echo": "deny",
        "allow": "mcp_web_*\n\n",
        "deny": "",
    }
    page = admin_client.get_text(operator.post("agents_agent_policy", helper.pk, **fields))
    policy = load_policy_spec(Agent.objects.get())
    assert policy.mode == "allowlist"
    assert set(policy.allow) == {"mcp_web_add", "mcp_web_*"}
    assert policy.deny == ("mcp_web_echo",)
    shown_tools = [
        tool
        for tool in BUILTIN_TOOLS.values()
        if not (tool.toolset or tool.needs_resources or tool.needs_skills or tool.needs_many_tools)
    ]
    assert f"1 of {2 + len(shown_tools)} can be called now" in page  # 2 tools of the server


def test_the_saved_policy_is_shown(
    acme: Organization, helper: Agent, operator: admin_client.AdminClient
) -> None:
    operator.get("agents_agent_policy", helper.pk)  # creates the tools' names
    rules = PolicySpec("denylist", deny=("mcp_web_add", "mcp_web_e*"))
    set_policy(factories.build_administrator(acme), helper, rules)
    page = operator.get("agents_agent_policy", helper.pk)
    assert 'name="rule-mcp_web_add" value="deny" checked' in page
    assert ">mcp_web_e*</textarea>" in page


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"mode": "perhaps"}, "unknown_mode"),
        ({"mode": "allowlist", "allow": "mcp_nowhere_*"}, "rule_unknown_server"),
    ],
)
def test_an_invalid_policy_is_refused_and_kept_in_the_form(
    helper: Agent, operator: admin_client.AdminClient, fields: dict[str, str], code: str
) -> None:
    page = operator.post("agents_agent_policy", helper.pk, status=400, **fields)
    assert code in page
    assert fields.get("allow", "") in page
    assert load_policy_spec(helper).mode == "none"


def test_a_reviewer_can_view_but_not_change_the_policy(acme: Organization, helper: Agent) -> None:
    reviewer = admin_client.sign_in(acme, Role.REVIEWER)
    assert "Save changes" not in reviewer.get("agents_agent_policy", helper.pk)
    reviewer.post("agents_agent_policy", helper.pk, status=403, mode="all")
    assert load_policy_spec(helper).mode == "none"


def test_a_saved_policy_can_be_undone(helper: Agent, operator: admin_client.AdminClient) -> None:
    page = operator.post("agents_agent_policy", helper.pk, mode="all", allow="", deny="")
    assert load_policy_spec(helper).mode == "all"
    (replaced,) = re.findall(r'name="replaced" value="([^"]+)"', page)
    operator.post("agents_agent_restore_policy", helper.pk, replaced=replaced)
    assert load_policy_spec(helper).mode == "none"


def test_a_deny_made_during_a_save_survives_the_save_and_its_undo(
    helper: Agent, operator: admin_client.AdminClient, acme: Organization, monkeypatch: Any
) -> None:
    denied = PolicySpec("allowlist", deny=("mcp_web_echo",))

    def save_after_another(*args: Any) -> Any:
        set_policy(factories.build_administrator(acme), helper, denied)
        return save_policy(*args)

    monkeypatch.setattr(policies, "save_policy", save_after_another)
    fields = {"mode": "allowlist", "rule-mcp_web_add": "allow", "allow": "", "deny": ""}
    page = operator.post("agents_agent_policy", helper.pk, **fields)
    assert load_policy_spec(helper) == replace(denied, allow=("mcp_web_add",))
    (replaced,) = re.findall(r'name="replaced" value="([^"]+)"', page)
    operator.post("agents_agent_restore_policy", helper.pk, replaced=replaced)
    assert load_policy_spec(helper) == denied


def test_saved_rules_of_the_organization_can_be_undone(acme: Organization) -> None:
    owner = admin_client.sign_in(acme, Role.OWNER)
    page = owner.post("organization_policy", mode="all", deny="read_result", allow="")
    (replaced,) = re.findall(r'name="replaced" value="([^"]+)"', page)
    owner.post("organization_restore_policy", replaced=replaced)
    assert load_policy_spec(acme) == PolicySpec("all")
