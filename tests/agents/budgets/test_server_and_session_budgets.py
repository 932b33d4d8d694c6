"""Budgets of servers and sessions, paid calls, and rate limits shared by all callers."""

import asyncio
import json
from collections import Counter
from uuid import uuid4

import pytest
from django.db import IntegrityError

from agents.budgets.services import BudgetLine, set_budgets
from agents.calls import admit, pipeline
from agents.models import Budget
from agents.sessions.services import start_session
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server
from mcp_servers.server_prices import set_prices
from tests import admin_client, factories, rest
from tests.bonobot.ledger.factories import load_organization_balances

pytestmark = pytest.mark.django_db(transaction=True)

ECHO = "mcp_workshop_echo"
FLOOD = 50


@pytest.fixture
def administrator(acme):
    return factories.build_administrator(acme)


def catch_problem(call, *args, **kwargs):
    with pytest.raises(Problem) as caught:
        call(*args, **kwargs)
    return caught.value


def load_balances(organization):
    """Return (spent, reserved) of each cell by scope and unit."""
    balances = {}
    for key, cell in load_organization_balances(organization.pk).items():
        _, _, scope, _, unit, _, _ = key.split(":")
        balances[scope, unit] = (cell.spent, cell.reserved)
    return balances


def test_a_servers_budget_applies_to_all_callers(acme, administrator, workshop, call):
    set_budgets(administrator, workshop, [BudgetLine("calls", "day", 2)])
    call(ECHO, {"text": "a"})
    call("echo", {"text": "b"}, agent_id=None, server_id=workshop.pk)
    problem = catch_problem(call, ECHO, {"text": "c"})
    assert (problem.code, ":server:" in problem.rule) == ("budget_exhausted", True)
    assert "server's budget of calls per day" in str(problem)
    assert load_balances(acme) == {("server", "calls"): (2, 0)}


def test_each_session_has_its_own_budget(acme, helper, administrator, workshop, call):
    set_budgets(administrator, helper, [BudgetLine("calls", "total", 1, each_session=True)])
    first, second = uuid4(), uuid4()
    call(ECHO, {"text": "a"}, session_id=first)
    assert catch_problem(call, ECHO, {"text": "b"}, session_id=first).code == "budget_exhausted"
    assert call(ECHO, {"text": "c"}, session_id=second).outcome == "ok"
    assert call(ECHO, {"text": "without a session"}).outcome == "ok"


def test_running_time_is_reserved_by_the_timeout_and_settled_as_used(
    acme, helper, administrator, workshop, call
):
    set_budgets(administrator, helper, [BudgetLine("seconds", "day", 30)])
    problem = catch_problem(call, ECHO, {"text": "a"}, timeout_s=31)
    assert problem.extra["asked"] == 31_000
    outcome = call(ECHO, {"text": "a"}, timeout_s=30)
    assert load_balances(acme) == {("agent", "milliseconds"): (outcome.duration_ms, 0)}


def test_a_paid_call_is_settled_at_what_it_cost(acme, helper, administrator, workshop, call):
    set_prices(administrator, workshop, call_price=1_000, second_price=1_000_000)
    set_budgets(administrator, helper, [BudgetLine("microusd", "month", 20_001_000)])
    assert catch_problem(call, ECHO, {"text": "a"}, timeout_s=21).code == "budget_exhausted"
    outcome = call(ECHO, {"text": "a"}, timeout_s=20)
    assert outcome.cost_microusd == 1_000 + outcome.duration_ms * 1_000
    assert load_balances(acme) == {("agent", "microusd"): (outcome.cost_microusd, 0)}
    row = AuditRow.objects.filter(event_type="call").order_by("seq").last()
    assert row.cost_microusd == outcome.cost_microusd


def test_the_reservation_of_an_unsent_call_is_released(acme, helper, administrator, workshop, call):
    set_prices(administrator, workshop, call_price=7)
    set_budgets(
        administrator, helper, [BudgetLine("microusd", "day", 100), BudgetLine("calls", "day", 9)]
    )
    missing_command = {"command": "/nowhere/at-all", "args": []}
    Server.objects.filter(pk=workshop.pk).update(endpoint_config=missing_command)
    get_runtime().call(get_connection_pool().forget_server, workshop.pk)
    outcome = call(ECHO, {"text": "a"})
    assert (outcome.outcome, outcome.cost_microusd) == ("error", 0)
    assert load_balances(acme) == {("agent", "microusd"): (0, 0), ("agent", "calls"): (0, 0)}


def test_a_call_with_an_unknown_outcome_costs_its_reservation(
    acme, helper, administrator, workshop, call
):
    set_prices(administrator, workshop, call_price=5, second_price=10)
    set_budgets(administrator, helper, [BudgetLine("microusd", "day", 100)])
    outcome = call("mcp_workshop_wait", {"seconds": 30}, timeout_s=0.3)
    assert (outcome.outcome, outcome.cost_microusd) == ("unknown", 8)
    assert load_balances(acme) == {("agent", "microusd"): (8, 0)}


def test_all_callers_of_a_server_share_its_rate(administrator, workshop, call):
    set_prices(administrator, workshop, calls_per_minute=2)
    call(ECHO, {"text": "a"})
    call("echo", {"text": "b"}, agent_id=None, server_id=workshop.pk)
    problem = catch_problem(call, ECHO, {"text": "c"})
    assert (problem.code, ":server:" in problem.rule) == ("rate_limited", True)
    assert 0 < problem.retry_after <= 60


