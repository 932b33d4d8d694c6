"""Tools, resources and prompts as clients see them, with prefixed URIs.

Only permitted definitions are listed; a client can't tell a denied one from a missing one. At an
agent's address, tools have the agent's names for them, and prompts and URIs are prefixed with their
server's slug; at a server's address, everything keeps the server's names.

URIs and URI templates get the slug in front of their scheme, `docs+file:///a.txt`, like `git+ssh:`.
A client's URI is resolved by the known prefixes, never guessed.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agents.calls.snapshots import CallSnapshot, SnapshotDefinition, SnapshotTool
from agents.gateway.client_request import build_invalid_params_error
from agents.gateway.routes import GatewayTarget
from mcp_servers.client.change_notifications import TOPICS
from mcp_servers.client.jsonrpc import TASKS_EXTENSION
from mcp_servers.oauth_client.access_tokens import is_per_person
from mcp_servers.subscriptions.resource_updated import can_follow

Rename = Callable[[str], str]
MARK = "+"
# Prepended to slugs that don't start with a letter, as a scheme must.
_LETTER = "s"
# Where a tool's UI resource is named (MCP Apps extension).
UI = "ui"
UI_URI = "resourceUri"


def build_uri_prefix(slug: str) -> str:
    """Return the prefix of a server's URIs: letters, digits, `-` and `.`, then `+`."""
    safe = slug.replace("_", ".")
    return (safe if safe[:1].isalpha() else _LETTER + safe) + MARK


def resolve_uri(uri: str, servers: Mapping[str, UUID]) -> tuple[UUID, str] | None:
    """Return the server's id and its own URI for a client's `uri`; None if no prefix matches.

    `servers` maps prefixes to ids.
    """
    head, mark, rest = uri.partition(MARK)
    server_id = servers.get(head + mark)
    return (server_id, rest) if server_id is not None and rest else None


def rename_resources(result: Any, rename: Rename) -> Any:
    """Return a result with the client's URIs for its resources; the rest is shared.

    Resources are in `contents`, and as links and embedded resources in a tool's `content` and a
    prompt's `messages`.
    """
    if not isinstance(result, Mapping):
        return result
    changed: dict[str, Any] = {}
    if isinstance(found := result.get("contents"), list):
        changed["contents"] = [_rename_resource(one, rename) for one in found]
    if isinstance(found := result.get("content"), list):
        changed["content"] = [_rename_block(one, rename) for one in found]
    if isinstance(found := result.get("messages"), list):
        changed["messages"] = [_message(one, rename) for one in found]
    return {**result, **changed} if changed else result


def rename_ui_resource(declaration: Mapping[str, Any], rename: Rename) -> dict[str, Any]:
    """Return a tool's declaration with the client's URI for its UI resource."""
    meta = declaration.get("_meta")
    if not isinstance(meta, Mapping) or not isinstance(page := meta.get(UI), Mapping):
        return dict(declaration)
    if not isinstance(page.get(UI_URI), str):
        return dict(declaration)
    named = {**page, UI_URI: rename(page[UI_URI])}
    return {**declaration, "_meta": {**meta, UI: named}}


def _rename_resource(one: Any, rename: Rename) -> Any:
    if isinstance(one, Mapping) and isinstance(one.get("uri"), str):
        return {**one, "uri": rename(one["uri"])}
    return one


def _rename_block(block: Any, rename: Rename) -> Any:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind == "resource_link":
        return _rename_resource(block, rename)
    if kind == "resource":
        return {**block, "resource": _rename_resource(block.get("resource"), rename)}
    return block


def _message(message: Any, rename: Rename) -> Any:
    if not isinstance(message, Mapping):
        return message
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [_rename_block(one, rename) for one in content]}
    return {**message, "content": _rename_block(content, rename)}


PAGE = 500
SHELF = "gateway shelf"
Declaration = dict[str, Any]


@dataclass(frozen=True)
class GatewayCatalog:
    """The declarations of a target, in a stable order, and lookups by the client's names."""

    tools: tuple[Declaration, ...]
    resources: tuple[Declaration, ...]
    templates: tuple[Declaration, ...]
    prompts: tuple[Declaration, ...]
    offers: Mapping[str, SnapshotDefinition]
    prefixes: Mapping[str, UUID]
    capabilities: Mapping[str, Any]
    # The capabilities for people, who can also watch resources of servers with per-person sign-in.
    to_people: Mapping[str, Any]
    instructions: str

    def prompt(self, name: str) -> SnapshotDefinition | None:
        """Find the prompt by the client's name for it."""
        return self.offers.get(name)

    def resource(self, uri: str) -> tuple[UUID, str] | None:
        """Find the server's id and its own URI (or template) for a client's `uri`."""
        only = self.prefixes.get("")
        return (only, uri) if only else resolve_uri(uri, self.prefixes)

    def rename(self, server_id: UUID) -> Rename:
        """Return a function that converts a server's URIs to the client's."""
        before = next((one for one, whose in self.prefixes.items() if whose == server_id), "")
        return lambda uri: before + uri


