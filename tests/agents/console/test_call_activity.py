"""The dashboard's numbers: from rollups and what isn't in them yet, each leading to its rows."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agents.console import svg_charts
from agents.console.call_activity import RANGES, CallActivity
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.models import TOOK, Rollup
from bonobot.ledger.usage import build_rollups
from bonobot.ledger.usage.aggregation import COUNT_FIELDS
from tests import admin_client, factories, large_organization

NOW = datetime(2026, 11, 22, 13, 30, tzinfo=UTC)


def rolled(where: Organization, begins: datetime, calls: int, **facts: object) -> Rollup:
    usual = dict.fromkeys((*build_rollups.SUM_FIELDS, *TOOK), 0)
    kind = {"event_type": "call", "outcome": "ok", "tool_name": "add", "grain": "hour"}
    row = Rollup(key=uuid4().hex, organization_id=where.pk, begins=begins)
    for name, value in {**usual, **kind, "calls": calls, "took_8": calls, **facts}.items():
        setattr(row, name, value)
    row.save()
    return row


@pytest.mark.django_db
def test_the_ranges_have_whole_steps_that_end_now() -> None:
    acme = factories.create_organization()
    begins = NOW.replace(minute=0)
    rolled(acme, begins, 3)
    rolled(acme, begins - timedelta(hours=23), 4)
    rolled(acme, begins - timedelta(hours=24), 50)
    rolled(acme, NOW.replace(hour=0, minute=0), 57, grain="day")
    found = {one.slug: CallActivity(acme.pk, one.slug, NOW) for one in RANGES}
    assert {slug: one.total.calls for slug, one in found.items()} == {"24h": 7, "7d": 57, "30d": 57}
    assert [len(one.steps) for one in found.values()] == [24, 27, 30]
    assert [step.line.calls for step in found["7d"].steps[-6:]] == [0, 54, 0, 0, 0, 3]
    assert [one.steps[0].begins.hour for one in found.values()] == [14, 0, 0]


@pytest.mark.django_db
def test_entries_that_arent_counted_yet_are_added_once() -> None:
    acme = factories.create_organization()
    agent = factories.create_agent(acme)
    server = admin_client.web_server(acme)
    large_organization.call(acme, agent, [server], 40)
    before = CallActivity(acme.pk, "7d").total
    build_rollups.count_organization(acme.pk)
    after = CallActivity(acme.pk, "7d")
    assert not after.reader.tail
    assert [getattr(before, name) for name in (*COUNT_FIELDS, "duration_counts")] == [
        getattr(after.total, name) for name in (*COUNT_FIELDS, "duration_counts")
    ]
    assert (after.total.calls, after.total.errors, after.total.refused) == (40, 2, 2)
    assert after.refusals[0]["n"] == 2
    assert [one["line"].agent_name for one in after.agents] == [agent.name]


@pytest.mark.django_db
def test_the_dashboard_uses_the_same_queries_for_any_number_of_calls() -> None:
    acme = factories.create_organization()
    agent, server = factories.create_agent(acme), admin_client.web_server(acme)
    seat = admin_client.sit(acme, None)
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    rolled(acme, now, 10, agent_id=agent.pk, server_id=server.pk)
    few = queries(seat, "24h")
    for number in range(400):
        rolled(acme, now - timedelta(hours=number % 20), 2_500, tool_name=f"tool{number % 60}")
    refused = {"outcome": "refused", "code": "denied", "took_8": 0}
    for number in range(100):
        rolled(acme, now, 1, rule=f"deny:{number}", agent_id=uuid4(), **refused)
    assert queries(seat, "24h") == few <= 25
    page = admin_client.words(seat.get("index"))
    assert "1,000,110" in page


def queries(seat: admin_client.Desk, chosen: str) -> int:
    with CaptureQueriesContext(connection) as captured:
        seat.get("index", range=chosen)
    return len(captured)


@pytest.mark.django_db
@pytest.mark.parametrize("chosen", [one.slug for one in RANGES])
def test_every_number_and_bar_links_to_its_rows(chosen: str) -> None:
    acme = factories.create_organization()
    server = admin_client.web_server(acme)
    large_organization.call(acme, factories.create_agent(acme), [server], 40)
    build_rollups.count_organization(acme.pk)
    seat = admin_client.sit(acme, Role.OWNER)
    activity = CallActivity(acme.pk, chosen)
    assert listed(seat, activity.build_audit_url()) == activity.total.calls
    assert listed(seat, activity.refusals[0]["url"]) == activity.refusals[0]["n"]
    assert sum(listed(seat, one["url"]) for one in activity.tools) <= activity.total.calls
    step = next(one for one in activity.steps if one.line.calls)
    assert listed(seat, step.url) == step.line.calls
    assert unescape(seat.get("index", range=chosen)).count(step.url) >= 2  # the bar, and its row


def listed(seat: admin_client.Desk, address: str) -> int:
    [found] = re.findall(r"(\d+) audit entr(?:y|ies)\b", admin_client.words(seat.open(address)))[:1]
    return int(found)


def test_bars_are_stacked_on_the_axis() -> None:
    first, second = svg_charts.build_bars([[("", 3), ("bad", 1)], [("", 0), ("bad", 2)]])
    assert [(part.y, part.height) for part in first.parts] == [(30.0, 90.0), (0.0, 30.0)]
    assert [(part.tone, part.height) for part in second.parts] == [("bad", 60.0)]
    assert first.x + first.width < second.x


def test_a_line_has_gaps_without_measurements() -> None:
    found = svg_charts.build_curve([1.0, 2.0, None, 2.0], 2.0)
    assert found.pieces == ("75.0,60.0 225.0,0.0",)
    assert found.lone == ((525.0, 0.0),)
