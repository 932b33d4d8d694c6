"""Explain: every stage with its verdict, the first that refuses, and who can change it."""

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
ORDER = ["resolve", "arguments", *DECISION_STAGES, "consent", "flow", "rate", "budgets"]


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def boss(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def server(acme, boss):
    made = admin_client.web_server(acme)
    admin_client.offer(made, "add", inputSchema=SCHEMA)
    approve_definitions(boss, made)
    return made


@pytest.fixture
def helper(acme, boss, server):
    made = factories.create_agent(acme)
    attach_server(boss, made, server)
    return made


def told(boss, agent, arguments=None):
    snapshot = get_snapshot_cache().load_current("agent", agent.pk)
    return explain_call(boss, snapshot, snapshot.tools[NAME], arguments)


def stage(found, name):
    return next(one for one in found["stages"] if one["stage"] == name)


def test_an_allowed_tool_passes_every_stage(boss, helper):
    found = told(boss, helper)
    assert [one["stage"] for one in found["stages"]] == ORDER
    assert (found["decision"], found["first"], found["who"]) == ("allow", "", "")
    verdicts = {one["stage"]: one["verdict"] for one in found["stages"]}
    assert verdicts.pop("arguments") == "skip"
    assert set(verdicts.values()) == {"allow"}


def test_every_stage_names_who_can_change_it():
    assert set(ORDER) <= set(CHANGED_BY)


@pytest.mark.parametrize(
    ("change", "first", "code", "action"),
    [
        (
            lambda b, a, s: halt_organization(b),
            "switches",
            "organization_halted",
            Action.MANAGE_ORGANIZATION,
        ),
        (
            lambda b, a, s: update_agent(b, a, AgentSpec(name=a.name, enabled=False)),
            "switches",
            "agent_disabled",
            Action.MANAGE_AGENTS,
        ),
        (
            lambda b, a, s: set_server_enabled(b, s, enabled=False),
            "server",
            "server_disabled",
            Action.MANAGE_SERVERS,
        ),
        (
            lambda b, a, s: set_attachment_enabled(b, a, s, enabled=False),
            "attachment",
            "not_attached",
            Action.MANAGE_AGENTS,
        ),
        (
            lambda b, a, s: set_definition_enabled(b, Definition.objects.get(), enabled=False),
            "definition",
            "tool_disabled",
            Action.MANAGE_SERVERS,
        ),
        (
            lambda b, a, s: Definition.objects.update(pinned_digest="other"),
            "definition",
            "definition_changed",
            Action.APPROVE_DEFINITIONS,
        ),
        (
            lambda b, a, s: attach_server(b, a, s, denied_tools=("add",)),
            "attachment_lists",
            "denied_by_attachment",
            Action.MANAGE_AGENTS,
        ),
        (
            lambda b, a, s: set_policy(b, a.organization, PolicySpec("all", deny=(NAME,))),
            "organization_rules",
            "denied_by_organization",
            Action.MANAGE_ORGANIZATION,
        ),
        (
            lambda b, a, s: set_policy(b, a, PolicySpec("none")),
            "policy",
            "denied_by_policy",
            Action.MANAGE_AGENTS,
        ),
    ],
)
def test_the_first_denying_stage_names_who_can_change_it(
    boss, helper, server, change, first, code, action
):
    change(boss, helper, server)
    get_snapshot_cache().load("agent", helper.pk)
    found = told(boss, helper)
    assert (found["first"], found["code"], found["who"]) == (first, code, ALLOWED_ROLES[action])
    assert (found["decision"], found["allowed"]) == ("deny", False)
    assert len(found["stages"]) == len(ORDER)


def test_a_required_approval_is_explained(boss, helper):
    set_policy(boss, helper, PolicySpec("all", ask=(NAME,)))
    found = told(boss, helper)
    assert (found["decision"], found["first"], found["code"]) == (
        "ask",
        "policy",
        "approval_required",
    )
    assert stage(found, "consent")["who"] == ALLOWED_ROLES[Action.APPROVE_CALLS]


def test_arguments_decide_conditions_and_are_validated(boss, helper):
    large = RuleSpec(NAME, {"properties": {"a": {"minimum": 100}}, "required": ["a"]})
    set_policy(boss, helper, PolicySpec("denylist", deny=(large,)))
    assert told(boss, helper, {"a": 1})["decision"] == "allow"
    found = told(boss, helper, {"a": 100})
    assert (found["first"], found["code"]) == ("policy", "denied_by_policy")
    wrong = told(boss, helper, {"a": "x"})
    assert (wrong["first"], wrong["code"]) == ("arguments", "invalid_arguments")
    assert wrong["who"] == "the caller"


def test_a_flow_that_requires_approval_is_explained(acme, boss, helper):
    Definition.objects.update(labels=["sends_out"])
    get_snapshot_cache().load("agent", helper.pk)
    assert stage(told(boss, helper), "flow")["verdict"] == "allow"
    key = f"flow:{acme.pk}:agent:{helper.pk}"
    FlowCell.objects.create(key=key, organization_id=acme.pk, labels=3, touched=0)
    found = told(boss, helper)
    assert (found["first"], found["code"]) == ("flow", "flow_needs_approval")
    assert "private_data, untrusted_content" in stage(found, "flow")["reason"]


def test_an_exhausted_rate_limit_denies(acme, boss, helper):
    assert "20 of 20 calls" in stage(told(boss, helper), "rate")["reason"]
    later = int((time.time() + 60) * 1_000_000)
    RateCell.objects.create(key=f"rate:{acme.pk}:agent:{helper.pk}", tat=later)
    found = told(boss, helper)
    assert (found["first"], found["code"]) == ("rate", "rate_limited")
    assert "0 of 20 calls" in stage(found, "rate")["reason"]


def test_budgets_show_what_is_left_and_deny_when_exhausted(acme, boss, helper):
    for unit, limit in (("calls", 2), ("tokens", 100)):
        Budget.objects.create(
            organization=acme, agent=helper, unit=unit, period="total", limit=limit
        )
    get_snapshot_cache().load("agent", helper.pk)
    found = told(boss, helper)
    reason = stage(found, "budgets")["reason"]
    assert found["decision"] == "allow"
    assert "2 of 2 calls in total (agent)" in reason
    Budget.objects.filter(unit="calls").update(limit=0)
    get_snapshot_cache().load("agent", helper.pk)
    found = told(boss, helper)
    assert (found["first"], found["code"]) == ("budgets", "budget_exhausted")
    assert not BudgetCell.objects.exists()  # nothing was reserved


def test_rest_explains_with_and_without_arguments(acme, helper):
    operator = rest.as_role(acme, Role.OPERATOR)
    path = f"agents/{helper.slug}/tools/{NAME}/explain"
    assert operator.get(path).json["decision"] == "allow"
    found = operator.post(path, {"arguments": {"a": "x"}}).json
    assert (found["first"], found["stages"][1]["verdict"]) == ("arguments", "deny")
    assert operator.post(path, {}).status == 400
    assert operator.get(f"agents/{helper.slug}/tools/nothing/explain").code == "unknown_tool"


def test_the_admin_shows_each_stage_and_accepts_arguments(acme, helper):
    seat = admin_client.sit(acme, Role.REVIEWER)
    page = admin_client.words(seat.get("agents_agent_why", helper.pk, tool=NAME))
    assert "No stage denies the call" in page
    assert "13. budgets" in page
    bad = admin_client.words(
        seat.get("agents_agent_why", helper.pk, tool=NAME, arguments='{"a": "x"}')
    )
    assert "invalid_arguments" in bad
    for typed in ("{", "[1]"):
        seat.get("agents_agent_why", helper.pk, status=400, tool=NAME, arguments=typed)
    seat.get("agents_agent_why", helper.pk, status=404, tool="nothing")


def test_the_reason_why_an_agent_has_no_tools_is_explained(acme, boss, helper, server):
    def lack(agent=helper):
        found = find_no_tools_reason(get_snapshot_cache().load("agent", agent.pk))
        return found.code if found else None

    assert lack() is None
    assert lack(factories.create_agent(acme, "bare")) == "no_server"
    set_policy(boss, helper, PolicySpec("none"))
    assert lack() == "denied_by_policy"
    set_policy(boss, helper, PolicySpec("all"))
    Definition.objects.update(pinned_digest="")
    assert lack() == "not_approved"
    admin_client.offer(server, "more")
    assert "2 of its 2 tools" in str(
        find_no_tools_reason(get_snapshot_cache().load("agent", helper.pk))
    )
    Definition.objects.all().delete()
    assert lack() == "nothing_offered"
    halt_organization(boss)
    assert lack() == "organization_halted"
