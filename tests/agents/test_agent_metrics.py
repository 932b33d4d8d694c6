"""An agent's metrics: aggregated and new entries, by hour, tool and reason."""

from datetime import UTC, datetime
from typing import Any

import pytest
import time_machine

from agents.agent_metrics import WINDOWS, AgentMetrics, load_metrics
from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.types import Admission, Settlement
from bonobot.ledger.usage import build_rollups
from bonobot.ledger.writer.writer_thread import get_writer
from tests import admin_client
from tests.bonobot.ledger.factories import opening_of

pytestmark = pytest.mark.django_db(transaction=True)

WAIT_S = 30.0
NOW = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _close_writer(transactional_db: None) -> Any:
    yield
    get_writer().close()


def record_call(agent: Agent, outcome: Any = "ok", duration_ms: int = 40, **facts: Any) -> None:
    """Record a call of the agent."""
    opening = opening_of(agent.organization_id, agent_id=agent.pk, agent_name="x", **facts)
    get_writer().admit_call(Admission(opening)).result(WAIT_S)
    code = "" if outcome == "ok" else "tool_error"
    settlement = Settlement(
        call_id=opening.call_id,
        organization_id=agent.organization_id,
        outcome=outcome,
        duration_ms=duration_ms,
        code=code,
        cost_microusd=5,
        input_tokens=3,
    )
    get_writer().settle_call(settlement).result(WAIT_S)


def load_last_day(agent: Agent) -> AgentMetrics:
    return load_metrics(agent, WINDOWS[0])


def test_aggregated_and_new_entries_are_added(helper: Agent) -> None:
    with time_machine.travel(NOW, tick=True):
        record_call(helper)
        record_call(helper, "error", duration_ms=4_000)
        build_rollups.count_all_organizations()
        record_call(helper, tool_name="later")
        denied = opening_of(helper.organization_id, agent_id=helper.pk, decision="deny")
        get_writer().record_refusal(denied).result(WAIT_S)
        metrics = load_last_day(helper)
    total = metrics.total
    assert (total.calls, total.failed, total.refused) == (4, 1, 1)
    assert (total.cost_microusd, total.tokens) == (15, 9)
    assert metrics.steps[-1].calls == 4
    assert metrics.steps[-1].height == 100
    assert len(metrics.steps) == 24
    assert {tool: counts.calls for tool, _s, _i, counts in metrics.tools} == {"now": 3, "later": 1}
    assert metrics.reasons[0] == ("error", "tool_error", "", 1)
    assert metrics.p50_ms is not None
    assert metrics.p50_ms < 100 < (metrics.p95_ms or 0)


def test_a_model_turn_isnt_counted_as_a_call(helper: Agent) -> None:
    record_call(helper, event_type="model", tool_name="", resource_type="model")
    metrics = load_last_day(helper)
    assert (metrics.total.calls, metrics.total.turns, metrics.total.cost_microusd) == (0, 1, 5)
    assert metrics.tools == []


def test_entries_of_other_agents_arent_counted(helper: Agent, acme: Organization) -> None:
    other = Agent.objects.create(
        organization=acme, name="Other", slug="other", model_endpoint=helper.model_endpoint
    )
    record_call(other)
    assert load_last_day(helper).total.calls == 0


def test_the_metrics_use_the_same_queries_for_any_number_of_calls(
    helper: Agent, django_assert_num_queries: Any
) -> None:
    for number in range(12):
        record_call(helper, tool_name=f"tool{number}")
    build_rollups.count_all_organizations()
    record_call(helper)
    with django_assert_num_queries(6):
        load_last_day(helper)


def test_the_page_links_to_the_audit_log_for_allowed_roles(
    helper: Agent, acme: Organization
) -> None:
    record_call(helper, "error")
    owner = admin_client.sign_in(acme, Role.OWNER)
    page = owner.get("agents_agent_metrics", helper.pk, last="30d")
    assert "tool_error" in page
    assert f"agent_id={helper.pk}" in page
    reviewer = admin_client.sign_in(acme, Role.REVIEWER)
    reviewer_page = reviewer.get("agents_agent_metrics", helper.pk)
    assert "tool_error" in reviewer_page
