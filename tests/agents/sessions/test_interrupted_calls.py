"""Calls whose server died during the session: a person decides, as after a crash."""

import json

import pytest

from agents.approvals.services import resolve_approval
from agents.models import Approval, Session, Step
from agents.sessions import services as sessions
from bonobot.ledger.models import AuditRow
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)

COUNT_AND_CRASH = '/mcp_workshop_count {"what": "once"}\n/mcp_workshop_crash'
CAUSE = "`workshop` ended: it exited with status 3."


def get_crash_step(session: Session) -> Step:
    return session.steps.get(kind=Step.Kind.CALL, payload__name="mcp_workshop_crash")


def test_a_person_is_asked_about_a_call_whose_server_died(acme, workshop, run, run_to_rest):
    session = run("/mcp_workshop_crash")
    assert (session.status, session.runner) == (Session.Status.WAITING, None)
    approval = Approval.objects.get(session=session)
    assert (approval.code, approval.call_id) == (
        "call_interrupted",
        get_crash_step(session).call_id,
    )
    assert approval.reason.startswith(f"{CAUSE} It is unknown whether this call ran.")
    assert AuditRow.objects.get(pk=approval.call_id).outcome == "unknown"
    assert session.calls == 1

    resolve_approval(factories.build_administrator(acme), approval, "deny", "I did it by hand.")
    run_to_rest(session)
    step = get_crash_step(session)
    assert (step.state, step.payload["code"]) == (Step.State.UNKNOWN, "outcome_unknown")
    assert step.payload["text"] == (
        f"It is unknown whether this call ran. {CAUSE} The call was not repeated. "
        "The call may have run, so don't repeat it before you have checked its effect. "
        "Message from a person: I did it by hand."
    )
    assert (session.status, session.calls) == (Session.Status.DONE, 1)


def test_a_lost_call_is_made_again_when_a_person_approves_it(acme, workshop, run, run_to_rest):
    session = run("/mcp_workshop_crash")
    first = get_crash_step(session)
    administrator = factories.build_administrator(acme)
    resolve_approval(administrator, Approval.objects.get(session=session), "approve")
    run_to_rest(session)
    repeated = get_crash_step(session)
    assert repeated.payload["earlier"] == [str(first.call_id)]
    assert session.status == Session.Status.WAITING  # the server died again
    approval = Approval.objects.filter(session=session).order_by("-created_at").first()
    assert approval.call_id == repeated.call_id != first.call_id


def test_the_other_calls_of_the_turn_are_not_repeated(acme, workshop, run, run_to_rest, effects):
    session = run(COUNT_AND_CRASH)
    administrator = factories.build_administrator(acme)
    approvals = Approval.objects.filter(session=session)
    assert approvals.count() in (1, 2)  # the other call is lost, too, if it was still running
    for approval in approvals:
        resolve_approval(administrator, approval, "deny", "")
    run_to_rest(session)
    assert session.status == Session.Status.DONE
    assert effects.read_text().splitlines() in (["once"], [])
    assert AuditRow.objects.filter(session_id=session.pk, event_type="call").count() == 2


def test_a_canceled_session_asks_nobody_about_its_lost_call(acme, workshop, run, run_to_rest):
    session = run("/mcp_workshop_crash")
    sessions.cancel_session(factories.build_administrator(acme), session)
    run_to_rest(session)
    assert session.status == Session.Status.CANCELLED
    assert Approval.objects.get().state == Approval.State.WITHDRAWN
    step = get_crash_step(session)
    assert step.state == Step.State.UNKNOWN
    assert CAUSE in step.payload["text"]


def test_a_person_is_asked_about_a_call_that_took_too_long(acme, workshop, run, settings):
    settings.BONOBOT_READ_S = 1
    session = run(f"/mcp_workshop_wait {json.dumps({'seconds': 30})}")
    assert session.status == Session.Status.WAITING
    assert "didn't respond" in Approval.objects.get(session=session).reason
