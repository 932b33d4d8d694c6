"""Watching a session: new events for all watchers with a limited number of queries."""

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
from agents.sessions.loop import close_session
from bonobot.core.runtime import get_runtime
from tests import factories
from tests.concurrent_writers import on_postgresql, run_crossed

pytestmark = pytest.mark.django_db(transaction=True)


class Watcher:
    """A watcher of a session that records its events."""

    def __init__(self, session_id, after=0):
        self.events = []
        self._updates = watch_session(session_id, after)

    async def until(self, *kinds):
        """Read until an event of one of the kinds; return all events until then."""
        new = []
        async for batch in self._updates:
            new += batch
            if any(event.kind in kinds for event in batch):
                break
        self.events += new
        return new

    async def close(self):
        """Stop watching."""
        await self._updates.aclose()


def summarize(events):
    return [
        (
            event.id,
            event.kind,
            event.data.get("text", event.data.get("status", event.data.get("answer"))),
        )
        for event in events
    ]


@pytest.fixture
def session(acme, helper):
    return Session.objects.create(organization=acme, agent=helper, started_by_kind="cli")


@pytest.fixture
def lease(session):
    return leases.claim_session(session.pk, leases.register_runner())


@pytest.fixture
def fast_polling(monkeypatch):
    """Poll and write without delay."""
    monkeypatch.setattr(session_events, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(session_events, "FALLBACK_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(partial_output, "WRITE_INTERVAL_S", 0.01)


def test_watchers_see_growing_text_call_progress_and_the_end(session, lease, fast_polling):
    async def watch():
        orm, watcher = get_runtime().run_orm, Watcher(session.pk)
        model = await orm(
            step_store.append_step, lease, "model", {"text": ""}, state="intent", turn=1
        )
        await watcher.until("model")
        report_text = partial_output.ModelTextReporter(lease, model, session.organization_id)
        await report_text("I ")
        await watcher.until("text")
        await report_text("look.")
        await watcher.until("text")
        await orm(
            step_store.finish_step, lease, model, Step.State.DONE, {"text": "I look."}, turns=1
        )
        call = await orm(
            step_store.append_step, lease, "call", {"name": "x"}, state="intent", turn=1
        )
        await watcher.until("call")
        late_watcher = Watcher(session.pk, after=1)
        await late_watcher.until("call")
        await partial_output.show_progress(
            lease, call, session.organization_id, 1, 4, "one of four"
        )
        [progress] = await watcher.until("progress")
        await late_watcher.until("progress")
        await orm(
            step_store.finish_step,
            lease,
            call,
            Step.State.DONE,
            {"name": "x", "text": "4"},
            calls=1,
        )
        await orm(step_store.append_step, lease, "end", {"answer": "Four."})
        await orm(close_session, lease, Session.Status.DONE)
        await watcher.until("rest")
        await late_watcher.until("rest")
        return watcher.events, progress, late_watcher.events

    heard, progress, late_watcher = get_runtime().call(watch, timeout_s=30)
    assert summarize(heard) == [
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
    assert progress.data == {"seq": 2, "done": 1, "total": 4, "message": "one of four"}
    assert summarize(late_watcher)[1:] == summarize(heard)[5:]


def test_progress_is_written_only_to_unfinished_steps_of_the_lease_holder(session, lease):
    unfinished, finished = (
        step_store.append_step(lease, "model", {"text": ""}, state=state, turn=1)
        for state in ("intent", "done")
    )
    foreign = step_store.append_step(lease, "call", {"name": "x"}, state="intent", turn=1)
    Step.objects.filter(pk=foreign.pk).update(fence=lease.fence + 1)

    def build_output(step):
        texts = {"text": "I"}
        return partial_output.PartialOutput(
            step.pk, session.pk, session.organization_id, 1, 1, {}, texts
        )

    before = Session.objects.get().updated_at
    partial_output.write_outputs([build_output(finished), build_output(foreign)])
    assert Session.objects.get().updated_at == before
    partial_output.write_outputs(
        [build_output(unfinished), build_output(finished), build_output(foreign)]
    )
    assert Session.objects.get().updated_at > before
    texts = [step.payload.get("text") for step in Step.objects.order_by("seq")]
    assert texts == ["I", "", None]


def test_progress_is_masked_and_truncated(session, lease, monkeypatch):
    step = step_store.append_step(lease, "call", {"name": "x"}, state="intent", turn=1)
    monkeypatch.setattr(
        partial_output,
        "mask_organization_secrets",
        lambda text, owner: text.replace("s3cret", "***"),
    )
    progress = {"done": 1, "total": None, "message": "s3cret" + "x" * 1000}
    output = partial_output.PartialOutput(
        step.pk, session.pk, session.organization_id, 1, 1, {}, {"progress": progress}
    )
    [masked] = partial_output.mask_outputs([output])
    assert masked.shown["progress"]["message"] == "***" + "x" * (
        partial_output.PROGRESS_MESSAGE_LENGTH - 3
    )


def test_many_watchers_of_a_busy_session_take_as_few_queries_as_one(
    session, lease, monkeypatch, django_assert_num_queries
):
    query_times = []

    def count_queries(function):
        def query(*arguments):
            query_times.append(monotonic())
            return function(*arguments)

        return query

    with django_assert_num_queries(2):
        session_events._load_sessions([session.pk])
        session_events._load_steps(session.pk, 0)
    for name in ("_load_sessions", "_load_steps"):
        monkeypatch.setattr(session_events, name, count_queries(getattr(session_events, name)))

    async def watch():
        watchers = [Watcher(session.pk) for _ in range(20)]
        tasks = [asyncio.create_task(watcher.until("end")) for watcher in watchers]
        deadline = monotonic() + 1.2
        while monotonic() < deadline:
            await get_runtime().run_orm(step_store.append_step, lease, "notice", {"text": "busy"})
        await get_runtime().run_orm(step_store.append_step, lease, "end", {"answer": ""})
        results = await asyncio.gather(*tasks)
        for watcher in watchers:
            await watcher.close()
        return results

    batches = get_runtime().call(watch, timeout_s=30)
    assert len({tuple(event.id for event in events if event.id) for events in batches}) == 1
    most_queries = max(
        sum(start <= time < start + 1 for time in query_times) for start in query_times
    )
    first_polls_and_last = session_events.MAX_POLLS_AT_ONCE + session_events.MAX_POLLS_PER_S + 1
    assert most_queries <= 2 * first_polls_and_last


def test_signals_cause_some_polls_at_once_and_then_a_steady_number():
    allowance = session_events.PollAllowance()
    times, now = [], 100.0
    while now < 102.0:
        allowance.record_poll(now)
        times.append(now)
        now = allowance.find_next_time(now)
    assert times[: session_events.MAX_POLLS_AT_ONCE] == [100.0] * session_events.MAX_POLLS_AT_ONCE
    assert times[session_events.MAX_POLLS_AT_ONCE :] == [
        100.0 + number / session_events.MAX_POLLS_PER_S for number in range(1, 8)
    ]
    assert allowance.find_next_time(200.0) == 200.0


def test_a_step_that_was_read_late_isnt_skipped(session, lease, fast_polling):
    """A watcher that resumes from an earlier id gets the events the others already have."""

    async def watch():
        first = Watcher(session.pk)
        for text in "abc":
            await get_runtime().run_orm(step_store.append_step, lease, "notice", {"text": text})
        while len([event for event in first.events if event.id]) < 3:
            await first.until("notice")
        late_watcher, resumed = Watcher(session.pk), Watcher(session.pk, after=2)
        await get_runtime().run_orm(close_session, lease, Session.Status.DONE)
        return [await watcher.until("rest") for watcher in (late_watcher, resumed, first)]

    late_watcher, resumed, first = get_runtime().call(watch, timeout_s=20)
    assert [event.data["text"] for event in late_watcher if event.id] == ["a", "b", "c"]
    assert [event.data["text"] for event in resumed if event.id] == ["c"]
    assert summarize(first) == [(None, "rest", "done")]


@pytest.fixture
def no_polling(monkeypatch, settings):
    """Poll only after signals."""
    monkeypatch.setattr(session_events, "POLL_INTERVAL_S", 1000)
    monkeypatch.setattr(session_events, "FALLBACK_POLL_INTERVAL_S", 1000)


async def append_model_step(lease):
    return await get_runtime().run_orm(
        step_store.append_step, lease, "model", {"text": ""}, state="intent", turn=1
    )


def test_a_first_text_reaches_watchers_without_waiting_for_a_poll_or_for_other_sessions(
    session, lease, no_polling, monkeypatch
):
    monkeypatch.setattr(partial_output, "WRITE_INTERVAL_S", 1000)
    monkeypatch.setattr(partial_output, "PUBLISH_INTERVAL_S", 1000)

    async def watch():
        watcher = Watcher(session.pk)
        for text in ("first", "second"):
            model = await append_model_step(lease)
            await watcher.until("model")
            report_text = partial_output.ModelTextReporter(lease, model, session.organization_id)
            await report_text(text)
            await watcher.until("text")
            await report_text(" and more, which waits")
        await watcher.close()
        publisher = partial_output.get_output_publisher()
        publisher._pending.clear()
        publisher._publishing.cancel()
        return [event.data["text"] for event in watcher.events if event.kind == "text"]

    assert get_runtime().call(watch, timeout_s=20) == ["first", "second"]


def test_watchers_miss_nothing_when_messages_are_lost(session, lease, fast_polling, monkeypatch):
    monkeypatch.setattr("bonobot.core.message_bus._schedule_wakeup", lambda channel: None)

    async def watch():
        watcher = Watcher(session.pk)
        model = await append_model_step(lease)
        await watcher.until("model")
        output = partial_output._build_partial_output(
            lease, model, session.organization_id, {"text": "lost"}
        )
        await get_runtime().run_orm(partial_output.write_outputs, [output])
        await watcher.until("text")
        await get_runtime().run_orm(close_session, lease, Session.Status.DONE)
        await watcher.until("rest")
        return watcher.events

    kinds = [event.kind for event in get_runtime().call(watch, timeout_s=20)]
    assert kinds[-3:] == ["model", "text", "rest"]


def just_after(task, callback):
    """Wrap a coroutine function so that `callback` runs in the loop's iteration after its end."""

    async def run():
        await task()
        get_runtime().loop.call_soon(callback)

    return run


def test_text_that_arrives_after_the_last_event_is_sent(session, lease, fast_polling, monkeypatch):
    written = SimpleQueue()

    async def return_false(_):
        return False

    monkeypatch.setattr(
        partial_output, "get_bus", lambda: SimpleNamespace(publish_texts=return_false)
    )
    monkeypatch.setattr(partial_output, "write_outputs", written.put)

    async def watch():
        publisher = partial_output.PartialOutputPublisher()
        model = await get_runtime().run_orm(
            step_store.append_step, lease, "model", {}, state="intent", turn=1
        )
        first, second = (
            partial_output._build_partial_output(
                lease, model, session.organization_id, {"text": text}
            )
            for text in "ab"
        )
        with monkeypatch.context() as patch:
            patch.setattr(
                publisher,
                "_publish_outputs",
                just_after(
                    publisher._publish_outputs,
                    lambda: publisher.publish(second.step_id, lambda: second),
                ),
            )
            publisher.publish(first.step_id, lambda: first)
        return [await get_runtime().run_orm(written.get, timeout=5) for _ in "ab"]

    outputs = get_runtime().call(watch, timeout_s=20)
    assert [output.shown["text"] for [output] in outputs] == ["a", "b"]


def test_a_watcher_after_the_last_one_left_gets_events(session, lease, fast_polling, monkeypatch):
    async def watch():
        watcher = session_events.SessionWatcher()
        monkeypatch.setattr(session_events, "get_session_watcher", lambda: watcher)
        first, second = Watcher(session.pk), session_events.SessionSubscriber(0)
        add_subscriber = partial(watcher._add_subscriber, session.pk, second)
        with monkeypatch.context() as patch:
            patch.setattr(watcher, "_run_polls", just_after(watcher._run_polls, add_subscriber))
            await first.until("state")
        await first.close()
        await second.wake.wait()
        watcher._remove_subscriber(watcher._watches[session.pk], second)
        return second.take_pending()

    [event] = get_runtime().call(watch, timeout_s=10)
    assert event.data["status"] == "running"


def test_the_stream_of_a_deleted_session_ends(session, fast_polling):
    key = session.pk
    session.delete()
    [event] = get_runtime().call(Watcher(key).until, "rest", timeout_s=10)
    assert event.data["status"] == "removed"


def test_the_stream_has_the_format_of_server_sent_events(session, lease):
    step_store.append_step(lease, "message", {"text": "hello\nyou"})
    close_session(lease, Session.Status.DONE)
    chunks = b"".join(get_runtime().call(read_stream, session, timeout_s=10)).split(b"\n\n")
    assert chunks[0].startswith(b"id: 1\nevent: message\ndata: {")
    assert chunks[1].startswith(b"event: rest\ndata: {")


def test_a_quiet_stream_sends_keepalives_and_a_long_one_ends(session, monkeypatch):
    monkeypatch.setattr(session_events, "KEEPALIVE_S", 0.01)
    monkeypatch.setattr(api, "KEEPALIVE_S", 0)
    monkeypatch.setattr(api, "MAX_STREAM_S", 0.2)
    chunks = get_runtime().call(read_stream, session, timeout_s=10)
    assert b": still here\n\n" in chunks


async def read_stream(session):
    return [piece async for piece in api.stream_events(session.pk, 0)]


@on_postgresql
def test_progress_is_written_while_its_step_finishes(session, lease):
    step = step_store.append_step(lease, "model", {"text": ""}, state="intent", turn=1)
    output = partial_output.PartialOutput(
        step.pk, session.pk, session.organization_id, lease.fence, 1, {}, {"text": "I"}
    )
    run_crossed(
        lambda: step_store.finish_step(lease, step, Step.State.DONE, {"text": "I am."}, turns=1),
        lambda: partial_output.write_outputs([output]),
        at='UPDATE "agents_session"',
    )
    assert Step.objects.get(pk=step.pk).payload == {"text": "I am."}


@on_postgresql
def test_an_agent_is_deleted_while_its_session_finishes_a_step(acme, helper, session, lease):
    step = step_store.append_step(lease, "model", {"text": ""}, state="intent", turn=1)
    with pytest.raises(leases.LeaseLost):
        run_crossed(
            lambda: delete_agent(factories.build_administrator(acme), helper),
            lambda: step_store.finish_step(
                lease, step, Step.State.DONE, {"text": "I am."}, turns=1
            ),
            at='DELETE FROM "agents_step"',
        )
    assert not Session.objects.exists()
