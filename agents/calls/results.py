"""Render results as text and parse incomplete ones. No I/O.

Covers multi round-trip requests and the tasks extension of MCP 2026-07-28, and error -32042 of
MCP 2025-11-25 (URL elicitation required).
"""

import base64
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mcp_servers.client.server_requests import METHODS
from mcp_servers.scanning import clean_result, inspect_result

# MCP's limit on the number of completion values, and our limit on their length.
MOST_COMPLETIONS = 100
LONGEST_COMPLETION = 512
# Text types that don't start with `text/`.
TEXTS = frozenset({"application/json", "application/xml", "application/yaml"})


@dataclass(frozen=True, slots=True)
class ResultText:
    """A result as text; `full_text` is set if `text` was truncated.

    `sanitized` counts what was removed or escaped and `flagged` what reads like instructions, by
    rule; the lengths before and after are in characters.
    """

    text: str
    whole: str = ""
    sanitized: Mapping[str, int] = field(default_factory=dict)
    flagged: Mapping[str, int] = field(default_factory=dict)
    before: int = 0
    after: int = 0

    def changes(self) -> dict[str, Any]:
        """Return the counts and rules for the audit log, never the text."""
        counted = {"rules": dict(self.sanitized)} if self.sanitized else {}
        return {"before": self.before, "after": self.after, **counted}


def render_result(result: dict[str, Any], *, limit: int, result_id: object) -> ResultText:
    """Return `result` as text, truncated to `limit` bytes plus a note."""
    read = clean_text("\n".join(_render_parts(result)))
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


def clean_text(text: str) -> ResultText:
    """Return a text that is safe for models, with counts of what was removed or flagged."""
    found = inspect_result(text)
    # JSON allows lone surrogates; databases and models don't.
    shown = found.text.encode(errors="replace").decode()
    return ResultText(
        shown,
        sanitized=found.sanitized,
        flagged=found.flagged,
        before=len(text),
        after=len(shown),
    )


def estimate_size(value: Any, enough: int) -> int:
    """Return about how many characters a JSON value has; stops counting beyond `limit`."""
    if isinstance(value, str):
        return len(value)
    members: Iterable[Any] = value.values() if isinstance(value, dict) else ()
    total = 8
    for member in value if isinstance(value, list) else members:
        total += estimate_size(member, enough - total)
        if total > enough:
            break
    return total


def clean_completion(result: dict[str, Any]) -> dict[str, Any]:
    """Return a completion that is safe to show: at most 100 short values without hidden content."""
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


def _render_parts(result: dict[str, Any]) -> Iterable[str]:
    """Yield the texts of tool content, resource contents, prompt messages or completion values."""
    texts = [_render_part(part) for part in _list(result, "content")]
    if any(texts):
        yield from texts
    elif "structuredContent" in result:
        yield json.dumps(result["structuredContent"], ensure_ascii=False)
    for resource in _list(result, "contents"):
        yield _render_part({"type": "resource", "resource": resource})
    for message in _list(result, "messages"):
        if isinstance(message, dict):
            content = message.get("content")
            said = content if isinstance(content, list) else [content]
            yield f"{message.get('role', '')}: " + "\n".join(_render_part(part) for part in said)
    completion = result.get("completion")
    if isinstance(completion, dict):
        yield from (one for one in _list(completion, "values") if isinstance(one, str))


def _list(holder: dict[str, Any], member: str) -> list[Any]:
    found = holder.get(member)
    return found if isinstance(found, list) else []


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
    named = f"resource {resource.get('uri', '')}"
    return _describe_blob(named, resource, resource["blob"]) if "blob" in resource else f"[{named}]"


def decode_text_blob(resource: dict[str, Any]) -> str | None:
    """Return the text of a blob with a text type, else None."""
    kind = str(resource.get("mimeType") or "").partition(";")[0].strip().lower()
    blob = resource.get("blob")
    if not isinstance(blob, str) or not (kind.startswith("text/") or kind in TEXTS):
        return None
    try:
        return base64.b64decode(blob, validate=True).decode()
    except ValueError:
        return None


def _describe_blob(what: str, part: dict[str, Any], data: Any) -> str:
    size = len(data.rstrip("=")) * 3 // 4 if isinstance(data, str) else 0
    return f"[{what} {part.get('mimeType', '')}, {size} bytes]"


