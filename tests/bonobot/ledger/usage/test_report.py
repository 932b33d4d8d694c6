"""Usage and cost: the same on the page, over REST and on the command line."""

import csv
import io
import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.problems import InvalidInput, Problem
from bonobot.ledger.admin import usage as admin_usage
from bonobot.ledger.models import TOOK, Rollup, RollupCursor, Summary
from bonobot.ledger.usage import build_rollups
from bonobot.ledger.usage.report import GROUPS, UsageQuery, load_usage_report
from tests import admin_client, factories, large_organization, rest

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    organization = factories.create_organization()
    agent = factories.create_agent(organization)
    large_organization.create_calls(
        organization, agent, [admin_client.create_web_server(organization, "web")], 40
    )
    build_rollups.count_organization(organization.pk)
    values = dict.fromkeys((*build_rollups.SUM_FIELDS, *TOOK), 0) | {"calls": 3, "input_tokens": 90}
    for grain in ("hour", "day"):
        begins = timezone.now().replace(minute=0, second=0, microsecond=0)
        Rollup.objects.create(
            key=f"turn-{grain}",
            organization_id=organization.pk,
            grain=grain,
            begins=begins if grain == "hour" else begins.replace(hour=0),
            event_type="model",
            outcome="ok",
            agent_id=agent.pk,
            agent_name=agent.name,
            model="=gpt",
            **values | {"cost_microusd": 2_000_000},
        )
    RollupCursor.objects.update(summed_since=None)
    build_rollups.sum_missing_days()
    return organization


def find_audit_links(page: str) -> list[str]:
    return admin_client.find_links(page, "/admin/audit-log/?")


def test_every_grouping_adds_up_to_the_same_total(acme: Organization) -> None:
    administrator = factories.build_administrator(acme)
    for by in ("organization", "agent", "day"):
        report = load_usage_report(administrator, UsageQuery(by=by))
        assert (report.total.calls, report.total.turns, report.total.cost_microusd) == (
            40,
            3,
            2_000_000,
        )
        assert sum(entry.line.calls for entry in report.entries) == 40
    assert (
        sum(
            row.line.calls
            for row in load_usage_report(administrator, UsageQuery(by="tool")).entries
        )
        == 40
    )
    assert [
        row.name for row in load_usage_report(administrator, UsageQuery(by="server")).entries
    ] == ["web"]
    assert [
        row.line.tokens for row in load_usage_report(administrator, UsageQuery(by="model")).entries
    ] == [90]


def test_a_report_is_filtered_and_covers_whole_days(acme: Organization) -> None:
    administrator, now = factories.build_administrator(acme), timezone.now()
    assert load_usage_report(administrator, UsageQuery(server="web")).total.turns == 0
    assert load_usage_report(administrator, UsageQuery(server="other")).total.calls == 0
    filtered = load_usage_report(administrator, UsageQuery(by="tool", tool="search_issues_0"))
    assert [entry.name for entry in filtered.entries] == ["search_issues_0"]
    old = load_usage_report(
        administrator, UsageQuery(since=now - timedelta(days=9), until=now - timedelta(days=8))
    )
    assert (old.total.calls, old.since.hour, old.until.hour) == (0, 0, 0)
    hour = load_usage_report(administrator, UsageQuery(since=now - timedelta(hours=2)))
    assert 0 < hour.total.calls < 40
    with pytest.raises(InvalidInput):
        load_usage_report(administrator, UsageQuery(since=now, until=now - timedelta(days=1)))


