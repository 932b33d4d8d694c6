"""A model that gets its tools in the prompt and calls them in its text (FEATURES B5).

It stands before another model and turns the conversation there and back; what calls the session
sees are the same as of any model, so they go through the same door.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from agents.llm import xml_calls
from agents.llm.conversation import in_order, next_turn
from agents.llm.framing import framed
from agents.llm.port import (
    Message,
    Model,
    OnText,
    Reply,
    ToolCall,
    ToolSpec,
    assistant_message,
    call_id,
    user_message,
)


class DescribedTools:
    """A model without native tool calling; implements `agents.llm.port.Model`."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def request(
        self,
        messages: Sequence[Message],
        *,
        instructions: str = "",
        tools: Sequence[ToolSpec] = (),
        max_tokens: int | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        """Ask once; the block of calls isn't heard. Raises ModelError."""
        parts = [instructions, xml_calls.described(tools) if tools else ""]
        reply = await self._model.request(
            list(_told(in_order(messages))),
            instructions="\n\n".join(part for part in parts if part),
            max_tokens=max_tokens,
            on_text=_Heard(on_text) if on_text else None,
        )
        return _with_calls(reply, next_turn(messages), tools)


def _told(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the conversation as text: calls as they were written, results as a message."""
    given: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            given.append(message)
            continue
        if given:
            yield _results(given)
            given = []
        if message["role"] == "assistant" and message["calls"]:
            text = f"{message['text']}\n{xml_calls.written(message['calls'])}".strip()
            yield message | {"text": text, "calls": []}
        else:
            yield message
    if given:
        yield _results(given)


def _results(given: Sequence[Message]) -> Message:
    texts = [(one["name"], framed(one["text"], one.get("frame"))) for one in given]
    images = [image for one in given for image in one.get("images", ())]
    return user_message(xml_calls.results(texts)) | ({"images": images} if images else {})


def _with_calls(reply: Reply, turn: int, tools: Sequence[ToolSpec]) -> Reply:
    said, block = xml_calls.split(reply.text)
    if not block:
        return reply
    calls = tuple(
        ToolCall(index, one.name, one.arguments, one.raw, call_id(turn, index))
        for index, one in enumerate(xml_calls.read(block, tools))
    )
    extra: dict[str, Any] = {
        n: reply.message[n] for n in ("native", "origin") if n in reply.message
    }
    return replace(
        reply,
        text=said,
        calls=calls,
        finish="tool_calls" if reply.finish == "stop" else reply.finish,
        message=assistant_message(turn, said, calls, **extra),
    )


class _Heard:
    """Passes text on as it comes, but for the block and what may become one."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._line = ""
        self._passed = 0  # characters of the line that were passed on
        self._fenced = self._over = False

    async def __call__(self, piece: str) -> None:
        for part in piece.splitlines(keepends=True):
            if self._over:
                return
            self._line += part
            await self._pass_on()
            if self._line.endswith("\n"):
                self._fenced ^= xml_calls.is_fence(self._line)
                self._line, self._passed = "", 0

    async def _pass_on(self) -> None:
        begun = self._line.lstrip()
        if not self._fenced and xml_calls.begins_block(begun):
            self._over = True
        elif self._line.endswith("\n") or self._fenced or not xml_calls.OPENING.startswith(begun):
            new, self._passed = self._line[self._passed :], len(self._line)
            if new:
                await self._on_text(new)
