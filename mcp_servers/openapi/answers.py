"""Answers: what an API said, as the result of a tool: pure."""

import base64
import json
from http import HTTPStatus
from typing import Any

from mcp_servers.connections.wire import Unreadable, decode
from mcp_servers.openapi.extensions import picked

FAULT_READ = 16 * 1024
TEXTS = (
    *("application/xml", "application/yaml", "application/x-yaml", "application/javascript"),
    *("application/graphql", "application/x-www-form-urlencoded", "application/x-ndjson"),
)


def result_of(status: int, content_type: str, body: bytes, part: str = "") -> dict[str, Any]:
    """Return the result of a tool; a status outside of 2xx is an error for the model to read.

    JSON comes as text and as structured content (what is no object under `result`), text as text,
    pictures and sounds as such; of anything else the kind and the size are told. `part` points to
    what of a JSON answer is the result; where that is missing, all of it is, with a note.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if not 200 <= status < 300:
        return _fault(status, kind, _charset(content_type), body)
    if not body:
        return _said(f"HTTP {status}{_phrase(status)}: there is no content.")
    if is_json(kind):
        return _json(body, content_type, part)
    if kind.startswith(("image/", "audio/")):
        data = base64.b64encode(body).decode("ascii")
        family = kind.partition("/")[0]
        return {"content": [{"type": family, "data": data, "mimeType": kind}]}
    if kind.startswith("text/") or kind in TEXTS or kind.endswith(("+xml", "+yaml")):
        return _said(body.decode(_charset(content_type), "replace"))
    told = kind or "of a kind that isn't named"
    return _said(f"The answer is {told}, {len(body):,} bytes; it is not shown.")


def is_json(kind: str) -> bool:
    """Tell whether a media type is JSON."""
    return kind in ("application/json", "text/json") or kind.endswith("+json")


def _json(body: bytes, content_type: str, part: str) -> dict[str, Any]:
    text = body.decode(_charset(content_type), "replace")
    try:
        value = decode(text.encode())
    except Unreadable as error:
        note = f"The answer claims to be JSON and is {error}."
        return {"content": [{"type": "text", "text": note}, {"type": "text", "text": text}]}
    found, there = picked(value, part)
    structured = found if there else value
    structured = structured if isinstance(structured, dict) else {"result": structured}
    if part and there:
        text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    answer = _said(text) | {"structuredContent": structured}
    if not there:
        note = f"The answer has no `{part}`; this is all of it."
        answer["content"].insert(0, {"type": "text", "text": note})
    return answer


def _fault(status: int, kind: str, charset: str, body: bytes) -> dict[str, Any]:
    readable = is_json(kind) or (kind.startswith("text/") and "html" not in kind) or "xml" in kind
    text = body[:FAULT_READ].decode(charset, "replace").strip() if readable else ""
    told = f"HTTP {status}{_phrase(status)}" + (f"\n{text}" if text else "")
    return _said(told) | {"isError": True}


def _phrase(status: int) -> str:
    try:
        return f" {HTTPStatus(status).phrase}"
    except ValueError:
        return ""


def _charset(content_type: str) -> str:
    _, _, said = content_type.lower().partition("charset=")
    named = said.partition(";")[0].strip(" \"'")
    return named if named in ("iso-8859-1", "latin-1", "us-ascii", "windows-1252") else "utf-8"


def _said(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}
