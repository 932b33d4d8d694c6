"""Streams of chat completions: pieces of text that have arrived together are handed on as one.

A piece costs the model library a third of a millisecond, and a busy process finds many of them
waiting. Nothing is waited for: what has come is read, put together and given.
"""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
from openai import APIConnectionError, APITimeoutError, AsyncStream
from openai._streaming import ServerSentEvent
from openai.types.chat import ChatCompletionChunk

# Members of a delta that are text which goes on where the piece before it ended.
TEXTS = frozenset({"content", "reasoning", "reasoning_content"})
_END = b"\n\n"
_DATA = "data: "


class ChunkStream(AsyncStream[ChatCompletionChunk]):
    """The library's stream, which reads what has arrived in one go."""

    # Private, so an upgrade may lose it: then pieces are read one by one, and nothing breaks.
    async def _iter_events(self) -> AsyncIterator[ServerSentEvent]:
        try:
            async for text in _whole_events(self.response.aiter_bytes()):
                for event in gathered(self._events(text)):
                    yield event
        except httpx2.TimeoutException as error:
            raise APITimeoutError(request=self.response.request) from error
        except httpx2.RequestError as error:
            raise APIConnectionError(request=self.response.request) from error

    def _events(self, text: str) -> Iterator[ServerSentEvent]:
        for one in text.split("\n\n"):
            if one.startswith(_DATA) and "\n" not in one:
                yield ServerSentEvent(data=one[len(_DATA) :])
            elif one:
                yield from self._decoder.iter_bytes(iter([one.encode() + _END]))


async def _whole_events(received: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield what has arrived, up to the end of an event."""
    waiting, half = bytearray(), False
    async for chunk in received:
        seen = max(0, len(waiting) - 2)
        waiting += chunk
        if b"\r" in chunk or half:
            # Lines may end in other ways; a CR at the very end may be half of one.
            half = waiting.endswith(b"\r")
            ready = bytes(waiting).removesuffix(b"\r")
            waiting[:] = ready.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + b"\r" * half
        end = waiting.rfind(_END, seen)
        if end >= 0:
            whole = waiting[: end + 2].decode()
            del waiting[: end + 2]
            yield whole
    if waiting:
        yield waiting.decode()


class Read(ServerSentEvent):
    """An event whose data was read already."""

    def __init__(self, known: dict[str, Any]) -> None:
        """Take what the data says."""
        super().__init__()
        self._known = known

    def json(self) -> Any:
        """Return what the data says."""
        return self._known


def gathered(events: Iterator[ServerSentEvent]) -> Iterator[ServerSentEvent]:
    """Yield events, those that only carry text on as one; every other one as it came."""
    last: _Piece | None = None
    for event in events:
        piece = _piece(event)
        if piece is not None and last is not None and last.goes_on(piece):
            last.texts += piece.texts
            continue
        if last is not None:
            yield last.event()
        last = piece
        if piece is None:
            yield event
    if last is not None:
        yield last.event()


@dataclass(slots=True)
class _Piece:
    """A chunk that carries nothing but text, which was taken out of its `delta`."""

    said: dict[str, Any]
    delta: dict[str, Any]
    name: str
    texts: list[str]

    def goes_on(self, other: "_Piece") -> bool:
        """Tell whether another one differs from this in nothing but its text.

        Blanks at the beginning and marks such as `<think>` stay alone: the model library knows
        them by the piece that they come in.
        """
        return (
            self.name == other.name
            and self.said == other.said
            and not self.texts[0].isspace()
            and not _is_mark(self.texts[-1])
            and not _is_mark(other.texts[0])
        )

    def event(self) -> Read:
        """Return the event of it, with its text put back."""
        self.delta[self.name] = "".join(self.texts)
        return Read(self.said)


def _is_mark(text: str) -> bool:
    return text.startswith("<") and text.endswith(">")


def _piece(event: ServerSentEvent) -> _Piece | None:
    """Return an event as a piece of text; None for every other one."""
    if event.event or not event.data.startswith("{"):
        return None
    try:
        said = json.loads(event.data)
        if said.get("usage") or said.get("error"):
            return None
        (choice,) = said["choices"]
        delta = choice["delta"]
        if choice["finish_reason"]:
            return None
        ((name, text),) = [(key, value) for key, value in delta.items() if value and key != "role"]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None  # no piece of text, or one that the library says something about
    if name not in TEXTS or not isinstance(text, str):
        return None
    del delta[name]
    return _Piece(said, delta, name, [text])