Kind = Literal["input", "url", "task"]

URL_NEEDED = -32042
MOST_REQUESTS = 16
LONGEST_KEY = 255
LONGEST_STATE = 64 * 1024
MOST_ASKED = 64 * 1024
ROUNDS = 10
LEAST_POLL_MS = 500
USUAL_POLL_MS = 2_000
MOST_POLL_MS = 3_600_000


class InvalidInputRequest(Exception):
    """A server asked for something it may not, or for too much; the message says what."""


@dataclass(frozen=True)
class IncompleteResult:
    """What a call needs to continue; `state` is the server's request state, if any."""

    kind: Kind
    requests: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    state: str | None = None
    task_id: str = ""
    poll_ms: int = 0
    ttl_ms: int | None = None


def parse_incomplete_result(
    result: Mapping[str, Any], may_ask: Collection[str]
) -> IncompleteResult | None:
    """Return what an incomplete result asks for, or None; raises `InvalidInputRequest`."""
    kind = result.get("resultType", "complete")
    if kind == "task":
        return parse_task(result, may_ask)
    if kind == "url":  # created from error -32042; servers can't send it
        return IncompleteResult("url", parse_input_requests(result.get("inputRequests"), may_ask))
    if kind != "input_required":
        return None
    state = result.get("requestState")
    if state is not None and (not isinstance(state, str) or len(state) > LONGEST_STATE):
        raise InvalidInputRequest(f"its state is no text of at most {LONGEST_STATE} characters")
    requests = parse_input_requests(result.get("inputRequests") or {}, may_ask)
    if state is None and not requests:
        raise InvalidInputRequest("it asks for input without saying which")
    return IncompleteResult("input", requests, state)


def parse_task(result: Mapping[str, Any], may_ask: Collection[str]) -> IncompleteResult:
    """Return the state of a task; raises `InvalidInputRequest`."""
    number, poll, ttl = (result.get(name) for name in ("taskId", "pollIntervalMs", "ttlMs"))
    if not isinstance(number, str) or not 0 < len(number) <= LONGEST_KEY:
        raise InvalidInputRequest("its task has no usable id")
    requests: Mapping[str, dict[str, Any]] = {}
    if result.get("status") == "input_required":
        requests = parse_input_requests(result.get("inputRequests") or {}, may_ask)
    return IncompleteResult("task", requests, None, number, poll_ms(poll), _parse_whole_number(ttl))


def parse_input_requests(requests: Any, may_ask: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the input requests by key; raises `InvalidInputRequest`."""
    if not isinstance(requests, dict) or len(requests) > MOST_REQUESTS:
        raise InvalidInputRequest(f"it asks for more than {MOST_REQUESTS} things at once")
    if estimate_size(requests, MOST_ASKED) > MOST_ASKED:
        raise InvalidInputRequest("it asks at too great length")
    found = {}
    for key, one in requests.items():
        method = one.get("method") if isinstance(one, dict) else None
        if not 0 < len(key) <= LONGEST_KEY or not isinstance(method, str):
            raise InvalidInputRequest("it asks without a key or a method")
        if METHODS.get(method) not in may_ask:
            raise InvalidInputRequest(f"it asks for `{method[:60]}`, which it was not offered")
        params = one.get("params")
        found[key] = {"method": method, "params": params if isinstance(params, dict) else {}}
    return found


def parse_url_elicitations(data: Any) -> dict[str, dict[str, Any]]:
    """Return the URL elicitations of an error -32042 as input requests by key."""
    wanted = data.get("elicitations") if isinstance(data, dict) else None
    listed = wanted if isinstance(wanted, list) else []
    return {
        str(place): {"method": "elicitation/create", "params": one}
        for place, one in enumerate(listed)
        if isinstance(one, dict) and one.get("mode") == "url"
    }


def poll_ms(value: Any) -> int:
    """Return the poll interval of a task in milliseconds."""
    return max(LEAST_POLL_MS, min(_parse_whole_number(value) or USUAL_POLL_MS, MOST_POLL_MS))


def _parse_whole_number(value: Any) -> int | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return int(value) if fits else None
