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


def build_chunk(delta: dict[str, Any] | None, **extra: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": None}]
    return {"id": "1", "created": 1, "model": "m", "choices": choices, "usage": None} | extra


def merge_deltas(*deltas: dict[str, Any] | None) -> list[Any]:
    """Return the deltas of chunks that were received together, after merging."""
    events = [ServerSentEvent(data=json.dumps(build_chunk(delta))) for delta in deltas]
    return [event.json()["choices"][0]["delta"] for event in merge_text_events(iter(events))]


async def read_stream(parts: list[bytes]) -> list[ChatCompletionChunk]:
    """Return the chunks of a stream that is received in these parts."""

    async def send_parts() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    request = httpx2.Request("POST", "http://127.0.0.1/v1/chat/completions")
    response = httpx2.Response(200, content=send_parts(), request=request)
    async with AsyncOpenAI(api_key="none", base_url="http://127.0.0.1/v1") as client:
        stream = ChunkStream(cast_to=ChatCompletionChunk, response=response, client=client)
        return [chunk async for chunk in stream]


def test_text_deltas_are_merged() -> None:
    assert merge_deltas(*({"content": word} for word in WORDS)) == [{"content": "".join(WORDS)}]


def test_a_first_delta_with_more_fields_isnt_merged() -> None:
    first = {"role": "assistant", "content": "It "}
    assert merge_deltas(first, {"content": "is "}, {"content": "warm"}) == [
        first,
        {"content": "is warm"},
    ]


def test_reasoning_and_text_arent_merged() -> None:
    thoughts = [{"reasoning_content": "Hm, "}, {"reasoning_content": "Ulm."}]
    assert merge_deltas(*thoughts, {"content": "Wa"}, {"content": "rm"}) == [
        {"reasoning_content": "Hm, Ulm."},
        {"content": "Warm"},
    ]


def test_reasoning_signatures_arent_merged() -> None:
    pieces = ["<think>", "Hm, ", "Ulm.", "</think>", "War", "m."]
    assert merge_deltas(*({"content": piece} for piece in pieces)) == [
        {"content": text} for text in ("<think>", "Hm, Ulm.", "</think>", "Warm.")
    ]


def test_leading_blanks_arent_merged() -> None:
    assert merge_deltas({"content": "\n\n"}, {"content": "Wa"}, {"content": "rm"}) == [
        {"content": "\n\n"},
        {"content": "Warm"},
    ]


@pytest.mark.parametrize(
    "other_chunk",
    [
        {"tool_calls": [{"index": 0, "id": "1", "function": {"name": "a", "arguments": "{}"}}]},
        {"content": "x", "annotations": [{"type": "url_citation"}]},
        {"refusal": "no"},
        {"content": ["parts"]},
        {},
        None,
    ],
)
def test_other_chunks_are_passed_on_unchanged(other_chunk: dict[str, Any] | None) -> None:
    events = [
        ServerSentEvent(data=json.dumps(build_chunk(chunk))) for chunk in (other_chunk, other_chunk)
    ]
    assert [chunk.json() for chunk in merge_text_events(iter(events))] == [
        build_chunk(other_chunk),
        build_chunk(other_chunk),
    ]


@pytest.mark.parametrize(
    "extra",
    [
        {"usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}},
        {"model": "n"},
        {"error": {"message": "no"}},
    ],
)
def test_chunks_with_different_fields_arent_merged(extra: dict[str, Any]) -> None:
    pair = [build_chunk({"content": "a"}), build_chunk({"content": "b"}, **extra)]
    events = [ServerSentEvent(data=json.dumps(chunk)) for chunk in pair]
    assert [chunk.json() for chunk in merge_text_events(iter(events))] == pair


@pytest.mark.parametrize("data", ["[DONE]", "{", "[]", "null", '{"choices": 1}', "{}"])
def test_invalid_chunks_are_left_to_the_library(data: str) -> None:
    (event,) = merge_text_events(iter([ServerSentEvent(data=data)]))
    assert event.data == data


@given(cuts=st.lists(st.integers(1, 4000), max_size=12), end=st.sampled_from(["\n", "\r\n", "\r"]))
async def test_a_stream_can_be_split_anywhere(cuts: list[int], end: str) -> None:
    data_lines = [
        f"data: {json.dumps(build_chunk({'content': word}), ensure_ascii=False)}" for word in WORDS
    ]
    lines = [
        ": a comment",
        "",
        *(line for chunk in data_lines for line in (chunk, "")),
        "data: [DONE]",
        "",
    ]
    body = "".join(line + end for line in lines).encode()
    offsets = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    chunks = await read_stream([body[a:b] for a, b in pairwise(offsets)])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "".join(WORDS)


async def test_received_text_is_passed_on_before_waiting_for_more() -> None:
    event = f"data: {json.dumps(build_chunk({'content': 'a'}))}\n\n".encode()
    chunks = await read_stream([event * 3, event[:20], event[20:] + event])
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["aaa", "aa"]
