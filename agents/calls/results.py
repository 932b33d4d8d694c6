"""Results as text; input required, tasks. Pure.

MCP 2026-07-28: multi round-trip requests, and the tasks extension; and the error of 2025-11-25 by
which a server wants a web page visited first (-32042).
"""

import base64
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mcp_servers.client.server_requests import METHODS
from mcp_servers.scanning import clean_result, inspect_result

# The protocol's own bound on the values of a completion, and ours on each of them.
MOST_COMPLETIONS = 100
LONGEST_COMPLETION = 512
# Texts whose type doesn't begin with `text/`.
TEXTS = frozenset({"application/json", "application/xml", "application/yaml"})


@dataclass(frozen=True, slots=True)
class ResultText:
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


def render_result(result: dict[str, Any], *, limit: int, result_id: object) -> ResultText:
    """Return `result` as text of at most `limit` bytes, with a note where it was cut."""
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
    """Return a text as models may read it: nothing hides or runs in it; orders are counted."""
    found = inspect_result(text)
    # A lone surrogate is legal in JSON, and in no database or model.
    shown = found.text.encode(errors="replace").decode()
    return ResultText(
        shown,
        sanitized=found.sanitized,
        flagged=found.flagged,
        before=len(text),
        after=len(shown),
    )


def estimate_size(value: Any, enough: int) -> int:
    """Return about how many characters a JSON value has; counting ends beyond `enough`."""
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


def _render_parts(result: dict[str, Any]) -> Iterable[str]:
    """Yield the texts of a tool's content, a resource's, a prompt's messages, or values."""
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
    """Return the text of a blob whose type says that it is one; None for any other."""
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
    """A server asks for what it may not, or for too much; the text says what."""


@dataclass(frozen=True)
class IncompleteResult:
    """What a call needs to go on; `state` is None where the server sent none."""

    kind: Kind
    requests: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    state: str | None = None
    task_id: str = ""
    poll_ms: int = 0
    ttl_ms: int | None = None


def parse_incomplete_result(
    result: Mapping[str, Any], may_ask: Collection[str]
) -> IncompleteResult | None:
    """Return how a call goes on whose result isn't its last; raises `BadRequest`."""
    kind = result.get("resultType", "complete")
    if kind == "task":
        return parse_task(result, may_ask)
    if kind == "url":  # what an error -32042 was made into; no server can send that
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
    """Return a task as it stands; raises `BadRequest`."""
    number, poll, ttl = (result.get(name) for name in ("taskId", "pollIntervalMs", "ttlMs"))
    if not isinstance(number, str) or not 0 < len(number) <= LONGEST_KEY:
        raise InvalidInputRequest("its task has no usable id")
    requests: Mapping[str, dict[str, Any]] = {}
    if result.get("status") == "input_required":
        requests = parse_input_requests(result.get("inputRequests") or {}, may_ask)
    return IncompleteResult("task", requests, None, number, poll_ms(poll), _parse_whole_number(ttl))


def parse_input_requests(requests: Any, may_ask: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return what is asked, by its keys; raises `BadRequest`."""
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
    """Return the visits that an error -32042 wants, as a modern server would ask for them."""
    wanted = data.get("elicitations") if isinstance(data, dict) else None
    listed = wanted if isinstance(wanted, list) else []
    return {
        str(place): {"method": "elicitation/create", "params": one}
        for place, one in enumerate(listed)
        if isinstance(one, dict) and one.get("mode") == "url"
    }


def poll_ms(value: Any) -> int:
    """Return how long to wait between two looks at a task, in milliseconds."""
    return max(LEAST_POLL_MS, min(_parse_whole_number(value) or USUAL_POLL_MS, MOST_POLL_MS))


def _parse_whole_number(value: Any) -> int | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return int(value) if fits else None
