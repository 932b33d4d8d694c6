"""Make an upstream's result fit for a model: text, cleaned and bounded. Pure (DESIGN section 5)."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mcp_servers.scanning import clean_result


@dataclass(frozen=True, slots=True)
class Readable:
    """A result as text; `whole` is kept when `text` had to be cut. `removed` counts characters."""

    text: str
    whole: str = ""
    removed: int = 0


def readable(result: dict[str, Any], *, limit: int, result_id: object) -> Readable:
    """Return `result` as text of at most `limit` bytes, with a note where it was cut."""
    cleaned = clean_result("\n".join(_parts(result)))
    # A lone surrogate is legal in JSON, and in no database or model.
    raw = cleaned.text.encode(errors="replace")
    whole = raw.decode()
    if len(raw) <= limit:
        return Readable(whole, removed=cleaned.total)
    kept = raw[:limit].decode(errors="ignore")
    note = (
        f"\n[cut: {len(kept)} of {len(whole)} characters shown; "
        f"the rest can be read with read_result, result_id {result_id}]"
    )
    return Readable(kept + note, whole=whole, removed=cleaned.total)


def weight(result: dict[str, Any]) -> int:
    """Return about how many characters there are to read."""
    content = result.get("content")
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return sum(len(text) for text in texts if isinstance(text, str))


def _parts(result: dict[str, Any]) -> Iterable[str]:
    content = result.get("content")
    texts = [_part(part) for part in content] if isinstance(content, list) else []
    if any(texts):
        yield from texts
    elif "structuredContent" in result:
        yield json.dumps(result["structuredContent"], ensure_ascii=False)


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return ""
    if part.get("type") == "text":
        return str(part.get("text", ""))
    if part.get("type") in ("image", "audio"):
        size = len(part.get("data") or "") * 3 // 4
        return f"[{part['type']} {part.get('mimeType', '')}, {size} bytes]"
    if part.get("type") == "resource" and isinstance(part.get("resource"), dict):
        resource = part["resource"]
        return str(resource.get("text") or f"[resource {resource.get('uri', '')}]")
    if part.get("type") == "resource_link":
        return f"[resource {part.get('uri', '')}]"
    return f"[{part.get('type', 'part')}]"
