"""A scripted server of OpenAI's Responses API."""

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

SIGNATURE = "sealed-by-openai"


class FakeResponses(FakeProvider):
    """OpenAI's responses."""

    base = "/v1"

    def respond(self, path: str, request: dict[str, Any], step: Says) -> Response:
        """Return the response, as JSON or as a stream."""
        if path != "/v1/responses":
            raise AssertionError(f"unexpected path {path}")
        if request.get("store") is not False:
            raise AssertionError("the request doesn't set store to false")
        return (
            stream_response(_events(step))
            if request.get("stream")
            else json_response(_response(step))
        )

    def read(self, at: int = -1) -> ParsedRequest:
        """Return a received request in a common form."""
        request = self.requests[at]
        return ParsedRequest(
            system=request.get("instructions", ""),
            tools={parsed["name"]: parsed["parameters"] for parsed in request.get("tools", ())},
            messages=[parsed for item in request["input"] for parsed in _parse_messages(item)],
        )


def responses_server(*script: Says | Refuses | Streams | Waits) -> Any:
    """Serve a script on a free port; `url` is the base URL of its endpoint."""
    return serve(FakeResponses(script=list(script)))


def _parse_messages(item: dict[str, Any]) -> list[ParsedMessage]:
    match item.get("type", "message"):
        case "message":
            return _parts(item["role"], item["content"])
        case "reasoning":
            summary = "".join(part["text"] for part in item.get("summary", ()))
            return [ParsedMessage("thought", summary, id=item.get("encrypted_content") or "")]
        case "function_call":
            return [ParsedMessage("call", item["arguments"], item["call_id"], item["name"])]
        case "function_call_output":
            inner = _parts("user", item["output"])
            text = "".join(message.text for message in inner if message.role == "user")
            return [
                ParsedMessage("result", text, item["call_id"]),
                *(message for message in inner if message.role == "image"),
            ]
        case _:
            return []


def _parts(role: str, content: Any) -> list[ParsedMessage]:
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    message_role = "model" if role == "assistant" else "user"
    messages = [
        ParsedMessage(message_role, part["text"])
        for part in parts
        if part["type"].endswith("_text")
    ]
    messages += [
        ParsedMessage("image", part["image_url"]) for part in parts if part["type"] == "input_image"
    ]
    return messages + [
        ParsedMessage("document", part["file_data"])
        for part in parts
        if part["type"] == "input_file"
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
    reasons = {"length": "max_output_tokens", "stop": None, "tool_calls": None}
    reason = reasons.get(step.reason, step.reason)
    response = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": "fake-1",
        "status": status or ("incomplete" if reason else "completed"),
        "incomplete_details": {"reason": reason} if reason and not status else None,
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
    created = _response(step, "in_progress", output=False)
    yield _event({"type": "response.created", "response": created}, 0)
    for number, event in enumerate(cut_stream(_deltas(step), step.cut), start=1):
        yield _event(event, number)
    if step.cut == "closed":
        raise ConnectionResetError("the script cuts here")
    if step.cut == "ended":
        return
    answer = _response(step)
    yield _event({"type": f"response.{answer['status']}", "response": answer}, 9_999)
    yield b"data: [DONE]\n\n"


def _deltas(step: Says) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for at, item in enumerate(_items(step)):
        location = {"output_index": at, "item_id": item["id"]}
        empty = item | (
            {"content": [], "status": "in_progress"}
            if item["type"] == "message"
            else {"summary": []}
            if item["type"] == "reasoning"
            else {"arguments": "", "status": "in_progress"}
        )
        events.append({"type": "response.output_item.added", "output_index": at, "item": empty})
        if item["type"] == "message":
            part = {"type": "output_text", "text": "", "annotations": []}
            added = {"type": "response.content_part.added", "content_index": 0, "part": part}
            events.append(location | added)
            events += [
                location
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
            events.append(location | added | {"part": part})
            events += [
                location
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
            events += [location | delta | {"delta": piece} for piece in pieces]
            done = {"type": "response.function_call_arguments.done", "name": item["name"]}
            events.append(location | done | {"arguments": item["arguments"]})
        events.append({"type": "response.output_item.done", "output_index": at, "item": item})
    return events


def _event(event: dict[str, Any], number: int) -> bytes:
    data = json.dumps(event | {"sequence_number": number})
    return f"event: {event['type']}\ndata: {data}\n\n".encode()
