"""Quarantined sessions: what they refuse, how they are reported and released."""

import pytest

from agents.models import Session, Step
from agents.sessions import services as sessions
from agents.sessions.quarantine import (
    QUARANTINE_CODE,
    SessionQuarantined,
    quarantine_session,
    release_quarantined_session,
)
from bonobot.accounts.roles import Role
from bonobot.core.problems import Conflict, Forbidden
from bonobot.ledger.models import AuditRow
from bonobot.notifications.models import Notification, NotificationChannel
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def organization():
    return factories.create_organization()


@pytest.fixture
def administrator(organization):
    return factories.build_administrator(organization)


@pytest.fixture
def session(organization, administrator):
    return sessions.start_session(administrator, factories.create_agent(organization), "hello")


def test_a_quarantine_is_notified(session):
    NotificationChannel.objects.create(
        organization=session.organization, name="ops", kind="webhook", minimum_severity="critical"
    )
    quarantine_session(session)
    notification = Notification.objects.get(event="session_quarantined")
    assert "1 times in a row" in notification.text


def test_a_quarantined_session_takes_no_messages(administrator, session):
    quarantine_session(session)
    with pytest.raises(SessionQuarantined, match="worker died"):
        sessions.send_message(administrator, session, "again")
    with pytest.raises(SessionQuarantined):
        sessions.resend_message(administrator, session)


def test_a_released_session_continues_where_it_stopped(administrator, session):
    open_step = Step.objects.create(session=session, seq=1, kind=Step.Kind.MODEL)
    quarantine_session(session)
    release_quarantined_session(administrator, session)
    session.refresh_from_db()
    assert (session.status, session.error_code) == (Session.Status.QUEUED, "")
    assert (session.crashes, session.quarantined_at) == (0, None)
    open_step.refresh_from_db()
    assert open_step.state == Step.State.INTENT
    assert AuditRow.objects.filter(action="session_released").exists()


def test_a_session_that_isnt_quarantined_cant_be_released(administrator, session):
    with pytest.raises(Conflict, match="isn't quarantined"):
        release_quarantined_session(administrator, session)


def test_members_cant_release_a_session(session):
    quarantine_session(session)
    member = factories.create_member(session.organization, Role.MEMBER)
    with pytest.raises(Forbidden):
        release_quarantined_session(member, session)
    assert Session.objects.get(pk=session.pk).error_code == QUARANTINE_CODE
