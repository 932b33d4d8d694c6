"""Make an upstream's result fit for a model: text, cleaned and bounded. Pure (DESIGN section 5)."""

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mcp_servers.scanning import clean_result, inspect_result

# The protocol's own bound on the values of a completion, and ours on each of them.
MOST_COMPLETIONS = 100
LONGEST_COMPLETION = 512
# Texts whose type doesn't begin with `text/`.
TEXTS = frozenset({"application/json", "application/xml", "application/yaml"})


@dataclass(frozen=True, slots=True)
class Readable:
    """A result as text; `whole` is kept when `text` had to be cut.

    `sanitized` counts what was removed or made inert and `flagged` what reads like orders, by rule;
    `before` and `after` are the text's characters.
    """

    text: str
    whole: str = ""
    sanitized: Mapping[str, int] = field(default_factory=dict)
    flagged: Mapping[str, int] = field(default_factory=dict)
    before: int = 0
    after: int = 0

    def changes(self) -> dict[str, Any]:
        """Return what the audit is told of it: numbers and rules, never the text."""
        counted = {"rules": dict(self.sanitized)} if self.sanitized else {}
        return {"before": self.before, "after": self.after, **counted}


def readable(result: dict[str, Any], *, limit: int, result_id: object) -> Readable:
    """Return `result` as text of at most `limit` bytes, with a note where it was cut."""
    read = reading("\n".join(_parts(result)))
    whole = read.text
    raw = whole.encode()
    if len(raw) <= limit:
        return read
    kept = raw[:limit].decode(errors="ignore")
    note = (
        f"\n[cut: {len(kept)} of {len(whole)} characters shown; "
        f"the rest can be read with read_result, result_id {result_id}]"
    )
    return replace(read, text=kept + note, whole=whole)


def reading(text: str) -> Readable:
    """Return a text as models may read it: nothing hides or runs in it; orders are counted."""
    found = inspect_result(text)
    # A lone surrogate is legal in JSON, and in no database or model.
    shown = found.text.encode(errors="replace").decode()
    return Readable(
        shown,
        sanitized=found.sanitized,
        flagged=found.flagged,
        before=len(text),
        after=len(shown),
    )


def weight(value: Any, enough: int) -> int:
    """Return about how many characters a JSON value has; counting ends beyond `enough`."""
    if isinstance(value, str):
        return len(value)
    members: Iterable[Any] = value.values() if isinstance(value, dict) else ()
    total = 8
    for member in value if isinstance(value, list) else members:
        total += weight(member, enough - total)
        if total > enough:
            break
    return total


def completed(result: dict[str, Any]) -> dict[str, Any]:
    """Return a completion as it may be shown: at most 100 values, short, without what hides."""
    found = result.get("completion")
    said = found if isinstance(found, dict) else {}
    values = said.get("values")
    texts = [one for one in values if isinstance(one, str)] if isinstance(values, list) else []
    shown = [clean_result(text[:LONGEST_COMPLETION]).text for text in texts[:MOST_COMPLETIONS]]
    bounded: dict[str, Any] = {"values": shown}
    if isinstance(total := said.get("total"), int):
        bounded["total"] = total
    bounded["hasMore"] = said.get("hasMore") is True or len(texts) > len(shown)
    return result | {"completion": bounded}


def _parts(result: dict[str, Any]) -> Iterable[str]:
    """Yield the texts of a tool's content, a resource's, a prompt's messages, or values."""
    texts = [_part(part) for part in _list(result, "content")]
    if any(texts):
        yield from texts
    elif "structuredContent" in result:
        yield json.dumps(result["structuredContent"], ensure_ascii=False)
    for resource in _list(result, "contents"):
        yield _part({"type": "resource", "resource": resource})
    for message in _list(result, "messages"):
        if isinstance(message, dict):
            content = message.get("content")
            said = content if isinstance(content, list) else [content]
            yield f"{message.get('role', '')}: " + "\n".join(_part(part) for part in said)
    completion = result.get("completion")
    if isinstance(completion, dict):
        yield from (one for one in _list(completion, "values") if isinstance(one, str))


def _list(holder: dict[str, Any], member: str) -> list[Any]:
    found = holder.get(member)
    return found if isinstance(found, list) else []


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return ""
    if part.get("type") == "text":
        return str(part.get("text", ""))
    if part.get("type") in ("image", "audio"):
        return _blob(str(part["type"]), part, part.get("data"))
    if part.get("type") == "resource" and isinstance(part.get("resource"), dict):
        return _resource(part["resource"])
    if part.get("type") == "resource_link":
        return f"[resource {part.get('uri', '')}]"
    return f"[{part.get('type', 'part')}]"


def _resource(resource: dict[str, Any]) -> str:
    if resource.get("text"):
        return str(resource["text"])
    if (text := text_in(resource)) is not None:
        return text
    named = f"resource {resource.get('uri', '')}"
    return _blob(named, resource, resource["blob"]) if "blob" in resource else f"[{named}]"


def text_in(resource: dict[str, Any]) -> str | None:
    """Return the text of a blob whose type says that it is one; None for any other."""
    kind = str(resource.get("mimeType") or "").partition(";")[0].strip().lower()
    blob = resource.get("blob")
    if not isinstance(blob, str) or not (kind.startswith("text/") or kind in TEXTS):
        return None
    try:
        return base64.b64decode(blob, validate=True).decode()
    except ValueError:
        return None


def _blob(what: str, part: dict[str, Any], data: Any) -> str:
    size = len(data.rstrip("=")) * 3 // 4 if isinstance(data, str) else 0
    return f"[{what} {part.get('mimeType', '')}, {size} bytes]"
