"""Watching a session: what is new of it, shared by all who watch, within its bound of queries."""

import asyncio
from functools import partial
from queue import SimpleQueue
from time import monotonic
from types import SimpleNamespace

import pytest

from agents.api import sessions as api
from agents.models import Session, Step
from agents.services import delete_agent
from agents.sessions import events as session_events
from agents.sessions import leases, partial_output, step_store
from agents.sessions.events import watch_session
from bonobot.core.runtime import get_runtime
from tests import factories
from tests.concurrent_writers import cross, on_postgresql

pytestmark = pytest.mark.django_db(transaction=True)


class Watcher:
    """One who follows a session and keeps what was told."""

    def __init__(self, session_id, after=0):
        self.heard = []
        self._looks = watch_session(session_id, after)

    async def until(self, *kinds):
        """Follow up to an event of one of the kinds, and return all that came with it."""
        new = []
        async for events in self._looks:
            new += events
            if any(event.kind in kinds for event in events):
                break
        self.heard += new
        return new

    async def leave(self):
        """Follow no longer."""
        await self._looks.aclose()


def words(events):
    return [
        (one.id, one.kind, one.data.get("text", one.data.get("status", one.data.get("answer"))))
        for one in events
    ]


@pytest.fixture
def session(acme, helper):
    return Session.objects.create(organization=acme, agent=helper, started_by_kind="cli")


@pytest.fixture
def hold(session):
    return leases.claim_session(session.pk, leases.register_runner())


