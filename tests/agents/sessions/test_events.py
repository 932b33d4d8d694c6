"""The events of a session: ordered, resumable, and ending when it rests."""

import pytest
from django.utils import timezone

from agents.models import Session, Step
from agents.sessions.events import EventFeed, SessionEvent, build_events, build_step_data
from tests import factories
from tests.agents.sessions.event_lists import load_events

pytestmark = pytest.mark.django_db

NOW = timezone.now()


@pytest.fixture
def session() -> Session:
    acme = factories.create_organization()
    new_session: Session = Session.objects.create(
        organization=acme,
        agent=factories.create_agent(acme),
        status="running",
        started_by_kind="cli",
    )
    return new_session


def create_step(
    session: Session, seq: int, kind: str = "call", state: str = "done", **payload
) -> Step:
    return Step.objects.create(
        session=session, seq=seq, kind=kind, state=state, index=seq, payload=payload
    )


def read_events(session: Session, after: int = 0) -> list[tuple[int | None, str, object]]:
    return [(e.id, e.kind, e.data.get("state")) for e in load_events(session.pk, after)]


def test_finished_steps_have_event_ids_and_unfinished_ones_dont(session):
    create_step(session, 1, "message", text="hello")
    create_step(session, 2, "model", "intent", text="I am wri")
    assert read_events(session) == [(1, "message", "done"), (None, "model", "intent")]
    assert load_events(session.pk)[1].data["text"] == "I am wri"


def test_nothing_after_an_unfinished_step_has_an_event_id(session):
    first = create_step(session, 1, state="intent")
    create_step(session, 2, state="failed")
    assert read_events(session) == [(None, "call", "intent"), (None, "call", "failed")]
    Step.objects.filter(pk=first.pk).update(state="done")
    assert read_events(session) == [(1, "call", "done"), (2, "call", "failed")]


def test_events_continue_after_a_step(session):
    for seq in (1, 2, 3):
        create_step(session, seq)
    assert [number for number, _, _ in read_events(session, 2)] == [3]
    assert read_events(session, 3) == []


@pytest.mark.parametrize("status", ["done", "failed", "cancelled", "waiting"])
def test_the_last_event_has_the_state_of_the_session(session, status):
    create_step(session, 1)
    Session.objects.update(status=status, error_code="why", error_detail="Because.")
    last = load_events(session.pk)[-1]
    assert last == SessionEvent(
        "rest", {"status": status, "error_code": "why", "error_detail": "Because."}
    )


@pytest.mark.parametrize("status", ["queued", "running"])
def test_a_running_session_has_no_last_event(session, status):
    Session.objects.update(status=status)
    assert read_events(session) == []


def test_the_events_of_a_deleted_session_end(session):
    key = session.pk
    session.delete()
    assert load_events(key)[-1].data["status"] == "removed"


def test_a_step_is_shown_without_the_raw_model_message(session):
    data = build_step_data(
        create_step(session, 1, "model", text="hi", message={"secret": 1}, usage={"n": 1})
    )
    assert data["usage"] == {"n": 1}
    assert "message" not in data


def test_reading_events_takes_two_queries(session, django_assert_num_queries):
    for seq in range(1, 20):
        create_step(session, seq)
    with django_assert_num_queries(2):
        load_events(session.pk)


def read_new_events(reader: EventFeed, *steps: Step, status: str = "running", partial_outputs=None):
    return [
        (
            event.id,
            event.kind,
            event.data.get("text", event.data.get("status", event.data.get("state"))),
        )
        for event in reader.list_new_events(build_events(steps, partial_outputs), status)
    ]


def test_a_reader_gets_each_event_once_and_growing_text_in_parts():
    hello = Step(seq=1, kind="message", state="done", payload={"text": "hello"}, started_at=NOW)
    model = Step(seq=2, kind="model", state="intent", payload={"text": ""}, started_at=NOW)
    reader = EventFeed()
    assert read_new_events(reader, hello, model, status="queued") == [
        (None, "state", "queued"),
        (1, "message", "hello"),
        (None, "model", ""),
    ]
    assert read_new_events(reader, hello, model, partial_outputs={2: {"text": "I"}}) == [
        (None, "state", "running"),
        (None, "text", "I"),
    ]
    assert read_new_events(reader, model, partial_outputs={2: {"text": "I am"}}) == [
        (None, "text", " am")
    ]
    assert read_new_events(reader, model, partial_outputs={2: {"text": "I am"}}) == []
    assert read_new_events(reader, model) == [], "an older text isn't sent again"
    [piece] = reader.list_new_events(build_events([model], {2: {"text": "I am."}}), "running")
    assert piece.data == {"seq": 2, "at": 4, "text": "."}
    model.state, model.payload = "done", {"text": "I am. Am I?"}
    assert read_new_events(reader, model) == [(2, "model", "I am. Am I?")]
    assert read_new_events(reader, model) == []
    assert reader.after_seq == 2


def test_thinking_is_sent_in_parts_and_is_never_shortened():
    model = Step(seq=1, kind="model", state="intent", payload={"text": ""}, started_at=NOW)
    reader = EventFeed()

    def read_parts(**output):
        events = reader.list_new_events(build_events([model], {1: output}), "running")
        return [(event.kind, event.data.get("at"), event.data.get("text")) for event in events]

    reader.list_new_events(build_events([model]), "running")
    assert read_parts(text="", thinking="Let me") == [("thinking", 0, "Let me")]
    assert read_parts(text="", thinking="Let me see") == [("thinking", 6, " see")]
    assert read_parts(text="") == [], "older thinking isn't sent again"
    assert read_parts(text="It is", thinking="Let me see") == [("text", 0, "It is")]
    model.state, model.payload = "done", {"text": "It is.", "thinking": "Let me see"}
    [event] = reader.list_new_events(build_events([model]), "running")
    assert (event.data["text"], event.data["thinking"]) == ("It is.", "Let me see")


def test_progress_of_a_call_is_sent_as_a_part():
    call = Step(seq=1, kind="call", state="intent", payload={"name": "x"}, started_at=NOW)
    reader = EventFeed()
    reader.list_new_events(build_events([call]), "running")
    progress = {"done": 1, "total": 4, "message": "first"}
    [event] = reader.list_new_events(build_events([call], {1: {"progress": progress}}), "running")
    assert (event.kind, event.data) == ("progress", {"seq": 1, **progress})
    waiting = Step(
        seq=1,
        kind="call",
        state="intent",
        payload={"name": "x", "approval": {"approval_id": "1"}},
        started_at=NOW,
    )
    [event] = reader.list_new_events(
        build_events([waiting], {1: {"progress": progress}}), "running"
    )
    assert (event.kind, event.id) == ("call", None)


def test_a_reconnected_reader_gets_unfinished_steps_completely():
    model = Step(seq=7, kind="model", state="intent", payload={"text": ""}, started_at=NOW)
    assert read_new_events(EventFeed(6), model, partial_outputs={7: {"text": "I am"}})[1:] == [
        (None, "model", "I am")
    ]
