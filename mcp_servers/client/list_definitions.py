"""List the definitions that a server declares, page by page.

An invalid item is returned with its fault instead of breaking its listing; a listing that fails or
is cut short leaves a notice, and `complete` names the kinds that were read completely.
"""

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mcp_servers.client.endpoint import Era, ServerEndpoint
from mcp_servers.client.errors import UpstreamError, quote_text
from mcp_servers.client.http_requests import validate_header_annotations
from mcp_servers.client.jsonrpc import TOO_DEEP, McpRequest
from mcp_servers.client.mcp_extensions import (
    SKILLS_EXTENSION,
    select_relayed_extensions,
    validate_skill,
)
from mcp_servers.client.protocol_versions import METHOD_NOT_FOUND, HandshakeResult

Kind = Literal["tool", "resource", "resource_template", "skill", "prompt", "instructions"]

MAX_PAGES = 100
DECLARED_TWICE = "It is declared twice, differently."
MAX_CURSOR = 4096
MAX_ITEM = 64 * 1024
MAX_SKILL = 256 * 1024  # with as many files as a skill may have
MAX_TOTAL = 8 * 1024 * 1024

SendRequest = Callable[[McpRequest], Awaitable[dict[str, Any]]]


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
    result_field: str
    id_field: str


LISTINGS = (
    _ListMethod(
        "tool", capability="tools", method="tools/list", result_field="tools", id_field="name"
    ),
    _ListMethod(
        "resource",
        capability="resources",
        method="resources/list",
        result_field="resources",
        id_field="uri",
    ),
    _ListMethod(
        "resource_template",
        capability="resources",
        method="resources/templates/list",
        result_field="resourceTemplates",
        id_field="uriTemplate",
    ),
    _ListMethod(
        "skill",
        capability=SKILLS_EXTENSION,
        method="skills/list",
        result_field="skills",
        id_field="uri",
    ),
    _ListMethod(
        "prompt",
        capability="prompts",
        method="prompts/list",
        result_field="prompts",
        id_field="name",
    ),
)


@dataclass
class _PartialListing:
    """The definitions read so far."""

    items: dict[tuple[Kind, str], RawDefinition] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    complete: set[Kind] = field(default_factory=set)
    failures: list[UpstreamError] = field(default_factory=list)
    size: int = 0


async def list_all_definitions(
    endpoint: ServerEndpoint, handshake: HandshakeResult, send_request: SendRequest, latency_ms: int
) -> ServerDeclarations:
    """List everything that the server's capabilities declare; raises `UpstreamError`.

    A listing that answers with an error leaves a notice, unless none could be read.
    """
    partial = _PartialListing()
    declared = {**handshake.capabilities, **select_relayed_extensions(handshake.capabilities)}
    for listing in LISTINGS:
        if isinstance(declared.get(listing.capability), dict):
            await _read_listing(endpoint, listing, send_request, partial)
        else:
            # A kind that isn't declared is complete: there are none.
            partial.complete.add(listing.kind)
    if partial.failures and not partial.items:
        raise partial.failures[0]
    if handshake.instructions:
        _add_definition(
            endpoint, "instructions", "instructions", {"text": handshake.instructions}, partial
        )
    partial.complete.add("instructions")
    return ServerDeclarations(
        era=handshake.era,
        protocol_version=handshake.protocol_version,
        server_info=dict(handshake.server_info),
        capabilities=dict(handshake.capabilities),
        instructions=handshake.instructions,
        discovery=dict(handshake.discovery),
        items=tuple(partial.items.values()),
        latency_ms=latency_ms,
        notices=tuple(partial.notices),
        complete=frozenset(partial.complete),
    )


async def _read_listing(
    endpoint: ServerEndpoint,
    listing: _ListMethod,
    send_request: SendRequest,
    partial: _PartialListing,
) -> None:
    """Read one listing to its end or first error."""
    cursor: str | None = None
    seen_cursors: set[str] = set()
    for _ in range(MAX_PAGES):
        params = {} if cursor is None else {"cursor": cursor}
        try:
            page = await send_request(McpRequest(listing.method, params))
        except UpstreamError as error:
            _add_failure(listing, error, partial)
            return
        cut_reason = _add_page(endpoint, listing, page.get(listing.result_field), partial)
        cursor = page.get("nextCursor")
        if cursor is None and not cut_reason:
            partial.complete.add(listing.kind)
            return
        cut_reason = cut_reason or _validate_cursor(cursor, seen_cursors)
        if cut_reason:
            partial.notices.append(f"`{listing.method}` was cut short: {cut_reason}.")
            return
        seen_cursors.add(str(cursor))
    partial.notices.append(f"`{listing.method}` was cut short: more than {MAX_PAGES} pages.")


