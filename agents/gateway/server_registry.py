"""The MCP registry of an organization: what its clients may connect to, as `server.json` entries.

Entries are addresses of the gateway, so each call of a client that follows them is governed. They
are the servers of the pool and the agents that the caller may use and that have something callable.

The registry API (`/v0.1`) that VS Code, GitHub Copilot and other MCP clients read follows the
OpenAPI document of modelcontextprotocol/registry, read-only. The base URL that clients are
configured with is `/registry/{organization}`. Server cards (SEP-2127) of the same entries are
optional: a client finds them in the catalog of this address.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from threading import Lock
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.db.models import F, Max
from django.urls import path
from django.utils.cache import patch_vary_headers
from django.utils.dateparse import parse_datetime
from django.utils.http import parse_etags
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotAuthenticated
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from agents.flow_labels.text_labels import label_list_reader
from agents.gateway.client_config_snippets import build_agent_path, build_server_path
from agents.gateway.routes import query_usable_agents, query_usable_servers
from agents.models import Agent, AgentServer
from agents.policies.decisions import (
    DefinitionFacts,
    EffectivePolicy,
    Kind,
    ToolFacts,
    decide_definition,
    decide_tool_call,
)
from agents.policies.effective_policies import (
    build_agent_policy,
    build_server_policy,
    find_organization_policy,
)
from bonobot.accounts.api.authentication import TokenAuthentication
from bonobot.accounts.attempt_limits import AttemptLimit, charge_attempt
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.models import Organization
from bonobot.accounts.models.organizations import RegistryAccess
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.core.api.parsers import JSONContentNegotiation
from bonobot.core.problems import InvalidInput, NotFound
from bonobot.ledger.policy_generations import load_policy_generation
from mcp_servers.client.protocol_versions import HANDSHAKE_VERSIONS, MODERN_VERSION
from mcp_servers.models import Definition, Server

SERVER_SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
CARD_SCHEMA = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
REGISTRY_META = "io.modelcontextprotocol.registry/official"
# The maximum length of titles and descriptions in `server.json`.
MAX_TEXT = 100
MAX_CACHED_LISTS = 100


LATEST = "latest"
CARD_TYPE = "application/mcp-server-card+json"
DEFAULT_LIMIT, MAX_LIMIT = 30, 100
# A client reads one entry for each installed server, and an office has one address.
REQUESTS_PER_ADDRESS = AttemptLimit("registry:address", 1_000, 600)
# Cookies aren't accepted, so pages of all origins may read what their users have a token for.
CORS_HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, HEAD, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, If-None-Match",
    "Access-Control-Expose-Headers": "ETag, Retry-After, WWW-Authenticate",
    "Access-Control-Max-Age": "600",
}
_lock = Lock()


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """A server or agent with its gateway address; `changed_at` is the last approval."""

    row_id: UUID
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
    for kind, gateway_path, row, server_ids in rows:
        if server_ids:
            times = [time for pk in server_ids if (time := approved_at.get(pk)) is not None]
            yield RegistryEntry(
                row_id=row.pk,
                name=f"{namespace}/{kind}.{row.slug}",
                title=_shorten(row.name),
                description=_shorten(row.description or row.name),
                url=settings.BONOBOT_URL + gateway_path,
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


def list_callable_servers(organization_id: UUID, servers: Iterable[Server]) -> set[UUID]:
    """Return those of an organization's servers with anything that may be called without an agent.

    The servers have their `organization` loaded; four queries.
    """
    names = _load_callable_names(organization_id)
    organization_policy = find_organization_policy(organization_id)
    return {
        server.pk
        for server in servers
        if _is_callable(server, names[server.pk], build_server_policy(server, organization_policy))
    }


def list_callable_servers_of_agents(
    organization_id: UUID, agents: Sequence[Agent]
) -> dict[UUID, set[UUID]]:
    """Return the servers of each agent with anything that the agent may call.

    The agents have their `organization` and `tool_policy` with its rules loaded; five queries.
    """
    names = _load_callable_names(organization_id)
    organization_policy = find_organization_policy(organization_id)
    attached_servers: Mapping[UUID, list[AgentServer]] = defaultdict(list)
    for row in AgentServer.objects.filter(agent__in=agents).select_related("server"):
        attached_servers[row.agent_id].append(row)
    callable_servers = {}
    for agent in agents:
        rows = attached_servers[agent.pk]
        policy = build_agent_policy(agent, rows, organization_policy)
        callable_servers[agent.pk] = {
            row.server_id for row in rows if _is_callable(row.server, names[row.server_id], policy)
        }
    return callable_servers


def _load_callable_names(organization_id: UUID) -> Mapping[UUID, list[tuple[str, str]]]:
    """Return kind and name of the usable definitions of each server (two queries)."""
    definitions = Definition.objects.filter(organization_id=organization_id)
    instructions = definitions.filter(kind=Definition.Kind.INSTRUCTIONS, present=True)
    changed_servers = set(
        instructions.exclude(pinned_digest="")
        .exclude(pinned_digest=F("digest"))
        .values_list("server", flat=True)
    )
    rows = definitions.callable().exclude(kind=Definition.Kind.INSTRUCTIONS).order_by()
    names: Mapping[UUID, list[tuple[str, str]]] = defaultdict(list)
    for server_id, kind, name in rows.values_list("server", "kind", "name").iterator():
        if server_id not in changed_servers:
            names[server_id].append((kind, name))
    return names


def _is_callable(
    server: Server, names: Iterable[tuple[str, str]], effective_policy: EffectivePolicy
) -> bool:
    """Tell whether the policy allows, perhaps after approval, any of a server's definitions."""
    return any(
        decide_tool_call(
            ToolFacts(
                "mcp",
                own_name=name,
                label=name,
                server_id=server.pk,
                server_name=server.name,
                server_enabled=server.enabled,
            ),
            effective_policy,
        ).is_callable
        if kind == Definition.Kind.TOOL
        else decide_definition(
            DefinitionFacts(
                cast(Kind, kind),
                own_name=name,
                server_id=server.pk,
                server_name=server.name,
                server_enabled=server.enabled,
            ),
            effective_policy,
        ).is_callable
        for kind, name in names
    )


