"""The timeline of a session: messages, bars and waits."""

from datetime import UTC, datetime, timedelta

from agents.sessions.timeline_bars import Kind, TimelineEvent, TimelineWait, build_timeline

STARTED_AT = datetime(2026, 5, 4, 12, tzinfo=UTC)
NOW = STARTED_AT + timedelta(days=3)


def time_at(seconds: float) -> datetime:
    return STARTED_AT + timedelta(seconds=seconds)


def build_event(
    kind: Kind, started: float, ended: float | None = None, *waits: TimelineWait
) -> TimelineEvent:
    end = None if ended is None else time_at(ended)
    return TimelineEvent("k", kind, "done", kind, time_at(started), end, waits)


def test_each_message_has_its_own_timeline_scale() -> None:
    first, second = build_timeline(
        [
            build_event("message", 0, 0),
            build_event("model", 0, 4),
            build_event("end", 4, 4),
            build_event("message", 86_400, 86_400),
            build_event("model", 86_400, 86_401),
        ],
        NOW,
    )
    assert [timeline.length_ms for timeline in (first, second)] == [4_000, 1_000]
    assert second.bars[1].parts[0].width == 100


def test_a_wait_for_a_person_is_drawn_within_its_call() -> None:
    [timeline] = build_timeline(
        [
            build_event("message", 0, 0),
            build_event("call", 0, 10, TimelineWait(time_at(2), time_at(7))),
        ],
        NOW,
    )
    bar = timeline.bars[1]
    assert (bar.took_ms, bar.waited_ms, timeline.waited_ms) == (10_000, 5_000, 5_000)
    assert [(part.left, part.width, part.is_wait) for part in bar.parts] == [
        (0, 100, False),
        (20, 50, True),
    ]


def test_a_running_step_lasts_until_now() -> None:
    [timeline] = build_timeline(
        [build_event("message", 0, 0), build_event("call", 1, None, TimelineWait(time_at(1)))],
        time_at(5),
    )
    assert timeline.bars[1].took_ms == 4_000
    assert timeline.bars[1].waited_ms == 4_000


def test_bars_stay_within_their_timeline() -> None:
    timelines = build_timeline(
        [
            build_event("message", 0, 0),
            build_event("call", 9.9999, 9.99995),
            build_event("end", 10),
        ],
        NOW,
    )
    for bar in timelines[0].bars:
        for part in bar.parts:
            assert part.left >= 0
            assert part.left + part.width <= 100.5


def test_a_session_without_steps_has_no_timeline() -> None:
    assert build_timeline([], NOW) == []
