"""Estimates of the tokens of a request."""

from agents.llm.interface import ToolCall, ToolSpec, build_assistant_message, build_user_message
from agents.llm.token_estimates import count_tokens, estimate_tokens


def test_an_estimate_counts_instructions_messages_calls_and_tools() -> None:
    messages = [build_user_message("x" * 400)]
    base = estimate_tokens(messages)
    assert 100 <= base <= 110
    assert estimate_tokens(messages, "y" * 400) >= base + 100
    tool = ToolSpec("t", "d" * 400, {"type": "object", "description": "e" * 400})
    assert estimate_tokens(messages, "", [tool]) >= base + 200
    call_message = build_assistant_message(
        1, "", [ToolCall(0, "t", {"a": "z" * 400}, "", "t0001c000")]
    )
    assert estimate_tokens([*messages, call_message]) >= base + 100


def test_other_scripts_count_more_and_invalid_text_is_counted() -> None:
    assert count_tokens("") == 0
    assert count_tokens("日本語日本語") > count_tokens("nihong")
    assert count_tokens("\ud800") == 1
