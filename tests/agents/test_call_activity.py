"""Numbers of calls: from rollups and uncounted entries, each linked to its entries."""

from copy import copy
from datetime import UTC, datetime, timedelta
from html import unescape
from uuid import uuid4

import pytest
import time_machine
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agents.call_activity import MINUS, RANGES, CallActivity, build_tiles, load_calls_by_server
from agents.models import Approval
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.i18n import time_zones
from bonobot.ledger.models import TOOK, Rollup
from bonobot.ledger.usage import build_rollups
from bonobot.ledger.usage.aggregation import BUCKET_COUNT, COUNT_FIELDS, UsageLine
from bonobot.ledger.writer.writer_thread import get_writer
from tests import admin_client, factories, large_organization
from tests.bonobot.ledger.factories import opening_of

NOW = datetime(2026, 11, 22, 13, 30, tzinfo=UTC)


def create_rollup(
    organization: Organization, begins: datetime, calls: int, **values: object
) -> Rollup:
    zeros = dict.fromkeys((*build_rollups.SUM_FIELDS, *TOOK), 0)
    defaults = {"event_type": "call", "outcome": "ok", "tool_name": "add", "grain": "hour"}
    row = Rollup(key=uuid4().hex, organization_id=organization.pk, begins=begins)
    for name, value in {**zeros, **defaults, "calls": calls, "took_8": calls, **values}.items():
        setattr(row, name, value)
    row.save()
    return row


@pytest.mark.django_db
def test_the_first_calls_of_an_organization_have_a_sparkline() -> None:
    acme = factories.create_organization()
    create_rollup(acme, NOW.replace(minute=0), 12)
    [calls, *_others] = CallActivity(acme.pk, "24h", NOW).tiles
    assert calls.spark is not None
    assert calls.spark.line.endswith("100.0,2.0")
    create_rollup(acme, NOW.replace(minute=0) - timedelta(hours=2), 3)
    [calls, *_others] = CallActivity(acme.pk, "24h", NOW).tiles
    assert calls.spark is not None
    assert calls.spark.line.endswith("100.0,26.0"), "the current hour isn't complete"


@pytest.mark.django_db
def test_the_ranges_have_whole_steps_that_end_now() -> None:
    acme = factories.create_organization()
    begins = NOW.replace(minute=0)
    create_rollup(acme, begins, 3)
    create_rollup(acme, begins - timedelta(hours=23), 4)
    create_rollup(acme, begins - timedelta(hours=24), 50)
    create_rollup(acme, NOW.replace(hour=0, minute=0), 57, grain="day")
    activities = {activity.slug: CallActivity(acme.pk, activity.slug, NOW) for activity in RANGES}
    assert {slug: activity.total.calls for slug, activity in activities.items()} == {
        "24h": 7,
        "7d": 57,
        "30d": 57,
        "90d": 57,
    }
    assert [len(activity.steps) for activity in activities.values()] == [24, 27, 30, 90]
    assert [step.line.calls for step in activities["7d"].steps[-6:]] == [0, 54, 0, 0, 0, 3]
    assert [activity.steps[0].begins.hour for activity in activities.values()] == [14, 0, 0, 0]


@pytest.mark.django_db
def test_entries_that_arent_counted_yet_are_added_once() -> None:
    acme = factories.create_organization()
    agent = factories.create_agent(acme)
    server = admin_client.create_web_server(acme)
    large_organization.create_calls(acme, agent, [server], 40)
    before = CallActivity(acme.pk, "7d").total
    build_rollups.count_organization(acme.pk)
    after = CallActivity(acme.pk, "7d")
    assert not after.reader.tail
    assert [getattr(before, name) for name in (*COUNT_FIELDS, "duration_counts")] == [
        getattr(after.total, name) for name in (*COUNT_FIELDS, "duration_counts")
    ]
    assert (after.total.calls, after.total.errors, after.total.refused) == (40, 2, 2)
    assert after.refusals[0]["n"] == 2
    assert [row["line"].agent_name for row in after.agents] == [agent.name]


@pytest.mark.django_db
def test_the_dashboard_uses_the_same_queries_for_any_number_of_calls() -> None:
    acme = factories.create_organization()
    agent, server = factories.create_agent(acme), admin_client.create_web_server(acme)
    administrator = admin_client.sign_in(acme, None)
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    create_rollup(acme, now, 10, agent_id=agent.pk, server_id=server.pk)
    expected = count_queries(administrator, "24h")
    for number in range(400):
        create_rollup(
            acme, now - timedelta(hours=number % 20), 2_500, tool_name=f"tool{number % 60}"
        )
    denial = {"outcome": "refused", "code": "denied", "took_8": 0}
    for number in range(100):
        create_rollup(acme, now, 1, rule=f"deny:{number}", agent_id=uuid4(), **denial)
    assert count_queries(administrator, "24h") == expected <= 29
    page = admin_client.get_text(administrator.get("index"))
    assert "1,000,110" in page


