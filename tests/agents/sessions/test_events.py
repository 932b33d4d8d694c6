"""The events of a session: in an order that can be resumed, until it rests."""

import pytest

from agents.api.sessions import stream
from agents.models import Session, Step
from agents.sessions.events import LOOK_EVERY_S, Event, follow, read_events, shown
from bonobot.lib.runtime import runtime
from tests.agents import casting

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def session() -> Session:
    acme = casting.organization()
    made: Session = Session.objects.create(
        organization=acme, agent=casting.agent(acme), status="running", started_by_kind="cli"
    )
    return made


def step(session: Session, seq: int, kind: str = "call", state: str = "done", **payload) -> Step:
    return Step.objects.create(
        session=session, seq=seq, kind=kind, state=state, index=seq, payload=payload
    )


def read(session: Session, after: int = 0) -> list[tuple[int | None, str, object]]:
    return [(e.id, e.kind, e.data.get("state")) for e in read_events(session.pk, after)]


def test_settled_steps_have_ids_and_an_unsettled_one_has_none(session):
    step(session, 1, "message", text="hello")
    step(session, 2, "model", "intent", text="I am wri")
    assert read(session) == [(1, "message", "done"), (None, "model", "intent")]
    assert read_events(session.pk)[1].data["text"] == "I am wri"


def test_nothing_behind_an_unsettled_step_has_an_id(session):
    first = step(session, 1, state="intent")
    step(session, 2, state="failed")
    assert read(session) == [(None, "call", "intent"), (None, "call", "failed")]
    Step.objects.filter(pk=first.pk).update(state="done")
    assert read(session) == [(1, "call", "done"), (2, "call", "failed")]


def test_reading_goes_on_behind_a_step(session):
    for seq in (1, 2, 3):
        step(session, seq)
    assert [number for number, _, _ in read(session, 2)] == [3]
    assert read(session, 3) == []


@pytest.mark.parametrize("status", ["done", "failed", "cancelled", "waiting"])
def test_the_last_event_tells_where_the_session_rests(session, status):
    step(session, 1)
    Session.objects.update(status=status, error_code="why", error_detail="Because.")
    last = read_events(session.pk)[-1]
    assert last == Event(
        "rest", {"status": status, "error_code": "why", "error_detail": "Because."}
    )


@pytest.mark.parametrize("status", ["queued", "running"])
def test_a_session_that_does_not_rest_has_no_last_event(session, status):
    Session.objects.update(status=status)
    assert read(session) == []


def test_a_session_that_was_removed_rests(session):
    key = session.pk
    session.delete()
    assert read_events(key)[-1].data["status"] == "removed"


def test_a_step_is_shown_without_the_models_own_message(session):
    found = shown(step(session, 1, "model", text="hi", message={"secret": 1}, usage={"n": 1}))
    assert found["usage"] == {"n": 1}
    assert "message" not in found


def test_looking_takes_two_queries(session, django_assert_num_queries):
    for seq in range(1, 20):
        step(session, seq)
    with django_assert_num_queries(2):
        read_events(session.pk)
    assert 2 / LOOK_EVERY_S <= 4


def test_a_stream_is_written_as_server_sent_events(session, monkeypatch):
    monkeypatch.setattr("agents.sessions.events.LOOK_EVERY_S", 0)
    step(session, 1, "message", text="hello\nyou")
    Session.objects.update(status="done")
    first, second = runtime().call(collected, session, timeout_s=10)[0].split(b"\n\n")[:2]
    assert first.startswith(b"id: 1\nevent: message\ndata: {")
    assert second.startswith(b"event: rest\ndata: {")


def test_a_quiet_stream_says_that_it_lives_and_a_long_one_ends(session, monkeypatch):
    monkeypatch.setattr("agents.sessions.events.LOOK_EVERY_S", 0)
    monkeypatch.setattr("agents.api.sessions.KEEPALIVE_S", 0)
    monkeypatch.setattr("agents.api.sessions.LONGEST_STREAM_S", 0.2)
    said = runtime().call(collected, session, timeout_s=10)
    assert set(said) == {b": still here\n\n"}


async def collected(session: Session) -> list[bytes]:
    return [piece async for piece in stream(session.pk, 0)]


def test_following_tells_each_thing_once_and_ends_where_the_session_rests(session, monkeypatch):
    monkeypatch.setattr("agents.sessions.events.LOOK_EVERY_S", 0)
    step(session, 1, "message", text="hello")
    intent = step(session, 2, "model", "intent", text="I")
    changing = [
        lambda: None,
        lambda: Step.objects.filter(pk=intent.pk).update(payload={"text": "I am"}),
        lambda: Step.objects.filter(pk=intent.pk).update(state="done", payload={"text": "I am."}),
        lambda: Session.objects.update(status="done"),
    ]

    async def watched() -> list[list[tuple[int | None, str]]]:
        looks, changes = [], iter(changing)
        async for events in follow(session.pk):
            looks.append([(event.id, event.data.get("text", event.kind)) for event in events])
            await runtime().orm(next(changes, lambda: None))
        return looks

    assert runtime().call(watched, timeout_s=10) == [
        [(1, "hello"), (None, "I")],
        [],
        [(None, "I am")],
        [(2, "I am.")],
        [(None, "rest")],
    ]
