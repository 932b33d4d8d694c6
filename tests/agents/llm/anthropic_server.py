"""A provider that speaks Anthropic's Messages API."""

import json
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

SIGNATURE = "c2lnbmVkIGJ5IGFudGhyb3BpYw=="
STOPS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}


class FakeAnthropic(FakeProvider):
    """Anthropic's messages."""

    def served(self, path: str, said: dict[str, Any], step: Says) -> Served:
        """Return the answer, whole or streamed."""
        if path != "/v1/messages":
            raise AssertionError(f"asked for {path}")
        return events(_events(step)) if said.get("stream") else whole(_whole(step))

    def read(self, at: int = -1) -> Arrived:
        """Return what a request said."""
        request = self.requests[at]
        system = request.get("system", "")
        return Arrived(
            system=system if isinstance(system, str) else "".join(p["text"] for p in system),
            tools={t["name"]: t["input_schema"] for t in request.get("tools", ())},
            said=[one for m in request["messages"] for one in _said(m["role"], m["content"])],
        )


def anthropic_server(*script: Says | Refuses | Streams | Waits) -> Any:
    """Serve a script on a free port; `url` is the base URL to give to an endpoint."""
    return serve(FakeAnthropic(script=list(script)))


def _said(role: str, content: Any) -> list[Said]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    found = []
    for part in parts:
        match part["type"]:
            case "text":
                found.append(Said("user" if role == "user" else "model", part["text"]))
            case "thinking":
                found.append(Said("thought", part["thinking"], id=part["signature"]))
            case "tool_use":
                found.append(Said("call", json.dumps(part["input"]), part["id"], part["name"]))
            case "image":
                found.append(Said("image", part["source"]["data"]))
            case "tool_result":
                inner = _said("user", part["content"])
                text = "".join(one.text for one in inner if one.role == "user")
                found.append(Said("result", text, part["tool_use_id"]))
                found += [one for one in inner if one.role == "image"]
    return found


def _usage(step: Says, output: bool = True) -> dict[str, Any]:
    if step.usage is None:
        return {}
    found = {"input_tokens": step.usage["prompt_tokens"]}
    if output:
        found["output_tokens"] = step.usage["completion_tokens"]
    return found


def _blocks(step: Says, streamed: bool = False) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if step.reasoning:
        said = {"type": "thinking", "thinking": step.reasoning, "signature": SIGNATURE}
        blocks.append(said)
    if step.text:
        blocks.append({"type": "text", "text": step.text})
    for id_, name, arguments in step.calls:
        said = {"type": "tool_use", "id": id_, "name": name}
        blocks.append(said | {"input": {} if streamed else json.loads(arguments or "{}")})
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


def _whole(step: Says) -> dict[str, Any]:
    return _message(step, _blocks(step), _stop(step), _usage(step))


async def _events(step: Says) -> AsyncIterator[bytes]:
    yield _event("message_start", message=_message(step, [], None, _usage(step) | _out(step, 1)))
    yield _event("ping")
    for one in cut(list(_deltas(step)), step.cut):
        yield one
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
    found = []
    written = {id_: arguments for id_, _, arguments in step.calls}
    order = iter(step.calls)
    for at, block in enumerate(_blocks(step, streamed=True)):
        kind = block["type"]
        if kind == "text":
            start, deltas = {"text": ""}, [("text_delta", "text", p) for p in fragments(step.text)]
        elif kind == "thinking":
            start = {"thinking": "", "signature": ""}
            deltas = [("thinking_delta", "thinking", p) for p in fragments(step.reasoning)]
            deltas.append(("signature_delta", "signature", SIGNATURE))
        else:
            id_, name, _ = next(order)
            start = {"id": id_, "name": name, "input": {}}
            pieces = fragments(written[id_]) or [""]
            deltas = [("input_json_delta", "partial_json", p) for p in pieces]
        found.append(_event("content_block_start", index=at, content_block={"type": kind} | start))
        for type_, member, piece in deltas:
            delta = {"type": type_, member: piece}
            found.append(_event("content_block_delta", index=at, delta=delta))
        found.append(_event("content_block_stop", index=at))
    return found


def _event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | members)}\n\n".encode()