def count_queries(person: admin_client.AdminClient, range_slug: str) -> int:
    with CaptureQueriesContext(connection) as queries:
        person.get("index", range=range_slug)
    return len(queries)


@pytest.mark.django_db
@pytest.mark.parametrize("range_slug", [row.slug for row in RANGES])
def test_every_number_and_bar_links_to_its_rows(range_slug: str) -> None:
    acme = factories.create_organization()
    server = admin_client.create_web_server(acme)
    large_organization.create_calls(acme, factories.create_agent(acme), [server], 40)
    build_rollups.count_organization(acme.pk)
    owner = admin_client.sign_in(acme, Role.OWNER)
    activity = CallActivity(acme.pk, range_slug)
    assert count_listed_entries(owner, activity.build_audit_url()) == activity.total.calls
    assert count_listed_entries(owner, activity.refusals[0]["url"]) == activity.refusals[0]["n"]
    assert (
        sum(count_listed_entries(owner, row["url"]) for row in activity.tools)
        <= activity.total.calls
    )
    step = next(row for row in activity.steps if row.line.calls)
    assert count_listed_entries(owner, step.url) == step.line.calls
    assert (
        unescape(owner.get("index", range=range_slug)).count(step.url) >= 2
    )  # the bar and its table row


@pytest.mark.django_db(transaction=True)
def test_a_persons_denial_isnt_listed_as_the_rule_that_asked() -> None:
    acme = factories.create_organization()
    rule = "policy:allowlist:ask mcp:echo"
    for code in ("approval_denied", "approval_expired"):
        opening = opening_of(acme.pk, decision="deny", code=code, rule=rule)
        get_writer().record_refusal(opening).result(30)
    get_writer().close()
    build_rollups.count_organization(acme.pk)
    rows = {
        (str(row["title"]), row["note"]) for row in CallActivity(acme.pk, RANGES[0].slug).refusals
    }
    assert rows == {("Denied by a person", rule), ("Approval expired", rule)}
    page = admin_client.get_text(admin_client.sign_in(acme, None).get("index"))
    assert "Denied by a person Agent tools echo 1" in page


@pytest.mark.django_db
def test_failures_and_denials_of_tools_name_their_server(acme: Organization) -> None:
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    denied = {"outcome": "refused", "code": "policy_denied", "took_8": 0}
    failed = {"outcome": "error", "code": "server_unreachable", "took_8": 0}
    servers = [admin_client.create_web_server(acme, name) for name in ("web", "mail")]
    for count, server in enumerate(servers, 1):
        names = {"server_id": server.pk, "server_name": server.name}
        create_rollup(acme, now, count, rule="policy:all:deny mcp:send", **denied, **names)
        create_rollup(acme, now, count, rule="agent:enabled", **denied, **names)
        create_rollup(acme, now, count, **failed, **names)
    activity = CallActivity(acme.pk, "24h")
    assert [(row["title"], row["note"], row["n"]) for row in activity.refusals] == [
        ("agent:enabled", None, 3),
        ("policy:all:deny mcp:send", "mail", 2),
        ("policy:all:deny mcp:send", "web", 1),
    ]
    assert [(row["title"], row["note"], row["n"]) for row in activity.failures] == [
        ("Server unreachable", "mail", 2),
        ("Server unreachable", "web", 1),
    ]
    assert f"server_id={servers[1].pk}" in activity.failures[0]["url"]


@pytest.mark.django_db
def test_a_denied_call_of_a_tool_that_doesnt_exist_has_no_server_and_a_rule_in_words(
    acme: Organization,
) -> None:
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    denied = {"outcome": "refused", "code": "unknown_tool", "rule": "resolve", "took_8": 0}
    create_rollup(acme, now, 3, tool_name="delete_order", **denied)
    create_rollup(acme, now, 2, tool_name="read_result")
    create_rollup(acme, now, 1, tool_name="ask_helper")
    activity = CallActivity(acme.pk, "24h")
    assert [(str(row["title"]), row["note"]) for row in activity.refusals] == [
        ("Unknown tool", None)
    ]
    page = admin_client.get_text(admin_client.sign_in(acme, None).get("index"))
    assert "delete_order – 3" in page
    assert "read_result built in 2" in page
    assert "ask_helper built in 1" in page


