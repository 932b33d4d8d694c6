"""Resent messages: replaced steps are kept but leave the conversation."""

import pytest

from agents.attachments import Attachment
from agents.models import Inbox, Session, Step
from agents.sessions import history, leases, step_store
from agents.sessions import services as sessions
from agents.sessions.history import find_superseded_seqs, list_current_steps
from agents.sessions.loop import close_session
from bonobot.core.problems import Conflict, NotFound
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)


def build_step(seq, kind="message", turn=0, **payload):
    payload = {"text": str(seq), "message": {"role": "assistant", "turn": turn}} | payload
    return Step(seq=seq, kind=kind, state="done", turn=turn, payload=payload)


@pytest.mark.parametrize(
    ("steps", "current"),
    [
        ([build_step(1), build_step(2, "model")], [1, 2]),
        ([build_step(1), build_step(2, "model"), build_step(3, replaces=1)], [3]),
        (
            [
                build_step(1),
                build_step(2, "model"),
                build_step(3),
                build_step(4, "model"),
                build_step(5, replaces=3),
            ],
            [1, 2, 5],
        ),
        (
            [
                build_step(1),
                build_step(2),
                build_step(3, replaces=2),
                build_step(4),
                build_step(5, replaces=3),
            ],
            [1, 5],
        ),
        ([build_step(1), build_step(2), build_step(3, replaces=2), build_step(4, replaces=1)], [4]),
    ],
)
def test_a_resent_message_replaces_the_original_and_all_later_steps(steps, current):
    assert [step.seq for step in list_current_steps(steps)] == current
    assert find_superseded_seqs(steps) == {step.seq for step in steps} - set(current)


@pytest.mark.parametrize(
    ("payload", "is_denied"),
    [
        ({"code": "denied_by_policy", "rule": "policy:none"}, True),
        ({"code": "tool_error"}, False),
        ({}, False),
    ],
)
def test_the_result_of_a_denied_call_says_so(payload, is_denied):
    step = build_step(3, "call", turn=1, name="now", **payload)
    assert history._build_tool_result(step).get("is_denied", False) is is_denied


def test_the_model_sees_only_the_new_branch_and_turn_numbers_continue():
    steps = [
        build_step(1),
        build_step(2, "model", turn=1),
        build_step(3, "model", turn=2),
        build_step(4, replaces=1),
    ]
    loaded = history.build_history(steps)
    assert [message["text"] for message in loaded.messages] == ["4"]
    assert (loaded.turn, loaded.turns_since_message, len(loaded.settled_steps)) == (2, 0, 4)


@pytest.fixture
def administrator(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def session(administrator, helper):
    """A session with one answered message that has a file."""
    files = [Attachment("notes.txt", b"first")]
    new_session = sessions.start_session(administrator, helper, "What is it?", attachments=files)
    answer(new_session, "Something.")
    return new_session


def answer(session, text):
    lease = leases.claim_session(session.pk, leases.register_runner())
    assert step_store.take_messages(lease)
    message = {"role": "assistant", "turn": 1, "text": text, "calls": []}
    step_store.append_step(lease, Step.Kind.MODEL, {"text": text, "message": message}, turn=1)
    close_session(lease, Session.Status.DONE)
    session.refresh_from_db()


def list_texts(session):
    return [
        (step.seq, step.kind, step.payload["text"], step.payload.get("replaces"))
        for step in session.steps.order_by("seq")
    ]


def test_a_retry_repeats_the_text_and_an_edit_changes_it(administrator, session):
    sessions.resend_message(administrator, session)
    answer(session, "Another thing.")
    sessions.resend_message(
        administrator, session, 3, "What was it?", [Attachment("more.txt", b"second")]
    )
    answer(session, "That.")
    assert list_texts(session) == [
        (1, "message", "What is it?", None),
        (2, "model", "Something.", None),
        (3, "message", "What is it?", 1),
        (4, "model", "Another thing.", None),
        (5, "message", "What was it?", 3),
        (6, "model", "That.", None),
    ]
    files = [
        [file["name"] for file in item.payload.get("files", ())]
        for item in session.steps.filter(kind="message").order_by("seq")
    ]
    assert files == [["notes.txt"], ["notes.txt"], ["notes.txt", "more.txt"]]
    messages = history.load_history(session.pk).messages
    assert [item["text"] for item in messages] == ["What was it?", "That."]


def test_only_a_current_message_can_be_resent(administrator, session):
    sessions.resend_message(administrator, session)
    answer(session, "Another thing.")
    for seq in (1, 2, 99):
        with pytest.raises(NotFound) as caught:
            sessions.resend_message(administrator, session, seq)
        assert caught.value.field == "seq"


@pytest.mark.parametrize("status", ["queued", "running", "waiting"])
def test_a_running_session_refuses_a_resent_message(administrator, session, status):
    Session.objects.update(status=status)
    before = Inbox.objects.count()
    with pytest.raises(Conflict) as caught:
        sessions.resend_message(administrator, session)
    assert caught.value.code == "session_busy"
    assert Inbox.objects.count() == before
