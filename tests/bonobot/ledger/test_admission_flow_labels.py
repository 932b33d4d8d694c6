from hypothesis import given
from hypothesis import strategies as st

from bonobot.ledger.admission import (
    MICROSECONDS_PER_SECOND,
    TOUCH_INTERVAL_US,
    CallerFlowLabels,
    add_labels,
    compute_held_labels,
    is_blocked,
    propagate_labels,
)
from bonobot.ledger.types import FlowLabelEffect, Store

DAY_S = 24 * 3600
NOW = 1_000 * DAY_S * MICROSECONDS_PER_SECOND
PRIVATE, UNTRUSTED, BOTH = 1, 2, 3


def test_a_call_is_denied_only_if_all_labels_are_present() -> None:
    sends = FlowLabelEffect("flow:x", blocking_labels=BOTH)
    assert not is_blocked(CallerFlowLabels(), sends, NOW)
    assert not is_blocked(CallerFlowLabels(PRIVATE, NOW), sends, NOW)
    assert is_blocked(CallerFlowLabels(BOTH, NOW), sends, NOW)


def test_a_flow_rule_without_labels_denies_nothing() -> None:
    assert not is_blocked(
        CallerFlowLabels(BOTH, NOW), FlowLabelEffect("flow:x", added_labels=PRIVATE), NOW
    )


def test_labels_expire_after_the_idle_time_and_not_before() -> None:
    flow = FlowLabelEffect("flow:x", blocking_labels=BOTH, idle_s=DAY_S)
    labels = CallerFlowLabels(BOTH, NOW)
    assert compute_held_labels(labels, flow, NOW + DAY_S * MICROSECONDS_PER_SECOND) == BOTH
    assert compute_held_labels(labels, flow, NOW + DAY_S * MICROSECONDS_PER_SECOND + 1) == 0


def test_labels_dont_expire_without_an_idle_time() -> None:
    assert compute_held_labels(CallerFlowLabels(BOTH, 0), FlowLabelEffect("flow:x"), NOW) == BOTH


def test_unchanged_labels_are_rewritten_only_after_a_while() -> None:
    flow, labels = (
        FlowLabelEffect("flow:x", added_labels=PRIVATE, idle_s=DAY_S),
        CallerFlowLabels(PRIVATE, NOW),
    )
    assert add_labels(labels, flow, NOW + TOUCH_INTERVAL_US - 1) is labels
    assert add_labels(labels, flow, NOW + TOUCH_INTERVAL_US) == CallerFlowLabels(
        PRIVATE, NOW + TOUCH_INTERVAL_US
    )
    assert (
        add_labels(CallerFlowLabels(), FlowLabelEffect("flow:x", blocking_labels=BOTH), NOW)
        == CallerFlowLabels()
    )


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2 * DAY_S)), max_size=30))
def test_labels_dont_expire_while_their_caller_is_active(
    calls: list[tuple[int, int]],
) -> None:
    labels, now, expected = CallerFlowLabels(), NOW, 0
    for adds, pause_s in calls:
        flow = FlowLabelEffect("flow:x", added_labels=adds, idle_s=DAY_S)
        now += pause_s * MICROSECONDS_PER_SECOND
        remaining = compute_held_labels(labels, flow, now)
        # Labels are written at most every ten minutes: they may be kept too long, never too short.
        if pause_s <= DAY_S - TOUCH_INTERVAL_US // MICROSECONDS_PER_SECOND:
            assert remaining & expected == expected
        expected = remaining | adds
        labels = add_labels(labels, flow, now)
        assert compute_held_labels(labels, flow, now) == expected


CALLER, STORE = "flow:caller", "flow:place"
LABELS = st.sampled_from([0, PRIVATE, UNTRUSTED, BOTH])


@given(LABELS, LABELS, LABELS, st.booleans(), st.booleans())
def test_labels_are_copied_to_a_store_on_write_and_from_it_on_read(
    labels: int, stored: int, adds: int, reads: bool, writes: bool
) -> None:
    cells = {CALLER: CallerFlowLabels(labels, NOW), STORE: CallerFlowLabels(stored, 0)}
    store = Store(STORE, reads=reads, writes=writes)
    after = cells | propagate_labels(
        cells, (FlowLabelEffect(CALLER, added_labels=adds),), (store,), NOW
    )
    assert after[CALLER].labels == labels | adds | (stored if reads else 0)
    # The labels that this call adds weren't known when its arguments were written.
    assert after[STORE].labels == stored | (labels if writes else 0)


@given(LABELS, LABELS, st.booleans(), st.booleans(), st.integers(-5, 5))
def test_a_store_is_changed_only_by_writes_of_callers_with_labels(
    labels: int, stored: int, reads: bool, writes: bool, elapsed_us: int
) -> None:
    before = CallerFlowLabels(stored, NOW)
    cells = {CALLER: CallerFlowLabels(labels, NOW), STORE: before}
    after = propagate_labels(
        cells, (FlowLabelEffect(CALLER),), (Store(STORE, reads, writes),), NOW + elapsed_us
    )
    assert (STORE in after) is bool(writes and labels)
    if STORE in after:
        assert after[STORE].labels == stored | labels
        # Later than the write before, whichever host's clock is behind.
        assert after[STORE].last_used_us == max(NOW + elapsed_us, NOW + 1)


def test_expired_labels_arent_copied_to_a_store() -> None:
    cells = {CALLER: CallerFlowLabels(BOTH, NOW), STORE: CallerFlowLabels()}
    flow, late = FlowLabelEffect(CALLER, idle_s=DAY_S), NOW + DAY_S * MICROSECONDS_PER_SECOND + 1
    assert propagate_labels(cells, (flow,), (Store(STORE),), late) == {
        CALLER: CallerFlowLabels(0, late)
    }
