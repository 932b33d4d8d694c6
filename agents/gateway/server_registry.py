"""The MCP registry of an organization: what its clients may connect to, as `server.json` entries.

Entries are addresses of the gateway, so each call of a client that follows them is governed. They
are the servers of the pool and the agents that the caller may use and that have something callable.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.db.models import Max

from agents.calls.callable_servers import (
    list_callable_servers,
    list_callable_servers_of_agents,
)
from agents.gateway.client_config_snippets import build_agent_path, build_server_path
from agents.gateway.routes import query_usable_agents, query_usable_servers
from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.ledger.queries import load_policy_generation
from mcp_servers.client.jsonrpc import HANDSHAKE_VERSIONS, MODERN_VERSION
from mcp_servers.models import Definition, Server

SERVER_SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
CARD_SCHEMA = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
REGISTRY_META = "io.modelcontextprotocol.registry/official"
# The maximum length of titles and descriptions in `server.json`.
MAX_TEXT = 100
MAX_CACHED_LISTS = 100


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """A server or agent with its gateway address; `changed_at` is the last approval."""

    name: str
    title: str
    description: str
    url: str
    created_at: datetime
    changed_at: datetime
    uses_oauth: bool = False

    @property
    def version(self) -> str:
        """A semantic version that increases with each approval."""
        changed_at = self.changed_at
        return f"1.{changed_at:%Y%m%d}.{int(f'{changed_at:%H%M%S}')}"

    def to_card(self) -> dict[str, Any]:
        """Return the entry as a server card (SEP-2127)."""
        server = self.to_json()["server"]
        versions = [MODERN_VERSION, *reversed(HANDSHAKE_VERSIONS)]
        remotes = [
            {**remote, "supportedProtocolVersions": versions} for remote in server["remotes"]
        ]
        return {**server, "$schema": CARD_SCHEMA, "remotes": remotes}

    def to_json(self) -> dict[str, Any]:
        """Return the entry as the registry API has it."""
        remote: dict[str, Any] = {"type": "streamable-http", "url": self.url}
        if not self.uses_oauth:
            remote["headers"] = [_build_token_header()]
        return {
            "server": {
                "$schema": SERVER_SCHEMA,
                "name": self.name,
                "title": self.title,
                "description": self.description,
                "version": self.version,
                "remotes": [remote],
            },
            "_meta": {
                REGISTRY_META: {
                    "status": "active",
                    "publishedAt": _format_time(self.created_at),
                    "updatedAt": _format_time(self.changed_at),
                    "isLatest": True,
                }
            },
        }


def build_public_principal(organization: Organization) -> Principal:
    """Return the principal of a public registry's anonymous readers, which makes no calls."""
    return Principal(
        kind="system",
        id="registry",
        label="registry",
        organization_id=organization.pk,
        role=Role.OPERATOR,
    )


def build_namespace(base_url: str, organization_slug: str) -> str:
    """Return the reverse-DNS namespace of an organization's entries."""
    host = (urlsplit(base_url).hostname or "localhost").replace(":", "-")
    labels = [*reversed(host.split(".")), organization_slug.replace("_", "-")]
    return ".".join(label for label in labels if label)


def list_entries(organization: Organization, principal: Principal) -> Sequence[RegistryEntry]:
    """Return what a principal may connect to, by name; one query if nothing has changed."""
    generation = load_policy_generation(organization.pk)
    key = organization.pk, principal
    with _lock:
        cached_generation, entries = _cached_lists.get(key, (-1, ()))
    if cached_generation == generation:
        return entries
    entries = tuple(sorted(_load_entries(organization, principal), key=lambda entry: entry.name))
    with _lock:
        _cached_lists[key] = generation, entries
        _cached_lists.move_to_end(key)
        while len(_cached_lists) > MAX_CACHED_LISTS:
            _cached_lists.popitem(last=False)
    return entries


_cached_lists: OrderedDict[tuple[UUID, Principal], tuple[int, Sequence[RegistryEntry]]] = (
    OrderedDict()
)
_lock = Lock()


def _load_entries(organization: Organization, principal: Principal) -> Iterator[RegistryEntry]:
    """Yield the entries (queries); raises `InsufficientScope`."""
    if organization.halted_at is not None:
        return
    namespace = build_namespace(settings.BONOBOT_URL, organization.slug)
    approved_at = dict(
        Definition.objects.filter(organization_id=organization.pk)
        .callable()
        .order_by()
        .values_list("server")
        .annotate(Max("pinned_at"))
    )
    servers = list(query_usable_servers(principal).select_related("organization"))
    agents = list(
        query_usable_agents(principal)
        .select_related("organization", "tool_policy")
        .prefetch_related("tool_policy__rules")
    )
    callable_servers = list_callable_servers(organization.pk, servers)
    servers_by_agent = list_callable_servers_of_agents(organization.pk, agents)
    rows: list[tuple[str, str, Server | Agent, set[UUID]]] = [
        *(
            ("servers", build_server_path(row.slug), row, {row.pk} & callable_servers)
            for row in servers
        ),
        *(("agents", build_agent_path(row.slug), row, servers_by_agent[row.pk]) for row in agents),
    ]
    for kind, path, row, server_ids in rows:
        if server_ids:
            times = [time for pk in server_ids if (time := approved_at.get(pk)) is not None]
            yield RegistryEntry(
                name=f"{namespace}/{kind}.{row.slug}",
                title=_shorten(row.name),
                description=_shorten(row.description or row.name),
                url=settings.BONOBOT_URL + path,
                created_at=row.created_at,
                changed_at=max([row.created_at, *times]),
                uses_oauth=settings.BONOBOT_OAUTH,
            )


def _build_token_header() -> dict[str, Any]:
    """Return the header that a client asks its user for."""
    return {
        "name": "Authorization",
        "description": "Bonobot token",
        "isRequired": True,
        "isSecret": True,
        "value": "Bearer {bonobot_token}",
        "variables": {
            "bonobot_token": {
                "description": "A token of your organization in Bonobot (bnb_…)",
                "isRequired": True,
                "isSecret": True,
            }
        },
    }


def _shorten(text: str) -> str:
    """Return a text on one line, within the length that `server.json` allows."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 1]}…"


def _format_time(time: datetime) -> str:
    return time.isoformat(timespec="seconds").replace("+00:00", "Z")
