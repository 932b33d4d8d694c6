"""A scripted server of Anthropic's Messages API."""

import json
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

SIGNATURE = "c2lnbmVkIGJ5IGFudGhyb3BpYw=="
STOPS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}


class FakeAnthropic(FakeProvider):
    """Anthropic's Messages API."""

    def respond(self, path: str, request: dict[str, Any], step: Says) -> Response:
        """Return the response, as JSON or as a stream."""
        if path != "/v1/messages":
            raise AssertionError(f"unexpected path {path}")
        return (
            stream_response(_events(step))
            if request.get("stream")
            else json_response(_build_answer(step))
        )

    def read(self, at: int = -1) -> ParsedRequest:
        """Return a received request in a common form."""
        request = self.requests[at]
        system = request.get("system", "")
        return ParsedRequest(
            system=system if isinstance(system, str) else "".join(p["text"] for p in system),
            tools={t["name"]: t["input_schema"] for t in request.get("tools", ())},
            messages=[
                message
                for m in request["messages"]
                for message in _parse_messages(m["role"], m["content"])
            ],
        )


def anthropic_server(*script: Says | Refuses | Streams | Waits) -> Any:
    """Serve a script on a free port; `url` is the base URL of its endpoint."""
    return serve(FakeAnthropic(script=list(script)))


def _parse_messages(role: str, content: Any) -> list[ParsedMessage]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    messages = []
    for part in parts:
        match part["type"]:
            case "text":
                messages.append(ParsedMessage("user" if role == "user" else "model", part["text"]))
            case "thinking":
                messages.append(ParsedMessage("thought", part["thinking"], id=part["signature"]))
            case "tool_use":
                messages.append(
                    ParsedMessage("call", json.dumps(part["input"]), part["id"], part["name"])
                )
            case "image":
                messages.append(ParsedMessage("image", part["source"]["data"]))
            case "document":
                messages.append(ParsedMessage("document", part["source"]["data"]))
            case "tool_result":
                inner = _parse_messages("user", part["content"])
                text = "".join(message.text for message in inner if message.role == "user")
                messages.append(ParsedMessage("result", text, part["tool_use_id"]))
                messages += [message for message in inner if message.role == "image"]
    return messages


def _usage(step: Says, output: bool = True) -> dict[str, Any]:
    if step.usage is None:
        return {}
    cached_tokens = step.usage.get("cached_tokens", 0)
    written_tokens = step.usage.get("cache_write_tokens", 0)
    usage = {
        "input_tokens": step.usage["prompt_tokens"] - cached_tokens - written_tokens,
        "cache_read_input_tokens": cached_tokens,
        "cache_creation_input_tokens": written_tokens,
    }
    if output:
        usage["output_tokens"] = step.usage["completion_tokens"]
    return usage


def _blocks(step: Says, streamed: bool = False) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if step.reasoning:
        block = {"type": "thinking", "thinking": step.reasoning, "signature": SIGNATURE}
        blocks.append(block)
    if step.text:
        blocks.append({"type": "text", "text": step.text})
    for id_, name, arguments in step.calls:
        block = {"type": "tool_use", "id": id_, "name": name}
        blocks.append(block | {"input": {} if streamed else json.loads(arguments or "{}")})
    return blocks


def _message(step: Says, content: Any, stop: str | None, usage: Any) -> dict[str, Any]:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-fake-1",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
    }
    return message | ({"usage": usage} if step.usage is not None else {})


def _build_answer(step: Says) -> dict[str, Any]:
    return _message(step, _blocks(step), _stop(step), _usage(step))


async def _events(step: Says) -> AsyncIterator[bytes]:
    yield _event("message_start", message=_message(step, [], None, _usage(step) | _out(step, 1)))
    yield _event("ping")
    for event in cut_stream(list(_deltas(step)), step.cut):
        yield event
    if step.cut == "closed":
        raise ConnectionResetError("the script cuts here")
    if step.cut == "ended":
        return
    stop = {"stop_reason": _stop(step), "stop_sequence": None}
    used = {"usage": {"output_tokens": step.usage["completion_tokens"]}} if step.usage else {}
    yield _event("message_delta", delta=stop, **used)
    yield _event("message_stop")


def _stop(step: Says) -> str:
    return STOPS.get(step.reason, step.reason)


def _out(step: Says, tokens: int) -> dict[str, int]:
    return {"output_tokens": tokens} if step.usage and step.usage["completion_tokens"] else {}


def _deltas(step: Says) -> list[bytes]:
    events = []
    arguments_by_id = {id_: arguments for id_, _, arguments in step.calls}
    calls = iter(step.calls)
    for at, block in enumerate(_blocks(step, streamed=True)):
        kind = block["type"]
        if kind == "text":
            start, deltas = {"text": ""}, [("text_delta", "text", p) for p in fragments(step.text)]
        elif kind == "thinking":
            start = {"thinking": "", "signature": ""}
            deltas = [("thinking_delta", "thinking", p) for p in fragments(step.reasoning)]
            deltas.append(("signature_delta", "signature", SIGNATURE))
        else:
            id_, name, _ = next(calls)
            start = {"id": id_, "name": name, "input": {}}
            pieces = fragments(arguments_by_id[id_]) or [""]
            deltas = [("input_json_delta", "partial_json", p) for p in pieces]
        events.append(_event("content_block_start", index=at, content_block={"type": kind} | start))
        for type_, field, piece in deltas:
            delta = {"type": type_, field: piece}
            events.append(_event("content_block_delta", index=at, delta=delta))
        events.append(_event("content_block_stop", index=at))
    return events


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | fields)}\n\n".encode()
