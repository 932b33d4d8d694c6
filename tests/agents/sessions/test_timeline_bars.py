"""The timeline of a session: stretches, bars, waits."""

from datetime import UTC, datetime, timedelta

from agents.sessions.timeline_bars import Kind, TimelineEvent, TimelineWait, build_timeline

BEGAN = datetime(2026, 5, 4, 12, tzinfo=UTC)
NOW = BEGAN + timedelta(days=3)


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def event(
    kind: Kind, began: float, ended: float | None = None, *waits: TimelineWait
) -> TimelineEvent:
    end = None if ended is None else at(ended)
    return TimelineEvent("k", kind, "done", kind, at(began), end, waits)


def test_each_message_has_its_own_timeline_scale() -> None:
    first, second = build_timeline(
        [
            event("message", 0, 0),
            event("model", 0, 4),
            event("end", 4, 4),
            event("message", 86_400, 86_400),
            event("model", 86_400, 86_401),
        ],
        NOW,
    )
    assert [one.length_ms for one in (first, second)] == [4_000, 1_000]
    assert second.bars[1].parts[0].width == 100


def test_a_wait_for_a_person_is_drawn_within_its_call() -> None:
    [found] = build_timeline(
        [event("message", 0, 0), event("call", 0, 10, TimelineWait(at(2), at(7)))], NOW
    )
    bar = found.bars[1]
    assert (bar.took_ms, bar.waited_ms, found.waited_ms) == (10_000, 5_000, 5_000)
    assert [(part.left, part.width, part.waits) for part in bar.parts] == [
        (0, 100, False),
        (20, 50, True),
    ]


def test_a_running_step_lasts_until_now() -> None:
    [found] = build_timeline(
        [event("message", 0, 0), event("call", 1, None, TimelineWait(at(1)))], at(5)
    )
    assert found.bars[1].took_ms == 4_000
    assert found.bars[1].waited_ms == 4_000


def test_bars_stay_within_their_timeline() -> None:
    found = build_timeline(
        [event("message", 0, 0), event("call", 9.9999, 9.99995), event("end", 10)], NOW
    )
    for bar in found[0].bars:
        for part in bar.parts:
            assert part.left >= 0
            assert part.left + part.width <= 100.5


def test_a_session_without_steps_has_no_timeline() -> None:
    assert build_timeline([], NOW) == []
