"""The audit log in the admin: read-only, searched, filtered, exported, translated."""

import json
from datetime import datetime, time, timedelta
from typing import Any
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation
from pytest_django import DjangoAssertNumQueries

from agents.admin import audit
from agents.models import Agent, Approval
from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from bonobot.ledger.audit import search as audit_search
from bonobot.ledger.audit.action_titles import format_action
from bonobot.ledger.audit.admin_changes import record_finished_change
from bonobot.ledger.models import AuditRow
from bonobot.ledger.types import Actor
from tests import admin_client, factories, large_organization
from tests.audit_actions import get_title
from tests.screens import create_objects

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def auditor(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.AUDITOR)


def create_entry(
    organization: Organization, action: str = "server_created", name: str = "web"
) -> AuditRow:
    pk = record_finished_change(
        organization_id=organization.pk,
        actor=Actor("user", "1", "anna\u200b"),
        action=action,
        resource_type="mcp_server",
        resource_id=str(uuid4()),
        resource_name=name,
        details={"why": "<b>because</b>"},
    )
    row: AuditRow = AuditRow.objects.get(pk=pk)
    return row


def test_entries_show_who_did_what(acme: Organization, auditor: admin_client.AdminClient) -> None:
    create_entry(acme)
    page = admin_client.get_text(auditor.get("ledger_auditrow_changelist"))
    assert "Server created web" in page
    assert "anna⟨U+200B⟩" in page


def test_entries_of_another_organization_arent_shown(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    foreign = create_entry(factories.create_organization("other"), name="elsewhere")
    assert "elsewhere" not in auditor.get("ledger_auditrow_changelist")
    auditor.get("ledger_auditrow_change", foreign.pk, status=404)


@pytest.mark.parametrize(
    "query",
    [
        {"q": "weather"},
        {"resource_name": "weather"},
        {"q": "because", "action": "server_deleted"},
        {"kind": "change", "action": "server_deleted"},
    ],
)
def test_entries_are_searched(
    acme: Organization, auditor: admin_client.AdminClient, query: dict[str, str]
) -> None:
    create_entry(acme, "server_deleted", "weather")
    create_entry(acme, "server_created", "clock")
    page = admin_client.get_text(auditor.get("ledger_auditrow_changelist", **query))
    if "resource_name" not in query:
        assert "weather" in page
        assert "clock" not in page


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"opened_at_from_0": "2000-01-01"}, True),
        ({"opened_at_from_0": "2000-01-01", "opened_at_to_0": "2001-01-01"}, False),
        ({"opened_at_from_0": "9000-01-01", "opened_at_from_1": "00:00:00"}, False),
        ({"opened_at_from_0": "2026-99-99", "opened_at_from_1": "soon"}, True),
    ],
)
def test_entries_are_filtered_by_date(
    acme: Organization, auditor: admin_client.AdminClient, query: dict[str, str], expected: bool
) -> None:
    create_entry(acme)
    page = admin_client.get_text(auditor.get("ledger_auditrow_changelist", **query))
    assert ("Server created" in page) == expected