@extend_schema(exclude=True)
class RegistryView(APIView):
    """Base of the registry's views: access, caching and CORS."""

    authentication_classes = (TokenAuthentication,)
    permission_classes = ()
    renderer_classes = (JSONRenderer,)
    content_negotiation_class = JSONContentNegotiation
    http_method_names = ("get", "head", "options")

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Count the request; raises `TooManyAttempts`."""
        if request.method != "OPTIONS":
            charge_attempt(REQUESTS_PER_ADDRESS, request.META.get("REMOTE_ADDR", ""))
        super().initial(request, *args, **kwargs)

    def options(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        """Answer a preflight request of a browser."""
        return Response(status=204)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Add the headers for browsers on other origins."""
        for name, value in CORS_HEADERS.items():
            response[name] = value
        return super().finalize_response(request, response, *args, **kwargs)

    def load_entries(self, slug: str) -> Sequence[RegistryEntry]:
        """Return the entries that the caller may see; refuses like a missing organization."""
        organization = Organization.objects.filter(slug=slug).first()
        if self.request.auth is None:
            if organization is None or organization.registry != RegistryAccess.PUBLIC:
                raise NotAuthenticated
            return list_entries(organization, build_public_principal(organization))
        principal: Principal = resolve_principal(self.request)
        if (
            organization is None
            or organization.pk != principal.organization_id
            or organization.registry == RegistryAccess.OFF
        ):
            raise NotFound(
                "This registry doesn't exist.",
                code="unknown_registry",
                remedy="Check the organization in the URL, and that its registry is enabled.",
            )
        entries = list_entries(organization, principal)
        label_list_reader(principal, "registry", [entry.row_id for entry in entries])
        return entries

    def find_entry(self, slug: str, name: str) -> RegistryEntry:
        """Return an entry by name; raises `NotFound`."""
        for entry in self.load_entries(slug):
            if entry.name == name:
                return entry
        raise NotFound("Server not found.", code="unknown_server")

    def respond(self, body: Mapping[str, Any], media_type: str = "application/json") -> Response:
        """Return the response, or 304 if the client has this version."""
        digest = sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:32]
        tag = f'"{digest}"'
        sent_tags = parse_etags(self.request.headers.get("If-None-Match", ""))
        known_tags = {sent_tag.removeprefix("W/") for sent_tag in sent_tags}
        response = (
            Response(status=304)
            if known_tags & {tag, "*"}
            else Response(body, content_type=media_type)
        )
        response["ETag"] = tag
        response["Cache-Control"] = "private, no-cache"
        patch_vary_headers(response, ["Authorization"])
        return response


class RegistryServersView(RegistryView):
    """The list of servers."""

    def get(self, request: Request, slug: str) -> Response:
        """List the latest versions, by name."""
        query = request.query_params
        # Some clients send the search with the first page only.
        after, search = _parse_cursor(query.get("cursor", ""))
        search = search or query.get("search", "").strip().lower()
        since = _parse_time(query.get("updated_since", ""))
        version = query.get("version", LATEST)
        limit = _parse_limit(query.get("limit", ""))
        matching = [
            entry
            for entry in self.load_entries(slug)
            if entry.name > after
            and (search in entry.name.lower() or search in entry.title.lower())
            and version in (LATEST, entry.version)
            and (since is None or entry.changed_at >= since)
        ]
        page = matching[:limit]
        metadata: dict[str, Any] = {"count": len(page)}
        if len(matching) > limit:
            metadata["nextCursor"] = _build_cursor(page[-1].name, search)
        return self.respond({"servers": [entry.to_json() for entry in page], "metadata": metadata})


