"""A scripted server of Google's Gemini API."""

import base64
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

SIGNATURE = base64.b64encode(b"signed by google").decode()
# Google's documented signature for calls that another model made.
UNSIGNED = base64.b64encode(b"skip_thought_signature_validator").decode()
FINISHES = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
}


class FakeGoogle(FakeProvider):
    """Google's generateContent, of the Gemini API and of Vertex AI."""

    def respond(self, path: str, request: dict[str, Any], step: Says) -> Response:
        """Return the response, as JSON or as a stream."""
        if path.endswith(":streamGenerateContent"):
            return stream_response(_events(step))
        if not path.endswith(":generateContent"):
            raise AssertionError(f"unexpected path {path}")
        return json_response(_answer(_parts(step), step, last=True))

    def read(self, at: int = -1) -> ParsedRequest:
        """Return a received request in a common form."""
        request = self.requests[at]
        declared = [
            parsed for tool in request.get("tools", ()) for parsed in tool["functionDeclarations"]
        ]
        system = request.get("systemInstruction", {}).get("parts", [])
        return ParsedRequest(
            system="".join(part["text"] for part in system),
            tools={parsed["name"]: parsed["parameters_json_schema"] for parsed in declared},
            messages=[
                parsed
                for content in request["contents"]
                for part in content["parts"]
                for parsed in _parse_messages(content["role"], part)
            ],
        )


def google_server(*script: Says | Refuses | Streams | Waits) -> Any:
    """Serve a script on a free port; `url` is the base URL of its endpoint."""
    return serve(FakeGoogle(script=list(script)))


def _parse_messages(role: str, part: dict[str, Any]) -> list[ParsedMessage]:
    signed = part.get("thoughtSignature", "").replace(UNSIGNED, "")
    messages = [ParsedMessage("thought", part.get("text", ""), id=signed)] if signed else []
    if part.get("thought"):
        return messages or [ParsedMessage("thought", part["text"])]
    if "functionCall" in part:
        call = part["functionCall"]
        messages.append(
            ParsedMessage("call", json.dumps(call["args"]), call.get("id", ""), call["name"])
        )
    elif "functionResponse" in part:
        response = part["functionResponse"]
        text = next(iter(response["response"].values()))
        messages.append(
            ParsedMessage("result", str(text), response.get("id", ""), response["name"])
        )
        images = [
            data.get("inlineData") or data["inline_data"] for data in response.get("parts", ())
        ]
        messages += [ParsedMessage("image", data["data"]) for data in images]
    elif "inlineData" in part:
        data = part["inlineData"]
        kind = "document" if data["mime_type"] == "application/pdf" else "image"
        messages.append(ParsedMessage(kind, data["data"]))
    elif part.get("text"):
        messages.append(ParsedMessage("user" if role == "user" else "model", part["text"]))
    return messages


def _parts(step: Says) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    if step.reasoning:
        parts.append({"text": step.reasoning, "thought": True})
    parts += [{"text": piece} for piece in fragments(step.text)]
    if step.image:
        data = base64.b64encode(step.image).decode()
        parts.append({"inlineData": {"mimeType": "image/png", "data": data}})
    for at, (id_, name, arguments) in enumerate(step.calls):
        part = {"functionCall": {"id": id_, "name": name, "args": json.loads(arguments or "{}")}}
        if step.reasoning and not at:
            part["thoughtSignature"] = SIGNATURE
        parts.append(part)
    return parts


def _answer(parts: list[dict[str, Any]], step: Says, *, last: bool) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    answer = {"candidates": [candidate], "modelVersion": "gemini-fake", "responseId": "r1"}
    if last:
        candidate["finishReason"] = FINISHES.get(step.reason, step.reason)
        if step.usage is not None:
            answer["usageMetadata"] = {
                "promptTokenCount": step.usage["prompt_tokens"],
                "candidatesTokenCount": step.usage["completion_tokens"],
                "totalTokenCount": step.usage["total_tokens"],
            }
    return answer


async def _events(step: Says) -> AsyncIterator[bytes]:
    for part in cut_stream(_parts(step), "cut" if step.cut else ""):
        yield _event(_answer([part], step, last=False))
    if step.cut == "closed":
        raise ConnectionResetError("the script cuts here")
    if step.cut == "ended":
        return
    yield _event(_answer([{"text": ""}], step, last=True))


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n"
