"""What a server may have the agent's model answer, within bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.sessions.sampling_messages import (
    MOST_CHARACTERS,
    MOST_MESSAGES,
    MOST_TOKENS,
    ROLES,
    build_sampling_result,
    read,
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


def message(text="Hello", role="user"):
    return {"role": role, "content": {"type": "text", "text": text}}


@given(REQUESTS)
def test_whatever_a_server_wants_is_read_within_bounds_or_refused(params):
    try:
        wanted = read(params)
    except InvalidInput:
        return
    assert not params.get("tools")
    assert 0 < len(wanted.said) <= MOST_MESSAGES
    assert all(role in ROLES for role, _ in wanted.said)
    assert len(wanted.system) + sum(len(text) for _, text in wanted.said) <= MOST_CHARACTERS
    assert 0 < wanted.max_tokens <= MOST_TOKENS


def test_an_answer_is_never_as_long_as_no_budget_can_count():
    assert read({"messages": [message()], "maxTokens": 10**30}).max_tokens == MOST_TOKENS


def test_texts_in_parts_are_one_text():
    parts = {"role": "assistant", "content": [{"type": "text", "text": one} for one in "ab"]}
    wanted = read({"messages": [message(), parts], "maxTokens": 5, "systemPrompt": None})
    assert wanted.said == (("user", "Hello"), ("assistant", "a\nb"))
    assert wanted.as_dict()["messages"][1] == {"role": "assistant", "text": "a\nb"}


@pytest.mark.parametrize("content", [None, [], "Hello", [{"type": "text"}], [message()]])
def test_what_is_no_text_is_refused(content):
    with pytest.raises(InvalidInput) as caught:
        read({"messages": [{"role": "user", "content": content}], "maxTokens": 5})
    assert (caught.value.code, caught.value.field) == ("bad_sampling", "messages")


def test_a_server_is_told_when_its_answer_was_cut():
    assert build_sampling_result("Hi", "m", "length")["stopReason"] == "maxTokens"
    assert build_sampling_result("Hi", "m", "stop")["stopReason"] == "endTurn"
