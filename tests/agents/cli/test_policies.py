"""`bonobot agents policy` and `bonobot agents explain`."""

import pytest

from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_policy_shows_the_allowed_tools(bonobot, time_server):
    result = bonobot(
        "agents",
        "policy",
        "helper",
        "--mode",
        "allowlist",
        "--allow",
        "mcp_time_convert_time",
        "--json",
    )
    allowed = {tool["name"] for tool in result.json["tools"] if tool["allowed"]}
    assert allowed == {"mcp_time_convert_time"}
    assert {"mcp_time_get_current_time", "read_result"} <= {
        tool_row["name"] for tool_row in result.json["tools"]
    }


def test_the_help_of_a_policy_says_that_a_list_is_replaced(bonobot, agent, capsys):
    bonobot("agents", "policy", "helper", "--mode", "allowlist", "--allow", "read_result")
    result = bonobot("agents", "policy", "helper", "--allow", "list_skills", "--json")
    assert result.json["allow"] == ["list_skills"]
    bonobot("agents", "policy", "--help")
    help_text = " ".join(capsys.readouterr().out.split())
    assert "--allow TOOL Tool to allow: name, glob, or JSON rule" in help_text
    assert "Repeatable; replaces the current list" in help_text


def test_a_rule_without_a_server_is_refused_with_its_position(bonobot, time_server):
    result = bonobot("agents", "policy", "helper", "--allow", "mcp_nothing_*", "--json")
    assert (result.status, result.error["field"]) == (1, "allow[0]")


def test_explain_names_the_first_denying_stage(bonobot, time_server):
    explanation = bonobot("agents", "explain", "helper", "mcp_time_convert_time", "--json").json
    assert (explanation["allowed"], explanation["code"]) == (False, "denied_by_policy")
    assert [stage["stage"] for stage in explanation["stages"] if not stage["allows"]] == [
        explanation["first"]
    ]


def test_the_organizations_policy_is_shown_and_updated(bonobot, acme):
    rule = '{"tool": "read_result", "when": {"required": ["id"]}}'
    result = bonobot(
        "agents", "policy", "--organization", "--ask", rule, "--deny", "mcp_*", "--json"
    )
    ask_rule = {"tool": "read_result", "when": {"required": ["id"]}}
    policy = {"mode": "all", "allow": [], "ask": [ask_rule], "deny": ["mcp_*"]}
    assert result.json == {**policy, "draft": None}
    assert "deny mcp_*" in bonobot("agents", "policy", "--organization").out
    invalid = bonobot("agents", "policy", "--organization", "--ask", '{"tool": 1}', "--json")
    assert invalid.error["code"] == "invalid"


@pytest.mark.parametrize("owner", ["--organization", "helper"])
def test_a_rule_for_a_tool_that_doesnt_exist_is_a_warning(bonobot, acme, owner):
    factories.create_agent(acme, "helper")
    ran = bonobot("agents", "policy", owner, "--mode", "denylist", "--deny", "reed_result")
    warning = "! There is no tool `reed_result`. Its rule has no effect yet."
    assert (ran.status, ran.err.strip()) == (0, warning)