class RegistryVersionsView(RegistryView):
    """The versions of a server: the current one."""

    def get(self, request: Request, slug: str, name: str) -> Response:
        """List the versions."""
        entry = self.find_entry(slug, name)
        return self.respond({"servers": [entry.to_json()], "metadata": {"count": 1}})


class RegistryVersionView(RegistryView):
    """One version of a server."""

    def get(self, request: Request, slug: str, name: str, version: str) -> Response:
        """Return the version, or the one called `latest`."""
        entry = self.find_entry(slug, name)
        if version not in (LATEST, entry.version):
            raise NotFound("Server version not found.", code="unknown_server")
        return self.respond(entry.to_json())


class ServerCardView(RegistryView):
    """The card of a server: identity and address, without tools."""

    def get(self, request: Request, slug: str, name: str) -> Response:
        """Return the card."""
        _require_server_cards()
        return self.respond(self.find_entry(slug, name).to_card(), CARD_TYPE)


class CatalogView(RegistryView):
    """The catalog of this address: the cards of all organizations with a public registry."""

    def get(self, request: Request) -> Response:
        """List the cards, by organization and name."""
        _require_server_cards()
        organizations = Organization.objects.filter(registry=RegistryAccess.PUBLIC)
        host = urlsplit(settings.BONOBOT_URL).hostname
        cards = [
            {
                "identifier": f"urn:air:{host}:{organization.slug}:{entry.name.partition('/')[2]}",
                "displayName": entry.title,
                "type": CARD_TYPE,
                "url": f"{settings.BONOBOT_URL}/registry/{organization.slug}/cards/{entry.name}",
            }
            for organization in organizations.order_by("slug")
            for entry in list_entries(organization, build_public_principal(organization))
        ]
        return self.respond({"specVersion": "draft", "entries": cards})


def _require_server_cards() -> None:
    if not settings.BONOBOT_SERVER_CARDS:
        raise NotFound("Server cards are disabled.", code="unknown_server")


def _build_cursor(after: str, search: str) -> str:
    """Return a cursor without characters that clients would have to encode."""
    content = json.dumps([after, search]).encode()
    return urlsafe_b64encode(content).decode().rstrip("=")


def _parse_cursor(cursor: str) -> tuple[str, str]:
    """Return the name before the page and the search; raises `InvalidInput`."""
    if not cursor:
        return "", ""
    try:
        after, search = json.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError, TypeError):
        after = search = None
    if isinstance(after, str) and isinstance(search, str):
        return after, search
    raise InvalidInput(
        "The cursor is invalid.",
        code="bad_cursor",
        field="cursor",
        remedy="Use `nextCursor` as returned, or start without a cursor.",
    )


def _parse_limit(text: str) -> int:
    """Return the size of a page, at most 100; raises `InvalidInput`."""
    if not text:
        return DEFAULT_LIMIT
    if text.isascii() and text.isdigit() and int(text[:9]) > 0:
        return min(int(text[:9]), MAX_LIMIT)
    raise InvalidInput(
        "`limit` isn't a number.", field="limit", remedy="Use a number from 1 to 100."
    )


def _parse_time(text: str) -> datetime | None:
    """Return the time of an RFC 3339 text; raises `InvalidInput`."""
    if not text:
        return None
    try:
        time = parse_datetime(text.replace(" ", "+"))
    except ValueError:
        time = None
    if time is None:
        raise InvalidInput(
            "`updated_since` isn't a time.",
            field="updated_since",
            remedy="Use a time such as 2026-08-07T13:15:04Z.",
        )
    return time if time.tzinfo else time.replace(tzinfo=UTC)


urlpatterns = [
    path(".well-known/mcp/catalog.json", CatalogView.as_view(), name="server-catalog"),
    path("registry/<slug:slug>/cards/<path:name>", ServerCardView.as_view(), name="server-card"),
    path(
        "registry/<slug:slug>/v0.1/servers", RegistryServersView.as_view(), name="registry-servers"
    ),
    path(
        "registry/<slug:slug>/v0.1/servers/<path:name>/versions",
        RegistryVersionsView.as_view(),
        name="registry-versions",
    ),
    path(
        "registry/<slug:slug>/v0.1/servers/<path:name>/versions/<str:version>",
        RegistryVersionView.as_view(),
        name="registry-version",
    ),
]
