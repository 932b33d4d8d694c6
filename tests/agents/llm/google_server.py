"""A provider that speaks Google's Gemini API."""

import base64
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

SIGNATURE = base64.b64encode(b"signed by google").decode()
# What Google documents for calls whose signature is another model's.
UNSIGNED = base64.b64encode(b"skip_thought_signature_validator").decode()
FINISHES = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
}


class FakeGoogle(FakeProvider):
    """Google's generateContent, of the Gemini API and of Vertex AI."""

    def served(self, path: str, said: dict[str, Any], step: Says) -> Served:
        """Return the answer, whole or streamed."""
        if path.endswith(":streamGenerateContent"):
            return events(_events(step))
        if not path.endswith(":generateContent"):
            raise AssertionError(f"asked for {path}")
        return whole(_answer(_parts(step), step, last=True))

    def read(self, at: int = -1) -> Arrived:
        """Return what a request said."""
        request = self.requests[at]
        declared = [
            one for tool in request.get("tools", ()) for one in tool["functionDeclarations"]
        ]
        system = request.get("systemInstruction", {}).get("parts", [])
        return Arrived(
            system="".join(part["text"] for part in system),
            tools={one["name"]: one["parameters_json_schema"] for one in declared},
            said=[
                one
                for content in request["contents"]
                for part in content["parts"]
                for one in _said(content["role"], part)
            ],
        )


def google_server(*script: Says | Refuses | Streams | Waits) -> Any:
    """Serve a script on a free port; `url` is the base URL to give to an endpoint."""
    return serve(FakeGoogle(script=list(script)))


def _said(role: str, part: dict[str, Any]) -> list[Said]:
    signed = part.get("thoughtSignature", "").replace(UNSIGNED, "")
    found = [Said("thought", part.get("text", ""), id=signed)] if signed else []
    if part.get("thought"):
        return found or [Said("thought", part["text"])]
    if "functionCall" in part:
        call = part["functionCall"]
        found.append(Said("call", json.dumps(call["args"]), call.get("id", ""), call["name"]))
    elif "functionResponse" in part:
        given = part["functionResponse"]
        text = next(iter(given["response"].values()))
        found.append(Said("result", str(text), given.get("id", ""), given["name"]))
        inner = [one.get("inlineData") or one["inline_data"] for one in given.get("parts", ())]
        found += [Said("image", one["data"]) for one in inner]
    elif "inlineData" in part:
        found.append(Said("image", part["inlineData"]["data"]))
    elif part.get("text"):
        found.append(Said("user" if role == "user" else "model", part["text"]))
    return found


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
    for part in cut(_parts(step), "cut" if step.cut else ""):
        yield _event(_answer([part], step, last=False))
    if step.cut == "closed":
        raise ConnectionResetError("the script cuts here")
    if step.cut == "ended":
        return
    yield _event(_answer([{"text": ""}], step, last=True))


def _event(answer: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(answer).encode() + b"\r\n\r\n"
