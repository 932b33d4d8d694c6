"""The text of a result that the model gets: render its parts, clean and truncate it. No I/O."""

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from hashlib import sha256
from typing import Any

from bonobot.core.records import record
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.scanning import inspect_result

# Characters of a changed text in the audit log, before and after the change.
EXCERPT_LENGTH = 400
# Text types that don't start with `text/`.
TEXT_MIME_TYPES = frozenset({"application/json", "application/xml", "application/yaml"})


# Digests of texts in which nothing was found.
MAX_CLEAN_TEXTS = 4_096
_clean_texts: set[bytes] = set()


@record()
class ResultText:
    """A result as text; `full_text` is set if `text` was truncated.

    `sanitized` counts what was removed or escaped and `flagged` what reads like instructions, by
    rule; the lengths before and after are in characters; `excerpts` shows the first change.
    """

    text: str
    full_text: str = ""
    sanitized: Mapping[str, int] = field(default_factory=dict)
    flagged: Mapping[str, int] = field(default_factory=dict)
    length_before: int = 0
    length_after: int = 0
    excerpts: tuple[str, str] | None = None

    def build_audit_details(self) -> dict[str, Any]:
        """Return lengths, rules and, if the text was changed, where it changed, before and after.

        Secrets are masked in the text before this. Hidden characters are made visible.
        """
        details: dict[str, Any] = {"before": self.length_before, "after": self.length_after}
        if self.sanitized:
            details["rules"] = dict(self.sanitized)
        if self.excerpts is not None:
            details["text_before"], details["text_after"] = self.excerpts
        return details


def render_result(result: dict[str, Any], *, limit: int, result_id: object) -> ResultText:
    """Return `result` as text, truncated to `limit` bytes plus a note."""
    cleaned = clean_text("\n".join(_render_parts(result)))
    full_text = cleaned.text
    raw = full_text.encode()
    if len(raw) <= limit:
        return cleaned
    visible_text = raw[:limit].decode(errors="ignore")
    note = (
        f"\n[truncated: {len(visible_text)} of {len(full_text)} characters shown. "
        f"To read the rest, call read_result with result_id {result_id}]"
    )
    return replace(cleaned, text=visible_text + note, full_text=full_text)


def clean_text(text: str) -> ResultText:
    """Return a text that is safe for models, with counts of what was removed or flagged.

    Scanning takes a hundred times as long as hashing, and tools often give the same answer, so
    texts in which nothing was found are remembered by their digests.
    """
    digest = sha256(text.encode(errors="surrogatepass")).digest()
    if digest in _clean_texts:
        return ResultText(text, length_before=len(text), length_after=len(text))
    inspected = inspect_result(text)
    # JSON allows lone surrogates; databases and models don't.
    cleaned = inspected.text.encode(errors="replace").decode()
    if cleaned == text and not inspected.sanitized and not inspected.flagged:
        if len(_clean_texts) >= MAX_CLEAN_TEXTS:
            _clean_texts.clear()
        _clean_texts.add(digest)
    return ResultText(
        cleaned,
        sanitized=inspected.sanitized,
        flagged=inspected.flagged,
        length_before=len(text),
        length_after=len(cleaned),
        excerpts=_extract_change(text, cleaned) if inspected.sanitized else None,
    )


def _extract_change(before: str, after: str) -> tuple[str, str]:
    """Return the parts of both texts around the first change."""
    pairs = zip(before, after, strict=False)
    changed_at = next(
        (position for position, (old, new) in enumerate(pairs) if old != new),
        min(len(before), len(after)),
    )
    start = max(0, changed_at - EXCERPT_LENGTH // 4)
    end = start + EXCERPT_LENGTH
    return make_visible(before[start:end]), make_visible(after[start:end])


def estimate_size(value: Any, limit: int) -> int:
    """Return about how many characters a JSON value has; stops counting beyond `limit`."""
    total = 0
    level = [value]
    while level and total <= limit:
        next_level: list[Any] = []
        for item in level:
            total += len(item) if isinstance(item, str) else 8
            if isinstance(item, dict):
                next_level += item.values()
            elif isinstance(item, list):
                next_level += item
            if total > limit:
                break
        level = next_level
    return total


def _render_parts(result: dict[str, Any]) -> Iterable[str]:
    """Yield the texts of tool content, resource contents, prompt messages or completion values."""
    texts = [_render_part(part) for part in _get_list(result, "content")]
    if any(texts):
        yield from texts
    elif "structuredContent" in result:
        yield json.dumps(result["structuredContent"], ensure_ascii=False)
    for resource in _get_list(result, "contents"):
        yield _render_part({"type": "resource", "resource": resource})
    for message in _get_list(result, "messages"):
        if isinstance(message, dict):
            content = message.get("content")
            parts = content if isinstance(content, list) else [content]
            yield f"{message.get('role', '')}: " + "\n".join(_render_part(part) for part in parts)
    completion = result.get("completion")
    if isinstance(completion, dict):
        yield from (value for value in _get_list(completion, "values") if isinstance(value, str))


def _get_list(source: dict[str, Any], key: str) -> list[Any]:
    value = source.get(key)
    return value if isinstance(value, list) else []


def _render_part(part: Any) -> str:
    if not isinstance(part, dict):
        return ""
    if part.get("type") == "text":
        return str(part.get("text", ""))
    if part.get("type") in ("image", "audio"):
        return _describe_blob(str(part["type"]), part, part.get("data"))
    if part.get("type") == "resource" and isinstance(part.get("resource"), dict):
        return _render_resource(part["resource"])
    if part.get("type") == "resource_link":
        return f"[resource {part.get('uri', '')}]"
    return f"[{part.get('type', 'part')}]"


def _render_resource(resource: dict[str, Any]) -> str:
    if resource.get("text"):
        return str(resource["text"])
    if (text := decode_text_blob(resource)) is not None:
        return text
    label = f"resource {resource.get('uri', '')}"
    return _describe_blob(label, resource, resource["blob"]) if "blob" in resource else f"[{label}]"


def decode_text_blob(resource: dict[str, Any]) -> str | None:
    """Return the text of a blob with a text type, else None."""
    kind = str(resource.get("mimeType") or "").partition(";")[0].strip().lower()
    blob = resource.get("blob")
    if not isinstance(blob, str) or not (kind.startswith("text/") or kind in TEXT_MIME_TYPES):
        return None
    try:
        return base64.b64decode(blob, validate=True).decode()
    except ValueError:
        return None


def _describe_blob(label: str, part: dict[str, Any], data: Any) -> str:
    size = len(data.rstrip("=")) * 3 // 4 if isinstance(data, str) else 0
    return f"[{label} {part.get('mimeType', '')}, {size} bytes]"
