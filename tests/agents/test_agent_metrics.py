"""An agent's metrics: what was counted and what is too new for that, by hour, tool and reason."""

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
def _closed(transactional_db: None) -> Any:
    yield
    get_writer().close()


def called(agent: Agent, outcome: Any = "ok", took: int = 40, **facts: Any) -> None:
    """Let the ledger hold a call of the agent."""
    opening = opening_of(agent.organization_id, agent_id=agent.pk, agent_name="x", **facts)
    get_writer().admit_call(Admission(opening)).result(WAIT_S)
    code = "" if outcome == "ok" else "tool_error"
    settlement = Settlement(
        call_id=opening.call_id,
        organization_id=agent.organization_id,
        outcome=outcome,
        duration_ms=took,
        code=code,
        cost_microusd=5,
        input_tokens=3,
    )
    get_writer().settle_call(settlement).result(WAIT_S)


def seen(agent: Agent) -> AgentMetrics:
    return load_metrics(agent, WINDOWS[0])


def test_aggregated_and_new_entries_are_added(helper: Agent) -> None:
    with time_machine.travel(NOW, tick=True):
        called(helper)
        called(helper, "error", took=4_000)
        build_rollups.count_all_organizations()
        called(helper, tool_name="later")
        refused = opening_of(helper.organization_id, agent_id=helper.pk, decision="deny")
        get_writer().record_refusal(refused).result(WAIT_S)
        found = seen(helper)
    total = found.total
    assert (total.calls, total.failed, total.refused) == (4, 1, 1)
    assert (total.cost_microusd, total.tokens) == (15, 9)
    assert found.steps[-1].calls == 4
    assert found.steps[-1].height == 100
    assert len(found.steps) == 24
    assert {tool: counts.calls for tool, _s, _i, counts in found.tools} == {"now": 3, "later": 1}
    assert found.reasons[0] == ("error", "tool_error", "", 1)
    assert found.p50_ms is not None
    assert found.p50_ms < 100 < (found.p95_ms or 0)


def test_a_model_turn_isnt_counted_as_a_call(helper: Agent) -> None:
    called(helper, event_type="model", tool_name="", resource_type="model")
    found = seen(helper)
    assert (found.total.calls, found.total.turns, found.total.cost_microusd) == (0, 1, 5)
    assert found.tools == []


def test_entries_of_other_agents_arent_counted(helper: Agent, acme: Organization) -> None:
    other = Agent.objects.create(
        organization=acme, name="Other", slug="other", model_endpoint=helper.model_endpoint
    )
    called(other)
    assert seen(helper).total.calls == 0


def test_the_metrics_use_the_same_queries_for_any_number_of_calls(
    helper: Agent, django_assert_num_queries: Any
) -> None:
    for number in range(12):
        called(helper, tool_name=f"tool{number}")
    build_rollups.count_all_organizations()
    called(helper)
    with django_assert_num_queries(6):
        seen(helper)


def test_the_page_links_to_the_audit_log_for_allowed_roles(
    helper: Agent, acme: Organization
) -> None:
    called(helper, "error")
    owner = admin_client.sit(acme, Role.OWNER)
    page = owner.get("agents_agent_metrics", helper.pk, last="30d")
    assert "tool_error" in page
    assert f"agent_id={helper.pk}" in page
    operator = admin_client.sit(acme, Role.REVIEWER)
    plain = operator.get("agents_agent_metrics", helper.pk)
    assert "tool_error" in plain