def count_listed_entries(person: admin_client.AdminClient, url: str) -> int:
    return person.open(url).count('data-entry="')


@pytest.mark.django_db
@pytest.mark.parametrize("range_slug", [row.slug for row in RANGES])
def test_numbers_are_compared_with_the_previous_range_up_to_the_same_time(range_slug: str) -> None:
    acme = factories.create_organization()
    days = next(row.days for row in RANGES if row.slug == range_slug)
    hour = NOW.replace(minute=0)
    for begins, calls in (
        (hour, 30),
        (hour - timedelta(days=days), 20),
        (hour - timedelta(days=days, hours=-1), 500),  # later than now, in the previous range
        (hour - timedelta(days=2 * days + 1), 700),
    ):
        create_rollup(acme, begins, calls)
        create_rollup(acme, begins.replace(hour=0), calls, grain="day")
    activity = CallActivity(acme.pk, range_slug, NOW)
    assert activity.previous_total.calls == 20
    calls_tile = activity.tiles[0]
    if days == 1:
        assert (calls_tile.value, calls_tile.change) == ("530", "+2,550.0%")
    assert calls_tile.base == "from 20"


@pytest.mark.django_db
@pytest.mark.parametrize("range_slug", [row.slug for row in RANGES])
def test_calls_that_wait_for_approval_are_counted_as_in_the_audit_log(range_slug: str) -> None:
    acme = factories.create_organization()
    agent = factories.create_agent(acme)
    create_rollup(acme, timezone.now().replace(minute=0, second=0, microsecond=0), 4)
    waiting = factories.create_approval(agent)
    factories.create_approval(agent, state="denied")
    old = factories.create_approval(agent)
    Approval.objects.filter(pk=old.pk).update(created_at=timezone.now() - timedelta(days=100))
    factories.create_approval(factories.create_agent(acme, "Other"))
    activity = CallActivity(acme.pk, range_slug, agent_id=agent.pk)
    assert activity.pending == activity.steps[-1].pending == 1
    assert activity.steps[-1].begins <= waiting.created_at
    assert CallActivity(acme.pk, range_slug).pending == 2
    assert "pending" in [part.tone for part in activity.chart.columns[-1].bar.parts]
    everyone = CallActivity(acme.pk, "24h")
    assert (everyone.tiles[0].value, everyone.tiles[0].note) == ("6", "2 pending calls")
    assert admin_client.sign_in(acme, Role.OWNER).get("index").count('data-tone="pending"') > 1


@pytest.mark.django_db
def test_any_number_of_pending_calls_is_counted(acme: Organization) -> None:
    approval = factories.create_approval(factories.create_agent(acme))
    rows = []
    for _number in range(229):
        approval.pk, approval.digest = uuid4(), uuid4().hex * 2
        rows.append(copy(approval))
    Approval.objects.bulk_create(rows)
    assert CallActivity(acme.pk, "24h").pending == 230


def test_tiles_say_what_got_better_or_worse() -> None:
    def build_line(calls: int, errors: int, bucket: int, cost: int) -> UsageLine:
        counts = [0] * BUCKET_COUNT
        counts[bucket] = calls
        return UsageLine(calls=calls, errors=errors, cost_microusd=cost, duration_counts=counts)

    now, before = build_line(90, 9, 8, 2_500_000), build_line(100, 4, 14, 4_000_000)
    urls = dict.fromkeys(("calls", "failed", "duration", "cost"), "/")
    tiles = build_tiles([before, now], now, before, urls)
    assert [(tile.title, tile.value, tile.change, tile.base, tile.tone) for tile in tiles] == [
        ("Calls", "90", f"{MINUS}10.0%", "from 100", ""),
        ("Failed calls", "9", "+5", "from 4", "bad"),
        ("Call duration (p95)", "49 ms", f"{MINUS}736 ms", "from 785 ms", "good"),
        ("Cost", "$2.50", f"{MINUS}$1.50", "from $4.00", ""),
    ]
    assert tiles[1].note == "10.0% of calls"
    assert build_tiles([now], build_line(90, 0, 8, 0), before, urls)[1].note == "0% of calls"
    assert build_tiles([now], UsageLine(), before, urls)[1].note == ""
    first = build_tiles([now], now, UsageLine(), urls)
    assert all((tile.change, tile.base) == ("", "") for tile in first)
    assert first[0].spark is None  # a line needs two points


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


