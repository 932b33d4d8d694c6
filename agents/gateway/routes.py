"""Parse the gateway's paths and find their targets.

`/mcp` is the organization, `/mcp/agents/{slug}` one agent's tools, `/mcp/servers/{slug}` one server
of the pool. With `?view=search`, an agent's path shows a few tools that find the others. Missing,
disabled and other organizations' targets give the same error.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal
from urllib.parse import parse_qs
from uuid import UUID

from agents.calls.snapshots import CallSnapshot, get_snapshot_cache
from agents.models import Agent
from agents.models.agents import AgentQuerySet
from bonobot.accounts.principals import InsufficientScope, Principal
from bonobot.accounts.roles import Action, TokenScope
from bonobot.core.problems import NotFound
from mcp_servers.models import Server
from mcp_servers.models.servers import ServerQuerySet

ROOT_PATH = "/mcp"
METADATA_PATH = "/.well-known/oauth-protected-resource"
# The scopes that may use the organization's own address, the narrowest first.
ORGANIZATION_SCOPES = (TokenScope.AGENTS, TokenScope.MANAGE, TokenScope.API)
Kind = Literal["organization", "agent", "server"]
# What a client is shown of a target: all of its tools, or tools to search them.
View = Literal["", "search"]
MAX_CACHED_LENGTH = 512  # of a path and its query
_NAMED_PATH = re.compile(r"/mcp/(agents|servers)/([A-Za-z0-9_-]{1,255})")
_KINDS_BY_SEGMENT: dict[str, Kind] = {"agents": "agent", "servers": "server"}


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """A parsed path of the gateway."""

    kind: Kind
    slug: str = ""
    view: View = ""

    @property
    def path(self) -> str:
        """The path without a trailing slash."""
        return f"{ROOT_PATH}/{self.kind}s/{self.slug}" if self.slug else ROOT_PATH


@dataclass(frozen=True, slots=True)
class GatewayTarget:
    """The target of an address for one principal."""

    kind: Kind
    id: UUID
    slug: str
    name: str
    view: View = ""

    @property
    def agent_id(self) -> UUID | None:
        """The agent's id; None for other targets."""
        return self.id if self.kind == "agent" else None

    @property
    def server_id(self) -> UUID | None:
        """The server's id; None for other targets."""
        return self.id if self.kind == "server" else None

    def find_cached_snapshot(self) -> CallSnapshot | None:
        """Return the cached snapshot, which may be stale; admission detects that."""
        return get_snapshot_cache().find_cached(self.kind, self.id)

    def load_snapshot(self) -> CallSnapshot:
        """Return the current snapshot (queries)."""
        return get_snapshot_cache().load_current(self.kind, self.id)


def parse_path(path: str, query: bytes = b"") -> GatewayAddress | None:
    """Parse a path and its query; None if it isn't one of the gateway's."""
    is_short = len(path) + len(query) <= MAX_CACHED_LENGTH
    return (_parse_path if is_short else _parse_path.__wrapped__)(path, query)


@lru_cache(maxsize=1024)
def _parse_path(path: str, query: bytes) -> GatewayAddress | None:
    stripped_path = path.rstrip("/")
    if stripped_path == ROOT_PATH:
        return GatewayAddress("organization")
    match = _NAMED_PATH.fullmatch(stripped_path)
    if match is None:
        return None
    kind = _KINDS_BY_SEGMENT[match[1]]
    return GatewayAddress(kind, match[2], _parse_view(query) if kind == "agent" and query else "")


def _parse_view(query: bytes) -> View:
    """Return the view that a query string names; other parameters and views are ignored."""
    views = parse_qs(query.decode("latin-1")).get("view", [])
    return "search" if views == ["search"] else ""


def find_target(address: GatewayAddress, principal: Principal) -> GatewayTarget:
    """Return the target; raises `NotFound` if the principal may not use it (queries).

    Raises `InsufficientScope` if only a scope of its token is missing.
    """
    if address.kind == "organization":
        if principal.scopes is not None and principal.scopes.isdisjoint(ORGANIZATION_SCOPES):
            raise InsufficientScope(*ORGANIZATION_SCOPES)
        return GatewayTarget("organization", principal.organization_id, "", "Bonobot")
    target = (
        _find_agent_target(address, principal)
        if address.kind == "agent"
        else _find_server_target(address, principal)
    )
    if target is None:
        raise NotFound(
            f"{address.path!r} doesn't exist.",
            code="unknown_endpoint",
            remedy="Check the name, and that your token can use it.",
        )
    return target


def query_usable_agents(principal: Principal) -> AgentQuerySet:
    """Return the agents whose tools a principal may use at the gateway."""
    if not principal.has_role_for(Action.USE_TOOLS):
        return Agent.objects.none()
    principal.require(Action.USE_TOOLS)
    return Agent.objects.open_to(principal).enabled()


def query_usable_servers(principal: Principal) -> ServerQuerySet:
    """Return the servers of the pool that a principal may use at the gateway without an agent."""
    if not principal.has_role_for(Action.CALL_TOOLS) or principal.agent_ids:
        return Server.objects.none()
    principal.require(Action.CALL_TOOLS)
    organization_id = principal.organization_id
    servers: ServerQuerySet = Server.objects.filter(
        organization_id=organization_id, scope_id=organization_id
    )
    return servers


def _find_agent_target(address: GatewayAddress, principal: Principal) -> GatewayTarget | None:
    agents = query_usable_agents(principal).filter(slug=address.slug)
    agent = agents.only("pk", "slug", "name").first()
    if agent is None:
        return None
    return GatewayTarget("agent", id=agent.pk, slug=agent.slug, name=agent.name, view=address.view)


def _find_server_target(address: GatewayAddress, principal: Principal) -> GatewayTarget | None:
    servers = query_usable_servers(principal).filter(slug=address.slug)
    server = servers.only("pk", "slug", "name").first()
    return GatewayTarget("server", server.pk, server.slug, server.name) if server else None