def test_a_report_uses_a_fixed_number_of_queries(
    acme: Organization, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    administrator = factories.build_administrator(acme)
    for by in GROUPS:
        with django_assert_max_num_queries(7):
            load_usage_report(administrator, UsageQuery(by=by))


def test_only_a_platform_administrator_sees_other_organizations(acme: Organization) -> None:
    other_organization = factories.create_organization("other")
    large_organization.create_calls(
        other_organization,
        factories.create_agent(other_organization),
        [admin_client.create_web_server(other_organization)],
        10,
    )
    build_rollups.count_organization(other_organization.pk)
    administrator, owner = (
        factories.build_administrator(acme),
        factories.create_member(acme, Role.OWNER),
    )
    assert len(load_usage_report(administrator, UsageQuery(by="organization")).entries) == 2
    assert [
        entry.name for entry in load_usage_report(owner, UsageQuery(by="organization")).entries
    ] == [acme.name]
    with pytest.raises(Problem, match="don't have permission to view the audit log and usage"):
        load_usage_report(factories.create_member(acme, Role.MEMBER), UsageQuery())


def test_the_page_rest_and_the_command_line_report_the_same(
    acme: Organization, capsys: Any
) -> None:
    admin = admin_client.sign_in(acme, Role.AUDITOR)
    response = rest.as_role(acme, Role.AUDITOR).get("usage?by=model")
    call_command("usage", "show", "--by", "model", "--json")
    output = json.loads(capsys.readouterr().out)
    assert output["results"] == response.json["results"]
    assert response.json["total"]["cost_microusd"] == 2_000_000
    page = admin_client.get_text(admin.get("usage", by="model"))
    assert "=gpt" in page
    assert "$2.00" in page
    assert rest.as_role(acme, Role.MEMBER).get("usage").status == 403
    assert rest.as_role(acme, Role.AUDITOR).get("usage?by=nothing").status == 400


def test_no_cell_of_the_csv_is_a_formula(acme: Organization, capsys: Any) -> None:
    admin = admin_client.sign_in(acme, Role.AUDITOR)
    address = admin_client.build_url("usage") + "?by=model&csv=1"
    response = admin.client.get(address)
    [row] = csv.DictReader(io.StringIO(response.content.decode()))
    assert (row["name"], row["turns"]) == ("'=gpt", "3")
    assert "usage-by-model" in response["Content-Disposition"]
    call_command("usage", "export", "--by", "model")
    assert "'=gpt" in capsys.readouterr().out


def test_the_page_shows_the_largest_rows_and_the_export_has_all(
    acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_usage, "MAX_LINES_SHOWN", 5)
    admin = admin_client.sign_in(acme, Role.AUDITOR)
    page = admin.get("usage", by="tool")
    rows = [link for link in find_audit_links(page) if "tool_name=" in link]
    assert len(rows) == 5
    assert "Only the 5 rows with the most calls are shown" in admin_client.get_text(page)
    assert "are shown" not in admin_client.get_text(admin.get("usage", by="day"))
    exported = admin.client.get(admin_client.build_url("usage") + "?by=tool&csv=1").content.decode()
    assert len(list(csv.DictReader(io.StringIO(exported)))) == 20


def test_the_totals_of_the_page_are_the_same_in_every_grouping(acme: Organization) -> None:
    admin = admin_client.sign_in(acme, Role.AUDITOR)
    pages = [admin.get("usage", by=by) for by in ("agent", "server", "tool", "model", "day")]
    pattern = re.compile(r'bb-tile-title">(.*?)</span>\s*<b[^>]*>(.*?)</b>', re.DOTALL)
    tiles = {tuple(pattern.findall(page)) for page in pages}
    [totals] = tiles
    assert ("Cost", "$2.00") in totals


def test_each_row_links_to_its_audit_entries(acme: Organization) -> None:
    admin = admin_client.sign_in(acme, Role.OWNER)
    for by in ("agent", "server", "tool", "day", "model"):
        page = admin.get("usage", by=by)
        links = find_audit_links(page)
        assert links, by
        admin.open(links[-1])


def test_the_days_of_a_report_are_drawn_with_its_filters(acme: Organization) -> None:
    admin = admin_client.sign_in(acme, Role.AUDITOR)
    page = admin.get("usage", by="agent", model="=gpt")
    assert "Cost per day" in admin_client.get_text(page)
    assert page.count("<rect") == 1
    days = [link for link in find_audit_links(page) if "kind=model" in link]
    assert len(set(days)) == 31  # with the links of the totals
    assert all("resource_id=%3Dgpt" in link for link in days)
    today = admin.get("usage", since=timezone.localdate().isoformat())
    assert "<rect" not in today


def test_without_costs_calls_are_drawn_by_outcome_and_turns_of_models_apart(
    acme: Organization,
) -> None:
    admin = admin_client.sign_in(acme, Role.AUDITOR)
    for table in (Rollup, Summary):
        table.objects.update(cost_microusd=0)
    page = admin.get("usage", by="agent")
    text = admin_client.get_text(page)
    assert "Calls per day succeeded denied failed" in text
    total = int(re.findall(r"Calls ([0-9]+) Failed calls", text)[0])
    heights = [float(height) for height in re.findall(r'<rect[^>]+height="([0-9.]+)"', page)]
    assert len(heights) > 1
    top = int(re.findall(r'bb-graph-axis"[^>]*>\s*<span>([0-9]+)<', page)[0])
    assert sum(heights) * top / 100 <= total + 0.5  # without the turns
    models = admin.get("usage", by="agent", model="=gpt")
    assert "Model turns per day" in admin_client.get_text(models)
    assert models.count("<rect") == 1


def test_the_period_and_the_group_of_a_report_are_marked(acme: Organization) -> None:
    admin = admin_client.sign_in(acme, Role.AUDITOR)
    for query, marked in (({}, "30 days Agent"), ({"by": "model"}, "30 days Model")):
        page = admin.get("usage", **query)
        current = re.findall(r'<a [^>]*aria-current="true">([^<]+)<', page)
        assert " ".join(current) == marked
        assert "Organization" not in current


def test_an_invalid_filter_is_reported_at_its_field(acme: Organization) -> None:
    page = admin_client.sign_in(acme, Role.OWNER).get(
        "usage", since="2026-02-02", until="2026-01-01"
    )
    assert "would end before it starts" in admin_client.get_text(page)
