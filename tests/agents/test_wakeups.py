"""Wake-ups of sessions that wait, also while they are being suspended."""

import pytest
from django.db import transaction

from agents.models import Agent, Session
from agents.sessions import services as sessions
from agents.wakeups import wake_session
from bonobot.accounts.models import Organization
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def running_session(acme: Organization, helper: Agent) -> Session:
    session = sessions.start_session(factories.build_administrator(acme), helper, "hello")
    Session.objects.filter(pk=session.pk).update(status=Session.Status.RUNNING)
    return session


def test_a_session_that_is_suspended_while_a_person_answers_is_queued(
    running_session: Session,
) -> None:
    with transaction.atomic():
        wake_session(running_session.pk)
        # It saw the request pending, and the transaction that suspends it is committed only now.
        Session.objects.filter(pk=running_session.pk).update(status=Session.Status.WAITING)
    running_session.refresh_from_db()
    assert running_session.status == Session.Status.QUEUED


def test_a_running_session_keeps_running_after_an_answer(running_session: Session) -> None:
    with transaction.atomic():
        wake_session(running_session.pk)
    running_session.refresh_from_db()
    assert running_session.status == Session.Status.RUNNING
