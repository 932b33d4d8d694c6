"""Ordering a history so that each call is followed by its one result."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.llm.interface import (
    Message,
    ToolCall,
    build_assistant_message,
    build_call_id,
    build_tool_result,
    build_user_message,
)
from agents.llm.message_order import UNANSWERED_TEXT, get_next_turn, order_messages


def build_call_message(turn: int, *names: str) -> Message:
    calls = [ToolCall(at, name, {}, "{}", build_call_id(turn, at)) for at, name in enumerate(names)]
    return build_assistant_message(turn, "", calls)


def test_results_are_in_the_order_of_their_calls() -> None:
    calls = build_call_message(1, "a", "b")
    b, a = build_tool_result("t0001c001", "b", "B"), build_tool_result("t0001c000", "a", "A")
    assert order_messages([build_user_message("x"), calls, b, a]) == [
        build_user_message("x"),
        calls,
        a,
        b,
    ]


def test_a_message_that_arrived_while_tools_ran_follows_their_results() -> None:
    call, late = build_call_message(1, "a"), build_user_message("also this")
    result = build_tool_result("t0001c000", "a", "A")
    assert order_messages([build_user_message("x"), call, late, result])[-2:] == [result, late]


def test_a_call_without_a_result_gets_a_placeholder_result() -> None:
    history = order_messages(
        [build_user_message("x"), build_call_message(1, "a"), build_user_message("y")]
    )
    assert history[2] == build_tool_result("t0001c000", "a", UNANSWERED_TEXT, is_error=True)
    assert history[3] == build_user_message("y")


def test_the_later_of_two_results_is_used() -> None:
    first, second = (build_tool_result("t0001c000", "a", text) for text in ("1", "2"))
    assert order_messages([build_call_message(1, "a"), first, second])[1:] == [second]


@pytest.mark.parametrize(
    "history",
    [
        [build_tool_result("t0001c000", "a", "A")],
        [build_call_message(1, "a"), build_tool_result("t0001c001", "a", "A")],
        [build_call_message(1, "a"), build_tool_result("made up elsewhere", "a", "A")],
    ],
)
def test_a_result_without_its_call_is_a_programming_error(history: list[Message]) -> None:
    with pytest.raises(ValueError, match=r"without a call|invalid literal"):
        order_messages(history)


def test_turn_numbers_can_have_gaps() -> None:
    # A failed model request is a turn of the session but no message to the model.
    result = build_tool_result(build_call_id(5, 1), "b", "B")
    history = order_messages([build_user_message("x"), build_call_message(2, "a", "b"), result])
    assert [m.get("call_id") for m in history[2:]] == ["t0002c000", "t0002c001"]
    assert history[3]["text"] == "B"


def test_turns_continue_from_the_highest_number_after_compaction() -> None:
    assert get_next_turn([]) == 1
    assert (
        get_next_turn(
            [build_user_message("x"), build_call_message(7, "a"), build_user_message("y")]
        )
        == 8
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=6))
def test_every_call_has_one_result_directly_after_it(rounds: list[tuple[int, bool, bool]]) -> None:
    history: list[Message] = [build_user_message("begin")]
    for turn, (calls, has_results, has_message) in enumerate(rounds, start=1):
        call_message = build_call_message(turn, *("t" * calls))
        history.append(call_message)
        if has_message:
            history.append(build_user_message(f"talk {turn}"))
        if has_results:
            results = [build_tool_result(call["id"], "t", "ok") for call in call_message["calls"]]
            history.extend(reversed(results))
    ordered = order_messages(history)
    for at, message in enumerate(ordered):
        if message["role"] == "assistant":
            following = ordered[at + 1 : at + 1 + len(message["calls"])]
            assert [m.get("call_id") for m in following] == [
                call["id"] for call in message["calls"]
            ]
    user_texts = [m["text"] for m in ordered if m["role"] == "user"]
    assert user_texts == [m["text"] for m in history if m["role"] == "user"]
    assert order_messages(ordered) == ordered
