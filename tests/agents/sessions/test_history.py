"""A message that is sent anew: what it replaces stays in the rows and leaves the conversation."""

import pytest

from agents.attachments import Attachment
from agents.models import Inbox, Session, Step
from agents.sessions import history, leases, step_store
from agents.sessions import services as sessions
from agents.sessions.history import find_superseded_seqs, list_current_steps
from bonobot.core.problems import Conflict, NotFound
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)


def step(seq, kind="message", turn=0, **payload):
    payload = {"text": str(seq), "message": {"role": "assistant", "turn": turn}} | payload
    return Step(seq=seq, kind=kind, state="done", turn=turn, payload=payload)


@pytest.mark.parametrize(
    ("steps", "stands"),
    [
        ([step(1), step(2, "model")], [1, 2]),
        ([step(1), step(2, "model"), step(3, replaces=1)], [3]),
        ([step(1), step(2, "model"), step(3), step(4, "model"), step(5, replaces=3)], [1, 2, 5]),
        ([step(1), step(2), step(3, replaces=2), step(4), step(5, replaces=3)], [1, 5]),
        ([step(1), step(2), step(3, replaces=2), step(4, replaces=1)], [4]),
    ],
)
def test_a_resent_message_replaces_the_original_and_all_later_steps(steps, stands):
    assert [one.seq for one in list_current_steps(steps)] == stands
    assert find_superseded_seqs(steps) == {one.seq for one in steps} - set(stands)


def test_the_model_sees_only_the_new_branch_and_turn_numbers_continue():
    steps = [step(1), step(2, "model", turn=1), step(3, "model", turn=2), step(4, replaces=1)]
    found = history.build_history(steps)
    assert [one["text"] for one in found.messages] == ["4"]
    assert (found.turn, found.turns_since_message, len(found.settled_steps)) == (2, 0, 4)


@pytest.fixture
def boss(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def session(boss, helper):
    """A session whose one message, with a file, was answered."""
    files = [Attachment("notes.txt", b"first")]
    made = sessions.start_session(boss, helper, "What is it?", attachments=files)
    answer(made, "Something.")
    return made


def answer(session, text):
    hold = leases.claim_session(session.pk, leases.register_runner())
    assert step_store.take_messages(hold)
    message = {"role": "assistant", "turn": 1, "text": text, "calls": []}
    step_store.append_step(hold, Step.Kind.MODEL, {"text": text, "message": message}, turn=1)
    step_store.close_session(hold, Session.Status.DONE)
    session.refresh_from_db()


def said(session):
    return [
        (one.seq, one.kind, one.payload["text"], one.payload.get("replaces"))
        for one in session.steps.order_by("seq")
    ]


def test_a_retry_repeats_the_text_and_an_edit_changes_it(boss, session):
    sessions.resend_message(boss, session)
    answer(session, "Another thing.")
    sessions.resend_message(boss, session, 3, "What was it?", [Attachment("more.txt", b"second")])
    answer(session, "That.")
    assert said(session) == [
        (1, "message", "What is it?", None),
        (2, "model", "Something.", None),
        (3, "message", "What is it?", 1),
        (4, "model", "Another thing.", None),
        (5, "message", "What was it?", 3),
        (6, "model", "That.", None),
    ]
    files = [
        [file["name"] for file in one.payload.get("files", ())]
        for one in session.steps.filter(kind="message").order_by("seq")
    ]
    assert files == [["notes.txt"], ["notes.txt"], ["notes.txt", "more.txt"]]
    told = history.load_history(session.pk).messages
    assert [one["text"] for one in told] == ["What was it?", "That."]


def test_only_a_current_message_can_be_resent(boss, session):
    sessions.resend_message(boss, session)
    answer(session, "Another thing.")
    for seq in (1, 2, 99):
        with pytest.raises(NotFound) as refused:
            sessions.resend_message(boss, session, seq)
        assert refused.value.field == "seq"


@pytest.mark.parametrize("status", ["queued", "running", "waiting"])
def test_a_running_session_refuses_a_resent_message(boss, session, status):
    Session.objects.update(status=status)
    before = Inbox.objects.count()
    with pytest.raises(Conflict) as refused:
        sessions.resend_message(boss, session)
    assert refused.value.code == "session_busy"
    assert Inbox.objects.count() == before
