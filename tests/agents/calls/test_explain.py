"""Explaining a call: each stage with its verdict, the first denial, and who can change it."""

import time

import pytest

from agents.calls.explain import CHANGED_BY, DECISION_STAGES, explain_call, find_no_tools_reason
from agents.calls.snapshots import get_snapshot_cache
from agents.kill_switch import halt_organization
from agents.models import Budget
from agents.policies.services import PolicySpec, RuleSpec, set_policy
from agents.services import AgentSpec, attach_server, set_attachment_enabled, update_agent
from bonobot.accounts.roles import ALLOWED_ROLES, Action, Role
from bonobot.ledger.models import BudgetCell, FlowCell, RateCell
from mcp_servers.definition_reviews import approve_definitions, set_definition_enabled
from mcp_servers.models import Definition
from mcp_servers.services import set_server_enabled
from tests import admin_client, factories, rest

pytestmark = pytest.mark.django_db

NAME = "mcp_web_add"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ORDER = ["resolve", "arguments", *DECISION_STAGES, "approval", "flow", "rate", "budgets"]


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def administrator(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def server(acme, administrator):
    new_server = admin_client.create_web_server(acme)
    admin_client.declare_tool(new_server, "add", inputSchema=SCHEMA)
    approve_definitions(administrator, new_server)
    return new_server


@pytest.fixture
def helper(acme, administrator, server):
    agent = factories.create_agent(acme)
    attach_server(administrator, agent, server)
    return agent


def explain(administrator, agent, arguments=None):
    snapshot = get_snapshot_cache().load_current("agent", agent.pk)
    return explain_call(administrator, snapshot, snapshot.tools[NAME], arguments)


def get_stage(explanation, name):
    return next(stage for stage in explanation["stages"] if stage["stage"] == name)


def test_an_allowed_tool_passes_every_stage(administrator, helper):
    explanation = explain(administrator, helper)
    assert [stage["stage"] for stage in explanation["stages"]] == ORDER
    assert (explanation["decision"], explanation["first"], explanation["changeable_by"]) == (
        "allow",
        "",
        "",
    )
    verdicts = {stage["stage"]: stage["verdict"] for stage in explanation["stages"]}
    assert verdicts.pop("arguments") == "skip"
    assert set(verdicts.values()) == {"allow"}


def test_every_stage_names_who_can_change_it():
    assert set(ORDER) <= set(CHANGED_BY)


@pytest.mark.parametrize(
    ("change", "first", "code", "action"),
    [
        (
            lambda admin, agent, server: halt_organization(admin),
            "switches",
            "kill_switch_enabled",
            Action.MANAGE_ORGANIZATION,
        ),
        (
            lambda admin, agent, server: update_agent(
                admin, agent, AgentSpec(name=agent.name, enabled=False)
            ),
            "switches",
            "agent_disabled",
            Action.MANAGE_AGENTS,
        ),
        (
            lambda admin, agent, server: set_server_enabled(admin, server, enabled=False),
            "server",
            "server_disabled",
            Action.MANAGE_SERVERS,
        ),
        (
            lambda admin, agent, server: set_attachment_enabled(
                admin, agent, server, enabled=False
            ),
            "attachment",
            "not_attached",
            Action.MANAGE_AGENTS,
        ),
        (
            lambda admin, agent, server: set_definition_enabled(
                admin, Definition.objects.get(), enabled=False
            ),
            "definition",
            "tool_disabled",
            Action.MANAGE_SERVERS,
        ),
        (
            lambda admin, agent, server: Definition.objects.update(pinned_digest="other"),
            "definition",
            "definition_changed",
            Action.APPROVE_DEFINITIONS,
        ),
        (
            lambda admin, agent, server: attach_server(admin, agent, server, denied_tools=("add",)),
            "attachment_lists",
            "denied_by_attachment",
            Action.MANAGE_AGENTS,
        ),
        (
            lambda admin, agent, server: set_policy(
                admin, agent.organization, PolicySpec("all", deny=(NAME,))
            ),
            "organization_rules",
            "denied_by_organization",
            Action.MANAGE_ORGANIZATION,
        ),
        (
            lambda admin, agent, server: set_policy(admin, agent, PolicySpec("none")),
            "policy",
            "denied_by_policy",
            Action.MANAGE_AGENTS,
        ),
    ],
)
def test_the_first_denying_stage_names_who_can_change_it(
    administrator, helper, server, change, first, code, action
):
    change(administrator, helper, server)
    get_snapshot_cache().load("agent", helper.pk)
    explanation = explain(administrator, helper)
    assert (explanation["first"], explanation["code"], explanation["changeable_by"]) == (
        first,
        code,
        ALLOWED_ROLES[action],
    )
    assert (explanation["decision"], explanation["allowed"]) == ("deny", False)
    assert len(explanation["stages"]) == len(ORDER)


def test_a_required_approval_is_explained(administrator, helper):
    set_policy(administrator, helper, PolicySpec("all", ask=(NAME,)))
    explanation = explain(administrator, helper)
    assert (explanation["decision"], explanation["first"], explanation["code"]) == (
        "ask",
        "policy",
        "approval_required",
    )
    assert (
        get_stage(explanation, "approval")["changeable_by"] == ALLOWED_ROLES[Action.APPROVE_CALLS]
    )


def test_arguments_decide_conditions_and_are_validated(administrator, helper):
    large = RuleSpec(NAME, {"properties": {"a": {"minimum": 100}}, "required": ["a"]})
    set_policy(administrator, helper, PolicySpec("denylist", deny=(large,)))
    assert explain(administrator, helper, {"a": 1})["decision"] == "allow"
    explanation = explain(administrator, helper, {"a": 100})
    assert (explanation["first"], explanation["code"]) == ("policy", "denied_by_policy")
    invalid = explain(administrator, helper, {"a": "x"})
    assert (invalid["first"], invalid["code"]) == ("arguments", "invalid_arguments")
    assert invalid["changeable_by"] == "the caller"


def test_a_flow_that_requires_approval_is_explained(acme, administrator, helper):
    Definition.objects.update(labels=["sends_out"])
    get_snapshot_cache().load("agent", helper.pk)
    assert get_stage(explain(administrator, helper), "flow")["verdict"] == "allow"
    key = f"flow:{acme.pk}:agent:{helper.pk}"
    FlowCell.objects.create(key=key, organization_id=acme.pk, labels=3, touched=0)
    explanation = explain(administrator, helper)
    assert (explanation["first"], explanation["code"]) == ("flow", "flow_needs_approval")
    assert "private data, untrusted content" in get_stage(explanation, "flow")["reason"]


def test_an_exhausted_rate_limit_denies(acme, administrator, helper):
    assert "20 of 20 calls" in get_stage(explain(administrator, helper), "rate")["reason"]
    later = int((time.time() + 60) * 1_000_000)
    RateCell.objects.create(key=f"rate:{acme.pk}:agent:{helper.pk}", tat=later)
    explanation = explain(administrator, helper)
    assert (explanation["first"], explanation["code"]) == ("rate", "rate_limited")
    assert "0 of 20 calls" in get_stage(explanation, "rate")["reason"]


def test_budgets_show_the_remaining_amount_and_deny_when_exhausted(acme, administrator, helper):
    for unit, limit in (("calls", 2), ("tokens", 100)):
        Budget.objects.create(
            organization=acme, agent=helper, unit=unit, period="total", limit=limit
        )
    get_snapshot_cache().load("agent", helper.pk)
    explanation = explain(administrator, helper)
    reason = get_stage(explanation, "budgets")["reason"]
    assert explanation["decision"] == "allow"
    assert "2 of 2 calls in total (agent)" in reason
    Budget.objects.filter(unit="calls").update(limit=0)
    get_snapshot_cache().load("agent", helper.pk)
    explanation = explain(administrator, helper)
    assert (explanation["first"], explanation["code"]) == ("budgets", "budget_exhausted")
    assert not BudgetCell.objects.exists()  # nothing was reserved


def test_rest_explains_with_and_without_arguments(acme, helper):
    operator = rest.as_role(acme, Role.OPERATOR)
    path = f"agents/{helper.slug}/tools/{NAME}/explain"
    assert operator.get(path).json["decision"] == "allow"
    explanation = operator.post(path, {"arguments": {"a": "x"}}).json
    assert (explanation["first"], explanation["stages"][1]["verdict"]) == ("arguments", "deny")
    assert operator.post(path, {}).status == 400
    assert operator.get(f"agents/{helper.slug}/tools/nothing/explain").code == "unknown_tool"


def test_the_admin_shows_each_stage_and_accepts_arguments(acme, helper):
    reviewer = admin_client.sign_in(acme, Role.REVIEWER)
    page = admin_client.get_text(reviewer.get("agents_agent_explain", helper.pk, tool=NAME))
    assert "No stage denies the call" in page
    assert "13. Budgets" in page
    invalid = admin_client.get_text(
        reviewer.get("agents_agent_explain", helper.pk, tool=NAME, arguments='{"a": "x"}')
    )
    assert "invalid_arguments" in invalid
    for arguments in ("{", "[1]"):
        reviewer.get("agents_agent_explain", helper.pk, status=400, tool=NAME, arguments=arguments)
    reviewer.get("agents_agent_explain", helper.pk, status=404, tool="nothing")


def test_the_reason_why_an_agent_has_no_tools_is_explained(acme, administrator, helper, server):
    def find_code(agent=helper):
        reason = find_no_tools_reason(get_snapshot_cache().load("agent", agent.pk))
        return reason.code if reason else None

    assert find_code() is None
    assert find_code(factories.create_agent(acme, "bare")) == "no_server"
    set_policy(administrator, helper, PolicySpec("none"))
    assert find_code() == "denied_by_policy"
    set_policy(administrator, helper, PolicySpec("all"))
    Definition.objects.update(pinned_digest="")
    assert find_code() == "not_approved"
    admin_client.declare_tool(server, "more")
    assert "2 of its 2 tools" in str(
        find_no_tools_reason(get_snapshot_cache().load("agent", helper.pk))
    )
    Definition.objects.all().delete()
    assert find_code() == "nothing_offered"
    halt_organization(administrator)
    assert find_code() == "kill_switch_enabled"
