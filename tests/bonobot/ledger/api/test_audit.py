"""The audit log over REST."""

from datetime import timedelta
from urllib.parse import quote

import pytest
import time_machine
from asgiref.sync import async_to_sync
from django.test import AsyncRequestFactory, RequestFactory
from django.utils import timezone

from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.api.audit import build_download
from bonobot.ledger.audit import export as audit_export
from bonobot.ledger.audit import search as audit_search
from bonobot.ledger.audit.admin_changes import record_finished_change
from bonobot.ledger.audit.verify_chain import verify_exported
from bonobot.ledger.models import AuditRow
from bonobot.ledger.types import Actor, FlowLabel
from tests import factories, rest
from tests.rest import RestClient

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return factories.create_agent(acme)


@pytest.fixture
def auditor(acme: Organization, helper: Agent) -> RestClient:
    return rest.as_role(acme, Role.AUDITOR)


def record_change(organization: Organization, name: str, **details: str | list[str]) -> AuditRow:
    pk = record_finished_change(
        organization_id=organization.pk,
        actor=Actor("user", "1", "anna"),
        action="server_created",
        resource_type="mcp_server",
        resource_id="1",
        resource_name=name,
        details=details,
    )
    row: AuditRow = AuditRow.objects.get(pk=pk)
    return row


def list_actions(response: rest.RestResponse) -> list[str]:
    return [row["action"] for row in response.json["results"]]


def test_entries_are_listed_latest_first_with_actor_and_action(auditor):
    response = auditor.get("audit")
    assert list_actions(response)[0] == "token_created"
    assert "agent_created" in list_actions(response)
    row = response.json["results"][0]
    assert row["actor"]["kind"] == "cli"
    assert row["outcome"] == "ok"


