"""Convert HTTP responses to tool results (pure)."""

import base64
import json
from http import HTTPStatus
from typing import Any

from mcp_servers.client.jsonrpc import UnreadableJson, decode
from mcp_servers.openapi.operations import resolve_pointer

FAULT_READ = 16 * 1024
TEXTS = (
    *("application/xml", "application/yaml", "application/x-yaml", "application/javascript"),
    *("application/graphql", "application/x-www-form-urlencoded", "application/x-ndjson"),
)


def build_tool_result(
    status: int, content_type: str, body: bytes, part: str = ""
) -> dict[str, Any]:
    """Return the tool result of a response; a status outside of 2xx becomes an error result.

    JSON is returned as text and as structured content (non-objects under `result`), text as text,
    images and audio as such; for anything else, the type and size. `result_pointer` selects a part
    of a JSON response; if that is missing, all of it is returned, with a note.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if not 200 <= status < 300:
        return _build_error_result(status, kind, _parse_charset(content_type), body)
    if not body:
        return _build_text_result(
            f"HTTP {status}{_format_status_phrase(status)}: there is no content."
        )
    if is_json(kind):
        return _build_json_result(body, content_type, part)
    if kind.startswith(("image/", "audio/")):
        data = base64.b64encode(body).decode("ascii")
        family = kind.partition("/")[0]
        return {"content": [{"type": family, "data": data, "mimeType": kind}]}
    if kind.startswith("text/") or kind in TEXTS or kind.endswith(("+xml", "+yaml")):
        return _build_text_result(body.decode(_parse_charset(content_type), "replace"))
    told = kind or "of a kind that isn't named"
    return _build_text_result(f"The answer is {told}, {len(body):,} bytes; it is not shown.")


def is_json(kind: str) -> bool:
    """Tell whether a media type is JSON."""
    return kind in ("application/json", "text/json") or kind.endswith("+json")


def _build_json_result(body: bytes, content_type: str, part: str) -> dict[str, Any]:
    text = body.decode(_parse_charset(content_type), "replace")
    try:
        value = decode(text.encode())
    except UnreadableJson as error:
        note = f"The answer claims to be JSON and is {error}."
        return {"content": [{"type": "text", "text": note}, {"type": "text", "text": text}]}
    found, there = resolve_pointer(value, part)
    structured = found if there else value
    structured = structured if isinstance(structured, dict) else {"result": structured}
    if part and there:
        text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    answer = _build_text_result(text) | {"structuredContent": structured}
    if not there:
        note = f"The answer has no `{part}`; this is all of it."
        answer["content"].insert(0, {"type": "text", "text": note})
    return answer


def _build_error_result(status: int, kind: str, charset: str, body: bytes) -> dict[str, Any]:
    readable = is_json(kind) or (kind.startswith("text/") and "html" not in kind) or "xml" in kind
    text = body[:FAULT_READ].decode(charset, "replace").strip() if readable else ""
    told = f"HTTP {status}{_format_status_phrase(status)}" + (f"\n{text}" if text else "")
    return _build_text_result(told) | {"isError": True}


def _format_status_phrase(status: int) -> str:
    try:
        return f" {HTTPStatus(status).phrase}"
    except ValueError:
        return ""


def _parse_charset(content_type: str) -> str:
    _, _, said = content_type.lower().partition("charset=")
    named = said.partition(";")[0].strip(" \"'")
    return named if named in ("iso-8859-1", "latin-1", "us-ascii", "windows-1252") else "utf-8"


def _build_text_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}