def test_the_filters_of_links_from_other_pages_are_allowed(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    row = create_entry(acme)
    page = auditor.get("ledger_auditrow_changelist", resource_id=row.resource_id)
    assert "Server created" in page
    for name in ("server_id", "agent_id", "session_id"):
        assert "Server created" not in auditor.get(
            "ledger_auditrow_changelist", **{name: str(uuid4())}
        )


def test_an_entry_shows_its_details_and_position_in_the_chain(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    row = create_entry(acme)
    page = auditor.get("ledger_auditrow_change", row.pk)
    assert row.digest in page
    assert "&lt;b&gt;because&lt;/b&gt;" in page
    assert "<b>because</b>" not in page


def test_the_audit_log_cant_be_changed(acme: Organization) -> None:
    row = create_entry(acme)
    administrator = admin_client.sign_in(acme, None)
    for name in ("ledger_auditrow_delete", "ledger_auditrow_change"):
        administrator.client.post(
            admin_client.build_url(name, row.pk), {"post": "yes", "action": "x"}
        )
    administrator.client.post(admin_client.build_url("ledger_auditrow_add"), {"action": "x"})
    assert AuditRow.objects.filter(pk=row.pk, action="server_created").exists()
    assert AuditRow.objects.count() == 1


def test_a_member_cant_view_the_audit_log(acme: Organization) -> None:
    row = create_entry(acme)
    member = admin_client.sign_in(acme, Role.MEMBER)
    member.get("ledger_auditrow_changelist", status=403)
    member.get("ledger_auditrow_change", row.pk, status=403)


def test_the_list_links_to_an_export_with_its_filters(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    create_entry(acme)
    page = auditor.get("ledger_auditrow_changelist", action="server_created")
    assert "export/?action=server_created&amp;form=csv" in page


@pytest.fixture
def entries(acme: Organization, monkeypatch: pytest.MonkeyPatch) -> list[AuditRow]:
    """Five entries, oldest first, in a log of which one search scans two."""
    monkeypatch.setattr(audit_search, "MAX_ROWS_SCANNED", 2)
    return [create_entry(acme, name=name) for name in ("needle", "hay", "straw", "hay", "straw")]


def test_a_search_shows_how_far_it_scanned_and_continues(
    entries: list[AuditRow], auditor: admin_client.AdminClient
) -> None:
    url = admin_client.build_url("ledger_auditrow_changelist") + "?q=needle"
    pages = []
    while url:
        response = auditor.client.get(url)
        assert response.status_code == 200
        pages.append([row.pk for row in response.context_data["cl"].result_list])
        continuation = response.context_data["further"]
        url = (
            f"{admin_client.build_url('ledger_auditrow_changelist')}?{continuation['query']}"
            if continuation
            else ""
        )
    assert pages[-1] == [entries[0].pk]
    assert pages[:-1] == [[]] * (len(pages) - 1)
    assert len(pages) >= 3


def test_pages_count_few_rows_and_continue_before_the_last_one(
    acme: Organization, auditor: admin_client.AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit.AuditAdmin, "max_paged", 100)
    created = {create_entry(acme, name=f"web{number}").pk for number in range(120)}
    url = admin_client.build_url("ledger_auditrow_changelist") + "?p=2&outcome__in=ok"
    response = auditor.client.get(url)
    shown = {row.pk for row in response.context_data["cl"].result_list}
    assert response.context_data["cl"].paginator.more
    older = auditor.client.get(f"{url.partition('?')[0]}?{response.context_data['older_query']}")
    rows = {row.pk for row in older.context_data["cl"].result_list}
    first_page = auditor.client.get(url.replace("p=2&", ""))
    first = {row.pk for row in first_page.context_data["cl"].result_list}
    assert created <= shown | rows | first
    assert older.context_data["older_query"] == ""
    assert "outcome__in=ok" in response.context_data["older_query"]


@pytest.mark.parametrize("order", ["1", "-1", "2"])
def test_the_list_is_ordered_only_by_time(
    acme: Organization, auditor: admin_client.AdminClient, order: str
) -> None:
    for action in ("server_created", "agent_created", "server_created"):
        create_entry(acme, action)
    response = auditor.client.get(
        admin_client.build_url("ledger_auditrow_changelist"), {"o": order}
    )
    times = [row.opened_at for row in response.context_data["cl"].result_list]
    assert times == sorted(times, reverse=True)


def test_a_search_that_covers_its_period_has_no_continuation(
    entries: list[AuditRow], auditor: admin_client.AdminClient
) -> None:
    since = timezone.localtime(entries[-1].opened_at)
    query = {"q": "straw", "opened_at_from_0": f"{since:%Y-%m-%d}"}
    query["opened_at_from_1"] = f"{since:%H:%M:%S.%f}"
    response = auditor.client.get(admin_client.build_url("ledger_auditrow_changelist"), query)
    assert [row.pk for row in response.context_data["cl"].result_list] == [entries[-1].pk]
    assert response.context_data["further"] is None


@pytest.mark.parametrize(
    "query",
    [
        {"tool_name__icontains": "nothing"},
        {"kind": "call"},
        {"decision__exact": "deny"},
        {"rule": "nothing"},
        {"resource_id": "nothing"},
        {"outcome__in": "refused,error"},
        {"flow_label": "private_data"},
    ],
)
def test_a_search_without_an_index_scans_up_to_the_limit(
    entries: list[AuditRow], auditor: admin_client.AdminClient, query: dict[str, str]
) -> None:
    response = auditor.client.get(admin_client.build_url("ledger_auditrow_changelist"), query)
    assert "Search further back" in response.content.decode()


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"outcome__in": "refused"},
        {"code": "nothing"},
        {"session_id": str(uuid4())},
        {"o": "-8"},
    ],
)
def test_a_search_with_an_index_lists_all_results(
    entries: list[AuditRow], auditor: admin_client.AdminClient, query: dict[str, str]
) -> None:
    response = auditor.client.get(admin_client.build_url("ledger_auditrow_changelist"), query)
    assert response.context_data["further"] is None