def test_an_organization_has_its_own_rate_limit(acme, workshop, call, settings):
    settings.BONOBOT_ORG_CALLS_PER_MINUTE = 1
    call(ECHO, {"text": "a"})
    problem = catch_problem(call, ECHO, {"text": "b"})
    assert ("organization's rate limit of 1 calls" in str(problem), problem.status) == (True, 429)
    Organization.objects.filter(pk=acme.pk).update(calls_per_minute=0)
    factories.create_agent(acme, slug="other")  # any change is seen by the next call
    assert call(ECHO, {"text": "c"}).outcome == "ok"


def test_the_installation_has_a_rate_limit(workshop, call, settings):
    settings.BONOBOT_GLOBAL_CALLS_PER_MINUTE = 1
    call(ECHO, {"text": "a"})
    problem = catch_problem(call, ECHO, {"text": "b"})
    assert (problem.rule, problem.code) == ("rate:all:global:all", "rate_limited")


def test_a_denied_call_uses_no_other_rate_limit(helper, administrator, workshop, call, settings):
    set_prices(administrator, workshop, calls_per_minute=1)
    settings.BONOBOT_ORG_CALLS_PER_MINUTE = 3
    call(ECHO, {"text": "a"})
    for _ in range(5):
        assert ":server:" in catch_problem(call, ECHO, {"text": "b"}).rule
    set_prices(administrator, workshop, calls_per_minute=0)
    assert [call(ECHO, {"text": "c"}).outcome for _ in range(2)] == ["ok", "ok"]
    assert ":organization:" in catch_problem(call, ECHO, {"text": "d"}).rule


def test_fifty_concurrent_calls_never_overspend(
    acme, helper, administrator, workshop, effects, monkeypatch
):
    """Concurrent calls through the pipeline on one money budget, with a real server."""
    monkeypatch.setattr(admit, "CALLER_WAIT_S", 600)  # none gives up while others reserve it all
    set_prices(administrator, workshop, call_price=10)
    set_budgets(administrator, helper, [BudgetLine("microusd", "total", 95)])
    helper.calls_per_minute = 10_000
    helper.save()

    async def make_call(number):
        request = pipeline.CallRequest(
            principal=administrator,
            tool="mcp_workshop_count",
            arguments={"what": f"call {number}"},
            via="rest",
            holder="server:tests:flood",
            agent_id=helper.pk,
        )
        try:
            return (await pipeline.make_call(request)).outcome
        except Problem as problem:
            return problem.code

    async def make_all_calls():
        try:
            return await asyncio.gather(*(make_call(number) for number in range(FLOOD)))
        finally:
            await pipeline.release_connections("server:tests:flood")

    outcomes = get_runtime().call(make_all_calls)
    assert Counter(outcomes) == {"ok": 9, "budget_exhausted": FLOOD - 9}
    assert len(effects.read_text().splitlines()) == 9
    assert load_balances(acme) == {("agent", "microusd"): (90, 0)}


def test_a_budget_has_one_kind_of_owner(acme, helper, workshop):
    fields = {"organization": acme, "unit": "calls", "period": "day", "limit": 1}
    with pytest.raises(IntegrityError):
        Budget.objects.create(**fields, agent=helper, server=workshop)
    with pytest.raises(IntegrityError):
        Budget.objects.create(**fields, each_session=True)
    Budget.objects.create(**fields, agent=helper)
    Budget.objects.create(**fields, agent=helper, each_session=True)


def test_a_changed_price_is_recorded(administrator, workshop):
    set_prices(administrator, workshop, call_price=5)
    set_prices(administrator, workshop, call_price=5)
    row = AuditRow.objects.get(action="server_prices_updated")
    assert json.loads(row.opened)["details"] == {"call_price": 5}


@pytest.mark.parametrize("line", [BudgetLine("tokens", "day", 5), BudgetLine("calls", "day", 5)])
def test_only_agents_can_have_budgets_per_session(administrator, workshop, line):
    session_line = BudgetLine(line.unit, line.period, line.limit, each_session=True)
    with pytest.raises(Problem):
        set_budgets(administrator, workshop, [session_line])


def test_the_session_page_and_rest_show_its_budget_use(acme, helper, administrator, workshop, call):
    set_budgets(
        administrator,
        helper,
        [BudgetLine("calls", "total", 4, each_session=True), BudgetLine("calls", "day", 100)],
    )
    session, other_session = (
        start_session(administrator, helper, "one"),
        start_session(administrator, helper, "two"),
    )
    for _ in range(3):
        call("mcp_workshop_echo", {"text": "a"}, session_id=session.pk)
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    page = auditor.get("agents_session_change", session.pk)
    assert "width:75%" in page
    assert "Budget calls 3 of 4" in admin_client.get_text(page)
    assert "width:0%" in auditor.get("agents_session_change", other_session.pk)
    (budget,) = rest.as_role(acme, Role.AUDITOR).get(f"sessions/{session.pk}").json["budgets"]
    assert (budget["scope"], budget["spent"], budget["limit"]) == ("session", 3, 4)
