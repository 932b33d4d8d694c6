"""Text deltas that arrive together are merged; nothing else changes."""

import json

import pytest

from agents.llm.providers.anthropic import DELTA_EVENT, DeltaMerger, merge_text_deltas

STOP = b'event: message_stop\ndata: {"type": "message_stop"}'


def delta(text, index=0, **more):
    event = {"type": "content_block_delta", "index": index}
    return DELTA_EVENT + json.dumps(
        event | {"delta": {"type": "text_delta", "text": text} | more}
    ).encode("ascii")


def test_deltas_of_one_block_are_merged():
    frames = [delta("a"), delta("ü"), delta("😀"), delta("b", index=1), STOP]
    assert merge_text_deltas(frames) == [delta("aü😀"), delta("b", index=1), STOP]


def test_halves_of_a_surrogate_pair_become_one_character():
    (merged,) = merge_text_deltas([delta("\ud83d"), delta("\ude00")])
    assert json.loads(merged[len(DELTA_EVENT) :])["delta"]["text"] == "😀"


def test_a_long_event_is_passed_on_in_parts():
    merger = DeltaMerger()
    assert merger.add_chunk(STOP + b"\n\n" + b"x" * 70_000) == STOP + b"\n\n" + b"x" * 70_000
    assert merger.take_rest() == b""


@pytest.mark.parametrize(
    "frame",
    [
        STOP,
        b": ping",
        delta("a", citations=[]),
        delta("a").replace(b"text_delta", b"thinking_delta"),
        delta("a", index=True),
        DELTA_EVENT + b'{"text_delta"',
        DELTA_EVENT + b'["text_delta"]',
        b"retry: 1",
    ],
)
def test_other_events_stay_as_they_are(frame):
    assert merge_text_deltas([frame, frame]) == [frame, frame]


def test_an_event_that_arrives_in_parts_is_kept_until_it_is_complete():
    merger, text = DeltaMerger(), delta("a") + b"\n\n" + delta("b") + b"\n\n"
    assert merger.add_chunk(text[:10]) == b""
    assert merger.add_chunk(text[10:-1]) == delta("a") + b"\n\n"
    assert merger.add_chunk(text[-1:] + STOP) == delta("b") + b"\n\n"
    assert merger.take_rest() == STOP
