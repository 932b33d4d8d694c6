"""A scripted server of OpenAI's Chat Completions API, and of Azure's."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.responses import Response

from tests.agents.llm.provider_server import (
    FakeProvider,
    ParsedMessage,
    ParsedRequest,
    Refuses,
    Says,
    Streams,
    Waits,
    fragments,
    json_response,
    serve,
    stream_response,
)

__all__ = ["FakeAzure", "FakeOpenAI", "Refuses", "Says", "Waits", "azure_server", "openai_server"]


class FakeOpenAI(FakeProvider):
    """OpenAI's chat completions."""

    base = "/v1"

    def respond(self, path: str, request: dict[str, Any], step: Says) -> Response:
        """Return the response, as JSON or as a stream."""
        return (
            stream_response(_events(step))
            if request.get("stream")
            else json_response(_build_answer(step))
        )

    def read(self, at: int = -1) -> ParsedRequest:
        """Return a received request in a common form."""
        request = self.requests[at]
        messages = request["messages"]
        system = [m["content"] for m in messages if m["role"] == "system"]
        tools = {t["function"]["name"]: t["function"] for t in request.get("tools", ())}
        return ParsedRequest(
            system="\n".join(system),
            tools={name: tool["parameters"] for name, tool in tools.items()},
            messages=[parsed for message in messages for parsed in _parse_messages(message)],
        )


def openai_server(*script: Says | Refuses | Streams | Waits) -> Any:
    """Serve a script on a free port; `url` is the base URL of its endpoint."""
    return serve(FakeOpenAI(script=list(script)))


class FakeAzure(FakeOpenAI):
    """The same API at Azure, with a deployment and an API version."""

    base = ""

    def respond(self, path: str, request: dict[str, Any], step: Says) -> Response:
        """Return the response, as JSON or as a stream."""
        if not (path.startswith("/openai/deployments/") and path.endswith("/chat/completions")):
            raise AssertionError(f"unexpected path {path}")
        return super().respond(path, request, step)


def azure_server(*script: Says | Refuses | Streams | Waits) -> Any:
    """Serve a script on a free port; `url` is the base URL of its endpoint."""
    return serve(FakeAzure(script=list(script)))


def _parse_messages(message: dict[str, Any]) -> list[ParsedMessage]:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    text = "".join(part["text"] for part in parts if part["type"] == "text")
    images = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    documents = [part["file"]["file_data"] for part in parts if part["type"] == "file"]
    match message["role"]:
        case "tool":
            return [ParsedMessage("result", text, id=message["tool_call_id"])]
        case "assistant":
            reasoning = message.get("reasoning_content")
            parsed = [ParsedMessage("thought", reasoning)] if reasoning else []
            parsed += [ParsedMessage("model", text)] if text else []
            for call in message.get("tool_calls", ()):
                function = call["function"]
                parsed.append(
                    ParsedMessage("call", function["arguments"], call["id"], function["name"])
                )
            return parsed
        case "user":
            return [
                *([ParsedMessage("user", text)] if text else []),
                *(ParsedMessage("image", u) for u in images),
                *(ParsedMessage("document", file_data) for file_data in documents),
            ]
        case _:
            return []


def _build_answer(step: Says) -> dict[str, Any]:
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
    """Build interleaved fragments of parallel calls; only the first of each has id and name."""
    deltas = [
        {"index": at, "id": id_, "type": "function", "function": {"name": name}}
        for at, (id_, name, _) in enumerate(calls)
    ]
    arguments_pieces = [fragments(arguments) for _, _, arguments in calls]
    for turn in range(max(map(len, arguments_pieces), default=0)):
        deltas += [
            {"index": at, "function": {"arguments": pieces[turn]}}
            for at, pieces in enumerate(arguments_pieces)
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
