"""A provider that speaks Amazon Bedrock's Converse API: JSON, and AWS event streams."""

import json
import struct
import zlib
from collections.abc import AsyncIterator
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
    cut,
    events,
    fragments,
    serve,
    whole,
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

    def served(self, path: str, said: dict[str, Any], step: Says) -> Served:
        """Return the answer, whole or streamed."""
        if path.endswith("/converse-stream"):
            return events(_events(step), STREAM)
        if not path.endswith("/converse"):
            raise AssertionError(f"asked for {path}")
        return whole(_whole(step))

    def read(self, at: int = -1) -> Arrived:
        """Return what a request said."""
        request = self.requests[at]
        specs = [one["toolSpec"] for one in request.get("toolConfig", {}).get("tools", ())]
        return Arrived(
            system="".join(part["text"] for part in request.get("system", ())),
            tools={one["name"]: one["inputSchema"]["json"] for one in specs},
            said=[
                one
                for message in request["messages"]
                for block in message["content"]
                for one in _said(message["role"], block)
            ],
        )


def bedrock_server(*script: Says | Refuses | Streams | Waits) -> Any:
    """Serve a script on a free port; `url` is the base URL to give to an endpoint."""
    return serve(FakeBedrock(script=list(script)))


def _said(role: str, block: dict[str, Any]) -> list[Said]:
    if "text" in block:
        return [Said("user" if role == "user" else "model", block["text"])]
    if "reasoningContent" in block:
        thought = block["reasoningContent"]["reasoningText"]
        return [Said("thought", thought["text"], id=thought.get("signature", ""))]
    if "toolUse" in block:
        use = block["toolUse"]
        return [Said("call", json.dumps(use["input"]), use["toolUseId"], use["name"])]
    if "image" in block:
        return [Said("image", block["image"]["source"]["bytes"])]
    if "toolResult" in block:
        given = block["toolResult"]
        inner = [one for part in given["content"] for one in _said("user", part)]
        text = "".join(one.text for one in inner if one.role == "user")
        images = [one for one in inner if one.role == "image"]
        return [Said("result", text, given["toolUseId"]), *images]
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
    return {
        "usage": {
            "inputTokens": used["prompt_tokens"],
            "outputTokens": used["completion_tokens"],
            "totalTokens": used["total_tokens"],
        }
    }


def _stop(step: Says) -> str:
    return STOPS.get(step.reason, step.reason)


def _whole(step: Says) -> dict[str, Any]:
    return {
        "output": {"message": {"role": "assistant", "content": _blocks(step)}},
        "stopReason": _stop(step),
        "metrics": {"latencyMs": 1},
        **_usage(step),
    }


async def _events(step: Says) -> AsyncIterator[bytes]:
    yield _event("messageStart", {"role": "assistant"})
    for one in cut(_deltas(step), step.cut):
        yield one
    if step.cut == "closed":
        raise ConnectionResetError("the script cuts here")
    if step.cut == "ended":
        return
    yield _event("messageStop", {"stopReason": _stop(step)})
    yield _event("metadata", {"metrics": {"latencyMs": 1}, **_usage(step)})


def _deltas(step: Says) -> list[bytes]:
    found: list[bytes] = []
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
            found.append(_event("contentBlockStart", {"start": start, "contentBlockIndex": at}))
        found += [
            _event("contentBlockDelta", {"delta": delta, "contentBlockIndex": at})
            for delta in deltas
        ]
        found.append(_event("contentBlockStop", {"contentBlockIndex": at}))
    return found


def _event(kind: str, payload: dict[str, Any]) -> bytes:
    """Return one message of the AWS event stream encoding, with both of its checksums."""
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