def _add_failure(listing: _ListMethod, error: UpstreamError, partial: _PartialListing) -> None:
    if error.code not in ("upstream_error", "protocol_error", "response_too_large"):
        raise error
    if listing.kind == "resource_template" and error.rpc_code == METHOD_NOT_FOUND:
        return  # servers with resources need no templates
    partial.failures.append(error)
    partial.notices.append(f"`{listing.method}` failed: {error}")


def _validate_cursor(cursor: Any, seen_cursors: set[str]) -> str:
    if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR:
        return "its cursor is not a short text"
    return "its cursor was there before" if cursor in seen_cursors else ""


def _add_page(
    endpoint: ServerEndpoint, listing: _ListMethod, page: Any, partial: _PartialListing
) -> str:
    """Add the items of a page; return why the listing is cut short, or ""."""
    if not isinstance(page, list):
        return f"`{listing.result_field}` is not a list"
    for payload in page:
        if len(partial.items) >= endpoint.max_definitions:
            return f"more than {endpoint.max_definitions} definitions"
        if partial.size > MAX_TOTAL:
            return f"more than {MAX_TOTAL // 2**20} MiB of definitions"
        identifier = payload.get(listing.id_field) if isinstance(payload, dict) else None
        has_name = isinstance(identifier, str) and identifier
        name = str(identifier) if has_name else f"(unnamed {listing.kind} {len(partial.items) + 1})"
        _add_definition(endpoint, listing.kind, name, payload, partial)
    return ""


def _add_definition(
    endpoint: ServerEndpoint, kind: Kind, name: str, payload: Any, partial: _PartialListing
) -> None:
    if (existing := partial.items.get((kind, name))) is not None:
        quoted_name = quote_text(endpoint, name, 80)
        partial.notices.append(f"The {kind} `{quoted_name}` is declared twice; the first counts.")
        if payload != existing.payload and not existing.fault:
            # It is unknown which of them a call would reach.
            partial.items[kind, name] = replace(existing, fault=DECLARED_TWICE)
        return
    text = json.dumps(payload)
    size = len(text)
    max_size = MAX_SKILL if kind == "skill" else MAX_ITEM
    partial.size += min(size, max_size)
    fault = next(_validate_definition(endpoint, kind, payload), "")
    if size > max_size:
        payload, fault = {}, f"The definition is larger than {max_size // 1024} KiB."
    elif TOO_DEEP in text:
        payload, fault = {}, "The definition is nested too deeply."
    if not isinstance(payload, dict):
        payload = {"value": payload}
    partial.items[kind, name] = RawDefinition(kind, name, payload, fault)


def _validate_definition(endpoint: ServerEndpoint, kind: Kind, payload: Any) -> Iterator[str]:
    """Yield the faults of a definition."""
    if not isinstance(payload, Mapping):
        yield "The definition is not an object."
    elif kind != "instructions":
        yield from _validate_fields(endpoint, kind, payload)


def _validate_fields(
    endpoint: ServerEndpoint, kind: Kind, payload: Mapping[str, Any]
) -> Iterator[str]:
    id_field = next(listing.id_field for listing in LISTINGS if listing.kind == kind)
    if not isinstance(payload.get(id_field), str) or not payload[id_field]:
        yield f"It has no `{id_field}`."
    for field_name in ("title", "description", "mimeType"):
        if not isinstance(payload.get(field_name, ""), str | None):
            yield f"`{field_name}` is not a text."
    for field_name in ("annotations", "_meta", "outputSchema"):
        if not isinstance(payload.get(field_name, {}), dict | None):
            yield f"`{field_name}` is not an object."
    if kind == "tool":
        yield from _validate_schema(endpoint, payload.get("inputSchema"))
    if kind == "skill":
        yield from validate_skill(payload)
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
        and all(
            isinstance(argument, dict) and isinstance(argument.get("name"), str)
            for argument in arguments
        )
    )
