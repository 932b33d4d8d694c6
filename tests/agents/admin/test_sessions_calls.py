"""A session's calls show their cost, flow labels, and decision."""

import re
from uuid import UUID

import pytest
from django.utils import timezone
from pytest_django import Settings

from agents.models import Agent, Session, Step, ToolName
from agents.sessions.child_sessions import build_child_id_of_step
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.types import Admission, Settlement
from bonobot.ledger.writer.writer_thread import get_writer
from tests import admin_client, factories
from tests.bonobot.ledger.factories import opening_of

pytestmark = pytest.mark.django_db(transaction=True)

WAIT_S = 30.0


def add_completed_call(session: Session, call_id: UUID, name: str) -> None:
    session.steps.create(
        seq=9,
        kind=Step.Kind.CALL,
        state=Step.State.DONE,
        turn=1,
        call_id=call_id,
        payload={"name": name, "text": "noon"},
    )


def test_cost_labels_and_decision_are_shown_at_the_call_and_in_the_timeline(
    acme: Organization, helper: Agent
) -> None:
    session = factories.create_answered_session(helper)
    opening = opening_of(
        acme.pk,
        agent_id=helper.pk,
        session_id=session.pk,
        server_name="Sundial",
        details={"labels": ["private_data", "sends_out"]},
    )
    get_writer().admit_call(Admission(opening)).result(WAIT_S)
    settlement = Settlement(
        call_id=opening.call_id,
        organization_id=acme.pk,
        outcome="ok",
        duration_ms=5,
        cost_microusd=2_500_000,
    )
    get_writer().settle_call(settlement).result(WAIT_S)
    get_writer().close()
    add_completed_call(session, opening.call_id, "mcp_time_now")
    owner = admin_client.sign_in(acme, Role.OWNER)
    assert "Sundial" in owner.get("agents_session_change", session.pk)
    for page in ("agents_session_change", "agents_session_timeline"):
        html = owner.get(page, session.pk)
        assert 'data-tone="warn">External effect</span>' in html, page  # as everywhere else
        text = admin_client.get_text(html)
        assert "$2.50" in text, page
        assert "Private data" in text, page
        assert "allow" in text.lower(), page


def test_a_call_that_was_not_made_shows_its_server_and_tool(
    acme: Organization, helper: Agent
) -> None:
    session = factories.create_answered_session(helper)
    server = factories.create_http_server(acme, "https://clock.example/mcp", "clock")
    tool = {"own_name": "convert", "name": "mcp_clock_convert"}
    ToolName.objects.create(organization=acme, agent=helper, server=server, **tool)
    session.steps.create(
        seq=9,
        kind=Step.Kind.CALL,
        state=Step.State.FAILED,
        turn=1,
        payload={"name": "mcp_clock_convert", "text": "Not made.", "code": "not_made"},
    )
    page = admin_client.sign_in(acme, Role.OWNER).get("agents_session_change", session.pk)
    text = admin_client.get_text(page)
    assert re.search(rf"convert {server.name} \w+ canceled", text)
    assert "convert 1" in text
    assert "mcp_clock_convert" not in text


@pytest.mark.parametrize("state", ["approved", "denied"])
def test_a_call_shows_who_answered_its_approval(
    acme: Organization, helper: Agent, state: str
) -> None:
    session = factories.create_answered_session(helper)
    changes = {"requested_arguments": {"a": 7}, "arguments": {"a": 70}}
    approval = factories.create_approval(
        helper,
        session,
        state=state,
        decided_by="Jonas",
        decided_at=timezone.now(),
        **(changes if state == "approved" else {}),
    )
    is_denied = state == "denied"
    opening = opening_of(
        acme.pk,
        call_id=approval.call_id,
        session_id=session.pk,
        decision="deny" if is_denied else "ask",
        details={} if is_denied else {"approval_id": str(approval.pk)},
        **({"code": "approval_denied"} if is_denied else {}),
    )
    writer = get_writer()
    if is_denied:
        writer.record_refusal(opening).result(WAIT_S)
    else:
        writer.admit_call(Admission(opening)).result(WAIT_S)
    writer.close()
    add_completed_call(session, approval.call_id, "mcp_web_add")
    page = admin_client.sign_in(acme, Role.OWNER).get("agents_session_change", session.pk)
    text = admin_client.get_text(page)
    if is_denied:
        assert "Denied by Jonas" in text
    else:
        assert "Approved with changes by Jonas" in text
        assert "bb-removed" in page
        summary = page.partition('<details class="bb-call"')[2].partition("</summary>")[0]
        summary_text = admin_client.get_text(summary)
        assert "approved with changes by Jonas check_circle succeeded" in summary_text


def test_a_call_whose_session_waits_for_a_person_isnt_shown_as_running(
    acme: Organization, helper: Agent
) -> None:
    parent = factories.create_answered_session(helper)
    step = parent.steps.create(
        seq=9,
        kind=Step.Kind.CALL,
        state=Step.State.INTENT,
        turn=1,
        call_id=UUID(int=7),
        payload={"name": "ask_researcher", "arguments": {"message": "Look"}},
    )
    owner = admin_client.sign_in(acme, Role.OWNER)

    def get_summary() -> str:
        page = owner.get("agents_session_change", parent.pk)
        call = page.partition('<details class="bb-call"')[2].partition("</details>")[0]
        return admin_client.get_text(call)

    assert "running" in get_summary()
    Session.objects.create(
        id=build_child_id_of_step(step),
        organization_id=acme.pk,
        agent=factories.create_agent(acme, "researcher"),
        parent=parent,
        status=Session.Status.WAITING,
    )
    assert "waiting for a person" in get_summary()
    assert "View session" in get_summary()
    assert "running" not in get_summary()


def test_a_call_of_a_tool_with_an_app_says_where_the_app_is_shown(
    acme: Organization, helper: Agent, settings: Settings
) -> None:
    session = factories.create_answered_session(helper)
    server = admin_client.create_web_server(acme)
    admin_client.declare_tool(server, "seats", _meta={"ui": {"resourceUri": "ui://web/seats"}})
    opening = opening_of(
        acme.pk,
        agent_id=helper.pk,
        session_id=session.pk,
        server_id=server.pk,
        server_name=server.name,
        tool_name="seats",
    )
    get_writer().admit_call(Admission(opening)).result(WAIT_S)
    get_writer().close()
    add_completed_call(session, opening.call_id, "mcp_web_seats")
    owner = admin_client.sign_in(acme, Role.OWNER)
    page = owner.get("agents_session_change", session.pk)
    assert "seats has an app, which this chat doesn't show." in admin_client.get_text(page)
    assert admin_client.build_url("agents_agent_clients", helper.pk) in page
    settings.BONOBOT_EXTENSIONS = ()
    assert "has an app" not in owner.get("agents_session_change", session.pk)
