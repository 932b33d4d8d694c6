"""A database that fails to record outcomes while calls are running."""

import pytest
from django.db import OperationalError

from agents.models import Session, Step
from bonobot.core.problems import Problem
from bonobot.ledger.models import AuditRow
from bonobot.ledger.writer.batch_plan import CloseItem
from bonobot.ledger.writer.committer import BatchCommitter
from bonobot.ledger.writer.writer_thread import get_writer
from tests.ledger_chain import verify_whole_chain
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)

COUNT = "mcp_workshop_count"
LONG = 1_000_000
DEADLINE_S = 0.2  # for callers; the writer retries every 0.05 s


class Away:
    """A database that fails to record outcomes for a number of attempts."""

    def __init__(self):
        self.tries = 0

    def begin(self, commit, committer, tickets):
        if self.tries and any(isinstance(ticket.item, CloseItem) for ticket in tickets):
            self.tries -= 1
            raise OperationalError("the database is away")
        return commit(committer, tickets)


@pytest.fixture
def away(transactional_db, monkeypatch):
    database, commit = Away(), BatchCommitter.commit
    monkeypatch.setattr(BatchCommitter, "commit", lambda *args: database.begin(commit, *args))
    monkeypatch.setattr(get_writer(), "deadline_s", DEADLINE_S)
    yield database
    database.tries = 0
    get_writer().close()


def test_a_caller_without_a_session_gets_an_error_that_the_call_ran(workshop, call, effects, away):
    away.tries = LONG
    with pytest.raises(Problem) as caught:
        call(COUNT, {"what": "one"})
    assert (caught.value.code, caught.value.status) == ("outcome_unrecorded", 503)
    assert effects.read_text().split() == ["one"]
    away.tries = 0
    eventually(lambda: AuditRow.objects.get(event_type="call").outcome == "ok")


def test_a_session_waits_until_the_outcome_is_recorded(workshop, effects, run, away):
    away.tries = 20  # longer than callers without a session wait
    session = run(f'/{COUNT} {{"what": "one"}}')
    assert (session.status, away.tries) == (Session.Status.DONE, 0)
    assert session.steps.get(kind=Step.Kind.CALL).state == Step.State.DONE
    assert effects.read_text().split() == ["one"]
    assert verify_whole_chain(session.organization_id).ok
