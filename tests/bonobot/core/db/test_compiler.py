"""Queries have the SQL and the results that Django's own compiler gives them."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.db.models import Count, Exists, F, OuterRef, QuerySet
from django.db.models.sql import compiler as django_compiler

from agents.models import Agent, AgentServer
from bonobot.accounts.models import Membership, Organization, User
from bonobot.core.db import compiler
from bonobot.ledger.models import AuditRow
from tests import factories

pytestmark = pytest.mark.django_db

QUERIES: dict[str, Callable[[], QuerySet[Any]]] = {
    "all columns": lambda: Agent.objects.all(),
    "other columns than the query before": lambda: Membership.objects.order_by("-pk")[:3],
    "encrypted columns and dates": lambda: AuditRow.objects.filter(outcome="ok"),
    "a relation": lambda: AgentServer.objects.select_related("server", "agent"),
    "a condition on a relation": lambda: Agent.objects.filter(organization__slug="acme"),
    "some columns": lambda: Agent.objects.only("name"),
    "without some columns": lambda: Agent.objects.defer("name"),
    "values": lambda: Agent.objects.values("name", "pk"),
    "all values": lambda: Membership.objects.values_list(),
    "an annotation": lambda: Organization.objects.annotate(other=F("slug")),
    "a count": lambda: Organization.objects.annotate(n=Count("memberships")),
    "a subquery": lambda: Organization.objects.filter(
        Exists(Membership.objects.filter(organization=OuterRef("pk")))
    ),
    "a subquery of the same table": lambda: Agent.objects.filter(
        pk__in=Agent.objects.filter(name="helper")
    ),
    "a union": lambda: (
        Agent.objects.order_by().filter(name="a").union(Agent.objects.order_by().all())
    ),
    "distinct rows": lambda: User.objects.filter(memberships__role="owner").distinct(),
}


@pytest.mark.parametrize("name", QUERIES)
def test_sql_and_rows_are_those_of_djangos_compiler(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = factories.create_organization()
    factories.create_agent(acme, "helper")
    factories.build_administrator(acme)
    results = []
    for module in (django_compiler, compiler, compiler):  # the last one uses what was kept
        monkeypatch.setattr(connection.ops, "_cache", module)
        rows = QUERIES[name]()
        results.append((str(rows.query), [getattr(row, "__dict__", row) for row in rows]))
    expected, first, second = ((sql, [_remove_state(row) for row in rows]) for sql, rows in results)
    assert first == expected
    assert second == expected


def _remove_state(row: Any) -> Any:
    """Return a row's values; each instance has a state object of its own."""
    return {name: row[name] for name in row if name != "_state"} if isinstance(row, dict) else row


@pytest.mark.skipif(connection.vendor != "sqlite", reason="Django's backend is used")
def test_the_connection_uses_the_compiler() -> None:
    assert connection.ops.compiler("SQLCompiler") is compiler.SQLCompiler