def get_catalog(place: GatewayTarget, snapshot: CallSnapshot) -> GatewayCatalog:
    """Return a target's catalog, cached in its snapshot."""
    found = snapshot.memo.get(SHELF)
    if found is None:
        found = snapshot.memo[SHELF] = _build_catalog(place, snapshot)
    assert isinstance(found, GatewayCatalog)  # noqa: S101 - nobody else writes there
    return found


def build_page(declarations: tuple[Declaration, ...], member: str, cursor: Any) -> dict[str, Any]:
    """Return one page of a list and the cursor of the next; raises `MCPError` for a bad cursor."""
    start = 0 if cursor is None else _parse_cursor(cursor)
    if start > len(declarations):
        raise build_invalid_params_error("`cursor` belongs to no list here")
    found: dict[str, Any] = {member: list(declarations[start : start + PAGE])}
    if start + PAGE < len(declarations):
        found["nextCursor"] = urlsafe_b64encode(str(start + PAGE).encode()).decode()
    return found


def _parse_cursor(cursor: Any) -> int:
    try:
        text = urlsafe_b64decode(str(cursor)).decode("ascii")
    except (ValueError, UnicodeDecodeError):
        text = ""
    if not text.isdecimal() or len(text) > 9:
        raise build_invalid_params_error("`cursor` belongs to no list here")
    return int(text)


def _build_catalog(place: GatewayTarget, snapshot: CallSnapshot) -> GatewayCatalog:
    named = place.kind == "agent"
    servers = snapshot.servers.values()
    prefixes = {build_uri_prefix(one.slug) if named else "": one.id for one in servers}
    before = {server_id: start for start, server_id in prefixes.items()}

    def offers(kind: str) -> list[SnapshotDefinition]:
        return [one for one in snapshot.offers_of(kind) if one.decision.offered]

    prompts = {
        f"{snapshot.servers[one.facts.server_id].slug}.{one.name}" if named else one.name: one
        for one in offers("prompt")
    }
    tools = [tool for tool in snapshot.offered() if tool.facts.source == "mcp"]
    return GatewayCatalog(
        tools=tuple(_build_tool_declaration(tool, before) for tool in tools),
        resources=tuple(
            _build_located_declaration(one, "uri", before) for one in offers("resource")
        ),
        templates=tuple(
            _build_located_declaration(one, "uriTemplate", before)
            for one in offers("resource_template")
        ),
        prompts=tuple({**one.declaration, "name": name} for name, one in prompts.items()),
        offers=prompts,
        prefixes=prefixes,
        capabilities=_build_capabilities(snapshot, person=False),
        to_people=_build_capabilities(snapshot, person=True),
        instructions=_build_instructions(place, snapshot),
    )


def _build_tool_declaration(tool: SnapshotTool, before: Mapping[UUID, str]) -> Declaration:
    server_id = tool.facts.server_id
    start = before.get(server_id, "") if server_id else ""
    declaration = dict(tool.declaration)
    if start:
        declaration = rename_ui_resource(declaration, lambda uri: start + uri)
    return {**declaration, "name": tool.name}


def _build_located_declaration(
    offer: SnapshotDefinition, member: str, before: Mapping[UUID, str]
) -> Declaration:
    return {**offer.declaration, member: before[offer.facts.server_id] + offer.name}


def _build_capabilities(snapshot: CallSnapshot, *, person: bool) -> dict[str, Any]:
    """Return the capabilities for clients: those of the servers that the gateway forwards."""
    there = [one.endpoint for one in snapshot.servers.values() if one.enabled]
    said = [one.discovery.get("capabilities") or {} for one in there if one.discovery]
    found: dict[str, Any] = {topic: {"listChanged": True} for topic in TOPICS}
    if any(can_follow(one) and (person or not is_per_person(one)) for one in there):
        found["resources"]["subscribe"] = True
    for name in ("completions", "logging"):
        if any(name in capabilities for capabilities in said):
            found[name] = {}
    # Servers may run calls as tasks, and a call that needs approval becomes a deferred task.
    found["extensions"] = {TASKS_EXTENSION: {}}
    return found


def _build_instructions(place: GatewayTarget, snapshot: CallSnapshot) -> str:
    """Return the approved instructions of the servers, at an agent each under its server's name."""
    if place.kind == "server":
        return next(iter(snapshot.notes.values()), "")
    return "\n\n".join(f"# {name}\n{text}" for name, text in sorted(snapshot.notes.items()))
