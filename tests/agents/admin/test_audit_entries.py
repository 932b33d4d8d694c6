"""Calls of one model turn are one row of the audit log; rows name and find people and policies."""

import re
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db.models import QuerySet
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from agents.admin.audit_entries import ShownEntry, group_turns
from agents.budgets.services import BudgetLine, load_budget_use, save_budget
from agents.models import Approval
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.i18n.localization import format_day
from bonobot.ledger.audit.admin_changes import record_finished_change
from bonobot.ledger.models import AuditRow, BudgetCell
from bonobot.ledger.types import Actor
from mcp_servers.audit import update_server_columns
from mcp_servers.definition_reviews import set_definition_enabled
from tests import admin_client, factories
from tests.agents.admin.test_audit import create_approved_call, create_call, create_entry

NOW = timezone.now()


def build_entry(outcome: str = "ok", *, answered_by: str = "", **columns: Any) -> ShownEntry:
    values: dict[str, Any] = {"event_type": "call", "tool_name": "pay", "opened_at": NOW}
    row = AuditRow(id=uuid4(), duration_ms=100, **values | columns)
    return ShownEntry(row, outcome, answered_by)


def test_entries_of_one_model_turn_are_a_group_at_the_place_of_the_newest() -> None:
    turn, other_turn = uuid4(), uuid4()
    entries = [
        build_entry(parent_id=turn),
        build_entry(parent_id=other_turn),
        build_entry(parent_id=turn),
        build_entry(event_type="change"),
        build_entry(event_type="model", parent_id=None),
    ]
    entries[4].row.pk = turn
    groups = group_turns(entries)
    assert [len(group.entries) for group in groups] == [3, 1, 1]
    assert [group.is_folded for group in groups] == [True, False, False]
    assert [part for _entry, part in groups[0].rows] == ["middle", "middle", "end"]
    assert groups[0].entries == [entries[4], entries[2], entries[0]]  # what happened, downward
    assert not any(group.is_open for group in groups)
    (opened, *_others) = group_turns(entries, str(entries[2].row.pk))
    assert opened.is_open


def test_a_call_that_ran_after_an_approval_is_listed_at_its_own_time_and_names_its_turn() -> None:
    turn = uuid4()
    later = NOW + timedelta(minutes=3)
    entries = [
        build_entry(parent_id=turn, opened_at=later),
        build_entry(event_type="approval", opened_at=later - timedelta(seconds=1)),
        build_entry(event_type="change", opened_at=NOW + timedelta(minutes=1)),
        build_entry(parent_id=turn, opened_at=NOW + timedelta(milliseconds=5)),
        build_entry(event_type="model", parent_id=None),
    ]
    entries[4].row.pk = turn
    groups = group_turns(entries)
    assert [len(group.entries) for group in groups] == [1, 1, 1, 2]
    times = [group.entries[-1].row.opened_at for group in groups]
    assert times == sorted(times, reverse=True)
    assert [group.turn_at for group in groups] == [NOW, None, None, None]
    assert len({group.key for group in groups}) == 4
    assert groups[3].key == str(turn)


