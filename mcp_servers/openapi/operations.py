"""Operations of a document as tools: a fault in one refuses that one only: pure."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_servers.openapi.extensions import PLAN, planned
from mcp_servers.openapi.parameters import taken_by
from mcp_servers.openapi.reading import Document, Refused, pointer_to
from mcp_servers.openapi.translating import Translation, text_of

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "query")
READING = ("get", "head", "options", "query")
IDEMPOTENT = (*READING, "put", "delete")
LONGEST_NAME = 64
LONGEST_SUMMARY = 300
ANSWER_NODES = 400
MOST_OPERATIONS = 10_000
_JSON = re.compile(r"application/(?:json|[\w.+-]+\+json)")


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation: `key` (`GET /pets`) is its identity; `refused` says why it can't be a tool."""

    key: str
    name: str
    method: str
    path: str
    pointer: str
    operation_id: str = ""
    summary: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    deprecated: bool = False
    refused: str = ""
    at: str = ""
    tool: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def reads(self) -> bool:
        """Tell whether its method is one that changes nothing."""
        return self.method in READING

    def as_dict(self) -> dict[str, Any]:
        """Return what a person chooses by."""
        return {
            "key": self.key,
            "name": self.name,
            "operation_id": self.operation_id,
            "method": self.method.upper(),
            "path": self.path,
            "summary": (self.summary or self.description.partition("\n")[0])[:LONGEST_SUMMARY],
            "tags": list(self.tags),
            "writes": not self.reads,
            "deprecated": self.deprecated,
            "refused": self.refused,
            "pointer": self.at or self.pointer,
        }


def operations(document: Document) -> Iterator[Operation]:
    """Yield every operation of a document, in its order."""
    found = list(_listed(document))[:MOST_OPERATIONS]
    names = _names([(key, node) for key, _, _, node, _ in found])
    for key, path, method, node, levels in found:
        yield _operation(document, key, names[key], path, method, node, levels)


_Level = tuple[Any, str]


def _listed(document: Document) -> Iterator[tuple[str, str, str, Any, list[_Level]]]:
    for path, item in document.root.get("paths", {}).items():
        pointer = pointer_to("paths", path)
        if path.startswith("x-"):
            continue
        try:
            item, pointer = document.follow(item, pointer)
        except Refused as refusal:
            yield f"ANY {path}", path, "any", refusal, [({}, pointer)]
            continue
        if not isinstance(item, dict):
            continue
        for method in METHODS:
            if method in item:
                place = pointer + pointer_to(method)
                key = f"{method.upper()} {path}"
                yield key, path, method, item[method], [(item, pointer), (item[method], place)]


def _operation(
    document: Document,
    key: str,
    name: str,
    path: str,
    method: str,
    node: Any,
    levels: list[_Level],
) -> Operation:
    known: dict[str, Any] = {"key": key, "name": name, "method": method, "path": path}
    known["pointer"] = levels[-1][1]
    if isinstance(node, Refused):
        return Operation(**known, refused=str(node), at=node.pointer)
    if not isinstance(node, dict):
        return Operation(**known, refused="The operation is not an object.")
    tags = node.get("tags")
    known |= {
        "operation_id": text_of(node, "operationId"),
        "summary": text_of(node, "summary"),
        "description": text_of(node, "description"),
        "tags": tuple(one for one in tags if isinstance(one, str))
        if isinstance(tags, list)
        else (),
        "deprecated": node.get("deprecated") is True,
    }
    try:
        _at_home(document, levels)
        tool = _tool(document, key, name, path, method, levels)
        return Operation(**known, tool=tool)
    except Refused as refusal:
        return Operation(**known, refused=str(refusal), at=refusal.pointer)


def _at_home(document: Document, levels: list[_Level]) -> None:
    """Refuse an operation that has servers of its own: a credential is for one place only."""
    for node, pointer in levels:
        if isinstance(node, dict) and node.get("servers", document.root.get("servers")) != (
            document.root.get("servers")
        ):
            raise Refused("It has servers of its own; add it as a server by itself.", pointer)


def _tool(
    document: Document, key: str, name: str, path: str, method: str, levels: list[_Level]
) -> dict[str, Any]:
    operation, pointer = levels[-1]
    translation = Translation(document)
    taken = taken_by(document, translation, path, levels)
    schema: dict[str, Any] = {"type": "object", "properties": taken.properties}
    if taken.required:
        schema["required"] = taken.required
    schema["additionalProperties"] = False
    plan: dict[str, Any] = {"key": key, "method": method.upper(), "path": path}
    plan["parameters"] = taken.parameters
    if taken.body:
        plan["body"] = taken.body
    plan |= planned(operation, taken.properties)
    summary, description = text_of(operation, "summary"), text_of(operation, "description")
    tool: dict[str, Any] = {
        "name": name,
        "description": "\n\n".join(dict.fromkeys(filter(None, (summary, description)))) or key,
        "inputSchema": translation.whole(schema),
        "annotations": _annotations(method, summary),
        "_meta": {PLAN: plan},
    }
    if answer := _answer(document, operation, pointer):
        tool["outputSchema"] = answer
    return tool


def _annotations(method: str, title: str) -> dict[str, Any]:
    """Return hints made of the method, which any definition may give and nobody decides by."""
    hints: dict[str, Any] = {"readOnlyHint": method in READING}
    if method not in READING:
        hints |= {"destructiveHint": method != "post", "idempotentHint": method in IDEMPOTENT}
    return hints | {"openWorldHint": True} | ({"title": title} if title else {})


def _answer(
    document: Document, operation: Mapping[str, Any], pointer: str
) -> dict[str, Any] | None:
    """Return what the JSON answer of success looks like; None where that isn't sound."""
    try:
        schema, place = _success(document, operation, f"{pointer}/responses")
        if schema is None:
            return None
        translation = Translation(document, of="answer", most=ANSWER_NODES)
        root, place = translation.root(schema, place)
        if isinstance(root, dict) and root.get("type") == "object":
            found = translation.schema(root, place)
            return translation.whole(found | {"type": "object"})
        inner = translation.schema(schema, place)
        return translation.whole({"type": "object", "properties": {"result": inner}})
    except Refused:
        return None


def _success(document: Document, operation: Mapping[str, Any], pointer: str) -> tuple[Any, str]:
    responses = operation.get("responses")
    if not isinstance(responses, dict):
        return None, pointer
    for status in sorted(responses):
        if not str(status).startswith("2"):
            continue
        response, place = document.follow(responses[status], pointer + pointer_to(str(status)))
        content = response.get("content") if isinstance(response, dict) else None
        for media, inner in content.items() if isinstance(content, dict) else ():
            if _JSON.fullmatch(media.partition(";")[0].strip().lower()) and isinstance(inner, dict):
                return inner.get("schema"), place + pointer_to("content", media, "schema")
    return None, pointer


def _names(found: list[tuple[str, Any]]) -> dict[str, str]:
    """Return a name for each key: unique, plain, and none of them hanging on the order."""
    wanted = {key: _plain(key, node) for key, node in found}
    often = Counter(name.lower() for name in wanted.values())
    return {
        key: name if often[name.lower()] == 1 and len(name) <= LONGEST_NAME else _marked(name, key)
        for key, name in wanted.items()
    }


def _plain(key: str, node: Any) -> str:
    said = text_of(node, "operationId") or key.lower()
    return re.sub(r"[^A-Za-z0-9-]+", "_", said).strip("_") or "operation"


def _marked(name: str, key: str) -> str:
    mark = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - len(mark) - 1]}_{mark}"
