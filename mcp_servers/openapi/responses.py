"""Convert HTTP responses to tool results (pure)."""

import base64
import json
from http import HTTPStatus
from typing import Any

from mcp_servers.client.jsonrpc import UnreadableJson, decode_json
from mcp_servers.openapi.operations import resolve_pointer

MAX_ERROR_BYTES = 16 * 1024
TEXT_MEDIA_TYPES = (
    *("application/xml", "application/yaml", "application/x-yaml", "application/javascript"),
    *("application/graphql", "application/x-www-form-urlencoded", "application/x-ndjson"),
)


def build_tool_result(
    status: int, content_type: str, body: bytes, result_pointer: str = ""
) -> dict[str, Any]:
    """Return the tool result of a response; a status outside of 2xx becomes an error result.

    JSON is returned as text and as structured content (non-objects under `result`), text as text,
    images and audio as such; for anything else, the type and size. `result_pointer` selects a part
    of a JSON response; if that is missing, all of it is returned, with a note.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if not 200 <= status < 300:
        return _build_error_result(status, media_type, _parse_charset(content_type), body)
    if not body:
        return _build_text_result(
            f"HTTP {status}{_format_status_phrase(status)}: there is no content."
        )
    if is_json_media_type(media_type):
        return _build_json_result(body, content_type, result_pointer)
    if media_type.startswith(("image/", "audio/")):
        data = base64.b64encode(body).decode("ascii")
        family = media_type.partition("/")[0]
        return {"content": [{"type": family, "data": data, "mimeType": media_type}]}
    if (
        media_type.startswith("text/")
        or media_type in TEXT_MEDIA_TYPES
        or media_type.endswith(("+xml", "+yaml"))
    ):
        return _build_text_result(body.decode(_parse_charset(content_type), "replace"))
    description = media_type or "of a kind that isn't named"
    return _build_text_result(f"The answer is {description}, {len(body):,} bytes; it is not shown.")


def is_json_media_type(media_type: str) -> bool:
    return media_type in ("application/json", "text/json") or media_type.endswith("+json")


def _build_json_result(body: bytes, content_type: str, result_pointer: str) -> dict[str, Any]:
    text = body.decode(_parse_charset(content_type), "replace")
    try:
        value = decode_json(text.encode())
    except UnreadableJson as error:
        note = f"The answer claims to be JSON and is {error}."
        return {"content": [{"type": "text", "text": note}, {"type": "text", "text": text}]}
    selected, is_present = resolve_pointer(value, result_pointer)
    structured = selected if is_present else value
    structured = structured if isinstance(structured, dict) else {"result": structured}
    if result_pointer and is_present:
        text = selected if isinstance(selected, str) else json.dumps(selected, ensure_ascii=False)
    result = _build_text_result(text) | {"structuredContent": structured}
    if not is_present:
        note = f"The answer has no `{result_pointer}`; this is all of it."
        result["content"].insert(0, {"type": "text", "text": note})
    return result


def _build_error_result(status: int, media_type: str, charset: str, body: bytes) -> dict[str, Any]:
    is_readable = (
        is_json_media_type(media_type)
        or (media_type.startswith("text/") and "html" not in media_type)
        or "xml" in media_type
    )
    text = body[:MAX_ERROR_BYTES].decode(charset, "replace").strip() if is_readable else ""
    message = f"HTTP {status}{_format_status_phrase(status)}" + (f"\n{text}" if text else "")
    return _build_text_result(message) | {"isError": True}


def _format_status_phrase(status: int) -> str:
    try:
        return f" {HTTPStatus(status).phrase}"
    except ValueError:
        return ""


def _parse_charset(content_type: str) -> str:
    _, _, charset_text = content_type.lower().partition("charset=")
    charset = charset_text.partition(";")[0].strip(" \"'")
    return charset if charset in ("iso-8859-1", "latin-1", "us-ascii", "windows-1252") else "utf-8"


def _build_text_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}
