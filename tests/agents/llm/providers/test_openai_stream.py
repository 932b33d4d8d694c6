import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI
from openai._streaming import ServerSentEvent
from openai.types.chat import ChatCompletionChunk

from agents.llm.providers.openai import ChunkStream, merge_text_events

WORDS = ("It ", "is ", "warm ", "in ", "Ulm\n\n", "today: ", "30 °C", " 🌞")


def chunk(delta: dict[str, Any] | None, **beside: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": None}]
    return {"id": "1", "created": 1, "model": "m", "choices": choices, "usage": None} | beside


def told(*deltas: dict[str, Any] | None) -> list[Any]:
    """Return the deltas of chunks that have come together, as they are handed on."""
    events = [ServerSentEvent(data=json.dumps(chunk(delta))) for delta in deltas]
    return [one.json()["choices"][0]["delta"] for one in merge_text_events(iter(events))]


async def read(parts: list[bytes]) -> list[ChatCompletionChunk]:
    """Return the chunks of a stream whose bytes arrive in these parts."""

    async def arriving() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    request = httpx2.Request("POST", "http://127.0.0.1/v1/chat/completions")
    response = httpx2.Response(200, content=arriving(), request=request)
    async with AsyncOpenAI(api_key="none", base_url="http://127.0.0.1/v1") as client:
        stream = ChunkStream(cast_to=ChatCompletionChunk, response=response, client=client)
        return [one async for one in stream]


def test_text_deltas_are_merged() -> None:
    assert told(*({"content": word} for word in WORDS)) == [{"content": "".join(WORDS)}]


def test_a_first_delta_with_more_fields_isnt_merged() -> None:
    first = {"role": "assistant", "content": "It "}
    assert told(first, {"content": "is "}, {"content": "warm"}) == [first, {"content": "is warm"}]


def test_reasoning_and_text_arent_merged() -> None:
    thoughts = [{"reasoning_content": "Hm, "}, {"reasoning_content": "Ulm."}]
    assert told(*thoughts, {"content": "Wa"}, {"content": "rm"}) == [
        {"reasoning_content": "Hm, Ulm."},
        {"content": "Warm"},
    ]


def test_reasoning_signatures_arent_merged() -> None:
    pieces = ["<think>", "Hm, ", "Ulm.", "</think>", "War", "m."]
    assert told(*({"content": piece} for piece in pieces)) == [
        {"content": text} for text in ("<think>", "Hm, Ulm.", "</think>", "Warm.")
    ]


def test_leading_blanks_arent_merged() -> None:
    assert told({"content": "\n\n"}, {"content": "Wa"}, {"content": "rm"}) == [
        {"content": "\n\n"},
        {"content": "Warm"},
    ]


@pytest.mark.parametrize(
    "other",
    [
        {"tool_calls": [{"index": 0, "id": "1", "function": {"name": "a", "arguments": "{}"}}]},
        {"content": "x", "annotations": [{"type": "url_citation"}]},
        {"refusal": "no"},
        {"content": ["parts"]},
        {},
        None,
    ],
)
def test_other_chunks_are_passed_on_unchanged(other: dict[str, Any] | None) -> None:
    events = [ServerSentEvent(data=json.dumps(chunk(one))) for one in (other, other)]
    assert [one.json() for one in merge_text_events(iter(events))] == [chunk(other), chunk(other)]


@pytest.mark.parametrize(
    "beside",
    [
        {"usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}},
        {"model": "n"},
        {"error": {"message": "no"}},
    ],
)
def test_chunks_with_different_fields_arent_merged(beside: dict[str, Any]) -> None:
    pair = [chunk({"content": "a"}), chunk({"content": "b"}, **beside)]
    events = [ServerSentEvent(data=json.dumps(one)) for one in pair]
    assert [one.json() for one in merge_text_events(iter(events))] == pair


@pytest.mark.parametrize("data", ["[DONE]", "{", "[]", "null", '{"choices": 1}', "{}"])
def test_invalid_chunks_are_left_to_the_library(data: str) -> None:
    (event,) = merge_text_events(iter([ServerSentEvent(data=data)]))
    assert event.data == data


@given(cuts=st.lists(st.integers(1, 4000), max_size=12), end=st.sampled_from(["\n", "\r\n", "\r"]))
async def test_a_stream_can_be_split_anywhere(cuts: list[int], end: str) -> None:
    said = [f"data: {json.dumps(chunk({'content': word}), ensure_ascii=False)}" for word in WORDS]
    lines = [": a comment", "", *(line for one in said for line in (one, "")), "data: [DONE]", ""]
    whole = "".join(line + end for line in lines).encode()
    at = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    found = await read([whole[a:b] for a, b in pairwise(at)])
    assert "".join(one.choices[0].delta.content or "" for one in found) == "".join(WORDS)


async def test_received_text_is_passed_on_before_waiting_for_more() -> None:
    event = f"data: {json.dumps(chunk({'content': 'a'}))}\n\n".encode()
    found = await read([event * 3, event[:20], event[20:] + event])
    assert [one.choices[0].delta.content for one in found] == ["aaa", "aa"]
