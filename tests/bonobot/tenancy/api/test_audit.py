"""The audit over REST."""

from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from agents.models import Agent
from bonobot.ledger import exporting
from bonobot.ledger.models import AuditRow
from bonobot.ledger.verify import verify_exported
from bonobot.tenancy.downloads import download
from bonobot.tenancy.models import Organization
from bonobot.tenancy.roles import Role
from tests import rest
from tests.agents import casting
from tests.rest import Rest

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return casting.organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return casting.agent(acme)


@pytest.fixture
def auditor(acme: Organization, helper: Agent) -> Rest:
    return rest.as_role(acme, Role.AUDITOR)


def actions(answer: rest.Answer) -> list[str]:
    return [row["action"] for row in answer.json["results"]]


def test_the_latest_come_first_with_who_and_what(auditor):
    answer = auditor.get("audit")
    assert actions(answer)[0] == "token_created"
    assert "agent_added" in actions(answer)
    row = answer.json["results"][0]
    assert row["actor"]["kind"] == "cli"
    assert row["outcome"] == "ok"


def test_rows_are_found_by_action_actor_time_and_outcome(auditor):
    later = (timezone.now() + timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    actor = auditor.get("audit").json["results"][0]["actor"]["label"]
    assert actions(auditor.get("audit?action=agent_added")) == ["agent_added"]
    assert auditor.get(f"audit?actor={actor}").json["results"]
    assert auditor.get("audit?actor=nobody").json["results"] == []
    assert auditor.get(f"audit?since={later}").json["results"] == []
    assert auditor.get(f"audit?until={later}").json["results"]
    assert auditor.get("audit?outcome=refused").json["results"] == []


@pytest.mark.parametrize("name", ["agent", "server", "session", "tool", "code"])
def test_rows_are_found_by_what_they_are_about(auditor, helper, name):
    assert auditor.get(f"audit?{name}={helper.pk}").status == 200


def test_an_outcome_that_there_is_not_is_named(auditor):
    answer = auditor.get("audit?outcome=great")
    assert (answer.status, answer.json["field"]) == (400, "outcome")


def test_a_row_shows_all_that_was_sealed(acme, auditor):
    row = AuditRow.objects.get(action="token_created")
    answer = auditor.get(f"audit/{row.pk}")
    assert answer.json["details"]["role"] == "auditor"
    assert answer.json["digest"] == row.digest


@pytest.mark.parametrize("path", ["audit/nothing", "audit/0191f2d0-7f0c-7c3e-9d1f-0d5f2b8f6a11"])
def test_a_row_that_is_not_there_is_not_found(auditor, path):
    assert auditor.get(path).status == 404


def test_a_list_takes_the_same_queries_for_any_number_of_rows(
    acme, auditor, django_assert_num_queries
):
    auditor.get("audit")  # the token's first use is written down
    for _ in range(20):
        rest.as_role(acme, Role.MEMBER)
    with django_assert_num_queries(2):  # the token, the rows
        assert len(auditor.get("audit").json["results"]) > 20


def test_members_are_listed_with_their_roles(acme, auditor):
    casting.person(acme, Role.REVIEWER, "rita")
    (found,) = auditor.get("members").json["results"]
    assert (found["username"], found["role"]) == ("rita", "reviewer")


def test_the_export_is_a_file_and_takes_the_filters_of_the_list(auditor):
    answer = auditor.get("audit/export?action=agent_added&form=csv")
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert "audit-" in answer.headers["Content-Disposition"]
    assert auditor.get("audit/export?form=xml").code == "invalid"
    assert auditor.get("audit/export?format=csv").code == "unknown_parameter"


def test_an_export_is_written_page_by_page(acme, helper):
    async def read() -> str:
        rows = AuditRow.objects.of(acme.pk)
        found = download(rows, "jsonl")
        return "".join([part.decode() async for part in found])

    lines = async_to_sync(read)().splitlines()
    assert len(lines) == AuditRow.objects.of(acme.pk).count()
    assert verify_exported(exporting.read(lines)).ok


def test_only_those_who_may_read_the_audit_export_it(acme):
    assert rest.as_role(acme, Role.MEMBER).get("audit/export").status == 403