# In the last hour of a day, the last 24 hours are a whole day, which other rows count.
@time_machine.travel(NOW)
@pytest.mark.django_db
def test_the_metrics_of_an_agent_have_only_its_calls(acme: Organization) -> None:
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    helper, other_agent = factories.create_agent(acme), factories.create_agent(acme, "other")
    create_rollup(acme, now, 3, agent_id=helper.pk)
    create_rollup(acme, now, 1, agent_id=helper.pk, outcome="error", code="tool_error", took_8=0)
    create_rollup(acme, now, 2, agent_id=helper.pk, event_type="model", cost_microusd=5, took_8=0)
    create_rollup(acme, now, 40, agent_id=other_agent.pk, outcome="error", code="timeout", took_8=0)
    activity = CallActivity(acme.pk, "24h", agent_id=helper.pk)
    total = activity.total
    assert (total.calls, total.errors, total.turns, total.cost_microusd) == (4, 1, 2, 5)
    assert [(row["title"], row["n"]) for row in activity.failures] == [
        ("Tool returned an error", 1)
    ]
    assert [row["line"].calls for row in activity.tools] == [4]
    assert load_calls_by_server(helper, timedelta(days=2)) == {}
    create_rollup(acme, now.replace(hour=0), 4, agent_id=helper.pk, grain="day")
    assert load_calls_by_server(helper, timedelta(days=2)) == {None: 4}


# In the last hour of a day, the last 24 hours are a whole day, which other rows count.
@time_machine.travel(NOW)
@pytest.mark.django_db
def test_the_metrics_of_an_agent_link_to_its_entries(acme: Organization) -> None:
    helper = factories.create_agent(acme)
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    create_rollup(acme, now, 1, agent_id=helper.pk, outcome="error", code="tool_error", took_8=0)
    create_rollup(acme, now, 1, agent_id=helper.pk, outcome="refused", code="denied", took_8=0)
    page = admin_client.sign_in(acme, Role.REVIEWER).get("agents_agent_metrics", helper.pk)
    links = admin_client.find_links(page, "/admin/audit-log/?")
    assert any("code=tool_error" in link for link in links)
    assert any("code=denied" in unescape(link) for link in links)
    assert all(f"agent_id={helper.pk}" in unescape(link) for link in links)


@time_machine.travel(NOW)
@pytest.mark.django_db
def test_the_current_step_isnt_part_of_the_sparklines(acme: Organization) -> None:
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    create_rollup(acme, now - timedelta(hours=1), 8)
    create_rollup(acme, now, 1)
    activity = CallActivity(acme.pk, "24h", now + timedelta(minutes=5))
    spark = activity.tiles[0].spark
    assert spark
    assert len(spark.line.split()) == 23
    assert spark.line.endswith(",2.0")  # the top
    assert len(activity.chart.columns) == 24


@pytest.mark.django_db
def test_hours_are_labeled_in_the_readers_time_zone() -> None:
    activity = CallActivity(factories.create_organization().pk, "24h", NOW)
    time_zones.set_reader_time_zone("America/New_York")
    try:
        step = activity.steps[-1]
        assert (step.label, step.title) == ("08:00", "Nov 22, 08:00–09:00")
    finally:
        time_zones.set_reader_time_zone("")


@time_machine.travel(NOW)
@pytest.mark.django_db
def test_a_call_with_an_unknown_outcome_is_not_a_failed_one_anywhere(acme: Organization) -> None:
    helper = factories.create_agent(acme)
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    values = {"agent_id": helper.pk, "took_8": 0}
    create_rollup(acme, now, 1, outcome="error", code="tool_error", **values)
    create_rollup(acme, now, 3, outcome="unknown", code="outcome_unknown", **values)
    day = now.replace(hour=0)
    create_rollup(acme, day, 3, outcome="unknown", code="outcome_unknown", grain="day", **values)
    activity = CallActivity(acme.pk, "24h")
    lines = [activity.total, activity.tools[0]["line"], activity.agents[0]["line"]]
    assert [(line.errors, line.unknown, line.canceled) for line in lines] == [(1, 3, 0)] * 3
    assert [row["title"] for row in activity.failures] == ["Tool returned an error"]
    failed = activity.tiles[1]
    assert (failed.value, failed.note) == ("1", "25.0% of calls")
    assert "&outcome__in=error&" in failed.url
    administrator = admin_client.sign_in(acme, None)
    dashboard, usage = (administrator.get(name) for name in ("index", "usage"))
    assert '<span data-tone="unknown">unknown</span>' in dashboard
    assert '<span data-tone="unknown">unknown</span>' in usage
    assert '<th class="bb-number">Unknown</th>' in usage
    assert "outcome__in=error%2Cunknown" not in dashboard + usage
