from hypothesis import given
from hypothesis import strategies as st

from bonobot.ledger.admission_rules import (
    SECOND,
    TOUCHED_EVERY,
    CallerFlowLabels,
    add,
    compute_held_labels,
    is_barred,
)
from bonobot.ledger.types import FlowLabelEffect

DAY_S = 24 * 3600
NOW = 1_000 * DAY_S * SECOND
PRIVATE, UNTRUSTED, BOTH = 1, 2, 3


def test_a_call_is_barred_only_where_all_of_the_labels_are_held() -> None:
    sends = FlowLabelEffect("flow:x", barred=BOTH)
    assert not is_barred(CallerFlowLabels(), sends, NOW)
    assert not is_barred(CallerFlowLabels(PRIVATE, NOW), sends, NOW)
    assert is_barred(CallerFlowLabels(BOTH, NOW), sends, NOW)


def test_a_flow_that_bars_nothing_never_bars() -> None:
    assert not is_barred(CallerFlowLabels(BOTH, NOW), FlowLabelEffect("flow:x", adds=PRIVATE), NOW)


def test_labels_are_forgotten_after_the_idle_time_and_not_before() -> None:
    flow = FlowLabelEffect("flow:x", barred=BOTH, idle_s=DAY_S)
    held = CallerFlowLabels(BOTH, NOW)
    assert compute_held_labels(held, flow, NOW + DAY_S * SECOND) == BOTH
    assert compute_held_labels(held, flow, NOW + DAY_S * SECOND + 1) == 0


def test_without_an_idle_time_nothing_is_forgotten() -> None:
    assert compute_held_labels(CallerFlowLabels(BOTH, 0), FlowLabelEffect("flow:x"), NOW) == BOTH


def test_what_changes_nothing_is_not_written_again_until_a_while_later() -> None:
    flow, held = (
        FlowLabelEffect("flow:x", adds=PRIVATE, idle_s=DAY_S),
        CallerFlowLabels(PRIVATE, NOW),
    )
    assert add(held, flow, NOW + TOUCHED_EVERY - 1) is held
    assert add(held, flow, NOW + TOUCHED_EVERY) == CallerFlowLabels(PRIVATE, NOW + TOUCHED_EVERY)
    assert (
        add(CallerFlowLabels(), FlowLabelEffect("flow:x", barred=BOTH), NOW) == CallerFlowLabels()
    )


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2 * DAY_S)), max_size=30))
def test_labels_are_never_lost_while_their_caller_is_active(
    calls: list[tuple[int, int]],
) -> None:
    held, now, expected = CallerFlowLabels(), NOW, 0
    for adds, pause_s in calls:
        flow = FlowLabelEffect("flow:x", adds=adds, idle_s=DAY_S)
        now += pause_s * SECOND
        kept = compute_held_labels(held, flow, now)
        # What is written at most every ten minutes may keep labels too long, never too short.
        if pause_s <= DAY_S - TOUCHED_EVERY // SECOND:
            assert kept & expected == expected
        expected = kept | adds
        held = add(held, flow, now)
        assert compute_held_labels(held, flow, now) == expected
