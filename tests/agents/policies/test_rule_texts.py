"""The sentences about rules."""

from uuid import uuid4

import pytest
from django.template import Context, Template
from django.utils import translation

from agents.models import ToolRule
from agents.policies.decisions import (
    AgentServerScope,
    EffectivePolicy,
    KillSwitches,
    ToolFacts,
    decide_tool_call,
    evaluate_tool_stages,
)
from agents.policies.rule_texts import build_rule_text, format_condition
from agents.policies.rules import Policy, Rule
from agents.templatetags.rule_texts import rule_title
from bonobot.core.i18n.localization import localize_text

SERVER = uuid4()
RULES = {
    "policy:allowlist:allow mcp:get_*": "A rule of the policy allows tools whose name matches "
    "`get_*`.",
    "policy:denylist:ask mcp:send_reply": "The tool `send_reply` is set to Ask for this agent.",
    "policy:denylist:ask mcp:send_*": "A rule of the policy requires approval for tools whose name "
    "matches `send_*`.",
    "policy:allowlist:deny mcp:default": "Tools of the server without their own setting are set to "
    "Deny for this agent.",
    "organization:ask mcp:create_refund when its condition holds": "A rule of the organization "
    "requires approval for calls of `create_refund` whose arguments meet its condition.",
    "organization:deny builtin:run_shell": "A rule of the organization denies the tool "
    "`run_shell`.",
    "policy:all": "The policy's mode is All: approved tools of attached servers are allowed.",
    "budget:0:agent:1:calls:day:2026-12-01": "The agent's budget of calls per day isn't enough.",
    "rate:0:agent:1": "The agent's rate limit applies.",
    "attachment:denied:drop_*": "Tools whose name matches `drop_*` aren't selected for this agent.",
    "builtin:files": "The toolset `files` must be enabled for this agent.",
    "role:view_audit": "The role must have permission to view the audit log and usage.",
    "scope:api": "The token must have the scope `api`.",
}


@pytest.mark.parametrize(("rule", "text"), RULES.items())
def test_a_rule_has_a_sentence(rule, text):
    assert build_rule_text(rule) == text
    with translation.override("de"):
        assert localize_text(build_rule_text(rule)) != text


def test_without_an_agent_a_rule_for_one_tool_is_one_of_the_organization():
    text = build_rule_text("policy:all:ask mcp:send_reply", of_agent=False)
    assert text == "A rule of the organization requires approval for the tool `send_reply`."


OF_SERVER = {
    "policy:all:deny mcp:git_reset": "The tool `git_reset` of the server `git` is set to Deny for "
    "this agent.",
    "policy:all:ask mcp:default": "Tools of the server `git` without their own setting are set to "
    "Ask for this agent.",
    "organization:deny mcp:git_reset": "A rule of the organization denies the tool `git_reset` of "
    "the server `git`.",
    "policy:all:deny mcp:git_*": "A rule of the policy denies tools of the server `git` whose name "
    "matches `git_*`.",
    "policy:all:deny mcp:push when its condition holds": "A rule of the policy denies calls of "
    "`push` of the server `git` whose arguments meet its condition.",
    "organization:deny mcp:default": "A rule of the organization denies tools of the server `git` "
    "that have no rule of their own.",
    "organization:deny builtin:run_shell": "A rule of the organization denies the tool "
    "`run_shell`.",
}


@pytest.mark.parametrize(("rule", "text"), OF_SERVER.items())
def test_a_sentence_about_a_rule_names_the_server_of_the_tool(rule, text):
    assert build_rule_text(rule, server_name="git") == text
    with translation.override("de"):
        translated = localize_text(str.__str__(build_rule_text(rule, server_name="git")))
        assert not {"server", "rule"} & set(translated.split())


