"""A provider that speaks OpenAI's Responses API."""

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

SIGNATURE = "sealed-by-openai"


class FakeResponses(FakeProvider):
    """OpenAI's responses."""

    base = "/v1"

    def served(self, path: str, said: dict[str, Any], step: Says) -> Served:
        """Return the answer, whole or streamed."""
        if path != "/v1/responses":
            raise AssertionError(f"asked for {path}")
        if said.get("store") is not False:
            raise AssertionError("asked to keep the answer")
        return events(_events(step)) if said.get("stream") else whole(_response(step))

    def read(self, at: int = -1) -> Arrived:
        """Return what a request said."""
        request = self.requests[at]
        return Arrived(
            system=request.get("instructions", ""),
            tools={one["name"]: one["parameters"] for one in request.get("tools", ())},
            said=[one for item in request["input"] for one in _said(item)],
        )


def responses_server(*script: Says | Refuses | Streams | Waits) -> Any:
    """Serve a script on a free port; `url` is the base URL to give to an endpoint."""
    return serve(FakeResponses(script=list(script)))


def _said(item: dict[str, Any]) -> list[Said]:
    match item.get("type", "message"):
        case "message":
            return _parts(item["role"], item["content"])
        case "reasoning":
            words = "".join(part["text"] for part in item.get("summary", ()))
            return [Said("thought", words, id=item.get("encrypted_content") or "")]
        case "function_call":
            return [Said("call", item["arguments"], item["call_id"], item["name"])]
        case "function_call_output":
            inner = _parts("user", item["output"])
            text = "".join(one.text for one in inner if one.role == "user")
            return [
                Said("result", text, item["call_id"]),
                *(one for one in inner if one.role == "image"),
            ]
        case _:
            return []


def _parts(role: str, content: Any) -> list[Said]:
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    who = "model" if role == "assistant" else "user"
    found = [Said(who, part["text"]) for part in parts if part["type"].endswith("_text")]
    return found + [
        Said("image", part["image_url"]) for part in parts if part["type"] == "input_image"
    ]


def _items(step: Says) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if step.reasoning:
        summary = [{"type": "summary_text", "text": step.reasoning}]
        item = {"id": "rs_1", "type": "reasoning", "summary": summary}
        items.append(item | {"encrypted_content": SIGNATURE, "status": "completed"})
    if step.text:
        part = {"type": "output_text", "text": step.text, "annotations": []}
        items.append(_message([part], "completed"))
    for at, (id_, name, arguments) in enumerate(step.calls):
        call = {"id": f"fc_{at}", "type": "function_call", "call_id": id_, "name": name}
        items.append(call | {"arguments": arguments, "status": "completed"})
    return items


def _message(content: list[Any], status: str) -> dict[str, Any]:
    message = {"id": "msg_1", "type": "message", "role": "assistant"}
    return message | {"content": content, "status": status}


def _response(step: Says, status: str = "", output: bool = True) -> dict[str, Any]:
    cut_short = {"length": "max_output_tokens", "stop": None, "tool_calls": None}
    why = cut_short.get(step.reason, step.reason)
    response = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": "fake-1",
        "status": status or ("incomplete" if why else "completed"),
        "incomplete_details": {"reason": why} if why and not status else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": 1.0,
        "top_p": 1.0,
        "output": _items(step) if output else [],
    }
    if step.usage is not None and not status:
        response["usage"] = {
            "input_tokens": step.usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": step.usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": step.usage["total_tokens"],
        }
    return response


async def _events(step: Says) -> AsyncIterator[bytes]:
    begun = _response(step, "in_progress", output=False)
    yield _event({"type": "response.created", "response": begun}, 0)
    for number, event in enumerate(cut(_deltas(step), step.cut), start=1):
        yield _event(event, number)
    if step.cut == "closed":
        raise ConnectionResetError("the script cuts here")
    if step.cut == "ended":
        return
    answer = _response(step)
    yield _event({"type": f"response.{answer['status']}", "response": answer}, 9_999)
    yield b"data: [DONE]\n\n"


def _deltas(step: Says) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for at, item in enumerate(_items(step)):
        where = {"output_index": at, "item_id": item["id"]}
        empty = item | (
            {"content": [], "status": "in_progress"}
            if item["type"] == "message"
            else {"summary": []}
            if item["type"] == "reasoning"
            else {"arguments": "", "status": "in_progress"}
        )
        found.append({"type": "response.output_item.added", "output_index": at, "item": empty})
        if item["type"] == "message":
            part = {"type": "output_text", "text": "", "annotations": []}
            added = {"type": "response.content_part.added", "content_index": 0, "part": part}
            found.append(where | added)
            found += [
                where
                | {
                    "type": "response.output_text.delta",
                    "content_index": 0,
                    "delta": piece,
                    "logprobs": [],
                }
                for piece in fragments(step.text)
            ]
        elif item["type"] == "reasoning":
            part = {"type": "summary_text", "text": ""}
            added = {"type": "response.reasoning_summary_part.added", "summary_index": 0}
            found.append(where | added | {"part": part})
            found += [
                where
                | {
                    "type": "response.reasoning_summary_text.delta",
                    "summary_index": 0,
                    "delta": piece,
                }
                for piece in fragments(step.reasoning)
            ]
        else:
            delta = {"type": "response.function_call_arguments.delta"}
            pieces = fragments(item["arguments"])
            found += [where | delta | {"delta": piece} for piece in pieces]
            done = {"type": "response.function_call_arguments.done", "name": item["name"]}
            found.append(where | done | {"arguments": item["arguments"]})
        found.append({"type": "response.output_item.done", "output_index": at, "item": item})
    return found


def _event(event: dict[str, Any], number: int) -> bytes:
    said = json.dumps(event | {"sequence_number": number})
    return f"event: {event['type']}\ndata: {said}\n\n".encode()
