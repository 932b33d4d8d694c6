"""Questions of servers: read and answered by REST and in the admin."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents.models import ElicitationRequest
from agents.sessions.services import start_session
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories, rest

pytestmark = pytest.mark.django_db

PAGE = {
    "mode": "url",
    "message": "Sign in\u202e",
    "url": "http://xn--bcher-kva.example/start?state=1",
    "elicitationId": "e1",
}


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def helper(acme):
    return factories.create_agent(acme)


@pytest.fixture
def server(acme):
    return admin_client.web_server(acme)


def session_of(principal, helper):
    return start_session(principal, helper, "Provision it")


def test_only_the_person_who_started_the_session_can_answer(acme, helper, server):
    client = rest.as_role(acme, Role.MEMBER, helper)
    boss = factories.build_administrator(acme)
    owner = factories.create_member(acme, Role.OWNER)
    theirs = factories.create_elicitation(session_of(owner, helper), server)
    cli = factories.create_elicitation(session_of(boss, helper), server)
    assert client.get("elicitation-requests").json["results"] == []
    assert client.get(f"elicitation-requests/{theirs.pk}").status == 404

    auditor = rest.as_role(acme, Role.AUDITOR)
    assert auditor.post(f"elicitation-requests/{cli.pk}/answer", {"action": "cancel"}).status == 403
    reviewer = rest.as_role(acme, Role.OWNER)
    with_all = reviewer.get("elicitation-requests?state=waiting").json["results"]
    assert {one["id"] for one in with_all} == {str(theirs.pk), str(cli.pk)}
    refused = reviewer.post(f"elicitation-requests/{theirs.pk}/answer", {"action": "cancel"})
    assert (refused.status, refused.code) == (403, "not_yours")
    # No person started the other session: whoever approves calls may answer.
    path = f"elicitation-requests/{cli.pk}/answer"
    wrong = reviewer.post(path, {"action": "accept", "content": {"region": "mars"}})
    assert (wrong.status, wrong.code, wrong.json["field"]) == (400, "bad_answer", "content.region")
    done = reviewer.post(path, {"action": "accept", "content": {"region": "eu", "count": 2}})
    assert (done.json["state"], "content" in done.json) == ("accept", False)
    assert ElicitationRequest.objects.get(pk=cli.pk).content.open() == {"region": "eu", "count": 2}
    assert reviewer.post(path, {"action": "decline"}).code == "already_answered"
    assert AuditRow.objects.filter(action="question_answered").count() == 1

    stranger = factories.create_organization("other")
    assert rest.as_role(stranger, Role.OWNER).get(f"elicitation-requests/{cli.pk}").status == 404


def test_the_list_uses_a_fixed_number_of_queries(acme, helper, server, django_assert_num_queries):
    session = session_of(factories.build_administrator(acme), helper)
    factories.create_elicitation(session, server)
    client = rest.as_role(acme, Role.AUDITOR)
    client.get("elicitation-requests")
    with CaptureQueriesContext(connection) as before:
        client.get("elicitation-requests")
    for _ in range(3):
        factories.create_elicitation(session, server)
    with django_assert_num_queries(len(before)):
        assert len(client.get("elicitation-requests").json["results"]) == 4


def test_the_admin_shows_the_form_and_accepts_the_answer(acme, helper, server):
    seat = admin_client.sit(acme, Role.OPERATOR)
    session = session_of(admin_client.principal_at(seat, acme), helper)
    question = factories.create_elicitation(session, server)
    page = seat.get("agents_elicitationrequest_change", question.pk)
    assert "Which region?" in admin_client.words(page)
    assert "Which region?" in admin_client.words(seat.get("agents_elicitationrequest_changelist"))
    seat.post(
        "agents_elicitationrequest_answer", question.pk, answer="accept", value_1="0", value_0="eu"
    )
    question.refresh_from_db()
    assert question.state == ElicitationRequest.State.WAITING  # a count is at least 1
    entered = {"value_0": "us", "value_1": "3", "value_2": "on"}
    seat.post("agents_elicitationrequest_answer", question.pk, answer="accept", **entered)
    question.refresh_from_db()
    assert question.content.open() == {"region": "us", "count": 3, "sure": True}


def test_a_url_request_shows_the_complete_url_with_warnings(acme, helper, server):
    seat = admin_client.sit(acme, Role.OPERATOR)
    question = factories.create_elicitation(
        session_of(admin_client.principal_at(seat, acme), helper), server, PAGE
    )
    assert question.flags == ["not_encrypted", "unusual_host"]
    page = seat.get("agents_elicitationrequest_change", question.pk)
    assert PAGE["url"] in admin_client.words(page)
    assert "unusual characters" in admin_client.words(page)
    assert "\u202e" not in page
    assert 'rel="noopener noreferrer"' in page
    other = admin_client.sit(acme, Role.OWNER)
    assert "can answer, because they started the session" in admin_client.words(
        other.get("agents_elicitationrequest_change", question.pk)
    )
    seat.post("agents_elicitationrequest_answer", question.pk, answer="accept")
    question.refresh_from_db()
    assert question.state == ElicitationRequest.State.ACCEPTED