@pytest.mark.django_db
def test_the_row_of_a_call_that_ran_later_says_when_the_model_requested_it(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    requested_at = timezone.now() - timedelta(hours=1)
    turn = create_call(acme, event_type="model", tool_name="", opened_at=requested_at)
    call = create_call(acme, parent_id=turn.pk, opened_at=requested_at + timedelta(minutes=5))
    page = auditor.get("ledger_auditrow_changelist")
    row = page.split(f'data-entry="{call.pk}"', 1)[1].split("</tr>", 1)[0]
    # An hour ago can be yesterday.
    requested = rf"requested (\w+ \d+, )?{requested_at:%H:%M:%S}"
    assert re.search(requested, " ".join(admin_client.get_text(row).split()))
    assert page.index(str(call.pk)) < page.index(f'data-entry="{turn.pk}"')


@pytest.mark.django_db
def test_the_entries_and_the_calls_of_a_list_are_counted_apart(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    for _ in range(3):
        create_call(acme, event_type="connection", outcome="error", tool_name="")
    create_call(acme, outcome="error", opened_at=timezone.now() - timedelta(minutes=5))
    page = auditor.get("ledger_auditrow_changelist", outcome__in="error", opened_at_period="7d")
    now = timezone.now()
    span = f"{format_day(now - timedelta(days=6))} – {format_day(now)}"
    assert f"4 entries · 1 call · {span} · 3 hours per bar" in admin_client.get_text(page)
    page = auditor.get("ledger_auditrow_changelist", outcome__in="error")
    text = " ".join(admin_client.get_text(page).split())
    assert "4 entries · 1 call · 1 hour per bar" in text
    # The list is of all time, and says so.
    assert '<a href="?outcome__in=error" aria-current="true">All time</a>' in " ".join(page.split())
    page = auditor.get("ledger_auditrow_changelist", opened_at_from_0="2026-01-01")
    assert 'aria-current="true">All time' not in " ".join(page.split())


def test_a_turn_with_one_call_isnt_folded() -> None:
    turn = uuid4()
    entries = [build_entry(parent_id=turn), build_entry(event_type="model")]
    entries[1].row.pk = turn
    (group,) = group_turns(entries)
    assert not group.is_folded
    assert [part for _entry, part in group.rows] == ["start", "end"]


def test_the_row_of_a_turn_sums_up_its_calls() -> None:
    turn = uuid4()
    later = NOW + timedelta(seconds=1)
    (group,) = group_turns(
        [
            build_entry(parent_id=turn, server_name="bank", opened_at=later),
            build_entry("error", parent_id=turn, server_name="bank"),
            build_entry(parent_id=turn, tool_name="list", answered_by="rita"),
        ]
    )
    assert (group.outcome, group.outcome_count) == ("error", 1)
    assert group.tools == "list, pay ×2"
    assert group.servers == ["bank"]
    assert group.answerers == "rita"
    assert group.duration_ms == 1_100


def test_a_turn_with_a_running_call_has_no_duration_and_names_three_tools_at_most() -> None:
    turn = uuid4()
    names = ("four", "three", "two", "one")
    entries = [build_entry(parent_id=turn, tool_name=name) for name in names]
    entries[0].row.duration_ms = None
    (group,) = group_turns(entries)
    assert group.duration_ms is None
    assert group.tools == "one, two, three, …"
    assert group.outcome_count == 0


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def auditor(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.AUDITOR)


def list_folded(page: str) -> int:
    return len(re.findall(r"data-folded\s", page))


@pytest.mark.django_db
def test_the_list_folds_the_calls_of_a_turn_and_counts_each(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    turn = create_call(acme, event_type="model", tool_name="")
    calls = [create_call(acme, parent_id=turn.pk, tool_name=name) for name in ("buy", "sell")]
    page = auditor.get("ledger_auditrow_changelist")
    text = admin_client.get_text(page)
    assert "2 calls buy, sell" in " ".join(text.replace("chevron_right", "").split()) or (
        "2 calls sell, buy" in " ".join(text.replace("chevron_right", "").split())
    )
    assert list_folded(page) == 3
    opened = auditor.get("ledger_auditrow_changelist", entry=str(calls[0].pk))
    assert list_folded(opened) == 0
    assert 'aria-expanded="true"' in opened
    response = auditor.get("ledger_auditrow_changelist", tool_name__icontains="buy")
    assert list_folded(response) == 0
    assert "data-turn-head" not in response


@pytest.mark.django_db
def test_the_row_of_a_turn_has_the_time_by_which_it_is_sorted(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    start = timezone.now() - timedelta(minutes=1)
    turn = create_call(acme, event_type="model", tool_name="", opened_at=start)
    for seconds in (1, 5):
        create_call(acme, parent_id=turn.pk, opened_at=start + timedelta(seconds=seconds))
    create_call(acme, opened_at=start + timedelta(seconds=3))
    page = auditor.get("ledger_auditrow_changelist")
    rows = page[page.index("<tbody") :].split("<tr ")[1:]
    times = [re.findall(r"\d\d:\d\d:\d\d", admin_client.get_text("<tr " + row))[0] for row in rows]
    shown = [time for row, time in zip(rows, times, strict=True) if "data-folded" not in row]
    assert shown == sorted(shown, reverse=True)
    assert shown[0] == f"{start + timedelta(seconds=5):%H:%M:%S}"


@pytest.mark.django_db
def test_folded_turns_need_no_more_queries(
    acme: Organization,
    auditor: admin_client.AdminClient,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    turns: list[UUID] = [create_call(acme, event_type="model").pk for _ in range(5)]
    for turn in turns * 4:
        create_call(acme, parent_id=turn)
    with django_assert_max_num_queries(26):
        assert auditor.get("ledger_auditrow_changelist").count("data-turn-head=") == 5


@pytest.mark.django_db
def test_the_panel_counts_an_approved_call_of_a_turn_once(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    request, call = create_approved_call(
        acme, decided_by="rita", state="approved", decided_at=timezone.now()
    )
    session = uuid4()
    turn = create_call(acme, event_type="model", tool_name="", session_id=session)
    rows: QuerySet[AuditRow] = QuerySet(model=AuditRow)
    later = turn.opened_at + timedelta(seconds=1)
    rows.filter(pk__in=[request.pk, call.pk]).update(
        parent_id=turn.pk, session_id=session, opened_at=later
    )
    page = auditor.get("ledger_auditrow_changelist", entry=str(call.pk))
    panel = page[page.index("Calls of this turn") :]
    assert panel[: panel.index("</section>")].count("<li") == 1


@pytest.mark.parametrize(
    ("kind", "label", "requester"),
    [
        ("cli", "cli:root", ("root", "command line")),
        ("session", "cli:root", ("root", "command line")),
        ("session", "anna", ("anna", "")),
        ("token", "token:ci", ("ci", "token")),
    ],
)
def test_the_requester_has_the_name_and_kind_of_who_started_the_session(
    kind: str, label: str, requester: tuple[str, str]
) -> None:
    entry = build_entry(actor_kind=kind, actor_id=str(uuid4()), actor_label=label)
    assert (entry.requester, entry.requester_kind) == requester


@pytest.mark.django_db
@pytest.mark.parametrize("code", ["", "budget_exhausted"])
def test_a_turn_has_a_decision_only_if_it_was_refused(
    acme: Organization, auditor: admin_client.AdminClient, code: str
) -> None:
    outcome = "refused" if code else "ok"
    turn = create_call(
        acme, event_type="model", tool_name="", rule=code or "turn", code=code, outcome=outcome
    )
    page = auditor.get("ledger_auditrow_changelist", entry=str(turn.pk))
    assert ("<h3>Decision</h3>" in page) == bool(code)


@pytest.mark.django_db
def test_changes_of_a_server_and_of_its_attachment_name_the_server(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    administrator, agent = factories.build_administrator(acme), factories.create_agent(acme)
    server = admin_client.create_web_server(acme, "fetch")
    definition = admin_client.declare_tool(server)
    factories.attach_server(administrator, agent, server)
    set_definition_enabled(administrator, definition, enabled=False)
    update_server_columns(administrator, server, "server_updated", {"name": "fetch 2"})
    page = auditor.get("ledger_auditrow_changelist", server_id=str(server.pk), kind="change")
    rows = page[page.index("<tbody") :].split("<tr ")[1:]
    titles = [row.split('bb-tool-cell" title="')[1].split('"')[0] for row in rows]
    changes = ["server_updated", "definition_disabled", "server_attached", "server_created"]
    assert titles == changes
    for row in rows:
        assert "fetch" in row.split('<td class="bb-o2">')[1].split("</td>")[0]


def test_a_change_of_a_server_that_an_earlier_version_recorded_names_the_server() -> None:
    columns = {"resource_type": "mcp_server", "resource_name": "fetch"}
    assert build_entry(event_type="change", **columns).server_name == "fetch"
    assert build_entry(event_type="change", resource_name="Demo").server_name == ""


@pytest.mark.django_db
@pytest.mark.parametrize("owner", ["agent", "organization"])
def test_a_change_of_a_policy_says_whose_policy_it_is(
    acme: Organization, auditor: admin_client.AdminClient, owner: str
) -> None:
    pk = record_finished_change(
        organization_id=acme.pk,
        actor=Actor("user", "1", "Anna"),
        action="tool_policy_updated",
        resource_type=owner,
        resource_id=str(uuid4()),
        resource_name="Demo",
    )
    expected = f"Tool policy updated Demo ({owner})"
    assert expected in admin_client.get_text(auditor.get("ledger_auditrow_changelist"))
    page = admin_client.get_text(auditor.get("ledger_auditrow_change", pk))
    assert f"Tool policy updated: Demo ({owner})" in page


@pytest.mark.django_db
def test_calls_are_filtered_by_who_requested_and_who_approved_or_denied_them(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    answer: dict[str, Any] = {"decided_by": "Jonas", "decided_at": timezone.now()}
    approved = create_approved_call(acme, state="approved", **answer)[1]
    Approval.objects.update(call_id=approved.pk)
    denied = create_call(acme, decision="deny", outcome="refused", code="approval_denied")
    approval = factories.create_approval(
        factories.create_agent(acme, "second"), state="denied", **answer
    )
    Approval.objects.filter(pk=approval.pk).update(call_id=denied.pk)
    details = {"approval_id": "session", "approved_by": "cli:jonas"}
    covered = create_call(acme, decision="ask", details=details)
    other = create_call(acme)
    page = auditor.get("ledger_auditrow_changelist", decided_by="jonas")
    assert all(str(row.pk) in page for row in (approved, denied, covered))
    assert str(other.pk) not in page
    assert "Approved or denied by jonas" in admin_client.get_text(page)
    assert 'name="decided_by" value="jonas"' in page
    entry = create_entry(acme)
    page = auditor.get("ledger_auditrow_changelist", actor_label__icontains="ANNA")
    assert str(entry.pk) in page
    page = auditor.get("ledger_auditrow_changelist", actor_label__icontains="mia")
    assert "data-entry=" not in page


@pytest.mark.django_db
@pytest.mark.parametrize("each_session", [True, False])
def test_the_entry_of_an_exhausted_budget_says_what_is_used_without_the_key(
    acme: Organization, auditor: admin_client.AdminClient, each_session: bool
) -> None:
    agent = factories.create_agent(acme)
    line = BudgetLine("calls", period="day", limit=2, each_session=each_session)
    save_budget(factories.build_administrator(acme), agent, line)
    (use,) = load_budget_use(agent.budgets.all(), session_id=uuid4())
    BudgetCell.objects.create(organization_id=acme.pk, key=use.key, spent=2, reserved=0)
    call = create_call(
        acme,
        agent_id=agent.pk,
        rule=use.key,
        code="budget_exhausted",
        decision="deny",
        outcome="refused",
    )
    page = auditor.get("ledger_auditrow_changelist", entry=str(call.pk))
    assert "2 of 2 used in this period" in page
    assert admin_client.build_url("agents_budget_change", use.id) in page
    assert use.key not in page
    agent.budgets.all().delete()
    assert "used in this period" not in auditor.get("ledger_auditrow_change", call.pk)


def test_the_outcome_of_an_answer_is_its_title() -> None:
    assert not build_entry(event_type="approval", action="call_denied").has_outcome
    assert build_entry("error", event_type="approval", action="call_denied").has_outcome
    assert build_entry("refused").has_outcome


@pytest.mark.django_db
def test_the_row_and_the_panel_of_a_denied_call_dont_say_that_it_succeeded(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    answer = create_call(acme, event_type="approval", action="call_denied", tool_name="")
    page = auditor.get("ledger_auditrow_changelist", entry=str(answer.pk))
    row = re.search(f'<tr data-entry="{answer.pk}".*?</tr>', page, re.DOTALL)
    panel = page.partition("data-panel")[2]
    for html in (row[0] if row else "", panel):
        assert "Call denied" in admin_client.get_text(html)
        assert "Succeeded" not in admin_client.get_text(html)


def test_what_decided_a_call_doesnt_repeat_the_tool() -> None:
    exact = build_entry(rule="policy:all:deny mcp:pay", agent_id=uuid4())
    glob = build_entry(rule="policy:all:deny mcp:pay_*", agent_id=uuid4())
    assert (str(exact.rule_name[0]), exact.rule_pattern) == ("Agent tools", "")
    assert (str(glob.rule_name[0]), glob.rule_pattern) == ("Policy", "pay_*")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("state", "outcome"), [("intent", "Pending approval"), ("done", "Canceled")]
)
def test_a_call_whose_child_session_waits_for_approval_is_pending(
    acme: Organization, auditor: admin_client.AdminClient, state: str, outcome: str
) -> None:
    session, _approval = factories.create_waiting_session(factories.create_agent(acme), "Go")
    call = create_call(acme, outcome="error", code="child_waits", session_id=session.pk)
    session.steps.create(
        seq=99,
        index=99,
        kind="call",
        state=state,
        payload={"name": "ask_x", "earlier": [str(call.pk)]},
    )
    page = auditor.get("ledger_auditrow_changelist")
    row = page.split(f'data-entry="{call.pk}"', 1)[1].split("</tr>", 1)[0]
    assert outcome in admin_client.get_text(row)
    assert "Failed" not in admin_client.get_text(row)
