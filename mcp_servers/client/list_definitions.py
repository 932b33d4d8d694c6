"""List the definitions that a server declares, page by page.

An invalid item is returned with its fault instead of breaking its listing; a listing that fails or
is cut short leaves a notice, and `complete` names the kinds that were read completely.
"""

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mcp_servers.client.endpoint import Era, ServerEndpoint
from mcp_servers.client.errors import UpstreamError, quote
from mcp_servers.client.http_channel import validate_header_annotations
from mcp_servers.client.jsonrpc import TOO_DEEP, McpRequest
from mcp_servers.client.protocol_versions import METHOD_NOT_FOUND, HandshakeResult

Kind = Literal["tool", "resource", "resource_template", "prompt", "instructions"]

MAX_PAGES = 100
DECLARED_TWICE = "It is declared twice, differently."
MAX_CURSOR = 4096
MAX_ITEM = 64 * 1024
MAX_TOTAL = 8 * 1024 * 1024

Ask = Callable[[McpRequest], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class RawDefinition:
    """One definition as declared; `fault` says why it can't be used, or is ""."""

    kind: Kind
    name: str
    payload: dict[str, Any]
    fault: str = ""


@dataclass(frozen=True)
class ServerDeclarations:
    """What a server declares about itself, and its definitions."""

    era: Era
    protocol_version: str
    server_info: dict[str, Any]
    capabilities: dict[str, Any]
    instructions: str
    discovery: dict[str, Any]
    items: tuple[RawDefinition, ...]
    latency_ms: int
    notices: tuple[str, ...] = ()
    complete: frozenset[Kind] = frozenset()


@dataclass(frozen=True)
class _ListMethod:
    """How one kind of definition is listed."""

    kind: Kind
    capability: str
    method: str
    member: str
    identity: str


LISTINGS = (
    _ListMethod("tool", "tools", "tools/list", "tools", "name"),
    _ListMethod("resource", "resources", "resources/list", "resources", "uri"),
    _ListMethod(
        "resource_template",
        "resources",
        "resources/templates/list",
        "resourceTemplates",
        "uriTemplate",
    ),
    _ListMethod("prompt", "prompts", "prompts/list", "prompts", "name"),
)


@dataclass
class _PartialListing:
    """The definitions read so far."""

    items: dict[tuple[Kind, str], RawDefinition] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    complete: set[Kind] = field(default_factory=set)
    failures: list[UpstreamError] = field(default_factory=list)
    size: int = 0


async def read_all(
    endpoint: ServerEndpoint, greeting: HandshakeResult, ask: Ask, latency_ms: int
) -> ServerDeclarations:
    """List everything that the server's capabilities declare; raises `UpstreamError`.

    A listing that answers with an error leaves a notice, unless none could be read.
    """
    reading = _PartialListing()
    for listing in LISTINGS:
        if isinstance(greeting.capabilities.get(listing.capability), dict):
            await _read(endpoint, listing, ask, reading)
        else:
            # A kind that isn't declared is complete: there are none.
            reading.complete.add(listing.kind)
    if reading.failures and not reading.items:
        raise reading.failures[0]
    if greeting.instructions:
        _keep(endpoint, "instructions", "instructions", {"text": greeting.instructions}, reading)
    reading.complete.add("instructions")
    return ServerDeclarations(
        era=greeting.era,
        protocol_version=greeting.protocol_version,
        server_info=dict(greeting.server_info),
        capabilities=dict(greeting.capabilities),
        instructions=greeting.instructions,
        discovery=dict(greeting.discovery),
        items=tuple(reading.items.values()),
        latency_ms=latency_ms,
        notices=tuple(reading.notices),
        complete=frozenset(reading.complete),
    )


async def _read(
    endpoint: ServerEndpoint, listing: _ListMethod, ask: Ask, reading: _PartialListing
) -> None:
    """Read one listing to its end or first error."""
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(MAX_PAGES):
        params = {} if cursor is None else {"cursor": cursor}
        try:
            page = await ask(McpRequest(listing.method, params))
        except UpstreamError as error:
            _add_failure(listing, error, reading)
            return
        cut = _take(endpoint, listing, page.get(listing.member), reading)
        cursor = page.get("nextCursor")
        if cursor is None and not cut:
            reading.complete.add(listing.kind)
            return
        cut = cut or _validate_cursor(cursor, seen)
        if cut:
            reading.notices.append(f"`{listing.method}` was cut short: {cut}.")
            return
        seen.add(str(cursor))
    reading.notices.append(f"`{listing.method}` was cut short: more than {MAX_PAGES} pages.")


def _add_failure(listing: _ListMethod, error: UpstreamError, reading: _PartialListing) -> None:
    if error.code not in ("upstream_error", "protocol_error", "response_too_large"):
        raise error
    if listing.kind == "resource_template" and error.rpc_code == METHOD_NOT_FOUND:
        return  # servers with resources need no templates
    reading.failures.append(error)
    reading.notices.append(f"`{listing.method}` failed: {error}")


def _validate_cursor(cursor: Any, seen: set[str]) -> str:
    if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR:
        return "its cursor is not a short text"
    return "its cursor was there before" if cursor in seen else ""


def _take(
    endpoint: ServerEndpoint, listing: _ListMethod, page: Any, reading: _PartialListing
) -> str:
    """Add the items of a page; return why the listing is cut short, or ""."""
    if not isinstance(page, list):
        return f"`{listing.member}` is not a list"
    for payload in page:
        if len(reading.items) >= endpoint.max_definitions:
            return f"more than {endpoint.max_definitions} definitions"
        if reading.size > MAX_TOTAL:
            return f"more than {MAX_TOTAL // 2**20} MiB of definitions"
        found = payload.get(listing.identity) if isinstance(payload, dict) else None
        known = isinstance(found, str) and found
        name = str(found) if known else f"(unnamed {listing.kind} {len(reading.items) + 1})"
        _keep(endpoint, listing.kind, name, payload, reading)
    return ""


def _keep(
    endpoint: ServerEndpoint, kind: Kind, name: str, payload: Any, reading: _PartialListing
) -> None:
    if (known := reading.items.get((kind, name))) is not None:
        shown = quote(endpoint, name, 80)
        reading.notices.append(f"The {kind} `{shown}` is declared twice; the first counts.")
        if payload != known.payload and not known.fault:
            # It is unknown which of them a call would reach.
            reading.items[kind, name] = replace(known, fault=DECLARED_TWICE)
        return
    text = json.dumps(payload)
    size = len(text)
    reading.size += min(size, MAX_ITEM)
    fault = next(_validate_definition(endpoint, kind, payload), "")
    if size > MAX_ITEM:
        payload, fault = {}, f"The definition is larger than {MAX_ITEM // 1024} KiB."
    elif TOO_DEEP in text:
        payload, fault = {}, "The definition is nested too deeply."
    if not isinstance(payload, dict):
        payload = {"value": payload}
    reading.items[kind, name] = RawDefinition(kind, name, payload, fault)


def _validate_definition(endpoint: ServerEndpoint, kind: Kind, payload: Any) -> Iterator[str]:
    """Yield the faults of a definition."""
    if not isinstance(payload, Mapping):
        yield "The definition is not an object."
    elif kind != "instructions":
        yield from _validate_fields(endpoint, kind, payload)


def _validate_fields(
    endpoint: ServerEndpoint, kind: Kind, payload: Mapping[str, Any]
) -> Iterator[str]:
    identity = next(listing.identity for listing in LISTINGS if listing.kind == kind)
    if not isinstance(payload.get(identity), str) or not payload[identity]:
        yield f"It has no `{identity}`."
    for member in ("title", "description", "mimeType"):
        if not isinstance(payload.get(member, ""), str | None):
            yield f"`{member}` is not a text."
    for member in ("annotations", "_meta", "outputSchema"):
        if not isinstance(payload.get(member, {}), dict | None):
            yield f"`{member}` is not an object."
    if kind == "tool":
        yield from _validate_schema(endpoint, payload.get("inputSchema"))
    if kind == "prompt" and not _is_argument_list(payload.get("arguments")):
        yield "`arguments` is not a list of named arguments."


def _validate_schema(endpoint: ServerEndpoint, schema: Any) -> Iterator[str]:
    if not isinstance(schema, dict):
        yield "`inputSchema` is not an object."
    elif schema.get("type", "object") != "object":
        yield "`inputSchema` does not describe an object."
    elif endpoint.transport == "http" and (fault := validate_header_annotations(schema)):
        yield f"{fault}."


def _is_argument_list(arguments: Any) -> bool:
    return arguments is None or (
        isinstance(arguments, list)
        and all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in arguments)
    )
