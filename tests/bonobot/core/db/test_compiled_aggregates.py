"""Queries with compiled aggregates have the SQL and the results that Django's own have."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.db.models import Max, Q, Sum

from bonobot.core.db.compiled_aggregates import compile_aggregates
from bonobot.ledger.models import Rollup

pytestmark = pytest.mark.django_db

AGGREGATES: dict[str, Any] = {
    "n_calls": Sum("calls", filter=Q(event_type="call") & ~Q(outcome="refused"), default=0),
    "n_tokens": Sum("input_tokens", default=0),
    "n_agent": Max("agent_name"),
}


def create_rollups() -> None:
    fields: dict[str, Any] = {"grain": "day", "begins": datetime(2026, 1, 2, tzinfo=UTC)}
    for number, outcome in enumerate(("ok", "ok", "refused")):
        Rollup.objects.create(
            key=f"key{number}",
            organization_id=uuid4(),
            event_type="call",
            outcome=outcome,
            calls=number + 1,
            duration_ms=0,
            input_tokens=2**40,
            output_tokens=0,
            cost_microusd=0,
            agent_name=f"agent{number}",
            **fields,
        )


def build_query(aggregates: Any) -> Any:
    rows: Any = Rollup.objects.filter(grain="day").order_by().values("outcome")
    return rows.annotate(**aggregates).order_by("-n_calls", "outcome")[:10]


def test_the_sql_is_that_of_djangos_aggregates() -> None:
    compiled = build_query(compile_aggregates(Rollup, AGGREGATES))
    for _ in range(2):  # compiled, and from the cache
        own_sql = compiled.query.get_compiler(connection=connection).as_sql()
        sql = build_query(AGGREGATES).query.get_compiler(connection=connection).as_sql()
        assert (own_sql[0], tuple(own_sql[1])) == (sql[0], tuple(sql[1]))


def test_rows_are_grouped_ordered_and_converted_as_with_djangos_aggregates() -> None:
    create_rollups()
    rows = list(build_query(compile_aggregates(Rollup, AGGREGATES)))
    assert rows == list(build_query(AGGREGATES))
    assert rows == [
        {"outcome": "ok", "n_calls": 3, "n_tokens": 2**41, "n_agent": "agent1"},
        {"outcome": "refused", "n_calls": 0, "n_tokens": 2**40, "n_agent": "agent2"},
    ]
    assert all(type(row["n_calls"]) is int for row in rows)
