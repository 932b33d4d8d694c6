"""Merge the text deltas of Anthropic's event streams that arrive together."""

import json
from collections.abc import Sequence
from itertools import groupby

DELTA_EVENT = b"event: content_block_delta\ndata: "
FRAME_END = b"\n\n"
# A longer incomplete event, in bytes, is passed on in parts.
MAX_REST_SIZE = 64 * 1024
_DELTA_FIELDS = {"type", "index", "delta"}
_TEXT_FIELDS = {"type", "text"}


class DeltaMerger:
    """Merges the deltas of a stream, chunk by chunk; keeps an incomplete event for the next one."""

    def __init__(self) -> None:
        """Create a merger for a new stream."""
        self._rest = b""

    def add_chunk(self, chunk: bytes) -> bytes:
        """Return the events that are complete now."""
        *frames, self._rest = (self._rest + chunk).split(FRAME_END)
        events = b"".join(frame + FRAME_END for frame in merge_text_deltas(frames))
        return events if len(self._rest) <= MAX_REST_SIZE else events + self.take_rest()

    def take_rest(self) -> bytes:
        """Return what is left at the end of the stream."""
        remainder, self._rest = self._rest, b""
        return remainder


def merge_text_deltas(frames: Sequence[bytes]) -> list[bytes]:
    """Merge consecutive text deltas of the same content block; keep all other events."""
    if len(frames) < 2:
        return list(frames)
    merged_frames: list[bytes] = []
    pairs = ((_parse_text_delta(frame), frame) for frame in frames)
    for index, group in groupby(pairs, key=lambda pair: pair[0] and pair[0][0]):
        members = list(group)
        if index is None or len(members) == 1:
            merged_frames += (frame for _, frame in members)
        else:
            text = "".join(delta[1] for delta, _ in members if delta is not None)
            merged_frames.append(_build_text_delta(index, text))
    return merged_frames


def _parse_text_delta(frame: bytes) -> tuple[int, str] | None:
    """Return the content block and the text of a plain text delta; None for other events."""
    if not frame.startswith(DELTA_EVENT) or b'"text_delta"' not in frame:
        return None
    try:
        event = json.loads(frame[len(DELTA_EVENT) :])
        index, delta = event["index"], event["delta"]
        is_plain = event.keys() == _DELTA_FIELDS and delta.keys() == _TEXT_FIELDS
        is_text = delta["type"] == "text_delta" and isinstance(delta["text"], str)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return (index, delta["text"]) if is_plain and is_text and type(index) is int else None


def _build_text_delta(index: int, text: str) -> bytes:
    event = {
        "type": "content_block_delta",
        "index": index,
        "delta": {"type": "text_delta", "text": text},
    }
    return DELTA_EVENT + json.dumps(event).encode("ascii")