def create_call(organization: Organization, **columns: Any) -> AuditRow:
    """Write the entry of a call as the writer does, without its place in the chain."""
    rows: QuerySet[AuditRow] = QuerySet(model=AuditRow)  # the model's own manager refuses
    details = columns.pop("details", {})
    values = {
        "seq": 1_000 + rows.count(),
        "digest": "0" * 64,
        "opened": json.dumps({"details": details}, separators=(",", ":")),
        "opened_at": timezone.now(),
        "action": "agent_tool_call",
        "event_type": "call",
        "actor_kind": "session",
        "actor_label": "Priya",
        "decision": "allow",
        "outcome": "ok",
        "tool_name": "pay",
    }
    [row] = rows.bulk_create(
        [AuditRow(id=uuid4(), organization_id=organization.pk, **values | columns)]
    )
    return row


def test_calls_are_filtered_by_the_flow_labels_of_their_tools(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    labels = ["private_data", "sends_out"]
    create_call(acme, tool_name="send", details={"arguments": {}, "labels": labels})
    create_call(acme, tool_name="pay", details={"arguments": {"sends_out": 1}, "labels": []})
    page = admin_client.get_text(auditor.get("ledger_auditrow_changelist", flow_label="sends_out"))
    assert "Flow label External effect" in page
    assert "send" in page
    assert "pay" not in page


def test_an_unknown_flow_label_is_refused_with_the_known_ones(
    auditor: admin_client.AdminClient,
) -> None:
    page = auditor.get("ledger_auditrow_changelist", status=400, flow_label="secret")
    assert "Must be one of: private_data, untrusted_content" in admin_client.get_text(page)


def create_approved_call(organization: Organization, **fields: Any) -> tuple[AuditRow, AuditRow]:
    """Write the entries of a call that needed approval: its request, and the call."""
    slug = f"helper{Agent.objects.count() or ''}"
    approval = factories.create_approval(factories.create_agent(organization, slug), **fields)
    details = {"approval_id": str(approval.pk), "arguments": {"amount": 480}}
    request = create_call(
        organization,
        decision="ask",
        outcome="refused",
        code="approval_required",
        tool_name="requested",
        details=details,
    )
    Approval.objects.filter(pk=approval.pk).update(request_entry_id=request.pk)
    call = create_call(organization, decision="ask", details=details)
    return request, call


def test_a_call_that_waits_for_approval_is_pending(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    request = create_approved_call(acme)[0]
    for query in ({}, {"outcome__in": "pending"}):
        page = auditor.get("ledger_auditrow_changelist", **query)
        assert str(request.pk) in page
        assert "Pending approval" in admin_client.get_text(page)
    assert str(request.pk) not in auditor.get("ledger_auditrow_changelist", outcome__in="refused")


def test_an_approved_call_is_listed_once_with_its_approver(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    answer = {"state": "approved", "decided_by": "Jonas", "decided_at": timezone.now()}
    request, call = create_approved_call(acme, **answer)
    page = auditor.get("ledger_auditrow_changelist")
    assert str(call.pk) in page
    assert str(request.pk) not in page
    assert "Jonas" in page
    assert str(request.pk) in auditor.get("ledger_auditrow_changelist", kind="approval")
    panel = auditor.get("ledger_auditrow_changelist", entry=str(call.pk))
    for page in (panel, auditor.get("ledger_auditrow_change", call.pk)):
        for expected in ("Approved by Jonas", "amount", "Succeeded"):
            assert expected in admin_client.get_text(page)
    page = auditor.get("ledger_auditrow_change", request.pk)
    assert "approval_required" not in admin_client.get_text(page)


def test_a_call_that_a_session_approval_covers_names_who_approved_it_and_when(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    approval = {"approved_by": "Jonas", "approved_at": "2020-02-03T04:05:06+00:00"}
    call = create_call(acme, decision="ask", details={"approval_id": "session", **approval})
    old_call = create_call(acme, decision="ask", details={"approval_id": "session"})
    rows = admin_client.get_text(auditor.get("ledger_auditrow_changelist"))
    assert "Jonas · for the session" in rows
    panel = admin_client.get_text(auditor.get("ledger_auditrow_changelist", entry=str(call.pk)))
    assert "Approved by Jonas for the session, 2020-02-03 04:05" in panel
    # Entries of earlier versions don't have the name.
    panel = admin_client.get_text(auditor.get("ledger_auditrow_changelist", entry=str(old_call.pk)))
    assert "Approved by for the session" in panel


def test_a_row_names_the_rule_that_decided_the_call(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    create_call(acme, rule="policy:allowlist:allow mcp:pay_*")
    create_call(acme, rule="organization:halted", decision="deny", outcome="refused")
    rows = admin_client.get_text(auditor.get("ledger_auditrow_changelist"))
    assert "Organization policy pay_*" in rows  # of a call without an agent
    assert "Kill switch" in rows.partition("Decided by")[2]


def test_the_panel_shows_the_annotations_that_the_tool_had(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    call = create_call(acme, details={"hints": ["readOnlyHint"], "labels": ["private_data"]})
    panel = admin_client.get_text(auditor.get("ledger_auditrow_changelist", entry=str(call.pk)))
    assert "Read-only" in panel
    assert "Private data" in panel
    assert "Destructive" not in panel


def test_periods_and_filters_use_the_readers_time_zone(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    User.objects.update(time_zone="Pacific/Auckland")
    zone = ZoneInfo("Pacific/Auckland")
    midnight = datetime.combine(timezone.now().astimezone(zone).date(), time.min, zone)
    late = create_call(acme, opened_at=midnight - timedelta(seconds=1))
    early = create_call(acme, opened_at=midnight)
    yesterday = f"{midnight - timedelta(hours=1):%Y-%m-%d}"
    for query in ({"opened_at_period": "yesterday"}, {"opened_at_to_0": yesterday}):
        page = auditor.get("ledger_auditrow_changelist", **query)
        assert str(late.pk) in page
        assert str(early.pk) not in page
    assert str(early.pk) in auditor.get("ledger_auditrow_changelist", opened_at_period="today")
    page = auditor.get("ledger_auditrow_changelist", opened_at_to_0=yesterday)
    assert f'name="opened_at_to_0" value="{yesterday}"' in " ".join(page.split())
    assert "To (NZ" in page


def test_a_period_stays_selected_when_other_filters_change(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    create_call(acme)
    page = auditor.get("ledger_auditrow_changelist", opened_at_period="7d", kind="call")
    assert 'name="opened_at_period" value="7d"' in page
    assert "?kind=call&amp;opened_at_period=30d" in page
    assert '<a href="?kind=call" aria-current="true">7 days</a>' in " ".join(page.split())
    # The period remains if it has no entries.
    empty = auditor.get("ledger_auditrow_changelist", opened_at_period="yesterday")
    assert "No results" in empty
    assert "opened_at_period=30d" in empty


def test_the_panel_names_the_session_of_a_call_by_its_title(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    session = factories.create_answered_session(factories.create_agent(acme))
    call = create_call(acme, session_id=session.pk)
    panel = auditor.get("ledger_auditrow_changelist", entry=str(call.pk))
    facts = admin_client.get_text(panel.partition('<dl class="bb-facts">')[2].partition("</dl>")[0])
    assert f"Session {session.title}" in facts


def test_a_change_by_a_person_has_no_decision_and_nobody_requested_it(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    factories.create_agent(acme)
    row = AuditRow.objects.for_organization(acme.pk).filter(action="agent_created").get()
    panel = admin_client.get_text(auditor.get("ledger_auditrow_changelist", entry=str(row.pk)))
    facts = panel.partition("Open full entry Close")[2] or panel
    assert "Requested by" not in facts
    assert "Decision Allow" not in facts


def test_a_lost_connection_has_no_decision(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    row = create_call(
        acme,
        event_type="connection",
        action="server_connection_lost",
        outcome="error",
        code="server_unreachable",
    )
    panel = auditor.get("ledger_auditrow_changelist", entry=str(row.pk))
    page = auditor.get("ledger_auditrow_change", row.pk)
    assert 'class="bb-rules"' not in panel
    assert "Decision" not in admin_client.get_text(page)


def test_filters_are_chips_that_can_be_removed_one_by_one(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    call = create_call(acme, agent_id=uuid4(), agent_name="Helper")
    query = {"kind": "call", "agent_id": str(call.agent_id), "outcome__in": "ok"}
    page = auditor.get("ledger_auditrow_changelist", **query)
    chips = page.split('bb-filter-chip">')[1:]
    assert [
        " ".join(admin_client.get_text(chip).split())[: len(start)]
        for chip, start in zip(chips, EXPECTED_CHIPS, strict=False)
    ] == list(EXPECTED_CHIPS)
    assert f"?agent_id={call.agent_id}&amp;outcome__in=ok" in page
    assert f"kind=call&amp;agent_id={call.agent_id}&amp;outcome__in=ok&amp;entry={call.pk}" in page


EXPECTED_CHIPS = ("Type Tool calls", "Agent Helper", "Outcome Succeeded")


def test_calls_over_time_have_each_call_once_and_link_to_their_period(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    create_approved_call(acme)
    create_call(acme, outcome="error", agent_id=uuid4())
    page = admin_client.get_text(auditor.get("ledger_auditrow_changelist"))
    assert "3 calls" in page  # one pending, one succeeded, one failed
    html = auditor.get("ledger_auditrow_changelist", outcome__in="error", kind="call")
    assert "kind=call&amp;opened_at_from_0=" in html.replace("outcome__in=error&amp;", "")
    assert "data-histogram" not in auditor.get("ledger_auditrow_changelist", q="pay")
    page = auditor.get("ledger_auditrow_changelist", outcome__in="cancelled")
    assert "data-histogram" not in page  # without calls
    assert "0 calls" not in admin_client.get_text(page)


def test_calls_with_an_unknown_outcome_have_their_own_series_and_count(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    create_call(acme, outcome="error", code="tool_error")
    failed = auditor.get("ledger_auditrow_changelist", kind="call")
    assert 'data-series="unknown"' not in failed
    create_call(acme, outcome="unknown", code="outcome_unknown")
    page = auditor.get("ledger_auditrow_changelist", kind="call")
    assert page.count('data-series="unknown"') == 2  # in the legend and as a part of a bar
    assert 'data-series="unknown">Unknown</span>' in page
    for outcome in ("error", "unknown"):
        chosen = auditor.get("ledger_auditrow_changelist", kind="call", outcome__in=outcome)
        assert "<b>1</b> call" in " ".join(chosen.split())


def test_the_panel_of_a_turn_and_of_its_calls_lists_the_calls(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    session = factories.create_answered_session(factories.create_agent(acme))
    turn = create_turn_entry(acme, "", "model", session_id=session.pk)
    calls = [
        create_turn_entry(acme, name, "call", session_id=session.pk, parent_id=turn)
        for name in ("first_tool", "second_tool")
    ]
    for pk in (turn, calls[0]):
        page = auditor.get("ledger_auditrow_changelist", entry=str(pk))
        panel = page[page.index("Calls of this turn") :]
        assert panel.index("first_tool") < panel.index("second_tool")
        assert admin_client.build_url("ledger_auditrow_change", calls[1]) in panel


def create_turn_entry(
    organization: Organization, tool: str, event_type: str, **fields: Any
) -> UUID:
    """Write an entry of a call or model turn, without digests."""
    agent = Agent.objects.get(organization=organization)
    server = admin_client.create_web_server(organization, f"web-{uuid4().hex[:8]}")
    [row] = large_organization.build_calls(organization.pk, agent, [server], range(1))
    values = {"tool_name": tool, "resource_name": tool, "event_type": event_type, "outcome": "ok"}
    for name, value in (values | fields).items():
        setattr(row, name, value)
    row.seq = AuditRow.objects.for_organization(organization.pk).count() + 5_000_000
    rows: QuerySet[AuditRow] = QuerySet(model=AuditRow)
    rows.bulk_create([row])
    return row.pk


def test_a_script_gets_only_the_rows_or_the_panel(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    call, headers = create_call(acme), {"Bonobot-Fragment": "1"}
    list_url = admin_client.build_url("ledger_auditrow_changelist")
    rows = auditor.client.get(list_url, headers=headers).content.decode()
    assert f'data-entry="{call.pk}"' in rows
    assert "data-histogram" not in rows
    entry_url = admin_client.build_url("ledger_auditrow_change", call.pk)
    panel = auditor.client.get(entry_url, headers=headers).content.decode()
    assert "data-panel-close" in panel
    assert "<html" not in panel


def test_the_list_uses_a_fixed_number_of_queries(
    acme: Organization,
    auditor: admin_client.AdminClient,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    create_approved_call(acme)
    for _ in range(30):
        create_call(acme, decision="ask", details={"approval_id": str(uuid4())})
        create_call(acme, decision="deny", outcome="refused", code="approval_denied")
    with django_assert_max_num_queries(27):
        auditor.get("ledger_auditrow_changelist")


@pytest.mark.parametrize("count", [0, 1, 60], ids=["none", "one", "two pages"])
def test_a_search_scans_the_rows_once(
    acme: Organization,
    auditor: admin_client.AdminClient,
    count: int,
) -> None:
    for _ in range(count):
        create_call(acme, tool_name="raretool")
    url = admin_client.build_url("ledger_auditrow_changelist")
    with CaptureQueriesContext(connection) as queries:
        page = auditor.client.get(url, {"q": "raretool"}).content.decode()
    assert page.count("data-entry=") == min(count, 50)
    assert sum("raretool" in query["sql"].lower() for query in queries.captured_queries) == 1


def test_pending_calls_are_listed_without_a_scan_of_answered_ones(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    create_approved_call(acme, state="approved", expires_at=timezone.now())
    pending, _call = create_approved_call(acme)
    url = admin_client.build_url("ledger_auditrow_changelist")
    with CaptureQueriesContext(connection) as queries:
        page = auditor.client.get(url, {"outcome__in": "pending"}).content.decode()
    assert page.count("data-entry=") == 1
    assert str(pending.pk) in page
    [listing] = [
        query["sql"]
        for query in queries.captured_queries
        if "ORDER BY" in query["sql"] and "LIMIT 1001" in query["sql"]
    ]
    assert pending.pk.hex in listing.replace("-", "")
    assert "NOT (" not in listing


def test_too_many_search_words_are_refused(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    query = {"q": " ".join(["word"] * 17)}
    assert (
        auditor.client.get(admin_client.build_url("ledger_auditrow_changelist"), query).status_code
        == 400
    )


def test_the_export_of_a_search_has_all_matching_entries(
    entries: list[AuditRow], auditor: admin_client.AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(request: HttpRequest, rows: QuerySet[AuditRow], form: str) -> HttpResponse:
        return HttpResponse(" ".join(str(row.pk) for row in rows))

    monkeypatch.setattr(audit, "build_download", download)
    response = auditor.client.get(admin_client.build_url("ledger_auditrow_export"), {"q": "needle"})
    assert response.content.decode() == str(entries[0].pk)


def test_actions_have_titles_in_the_readers_language(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    row = create_entry(acme)
    auditor.client.defaults["HTTP_ACCEPT_LANGUAGE"] = "de"
    page = auditor.get("ledger_auditrow_changelist")
    assert 'title="server_created"' in page
    assert "Server erstellt" in page
    assert "Server erstellt" in auditor.get("ledger_auditrow_change", row.pk)


def test_every_recorded_action_has_a_german_title(acme: Organization) -> None:
    create_objects(acme)
    codes = set(AuditRow.objects.for_organization(acme.pk).values_list("action", flat=True))
    assert len(codes) > 12
    with translation.override("de"):
        titles = {code: format_action(code) for code in codes}
    assert not [code for code, name in titles.items() if name == get_title(code)]


def test_filters_have_names_in_the_readers_language(auditor: admin_client.AdminClient) -> None:
    auditor.client.defaults["HTTP_ACCEPT_LANGUAGE"] = "de"
    page = admin_client.get_text(auditor.get("ledger_auditrow_changelist"))
    for title in ("Ergebnis", "Entscheidung", "Code", "Agent", "Server", "Tool", "Von (UTC)"):
        assert title in page, title


def test_the_decision_of_an_entry_is_a_sentence_with_its_rule(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    row = create_call(
        acme, rule="organization:deny mcp:drop_*", decision="deny", server_name="billing"
    )
    for page in (
        auditor.get("ledger_auditrow_change", row.pk),
        auditor.get("ledger_auditrow_changelist", entry=str(row.pk)),
    ):
        text = admin_client.get_text(page)
        sentence = "A rule of the organization denies tools of the server billing whose name "
        assert f"{sentence}matches drop_*" in text
        assert "organization:deny mcp:drop_*" in page