def test_entries_are_filtered_by_action_actor_time_and_outcome(auditor):
    later = (timezone.now() + timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    actor = auditor.get("audit").json["results"][0]["actor"]["label"]
    assert list_actions(auditor.get("audit?action=agent_created")) == ["agent_created"]
    assert auditor.get(f"audit?actor={actor}").json["results"]
    assert auditor.get("audit?actor=nobody").json["results"] == []
    assert auditor.get(f"audit?since={later}").json["results"] == []
    assert auditor.get(f"audit?until={later}").json["results"]
    assert auditor.get("audit?outcome=refused").json["results"] == []


@pytest.mark.parametrize("name", ["agent", "server", "session", "tool", "code"])
def test_entries_are_filtered_by_the_object_they_are_about(auditor, helper, name):
    assert auditor.get(f"audit?{name}={helper.pk}").status == 200


def test_entries_are_searched_by_words_in_names_and_arguments(acme, auditor):
    for name in ("weather", "clock"):
        record_change(acme, name, why='the "Jürgen" key')
    result = auditor.get("audit?q=weather").json
    assert [row["resource_name"] for row in result["results"]] == ["weather"]
    assert result["looked_to"] is None
    for words in ("weather j%C3%BCrgen", "%22Jürgen%5C%22 key%22", "WEATHER server_created"):
        assert auditor.get(f"audit?q={quote(words, safe='%')}").json["results"], words
    assert auditor.get("audit?q=weather+clock").json["results"] == []
    response = auditor.get(f"audit?q={'word+' * 17}")
    assert (response.status, response.json["field"]) == (400, "q")


def test_calls_are_filtered_by_the_flow_labels_of_their_tools(acme, auditor):
    sent = record_change(acme, "send", labels=["private_data", "sends_out"])
    record_change(acme, "pay", labels=["private_data"], sends_out="1")
    result = auditor.get("audit?flow_label=sends_out").json
    assert [row["id"] for row in result["results"]] == [str(sent.pk)]


def test_an_unknown_flow_label_is_refused_with_the_known_ones(auditor):
    response = auditor.get("audit?flow_label=secret")
    assert (response.status, response.json["field"]) == (400, "flow_label")
    assert all(label in response.json["detail"] for label in FlowLabel)


def test_an_unknown_outcome_is_refused_with_its_value(auditor):
    response = auditor.get("audit?outcome=great")
    assert (response.status, response.json["field"]) == (400, "outcome")


def test_an_entry_shows_all_its_hashed_details(acme, auditor):
    row = AuditRow.objects.get(action="token_created")
    response = auditor.get(f"audit/{row.pk}")
    assert response.json["details"]["role"] == "auditor"
    assert response.json["digest"] == row.digest


@pytest.mark.parametrize("path", ["audit/nothing", "audit/0191f2d0-7f0c-7c3e-9d1f-0d5f2b8f6a11"])
def test_an_unknown_entry_returns_not_found(auditor, path):
    assert auditor.get(path).status == 404


def test_the_list_uses_the_same_number_of_queries_for_any_number_of_entries(
    acme, auditor, django_assert_num_queries
):
    auditor.get("audit")  # records the first use of the token
    for _ in range(20):
        rest.as_role(acme, Role.MEMBER)
    with django_assert_num_queries(3):  # the token, the rows, the labels of their names
        assert len(auditor.get("audit").json["results"]) > 20


def test_members_are_listed_with_their_roles(acme, auditor):
    factories.create_member(acme, Role.REVIEWER, "rita")
    (member,) = auditor.get("members").json["results"]
    assert (member["username"], member["role"]) == ("rita", "reviewer")


def test_the_export_is_a_file_and_accepts_the_filters_of_the_list(auditor):
    response = auditor.get("audit/export?action=agent_created&form=csv")
    assert response.headers["Content-Type"].startswith("text/csv")
    assert "audit-" in response.headers["Content-Disposition"]
    assert auditor.get("audit/export?form=xml").code == "invalid"
    assert auditor.get("audit/export?format=csv").code == "unknown_parameter"


def test_an_export_is_written_page_by_page(acme, helper):
    async def read_download() -> str:
        rows = AuditRow.objects.for_organization(acme.pk)
        download = build_download(AsyncRequestFactory().get("/"), rows, "jsonl")
        return "".join([part.decode() async for part in download])

    lines = async_to_sync(read_download)().splitlines()
    assert len(lines) == AuditRow.objects.for_organization(acme.pk).count()
    assert verify_exported(audit_export.parse_lines(lines)).ok


def test_an_export_over_wsgi_is_written_page_by_page(acme, helper):
    rows = AuditRow.objects.for_organization(acme.pk)
    download = build_download(RequestFactory().get("/"), rows, "jsonl")
    lines = b"".join(download).decode().splitlines()
    assert verify_exported(audit_export.parse_lines(lines)).ok


SCANNING_QUERIES = [
    "q=needle",
    "agent=nobody",
    "event_type=model",
    "decision=deny",
    "rule=x",
    "resource=x",
]
SCANNING_QUERIES += ["action=x", "tool=x", "actor=x"]


@pytest.fixture
def entries(
    acme: Organization, auditor: RestClient, monkeypatch: pytest.MonkeyPatch
) -> list[AuditRow]:
    """Record entries, oldest first; a page scans two of them."""
    monkeypatch.setattr(audit_search, "MAX_ROWS_SCANNED", 2)
    return [
        record_change(acme, name) for name in ("needle", "hay", "needle", "hay", "straw", "hay")
    ]


def fetch_pages(auditor: RestClient, address: str | None) -> list[rest.RestResponse]:
    pages = []
    while address:
        pages.append(auditor.get(address))
        assert pages[-1].status == 200
        address = pages[-1].json["next"]
    return pages


@pytest.mark.parametrize("order", ["-opened_at", "opened_at"])
@pytest.mark.parametrize("limit", [1, 50])
def test_a_search_reports_how_far_each_page_scanned_and_finds_all_entries(
    auditor, entries, order, limit
):
    pages = fetch_pages(auditor, f"audit?q=needle&ordering={order}&limit={limit}")
    ids = [row["id"] for page in pages for row in page.json["results"]]
    expected = [str(entries[index].pk) for index in (0, 2)]
    assert ids == (expected if order == "opened_at" else expected[::-1])
    assert all(len(page.json["results"]) <= limit for page in pages)
    assert [page.json["looked_to"] is None for page in pages] == [False] * (len(pages) - 1) + [True]


def test_new_entries_dont_shift_the_pages(acme, auditor, entries):
    first = auditor.get("audit?q=needle").json
    later = [str(record_change(acme, "needle").pk) for _ in range(5)]
    later_pages = fetch_pages(auditor, first["next"])
    ids = [row["id"] for page in later_pages for row in page.json["results"]]
    assert ids == [str(entries[index].pk) for index in (2, 0)]
    assert not set(ids) & set(later)


def test_entries_with_the_same_time_stay_on_one_page(acme, auditor, monkeypatch):
    monkeypatch.setattr(audit_search, "MAX_ROWS_SCANNED", 2)
    with time_machine.travel(timezone.now() + timedelta(hours=1), tick=False):
        expected_ids = {str(record_change(acme, "needle").pk) for _ in range(5)}
    pages = fetch_pages(auditor, "audit?q=needle&limit=2")
    ids = [row["id"] for page in pages for row in page.json["results"]]
    assert len(ids) == 5
    assert set(ids) == expected_ids


@pytest.mark.parametrize("query", SCANNING_QUERIES)
def test_a_search_without_an_index_scans_up_to_the_limit(auditor, entries, query):
    assert auditor.get(f"audit?{query}").json["looked_to"]


@pytest.mark.parametrize(
    "query", ["", "outcome=ok", "code=x", "session=0191f2d0-7f0c-7c3e-9d1f-0d5f2b8f6a11"]
)
def test_a_search_with_an_index_reads_to_the_end(auditor, entries, query):
    assert auditor.get(f"audit?{query}").json["looked_to"] is None


def test_a_search_ends_at_the_start_of_its_period(auditor, entries):
    since, until = (entries[index].opened_at.isoformat().replace("+00:00", "Z") for index in (1, 3))
    result = auditor.get(f"audit?q=needle&since={since}&until={until}").json
    assert [row["id"] for row in result["results"]] == [str(entries[2].pk)]
    assert (result["next"], result["looked_to"]) == (None, None)


@pytest.mark.parametrize(
    ("query", "code"),
    [("q=x&ordering=seq", "unknown_ordering"), ("q=x&cursor=cj0xJnA9eA%3D%3D", "bad_cursor")],
)
def test_a_search_refuses_other_orderings_and_foreign_cursors(auditor, entries, query, code):
    assert auditor.get(f"audit?{query}").code == code


def test_selected_fields_of_a_search_keep_the_page_fields(auditor, entries):
    response = auditor.get("audit?q=hay&fields=id").json
    assert response["looked_to"]
    assert [set(row) for row in response["results"]] == [{"id"}]


def test_the_export_of_a_search_has_all_matching_entries(auditor, entries):
    response = auditor.get("audit/export?q=needle")
    assert response.status == 200
    assert str(entries[0].pk) in response.text


def test_only_roles_that_can_view_the_audit_log_can_export_it(acme):
    assert rest.as_role(acme, Role.MEMBER).get("audit/export").status == 403


def test_an_entry_is_found_by_the_old_and_new_name_of_its_action(auditor):
    assert list_actions(auditor.get("audit?action=agent_added")) == ["agent_created"]
