from datetime import UTC, datetime, timedelta
from uuid import UUID

from bonobot.ledger.writer import repeated_refusals
from bonobot.ledger.writer.repeated_refusals import WINDOW_S, RepeatedRefusals, build_refusal_key
from tests.bonobot.ledger.factories import opening_of

AT = datetime(2026, 11, 21, tzinfo=UTC)
ORGANIZATION = UUID(int=1)
KEY = build_refusal_key(opening_of(ORGANIZATION, code="denied_by_policy"))


def test_the_key_is_the_caller_the_call_and_the_reason() -> None:
    assert (
        build_refusal_key(opening_of(ORGANIZATION, code="denied_by_policy", details={"other": 1}))
        == KEY
    )
    assert build_refusal_key(opening_of(ORGANIZATION, code="rate_limited")) != KEY
    assert (
        build_refusal_key(opening_of(ORGANIZATION, code="denied_by_policy", resource_id="other"))
        != KEY
    )
    agent_call = opening_of(ORGANIZATION, code="denied_by_policy", agent_id=UUID(int=5))
    assert build_refusal_key(agent_call) != KEY
    assert build_refusal_key(opening_of(UUID(int=2), code="denied_by_policy")) != KEY
    requests = [
        opening_of(ORGANIZATION, code="approval_required", details={"approval_id": approval})
        for approval in ("first", "second")
    ]
    assert len({build_refusal_key(request) for request in requests}) == 2


def test_repeats_within_the_window_are_counted_at_the_first_denial() -> None:
    windows = RepeatedRefusals()
    assert windows.open_window(KEY, UUID(int=7), at=AT, now=0) == []
    for second in range(1, 4):
        assert windows.find_window(KEY, second) is not None
        windows.count_refusal(KEY, AT + timedelta(seconds=second))
    (ended,) = windows.take_ended_windows(WINDOW_S)
    assert (ended.row_id, ended.organization_id) == (UUID(int=7), ORGANIZATION)
    assert (ended.repeats, ended.last_at) == (3, AT + timedelta(seconds=3))
    assert windows.find_next_end() is None


def test_a_denial_without_repeats_needs_no_second_write() -> None:
    windows = RepeatedRefusals()
    windows.open_window(KEY, UUID(int=7), at=AT, now=0)
    assert windows.find_next_end() == WINDOW_S
    assert list(windows.take_ended_windows(WINDOW_S)) == []


def test_the_next_denial_after_the_window_gets_its_own_entry() -> None:
    windows = RepeatedRefusals()
    windows.open_window(KEY, UUID(int=7), at=AT, now=0)
    windows.count_refusal(KEY, AT)
    assert windows.find_window(KEY, WINDOW_S) is None
    assert [
        ended.repeats for ended in windows.open_window(KEY, UUID(int=8), at=AT, now=WINDOW_S)
    ] == [1]
    first = windows.find_window(KEY, WINDOW_S + 1)
    assert first is not None
    assert first.row_id == UUID(int=8)


def test_the_oldest_window_ends_when_the_limit_is_reached() -> None:
    windows = RepeatedRefusals()
    windows.open_window(KEY, UUID(int=0), at=AT, now=0)
    windows.count_refusal(KEY, AT)
    ended = []
    for number in range(1, repeated_refusals.MAX_WINDOWS + 1):
        key = build_refusal_key(opening_of(ORGANIZATION, code=str(number)))
        ended += windows.open_window(key, UUID(int=number), at=AT, now=0)
    assert [window.row_id for window in ended] == [UUID(int=0)]
