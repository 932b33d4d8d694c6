"""Prepared queries return what the ORM returns, for the values of each call."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import BigIntegerField, CharField, DateTimeField, F, JSONField, UUIDField
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agents.models import Agent, Session, Step, WorkflowRun
from bonobot.accounts.models import Token
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.core.db.prepared_queries import PreparedQuery, PreparedUpdate, QueryParameter
from tests import factories

pytestmark = pytest.mark.django_db

ORGANIZATION = QueryParameter("organization", output_field=UUIDField())
PREFIX = QueryParameter("prefix", output_field=CharField())


def test_rows_are_those_of_the_orm_for_each_value() -> None:
    query = PreparedQuery(lambda: Agent.objects.filter(organization=ORGANIZATION).order_by("name"))
    for slug in ("acme", "other"):
        organization = factories.create_organization(slug)
        for name in ("two", "one"):
            factories.create_agent(organization, name)
        expected = list(Agent.objects.filter(organization=organization).order_by("name"))
        for _ in range(2):  # compiled, and from the cache
            rows = query.fetch(organization=organization.pk)
            assert [get_values(row) for row in rows] == [get_values(row) for row in expected]
            assert not rows[0]._state.adding
            assert rows[0].list_changed_fields() == []


def get_values(row: Agent) -> dict[str, Any]:
    return {name: value for name, value in row.__dict__.items() if name != "_state"}


def test_a_fetch_is_one_query_and_the_first_row_or_none() -> None:
    acme = factories.create_organization()
    query = PreparedQuery(lambda: Agent.objects.filter(organization=ORGANIZATION)[:1])
    assert query.fetch_first(organization=acme.pk) is None
    agent = factories.create_agent(acme)
    with CaptureQueriesContext(connection) as caught:
        assert query.fetch_first(organization=acme.pk) == agent
    assert len(caught) == 1


def test_values_are_converted_and_escaped() -> None:
    acme = factories.create_organization()
    for slug in ("a_b", "axb", "c"):
        factories.create_agent(acme, slug)
    query = PreparedQuery(
        lambda: (
            Agent.objects.filter(slug__startswith=PREFIX).order_by("slug").values_list("pk", "slug")
        )
    )
    for prefix, slugs in (("a", ["a_b", "axb"]), ("a_", ["a_b"]), ("%", []), ("", ["a_b", "axb"])):
        rows = query.fetch(prefix=prefix)
        expected = Agent.objects.filter(slug__startswith=prefix).order_by("slug")
        assert rows == list(expected.values_list("pk", "slug"))
        assert [slug for _pk, slug in rows][: len(slugs)] == slugs


def test_a_time_is_that_of_the_call() -> None:
    acme = factories.create_organization()
    now = timezone.now()
    create_token(
        factories.build_administrator(acme),
        name="t",
        role=Role.OWNER,
        expires_at=now + timedelta(hours=1),
    )
    moment = QueryParameter("moment", output_field=DateTimeField())
    query = PreparedQuery(lambda: Token.objects.usable_issued(moment))
    assert [token.name for token in query.fetch(moment=now)] == ["t"]
    assert query.fetch(moment=now + timedelta(hours=2)) == []


def test_related_rows_are_joined() -> None:
    """Those of a foreign key, of one behind it, and of a reverse relation, also if missing."""
    acme = factories.create_organization()
    helper = factories.create_agent(acme, "helper")
    endpoint = helper.model_endpoint
    sessions = [
        Session.objects.create(organization=acme, agent=helper, model_endpoint=chosen)
        for chosen in (endpoint, None)
    ]
    run = WorkflowRun.objects.create(
        organization=acme,
        session=sessions[0],
        workflow=factories.create_workflow(helper),
        version=1,
        definition={},
    )
    query = PreparedQuery(
        lambda: (
            Session.objects.filter(organization=ORGANIZATION)
            .select_related("agent__model_endpoint", "model_endpoint", "workflow_run")
            .order_by("created_at")
        )
    )
    for _ in range(2):
        first, second = query.fetch(organization=acme.pk)
        with CaptureQueriesContext(connection) as caught:
            assert (first, second) == tuple(sessions)
            assert [row.agent for row in (first, second)] == [helper, helper]
            assert [row.agent.model_endpoint for row in (first, second)] == [endpoint, endpoint]
            assert [row.model_endpoint for row in (first, second)] == [endpoint, None]
            assert first.workflow_run == run
            assert not hasattr(second, "workflow_run")
        assert not caught.captured_queries


def test_an_update_changes_the_rows_of_its_conditions_in_one_query() -> None:
    acme = factories.create_organization()
    agent = factories.create_agent(acme)
    first, second = (
        Session.objects.create(organization=acme, agent=agent, title=title)
        for title in ("one", "two")
    )
    update = PreparedUpdate(
        lambda: Session.objects.filter(pk=QueryParameter("session", output_field=UUIDField())),
        lambda: {
            "title": QueryParameter("title", output_field=CharField()),
            "fence": F("fence") + 1,
            "finished_at": QueryParameter("now", output_field=DateTimeField()),
        },
    )
    now = timezone.now()
    for count in (1, 2):  # compiled, and from the cache
        with CaptureQueriesContext(connection) as caught:
            assert update.execute(session=first.pk, title=f"%s {count}", now=now) == 1
        assert len(caught) == 1
        first.refresh_from_db()
        assert (first.title, first.fence, first.finished_at) == (f"%s {count}", count, now)
    second.refresh_from_db()
    assert (second.title, second.fence) == ("two", 0)
    assert update.execute(session=acme.pk, title="", now=now) == 0


def test_an_update_stores_json_as_the_orm_does() -> None:
    acme = factories.create_organization()
    session = Session.objects.create(organization=acme, agent=factories.create_agent(acme))
    step = Step.objects.create(session=session, seq=1, kind=Step.Kind.NOTICE)
    update = PreparedUpdate(
        lambda: Step.objects.filter(pk=QueryParameter("step", output_field=BigIntegerField())),
        lambda: {"payload": QueryParameter("payload", output_field=JSONField())},
    )
    for payload in ({"text": 'a "b" % é', "list": [1, None, 2.5]}, {}, {"other": {"x": True}}):
        assert update.execute(step=step.pk, payload=payload) == 1
        step.refresh_from_db()
        assert step.payload == payload
        assert list(Step.objects.filter(payload=payload)) == [step]
