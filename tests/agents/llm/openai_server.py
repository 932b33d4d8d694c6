"""A provider that speaks the OpenAI chat completions wire."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from tests.agents.llm.provider_server import (
    Arrived,
    FakeProvider,
    Refuses,
    Said,
    Says,
    Served,
    Streams,
    Waits,
    events,
    fragments,
    serve,
    whole,
)

__all__ = ["FakeAzure", "FakeOpenAI", "Refuses", "Says", "Waits", "azure_server", "openai_server"]


class FakeOpenAI(FakeProvider):
    """OpenAI's chat completions."""

    base = "/v1"

    def served(self, path: str, said: dict[str, Any], step: Says) -> Served:
        """Return the answer, whole or streamed."""
        return events(_events(step)) if said.get("stream") else whole(_whole(step))

    def read(self, at: int = -1) -> Arrived:
        """Return what a request said."""
        request = self.requests[at]
        messages = request["messages"]
        system = [m["content"] for m in messages if m["role"] == "system"]
        tools = {t["function"]["name"]: t["function"] for t in request.get("tools", ())}
        return Arrived(
            system="\n".join(system),
            tools={name: tool["parameters"] for name, tool in tools.items()},
            said=[one for message in messages for one in _said(message)],
        )


def openai_server(*script: Says | Refuses | Streams | Waits) -> Any:
    """Serve a script on a free port; `url` is the base URL to give to an endpoint."""
    return serve(FakeOpenAI(script=list(script)))


class FakeAzure(FakeOpenAI):
    """The same wire at Azure, by deployment and dated version."""

    base = ""

    def served(self, path: str, said: dict[str, Any], step: Says) -> Served:
        """Return the answer, whole or streamed."""
        if not (path.startswith("/openai/deployments/") and path.endswith("/chat/completions")):
            raise AssertionError(f"asked for {path}")
        return super().served(path, said, step)


def azure_server(*script: Says | Refuses | Streams | Waits) -> Any:
    """Serve a script on a free port; `url` is the base URL to give to an endpoint."""
    return serve(FakeAzure(script=list(script)))


def _said(message: dict[str, Any]) -> list[Said]:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    text = "".join(part["text"] for part in parts if part["type"] == "text")
    images = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    match message["role"]:
        case "tool":
            return [Said("result", text, id=message["tool_call_id"])]
        case "assistant":
            thought = message.get("reasoning_content")
            found = [Said("thought", thought)] if thought else []
            found += [Said("model", text)] if text else []
            for call in message.get("tool_calls", ()):
                function = call["function"]
                found.append(Said("call", function["arguments"], call["id"], function["name"]))
            return found
        case "user":
            return [*([Said("user", text)] if text else []), *(Said("image", u) for u in images)]
        case _:
            return []


def _whole(step: Says) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": step.text or None}
    if step.reasoning:
        message["reasoning_content"] = step.reasoning
    if step.calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in step.calls
        ]
    answer = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "fake-1",
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(step)}],
    }
    return answer | ({"usage": step.usage} if step.usage is not None else {})


async def _events(step: Says) -> AsyncIterator[bytes]:
    deltas = [{"reasoning_content": step.reasoning}] if step.reasoning else []
    deltas += [{"role": "assistant", "content": piece} for piece in fragments(step.text)]
    deltas += _call_deltas(step.calls)
    if step.cut:
        deltas = deltas[: -len(deltas) // 3]
    for delta in deltas:
        yield _event(delta)
    if step.cut == "closed":
        raise ConnectionResetError("the script cuts here")
    if step.cut == "ended":
        return
    yield _event({}, finish=_finish(step))
    if step.usage is not None:
        yield _event(None, usage=step.usage)
    yield b"data: [DONE]\n\n"


def _call_deltas(calls: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Return parallel calls in interleaved fragments, id and name in the first of each only."""
    deltas = [
        {"index": at, "id": id_, "type": "function", "function": {"name": name}}
        for at, (id_, name, _) in enumerate(calls)
    ]
    rest = [fragments(arguments) for _, _, arguments in calls]
    for turn in range(max(map(len, rest), default=0)):
        deltas += [
            {"index": at, "function": {"arguments": pieces[turn]}}
            for at, pieces in enumerate(rest)
            if turn < len(pieces)
        ]
    return [{"tool_calls": [delta]} for delta in deltas]


def _event(delta: dict[str, Any] | None, finish: str | None = None, usage: Any = None) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    chunk = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "fake-1",
        "choices": choices,
        "usage": usage,
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _finish(step: Says) -> str:
    return step.reason