@pytest.mark.parametrize("of_agent", [True, False])
@pytest.mark.parametrize("pattern", ["add", "add*", ""])
@pytest.mark.parametrize("effect", ["ask", "deny"])
def test_a_decision_of_a_rule_has_its_sentence_as_reason(effect, pattern, of_agent):
    policy = Policy("all", (Rule(effect, "mcp", pattern, SERVER),))
    scopes = {SERVER: AgentServerScope()}
    decision = decide_tool_call(
        ToolFacts("mcp", "add", "mcp_web_add", SERVER, "web"),
        EffectivePolicy(policy, scopes=scopes, of_agent=of_agent),
    )
    assert decision.verdict == effect
    text = build_rule_text(decision.rule, of_agent=of_agent, server_name="web")
    assert decision.reason == text


def test_a_denial_of_the_organization_has_the_sentence_of_its_rule_as_reason():
    organization = Policy("all", (Rule("deny", "mcp", "add", SERVER),))
    decision = decide_tool_call(
        ToolFacts("mcp", "add", "mcp_web_add", SERVER, "web"),
        EffectivePolicy(Policy("all"), organization, scopes={SERVER: AgentServerScope()}),
    )
    assert (
        decision.reason == "A rule of the organization denies the tool `add` of the server `web`."
    )


@pytest.mark.parametrize("rule", ["", "plugin", "role:fly", "rate:short", "attachment:other:x"])
def test_a_rule_without_a_sentence_is_blank(rule):
    assert build_rule_text(rule) == ""


@pytest.mark.parametrize("mode", ["none", "allowlist", "denylist", "all"])
@pytest.mark.parametrize("effect", ["allow", "ask", "deny"])
@pytest.mark.parametrize("state", ["approved", "pending", "changed", "rejected", "refused", "gone"])
def test_each_rule_of_a_decision_has_a_sentence(mode, effect, state):
    policy = Policy(mode, (Rule(effect, "mcp", "add*", SERVER), Rule(effect, "mcp", "", SERVER)))
    for switches in (KillSwitches(), KillSwitches(organization=False), KillSwitches(agent=False)):
        for scope in (AgentServerScope(), AgentServerScope(denied=("a*",), allowed=("b",))):
            effective_policy = EffectivePolicy(policy, policy, switches, {SERVER: scope})
            tool = ToolFacts("mcp", "add", "mcp_web_add", SERVER, "web", state=state)
            for stage in evaluate_tool_stages(tool, effective_policy, {}):
                assert build_rule_text(stage.rule), stage.rule


def test_the_filter_shows_the_sentence_with_names_as_code():
    template = Template("{% load rule_texts %}{{ rule|rule_text }}")
    context = Context({"rule": "policy:all:deny mcp:<b>"})
    assert (
        template.render(context) == "The tool <code>&lt;b&gt;</code> is set to Deny for this agent."
    )


def test_a_rule_for_the_other_tools_of_a_server_is_named_like_its_decisions() -> None:
    assert str(ToolRule(effect="allow", source="mcp", pattern="")) == "allow mcp:default"
    assert str(ToolRule(effect="ask", source="mcp", pattern="send_*")) == "ask mcp:send_*"


def test_a_pattern_of_a_condition_is_worded_in_both_languages() -> None:
    condition = {"properties": {"sql": {"pattern": "email"}, "limit": {"minimum": 5}}}
    assert format_condition(condition) == "sql matches email, limit ≥ 5"
    with translation.override("de"):
        assert format_condition(condition) == "sql entspricht email, limit ≥ 5"


def test_a_rule_is_named_by_what_decides_and_the_tools_that_it_matches():
    titles = {
        "policy:allowlist:deny mcp:drop_*": "Policy drop_*",
        "policy:allowlist:allow mcp:default": "Agent tools",
        "policy:allowlist:ask mcp:create_refund": "Agent tools create_refund",
        "organization:halted": "Kill switch",
        "organization:deny builtin:run_shell": "Organization policy run_shell",
        "budget:0:agent:1:calls:day:2026-12-01": "Agent's budget of calls per day",
        "plugin:x": "plugin:x",
        "": "",
    }
    assert {rule: rule_title(rule) for rule in titles} == titles