@pytest.fixture
def hasty(monkeypatch):
    """Look at once: what is tested is what is seen."""
    monkeypatch.setattr(session_events, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(partial_output, "WRITE_INTERVAL_S", 0.01)


def test_watchers_see_growing_text_call_progress_and_the_end(session, hold, hasty):
    async def watched():
        orm, watcher = get_runtime().run_orm, Watcher(session.pk)
        model = await orm(
            step_store.append_step, hold, "model", {"text": ""}, state="intent", turn=1
        )
        await watcher.until("model")
        writing = partial_output.ModelTextReporter(hold, model, session.organization_id)
        await writing("I ")
        await watcher.until("text")
        await writing("look.")
        await watcher.until("text")
        await orm(
            step_store.finish_step, hold, model, Step.State.DONE, {"text": "I look."}, turns=1
        )
        call = await orm(
            step_store.append_step, hold, "call", {"name": "x"}, state="intent", turn=1
        )
        await watcher.until("call")
        late = Watcher(session.pk, after=1)
        await late.until("call")
        await partial_output.show_progress(hold, call, session.organization_id, 1, 4, "one of four")
        [told] = await watcher.until("progress")
        await late.until("progress")
        await orm(
            step_store.finish_step, hold, call, Step.State.DONE, {"name": "x", "text": "4"}, calls=1
        )
        await orm(step_store.append_step, hold, "end", {"answer": "Four."})
        await orm(step_store.close_session, hold, Session.Status.DONE)
        await watcher.until("rest")
        await late.until("rest")
        return watcher.heard, told, late.heard

    heard, told, late = get_runtime().call(watched, timeout_s=30)
    assert words(heard) == [
        (None, "state", "running"),
        (None, "model", ""),
        (None, "text", "I "),
        (None, "text", "look."),
        (1, "model", "I look."),
        (None, "call", None),
        (None, "progress", None),
        (2, "call", "4"),
        (3, "end", "Four."),
        (None, "rest", "done"),
    ]
    assert told.data == {"seq": 2, "done": 1, "total": 4, "message": "one of four"}
    assert words(late)[1:] == words(heard)[5:]


def test_progress_is_written_only_to_unfinished_steps_of_the_lease_holder(session, hold):
    open_, settled = (
        step_store.append_step(hold, "model", {"text": ""}, state=state, turn=1)
        for state in ("intent", "done")
    )
    late = step_store.append_step(hold, "call", {"name": "x"}, state="intent", turn=1)
    Step.objects.filter(pk=late.pk).update(fence=hold.fence + 1)

    def moment(step):
        shown = {"text": "I"}
        return partial_output.PartialOutput(
            step.pk, session.pk, session.organization_id, 1, 1, {}, shown
        )

    before = Session.objects.get().updated_at
    partial_output.write_outputs([moment(settled), moment(late)])
    assert Session.objects.get().updated_at == before
    partial_output.write_outputs([moment(open_), moment(settled), moment(late)])
    assert Session.objects.get().updated_at > before
    shown = [step.payload.get("text") for step in Step.objects.order_by("seq")]
    assert shown == ["I", "", None]


def test_progress_is_masked_and_truncated(session, hold, monkeypatch):
    step = step_store.append_step(hold, "call", {"name": "x"}, state="intent", turn=1)
    monkeypatch.setattr(
        partial_output,
        "mask_organization_secrets",
        lambda text, owner: text.replace("s3cret", "***"),
    )
    progress = {"done": 1, "total": None, "message": "s3cret" + "x" * 1000}
    moment = partial_output.PartialOutput(
        step.pk, session.pk, session.organization_id, 1, 1, {}, {"progress": progress}
    )
    [masked] = partial_output.mask_outputs([moment])
    assert masked.shown["progress"]["message"] == "***" + "x" * (
        partial_output.PROGRESS_MESSAGE_LENGTH - 3
    )


def test_many_watchers_of_a_busy_session_take_at_most_five_queries_per_second(
    session, hold, monkeypatch, django_assert_num_queries
):
    looks = []

    def counted(plain):
        def look(*arguments):
            looks.append(monotonic())
            return plain(*arguments)

        return look

    with django_assert_num_queries(2):
        session_events._load_sessions([session.pk])
        session_events._load_steps(session.pk, 0)
    for name in ("_load_sessions", "_load_steps"):
        monkeypatch.setattr(session_events, name, counted(getattr(session_events, name)))

    async def watched():
        watchers = [Watcher(session.pk) for _ in range(20)]
        told = [asyncio.create_task(watcher.until("end")) for watcher in watchers]
        until = monotonic() + 1.2
        while monotonic() < until:
            await get_runtime().run_orm(step_store.append_step, hold, "notice", {"text": "busy"})
        await get_runtime().run_orm(step_store.append_step, hold, "end", {"answer": ""})
        found = await asyncio.gather(*told)
        for watcher in watchers:
            await watcher.leave()
        return found

    heard = get_runtime().call(watched, timeout_s=30)
    assert len({tuple(event.id for event in events if event.id) for events in heard}) == 1
    assert max(sum(at <= one < at + 1 for one in looks) for at in looks) <= 5


def test_a_step_that_was_read_late_isnt_skipped(session, hold, hasty):
    """One who begins before the others' id is told what they know already."""

    async def watched():
        first = Watcher(session.pk)
        for text in "abc":
            await get_runtime().run_orm(step_store.append_step, hold, "notice", {"text": text})
        while len([event for event in first.heard if event.id]) < 3:
            await first.until("notice")
        late, again = Watcher(session.pk), Watcher(session.pk, after=2)
        await get_runtime().run_orm(step_store.close_session, hold, Session.Status.DONE)
        return [await watcher.until("rest") for watcher in (late, again, first)]

    late, again, first = get_runtime().call(watched, timeout_s=20)
    assert [event.data["text"] for event in late if event.id] == ["a", "b", "c"]
    assert [event.data["text"] for event in again if event.id] == ["c"]
    assert words(first) == [(None, "rest", "done")]


def just_after(task, then):
    """Return a coroutine function like `task` that has `then` called in the turn behind its end."""

    async def ending():
        await task()
        get_runtime().loop.call_soon(then)

    return ending


def test_text_that_arrives_after_the_last_event_is_sent(session, hold, hasty, monkeypatch):
    told = SimpleQueue()

    async def away(_):
        return False

    monkeypatch.setattr(partial_output, "get_bus", lambda: SimpleNamespace(publish_texts=away))
    monkeypatch.setattr(partial_output, "write_outputs", told.put)

    async def watched():
        own = partial_output.PartialOutputPublisher()
        model = await get_runtime().run_orm(
            step_store.append_step, hold, "model", {}, state="intent", turn=1
        )
        first, second = (
            partial_output._build_partial_output(
                hold, model, session.organization_id, {"text": text}
            )
            for text in "ab"
        )
        with monkeypatch.context() as patch:
            patch.setattr(
                own,
                "_publish_outputs",
                just_after(
                    own._publish_outputs, lambda: own.publish(second.step_id, lambda: second)
                ),
            )
            own.publish(first.step_id, lambda: first)
        return [await get_runtime().run_orm(told.get, timeout=5) for _ in "ab"]

    moments = get_runtime().call(watched, timeout_s=20)
    assert [one.shown["text"] for [one] in moments] == ["a", "b"]


def test_a_watcher_after_the_last_one_left_gets_events(session, hold, hasty, monkeypatch):
    async def watched():
        own = session_events.SessionWatcher()
        monkeypatch.setattr(session_events, "get_session_watcher", lambda: own)
        first, second = Watcher(session.pk), session_events.SessionSubscriber(0)
        begin = partial(own._add_subscriber, session.pk, second)
        with monkeypatch.context() as patch:
            patch.setattr(own, "_run_polls", just_after(own._run_polls, begin))
            await first.until("state")
        await first.leave()
        await second.wake.wait()
        own._remove_subscriber(own._watches[session.pk], second)
        return second.take_pending()

    [told] = get_runtime().call(watched, timeout_s=10)
    assert told.data["status"] == "running"


def test_the_stream_of_a_deleted_session_ends(session, hasty):
    key = session.pk
    session.delete()
    [event] = get_runtime().call(Watcher(key).until, "rest", timeout_s=10)
    assert event.data["status"] == "removed"


def test_the_stream_has_the_format_of_server_sent_events(session, hold):
    step_store.append_step(hold, "message", {"text": "hello\nyou"})
    step_store.close_session(hold, Session.Status.DONE)
    said = b"".join(get_runtime().call(streamed, session, timeout_s=10)).split(b"\n\n")
    assert said[0].startswith(b"id: 1\nevent: message\ndata: {")
    assert said[1].startswith(b"event: rest\ndata: {")


def test_a_quiet_stream_sends_keepalives_and_a_long_one_ends(session, monkeypatch):
    monkeypatch.setattr(session_events, "KEEPALIVE_S", 0.01)
    monkeypatch.setattr(api, "KEEPALIVE_S", 0)
    monkeypatch.setattr(api, "MAX_STREAM_S", 0.2)
    said = get_runtime().call(streamed, session, timeout_s=10)
    assert b": still here\n\n" in said


async def streamed(session):
    return [piece async for piece in api.stream_events(session.pk, 0)]


@on_postgresql
def test_progress_is_written_while_its_step_finishes(session, hold):
    step = step_store.append_step(hold, "model", {"text": ""}, state="intent", turn=1)
    moment = partial_output.PartialOutput(
        step.pk, session.pk, session.organization_id, hold.fence, 1, {}, {"text": "I"}
    )
    cross(
        lambda: step_store.finish_step(hold, step, Step.State.DONE, {"text": "I am."}, turns=1),
        lambda: partial_output.write_outputs([moment]),
        at='UPDATE "agents_session"',
    )
    assert Step.objects.get(pk=step.pk).payload == {"text": "I am."}


@on_postgresql
def test_an_agent_is_deleted_while_its_session_finishes_a_step(acme, helper, session, hold):
    step = step_store.append_step(hold, "model", {"text": ""}, state="intent", turn=1)
    with pytest.raises(leases.LeaseLost):
        cross(
            lambda: delete_agent(factories.build_administrator(acme), helper),
            lambda: step_store.finish_step(hold, step, Step.State.DONE, {"text": "I am."}, turns=1),
            at='DELETE FROM "agents_step"',
        )
    assert not Session.objects.exists()
