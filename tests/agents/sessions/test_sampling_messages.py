"""Parsing sampling requests, and their limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.sessions.sampling import (
    MAX_CHARACTERS,
    MAX_MESSAGES,
    MAX_TOKENS,
    ROLES,
    build_sampling_result,
    parse_request,
)
from bonobot.core.problems import InvalidInput

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
TEXTS = st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=20)})
MESSAGES = st.fixed_dictionaries(
    {
        "role": st.sampled_from([*ROLES, "system"]),
        "content": TEXTS | st.lists(TEXTS | JSON, max_size=3) | JSON,
    }
)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(MESSAGES | JSON, max_size=3) | JSON,
        "maxTokens": st.integers() | JSON,
        "systemPrompt": st.text() | JSON,
        "tools": JSON,
        "toolChoice": JSON,
    },
)


def build_message(text="Hello", role="user"):
    return {"role": role, "content": {"type": "text", "text": text}}


@given(REQUESTS)
def test_any_request_is_parsed_within_limits_or_refused(params):
    try:
        request = parse_request(params)
    except InvalidInput:
        return
    assert not params.get("tools")
    assert 0 < len(request.messages) <= MAX_MESSAGES
    assert all(role in ROLES for role, _ in request.messages)
    assert (
        len(request.system_prompt) + sum(len(text) for _, text in request.messages)
        <= MAX_CHARACTERS
    )
    assert 0 < request.max_tokens <= MAX_TOKENS


def test_the_length_of_an_answer_is_bounded():
    assert (
        parse_request({"messages": [build_message()], "maxTokens": 10**30}).max_tokens == MAX_TOKENS
    )


def test_text_parts_are_joined():
    parts = {"role": "assistant", "content": [{"type": "text", "text": letter} for letter in "ab"]}
    request = parse_request(
        {"messages": [build_message(), parts], "maxTokens": 5, "systemPrompt": None}
    )
    assert request.messages == (("user", "Hello"), ("assistant", "a\nb"))
    assert request.to_dict()["messages"][1] == {"role": "assistant", "text": "a\nb"}


@pytest.mark.parametrize("content", [None, [], "Hello", [{"type": "text"}], [build_message()]])
def test_content_that_isnt_text_is_refused(content):
    with pytest.raises(InvalidInput) as caught:
        parse_request({"messages": [{"role": "user", "content": content}], "maxTokens": 5})
    assert (caught.value.code, caught.value.field) == ("bad_sampling", "messages")


def test_a_truncated_answer_is_reported_to_the_server():
    assert build_sampling_result("Hi", "m", "length")["stopReason"] == "maxTokens"
    assert build_sampling_result("Hi", "m", "stop")["stopReason"] == "endTurn"
