"""Mirrors: the headers in which a modern HTTP request repeats parts of its body.

Proxies route on `Mcp-Method`, `Mcp-Name` and, where a tool's schema asks for it with
`x-mcp-header`, on single arguments; a server refuses a request whose headers and body differ.
Rules: MCP 2026-07-28, transports, "Custom Headers".
"""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

from bonobot.lib.by_identity import ByIdentity
from mcp_servers.connections.wire import MODERN, Request

ANNOTATION = "x-mcp-header"
NAMED_BY = {
    **{"tools/call": "name", "prompts/get": "name", "resources/read": "uri"},
    **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId"),
}
MIRRORED_TYPES = ("string", "integer", "boolean")  # a float has no one spelling

TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
PLAIN = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?|")
SENTINEL = re.compile(r"=\?base64\?.*\?=")

# The keywords of JSON Schema 2020-12 whose values are schemas: one, a list, a map of them.
ONE = (
    *("items", "contains", "not", "if", "then", "else", "additionalProperties", "propertyNames"),
    *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
)
SEVERAL = ("allOf", "anyOf", "oneOf", "prefixItems")
NAMED = ("patternProperties", "dependentSchemas", "$defs", "definitions")

Path = tuple[str, ...]


def routing_headers(request: Request) -> dict[str, str]:
    """Return the headers that mirror `request`."""
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": request.method}
    name = request.params.get(NAMED_BY.get(request.method, ""))
    if isinstance(name, str):
        headers["Mcp-Name"] = encoded(name)
    if request.method == "tools/call" and request.input_schema:
        headers |= _arguments(request.input_schema, request.params.get("arguments"))
    return headers


def encoded(value: str) -> str:
    """Return `value` as a header can carry it: in base64 unless it is plain ASCII."""
    if PLAIN.fullmatch(value) and not SENTINEL.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'replace')).decode('ascii')}?="


def annotation_fault(schema: Any) -> str:
    """Say what is wrong with a schema's `x-mcp-header` annotations; "" when nothing is."""
    seen: set[str] = set()
    for path, node in _positions(schema):
        if ANNOTATION not in node:
            continue
        token = node[ANNOTATION]
        if not path:
            return f"`{ANNOTATION}` where no plain property is"
        if not isinstance(token, str) or not TOKEN.fullmatch(token):
            return f"`{ANNOTATION}` of `{'.'.join(path)}` is not a header's name"
        if node.get("type") not in MIRRORED_TYPES:
            return f"`{ANNOTATION}` of `{'.'.join(path)}`, which is no string, integer or boolean"
        if token.lower() in seen:
            return f"`{ANNOTATION}` {token!r} is there twice"
        seen.add(token.lower())
    return ""


def _arguments(schema: Mapping[str, Any], arguments: Any) -> dict[str, str]:
    headers = {}
    for path, token in _mirrored.of(schema):
        value = _at(arguments, path)
        if isinstance(value, bool):
            headers[f"Mcp-Param-{token}"] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            headers[f"Mcp-Param-{token}"] = encoded(str(value))
    return headers


def _annotated(schema: Any) -> tuple[tuple[Path, str], ...]:
    """Return where the arguments stand that are mirrored, with the names of their headers."""
    found = ((path, node.get(ANNOTATION)) for path, node in _positions(schema))
    return tuple((path, token) for path, token in found if path and isinstance(token, str))


_mirrored = ByIdentity(_annotated)


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _positions(root: Any) -> Iterator[tuple[Path | None, Mapping[str, Any]]]:
    """Yield every schema within `root` with its chain of `properties`, None off that chain."""
    left: list[tuple[Path | None, Any]] = [((), root)]
    while left:
        path, node = left.pop()
        if not isinstance(node, dict):
            continue
        yield path, node
        for keyword, value in node.items():
            if keyword == "properties" and isinstance(value, dict):
                for name, inner in value.items():
                    left.append((None if path is None else (*path, name), inner))
            elif keyword in ONE:
                left.append((None, value))
            elif keyword in SEVERAL and isinstance(value, list):
                left.extend((None, inner) for inner in value)
            elif keyword in NAMED and isinstance(value, dict):
                left.extend((None, inner) for inner in value.values())
