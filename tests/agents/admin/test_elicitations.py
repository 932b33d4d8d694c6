"""The form of an elicitation request on its page and in its chat."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agents.models import Agent, ElicitationRequest, Session, Step
from agents.sessions.services import start_session
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from mcp_servers.models import Server
from tests import admin_client, factories

ANSWER = "agents_elicitationrequest_answer"
WAITING_BADGE, RUNNING_BADGE = (
    f'<span class="bb-state-word">{text}</span>' for text in ("waiting for a person", "running")
)
TABLE = {
    "message": "For whom?",
    "requestedSchema": {
        "type": "object",
        "required": ["guests", "name"],
        "properties": {
            "guests": {"type": "integer", "title": "Number of guests", "maximum": 12},
            "name": {"type": "string", "title": "Name of the guest"},
            "mail": {"type": "string", "title": "E-mail address", "format": "email"},
        },
    },
}


@pytest.fixture
def operator(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OPERATOR)


@pytest.fixture
def elicitation(
    acme: Organization, helper: Agent, operator: admin_client.AdminClient
) -> ElicitationRequest:
    server = admin_client.create_web_server(acme)
    session = start_session(admin_client.build_principal(operator, acme), helper, "Book a table")
    elicitation = factories.create_elicitation(session, server, TABLE)
    payload = {"code": "question", "text": "The server asks", "question_id": str(elicitation.pk)}
    Step.objects.create(
        session=session, seq=2, kind=Step.Kind.NOTICE, state=Step.State.DONE, payload=payload
    )
    return elicitation


def post_in_chat(
    operator: admin_client.AdminClient, elicitation: ElicitationRequest, **fields: str
) -> tuple[int, str]:
    """Send the form as the script of the chat does; return the status and the fragment."""
    client: Client = operator.client
    url = admin_client.build_url(ANSWER, elicitation.pk)
    response = client.post(url, {"answer": "accept", **fields}, headers={"Bonobot-Fragment": "1"})
    return response.status_code, response.content.decode()


def test_the_page_keeps_what_was_entered_and_has_the_error_at_its_field(
    operator: admin_client.AdminClient, elicitation: ElicitationRequest
) -> None:
    page = operator.post(
        ANSWER, elicitation.pk, status=400, answer="accept", value_0="99", value_1="Ada"
    )
    assert 'value="99"' in page
    assert 'value="Ada"' in page
    field = page.partition('data-field="value_0"')[2].partition("data-field")[0]
    assert "Enter 12 or less." in field
    assert ElicitationRequest.objects.pending().exists()


def test_the_chat_gets_the_form_back_with_its_errors(
    operator: admin_client.AdminClient, elicitation: ElicitationRequest
) -> None:
    status, fragment = post_in_chat(
        operator, elicitation, value_0="99", value_1="", value_2="nowhere"
    )
    assert status == 400
    assert "<html" not in fragment
    assert 'value="99"' in fragment
    assert 'max="12"' in fragment
    assert "This field is required." in fragment
    status, fragment = post_in_chat(
        operator, elicitation, value_0="3", value_1="Ada", value_2="nowhere"
    )
    assert "E-mail address isn't a valid email. Enter a valid value." in (
        admin_client.get_text(fragment)
    )
    status, fragment = post_in_chat(operator, elicitation, value_0="3", value_1="Ada")
    assert status == 200
    assert "data-done" in fragment
    elicitation.refresh_from_db()
    assert elicitation.content.open() == {"guests": 3, "name": "Ada"}


@pytest.mark.parametrize(
    "name", ["agents_session_changelist", "agents_agent_sessions", "agents_agent_change", "index"]
)
def test_lists_show_that_a_session_waits_for_an_answer_with_the_same_queries_for_any_length(
    helper: Agent, operator: admin_client.AdminClient, elicitation: ElicitationRequest, name: str
) -> None:
    Session.objects.update(status=Session.Status.RUNNING)
    ids = (helper.pk,) if name.startswith("agents_agent") else ()
    operator.get(name, *ids)  # fills caches
    with CaptureQueriesContext(connection) as one_session:
        page = operator.get(name, *ids)
    assert WAITING_BADGE in page
    assert RUNNING_BADGE not in page
    server = Server.objects.get()
    principal = admin_client.build_principal(operator, helper.organization)
    for text in ("Book a room", "Book a car"):
        factories.create_elicitation(start_session(principal, helper, text), server, TABLE)
    Session.objects.update(status=Session.Status.RUNNING)
    with CaptureQueriesContext(connection) as three_sessions:
        page = operator.get(name, *ids)
    assert page.count(WAITING_BADGE) == 3
    assert len(three_sessions) == len(one_session)
    ElicitationRequest.objects.update(state=ElicitationRequest.State.ACCEPTED)
    assert RUNNING_BADGE in operator.get(name, *ids)


def test_the_chat_waits_for_a_person_and_then_says_how_they_answered(
    operator: admin_client.AdminClient, elicitation: ElicitationRequest
) -> None:
    session = elicitation.session
    Session.objects.filter(pk=session.pk).update(status=Session.Status.RUNNING)
    page = operator.get("agents_session_steps", session.pk)
    assert "Send to server" in page
    text = admin_client.get_text(page)
    assert "waiting for a person" in text.lower()
    assert "running" not in text.lower()
    operator.post(ANSWER, elicitation.pk, answer="decline")
    text = admin_client.get_text(operator.get("agents_session_steps", session.pk))
    assert "Declined by" in text
    assert "Send to server" not in text
    assert "running" in text.lower()
    assert " question " not in text
