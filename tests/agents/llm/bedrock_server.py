"""A scripted server of Amazon Bedrock's Converse API, with JSON and AWS event streams."""

import json
import struct
import zlib
from collections.abc import AsyncIterator
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
    cut_stream,
    fragments,
    json_response,
    serve,
    stream_response,
)

SIGNATURE = "c2lnbmVkIGJ5IGFtYXpvbg=="
STOPS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "content_filtered",
}
STREAM = "application/vnd.amazon.eventstream"


class FakeBedrock(FakeProvider):
    """Amazon's Converse and ConverseStream."""

    def respond(self, path: str, request: dict[str, Any], step: Says) -> Response:
        """Return the response, as JSON or as a stream."""
        if path.endswith("/converse-stream"):
            return stream_response(_events(step), STREAM)
        if not path.endswith("/converse"):
            raise AssertionError(f"unexpected path {path}")
        return json_response(_build_answer(step))

    def read(self, at: int = -1) -> ParsedRequest:
        """Return a received request in a common form."""
        request = self.requests[at]
        tools = request.get("toolConfig", {}).get("tools", ())
        specs = [parsed["toolSpec"] for parsed in tools if "toolSpec" in parsed]
        return ParsedRequest(
            system="".join(part.get("text", "") for part in request.get("system", ())),
            tools={parsed["name"]: parsed["inputSchema"]["json"] for parsed in specs},
            messages=[
                parsed
                for message in request["messages"]
                for block in message["content"]
                for parsed in _parse_messages(message["role"], block)
            ],
        )


def bedrock_server(*script: Says | Refuses | Streams | Waits) -> Any:
    """Serve a script on a free port; `url` is the base URL of its endpoint."""
    return serve(FakeBedrock(script=list(script)))


def _parse_messages(role: str, block: dict[str, Any]) -> list[ParsedMessage]:
    if "text" in block:
        return [ParsedMessage("user" if role == "user" else "model", block["text"])]
    if "reasoningContent" in block:
        thought = block["reasoningContent"]["reasoningText"]
        return [ParsedMessage("thought", thought["text"], id=thought.get("signature", ""))]
    if "toolUse" in block:
        use = block["toolUse"]
        return [ParsedMessage("call", json.dumps(use["input"]), use["toolUseId"], use["name"])]
    if "image" in block:
        return [ParsedMessage("image", block["image"]["source"]["bytes"])]
    if "document" in block:
        return [ParsedMessage("document", block["document"]["source"]["bytes"])]
    if "toolResult" in block:
        result = block["toolResult"]
        content = [
            message for part in result["content"] for message in _parse_messages("user", part)
        ]
        text = "".join(message.text for message in content if message.role == "user")
        images = [message for message in content if message.role == "image"]
        return [ParsedMessage("result", text, result["toolUseId"]), *images]
    return []


def _blocks(step: Says) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if step.reasoning:
        thought = {"text": step.reasoning, "signature": SIGNATURE}
        blocks.append({"reasoningContent": {"reasoningText": thought}})
    if step.text:
        blocks.append({"text": step.text})
    for id_, name, arguments in step.calls:
        use = {"toolUseId": id_, "name": name, "input": json.loads(arguments or "{}")}
        blocks.append({"toolUse": use})
    return blocks


def _usage(step: Says) -> dict[str, Any]:
    if step.usage is None:
        return {}
    used = step.usage
    cached_tokens, written_tokens = used.get("cached_tokens", 0), used.get("cache_write_tokens", 0)
    return {
        "usage": {
            "inputTokens": used["prompt_tokens"] - cached_tokens - written_tokens,
            "outputTokens": used["completion_tokens"],
            "totalTokens": used["total_tokens"],
            "cacheReadInputTokens": cached_tokens,
            "cacheWriteInputTokens": written_tokens,
        }
    }


def _stop(step: Says) -> str:
    return STOPS.get(step.reason, step.reason)


def _build_answer(step: Says) -> dict[str, Any]:
    return {
        "output": {"message": {"role": "assistant", "content": _blocks(step)}},
        "stopReason": _stop(step),
        "metrics": {"latencyMs": 1},
        **_usage(step),
    }


async def _events(step: Says) -> AsyncIterator[bytes]:
    yield _event("messageStart", {"role": "assistant"})
    for event in cut_stream(_deltas(step), step.cut):
        yield event
    if step.cut == "closed":
        raise ConnectionResetError("the script cuts here")
    if step.cut == "ended":
        return
    yield _event("messageStop", {"stopReason": _stop(step)})
    yield _event("metadata", {"metrics": {"latencyMs": 1}, **_usage(step)})


def _deltas(step: Says) -> list[bytes]:
    events: list[bytes] = []
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if step.reasoning:
        pieces = [{"reasoningContent": {"text": piece}} for piece in fragments(step.reasoning)]
        blocks.append(({}, [*pieces, {"reasoningContent": {"signature": SIGNATURE}}]))
    if step.text:
        blocks.append(({}, [{"text": piece} for piece in fragments(step.text)]))
    for id_, name, arguments in step.calls:
        start = {"toolUse": {"toolUseId": id_, "name": name}}
        pieces = fragments(arguments) or [""]
        blocks.append((start, [{"toolUse": {"input": piece}} for piece in pieces]))
    for at, (start, deltas) in enumerate(blocks):
        if start:
            events.append(_event("contentBlockStart", {"start": start, "contentBlockIndex": at}))
        events += [
            _event("contentBlockDelta", {"delta": delta, "contentBlockIndex": at})
            for delta in deltas
        ]
        events.append(_event("contentBlockStop", {"contentBlockIndex": at}))
    return events


def _event(kind: str, payload: dict[str, Any]) -> bytes:
    """Encode a message of an AWS event stream, with both of its checksums."""
    headers = b"".join(
        _header(name, value)
        for name, value in (
            (":event-type", kind),
            (":content-type", "application/json"),
            (":message-type", "event"),
        )
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(body), len(headers))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + body
    return message + struct.pack("!I", zlib.crc32(message))


def _header(name: str, value: str) -> bytes:
    text = value.encode()
    return bytes([len(name)]) + name.encode() + b"\x07" + struct.pack("!H", len(text)) + text
