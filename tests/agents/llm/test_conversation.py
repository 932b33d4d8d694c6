"""A history is put in order: each call answered once, right behind it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.llm.conversation import UNANSWERED, in_order, next_turn
from agents.llm.port import (
    Message,
    ToolCall,
    assistant_message,
    call_id,
    tool_result,
    user_message,
)


def asked(turn: int, *names: str) -> Message:
    calls = [ToolCall(at, name, {}, "{}", call_id(turn, at)) for at, name in enumerate(names)]
    return assistant_message(turn, "", calls)


def test_results_come_in_the_order_of_their_calls() -> None:
    two = asked(1, "a", "b")
    b, a = tool_result("t0001c001", "b", "B"), tool_result("t0001c000", "a", "A")
    assert in_order([user_message("x"), two, b, a]) == [user_message("x"), two, a, b]


def test_a_message_that_came_while_tools_ran_goes_behind_their_results() -> None:
    one, late = asked(1, "a"), user_message("also this")
    result = tool_result("t0001c000", "a", "A")
    assert in_order([user_message("x"), one, late, result])[-2:] == [result, late]


def test_a_call_without_a_result_gets_one_that_says_so() -> None:
    history = in_order([user_message("x"), asked(1, "a"), user_message("y")])
    assert history[2] == tool_result("t0001c000", "a", UNANSWERED, is_error=True)
    assert history[3] == user_message("y")


def test_the_later_of_two_results_counts() -> None:
    first, second = (tool_result("t0001c000", "a", text) for text in ("1", "2"))
    assert in_order([asked(1, "a"), first, second])[1:] == [second]


@pytest.mark.parametrize(
    "history",
    [
        [tool_result("t0001c000", "a", "A")],
        [asked(1, "a"), tool_result("t0001c001", "a", "A")],
        [asked(1, "a"), tool_result("made up elsewhere", "a", "A")],
    ],
)
def test_a_result_without_its_call_is_a_fault_of_the_caller(history: list[Message]) -> None:
    with pytest.raises(ValueError, match=r"without a call|invalid literal"):
        in_order(history)


def test_a_session_may_count_its_turns_differently() -> None:
    # A model request that failed is a turn to the session and no message to the model.
    result = tool_result(call_id(5, 1), "b", "B")
    history = in_order([user_message("x"), asked(2, "a", "b"), result])
    assert [m.get("call_id") for m in history[2:]] == ["t0002c000", "t0002c001"]
    assert history[3]["text"] == "B"


def test_turns_count_on_from_the_highest_also_after_compaction() -> None:
    assert next_turn([]) == 1
    assert next_turn([user_message("x"), asked(7, "a"), user_message("y")]) == 8


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=6))
def test_every_call_is_answered_once_right_behind_it(rounds: list[tuple[int, bool, bool]]) -> None:
    history: list[Message] = [user_message("begin")]
    for turn, (calls, answered, talked) in enumerate(rounds, start=1):
        said = asked(turn, *("t" * calls))
        history.append(said)
        if talked:
            history.append(user_message(f"talk {turn}"))
        if answered:
            results = [tool_result(call["id"], "t", "ok") for call in said["calls"]]
            history.extend(reversed(results))
    ordered = in_order(history)
    for at, message in enumerate(ordered):
        if message["role"] == "assistant":
            behind = ordered[at + 1 : at + 1 + len(message["calls"])]
            assert [m.get("call_id") for m in behind] == [call["id"] for call in message["calls"]]
    kept = [m["text"] for m in ordered if m["role"] == "user"]
    assert kept == [m["text"] for m in history if m["role"] == "user"]
    assert in_order(ordered) == ordered
