"""Text deltas that arrive together are merged; nothing else changes."""

import importlib
import json
from types import ModuleType

import pytest

DELTA_EVENT = b"event: content_block_delta\ndata: "
STOP = b'event: message_stop\ndata: {"type": "message_stop"}'


@pytest.fixture(scope="module")
def provider() -> ModuleType:
    """Import the library where its tests run: it takes a tenth of the time of the collection."""
    return importlib.import_module("agents.llm.providers.anthropic")


def delta(text, index=0, **more):
    event = {"type": "content_block_delta", "index": index}
    return DELTA_EVENT + json.dumps(
        event | {"delta": {"type": "text_delta", "text": text} | more}
    ).encode("ascii")


def test_deltas_of_one_block_are_merged(provider):
    frames = [delta("a"), delta("ü"), delta("😀"), delta("b", index=1), STOP]
    assert provider.merge_text_deltas(frames) == [delta("aü😀"), delta("b", index=1), STOP]


def test_halves_of_a_surrogate_pair_become_one_character(provider):
    (merged,) = provider.merge_text_deltas([delta("\ud83d"), delta("\ude00")])
    assert json.loads(merged[len(DELTA_EVENT) :])["delta"]["text"] == "😀"


def test_a_long_event_is_passed_on_in_parts(provider):
    merger = provider.DeltaMerger()
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
def test_other_events_stay_as_they_are(provider, frame):
    assert provider.merge_text_deltas([frame, frame]) == [frame, frame]


def test_an_event_that_arrives_in_parts_is_kept_until_it_is_complete(provider):
    merger, text = provider.DeltaMerger(), delta("a") + b"\n\n" + delta("b") + b"\n\n"
    assert merger.add_chunk(text[:10]) == b""
    assert merger.add_chunk(text[10:-1]) == delta("a") + b"\n\n"
    assert merger.add_chunk(text[-1:] + STOP) == delta("b") + b"\n\n"
    assert merger.take_rest() == STOP
