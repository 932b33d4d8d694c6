"""Shelves: what a place offers, declared as its clients see it, worked out once per snapshot.

Only what may be asked for is there; a client can't tell what is forbidden from what doesn't exist.
At an agent, tools have the names that they have for the agent, prompts their server's slug in
front, and URIs too (`uris`); at a server, everything is called what the server calls it.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agents.governance.offerings import Offer
from agents.governance.snapshots import Snapshot, Tool
from bonobot.gateway.inbound import bad_params
from bonobot.gateway.places import Place
from bonobot.gateway.uris import Rename, own, prefix, renamed_page
from mcp_servers.connections.changes import TOPICS
from mcp_servers.connections.wire import TASKS_EXTENSION
from mcp_servers.following import can_follow
from mcp_servers.oauth.signing import by_person

PAGE = 500
SHELF = "gateway shelf"
Declaration = dict[str, Any]


@dataclass(frozen=True)
class Shelf:
    """The declarations of a place, each list in a stable order; and what their names mean."""

    tools: tuple[Declaration, ...]
    resources: tuple[Declaration, ...]
    templates: tuple[Declaration, ...]
    prompts: tuple[Declaration, ...]
    offers: Mapping[str, Offer]
    prefixes: Mapping[str, UUID]
    capabilities: Mapping[str, Any]
    # The same for people: what they sign in to for themselves tells nobody else of resources.
    to_people: Mapping[str, Any]
    instructions: str

    def prompt(self, name: str) -> Offer | None:
        """Return the prompt that a client calls `name`."""
        return self.offers.get(name)

    def resource(self, uri: str) -> tuple[UUID, str] | None:
        """Return the server and its own URI, or template, that a client calls `uri`."""
        only = self.prefixes.get("")
        return (only, uri) if only else own(uri, self.prefixes)

    def rename(self, server_id: UUID) -> Rename:
        """Return how URIs of a server are called here."""
        before = next((one for one, whose in self.prefixes.items() if whose == server_id), "")
        return lambda uri: before + uri


def shelf(place: Place, snapshot: Snapshot) -> Shelf:
    """Return what a place offers by a snapshot of it."""
    found = snapshot.memo.get(SHELF)
    if found is None:
        found = snapshot.memo[SHELF] = _filled(place, snapshot)
    assert isinstance(found, Shelf)  # noqa: S101 - nobody else writes there
    return found


def page(declarations: tuple[Declaration, ...], member: str, cursor: Any) -> dict[str, Any]:
    """Return one page of a list and the cursor of the next; raises `MCPError` for a bad cursor."""
    start = 0 if cursor is None else _position(cursor)
    if start > len(declarations):
        raise bad_params("`cursor` belongs to no list here")
    found: dict[str, Any] = {member: list(declarations[start : start + PAGE])}
    if start + PAGE < len(declarations):
        found["nextCursor"] = urlsafe_b64encode(str(start + PAGE).encode()).decode()
    return found


def _position(cursor: Any) -> int:
    try:
        text = urlsafe_b64decode(str(cursor)).decode("ascii")
    except (ValueError, UnicodeDecodeError):
        text = ""
    if not text.isdecimal() or len(text) > 9:
        raise bad_params("`cursor` belongs to no list here")
    return int(text)


def _filled(place: Place, snapshot: Snapshot) -> Shelf:
    named = place.kind == "agent"
    servers = snapshot.servers.values()
    prefixes = {prefix(one.slug) if named else "": one.id for one in servers}
    before = {server_id: start for start, server_id in prefixes.items()}

    def offers(kind: str) -> list[Offer]:
        return [one for one in snapshot.offers_of(kind) if one.decision.offered]

    prompts = {
        f"{snapshot.servers[one.facts.server_id].slug}.{one.name}" if named else one.name: one
        for one in offers("prompt")
    }
    tools = [tool for tool in snapshot.offered() if tool.facts.source == "mcp"]
    return Shelf(
        tools=tuple(_tool(tool, before) for tool in tools),
        resources=tuple(_located(one, "uri", before) for one in offers("resource")),
        templates=tuple(
            _located(one, "uriTemplate", before) for one in offers("resource_template")
        ),
        prompts=tuple({**one.declaration, "name": name} for name, one in prompts.items()),
        offers=prompts,
        prefixes=prefixes,
        capabilities=_capabilities(snapshot, person=False),
        to_people=_capabilities(snapshot, person=True),
        instructions=_instructions(place, snapshot),
    )


def _tool(tool: Tool, before: Mapping[UUID, str]) -> Declaration:
    server_id = tool.facts.server_id
    start = before.get(server_id, "") if server_id else ""
    declaration = dict(tool.declaration)
    if start:
        declaration = renamed_page(declaration, lambda uri: start + uri)
    return {**declaration, "name": tool.name}


def _located(offer: Offer, member: str, before: Mapping[UUID, str]) -> Declaration:
    return {**offer.declaration, member: before[offer.facts.server_id] + offer.name}


def _capabilities(snapshot: Snapshot, *, person: bool) -> dict[str, Any]:
    """Return what a client may use here: of what the servers say that they can, what we hand on."""
    there = [one.endpoint for one in snapshot.servers.values() if one.enabled]
    said = [one.discovery.get("capabilities") or {} for one in there if one.discovery]
    found: dict[str, Any] = {topic: {"listChanged": True} for topic in TOPICS}
    if any(can_follow(one) and (person or not by_person(one)) for one in there):
        found["resources"]["subscribe"] = True
    for name in ("completions", "logging"):
        if any(name in capabilities for capabilities in said):
            found[name] = {}
    # Servers may make tasks of calls, and a call that a person has to allow is always one.
    found["extensions"] = {TASKS_EXTENSION: {}}
    return found


def _instructions(place: Place, snapshot: Snapshot) -> str:
    """Return the approved instructions of the servers; of several, each under its name."""
    if place.kind == "server":
        return next(iter(snapshot.notes.values()), "")
    return "\n\n".join(f"# {name}\n{text}" for name, text in sorted(snapshot.notes.items()))
