"""The registry API (`/v0.1`) that MCP clients read: VS Code, GitHub Copilot and others.

It follows the OpenAPI document of modelcontextprotocol/registry, read-only. The base URL that
clients are configured with is `/registry/{organization}`. Server cards (SEP-2127) of the same
entries are optional: a client finds them in the catalog of this address.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
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

from agents.gateway.server_registry import RegistryEntry, build_public_principal, list_entries
from bonobot.accounts.api.authentication import TokenAuthentication
from bonobot.accounts.attempt_limits import AttemptLimit, charge_attempt
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.models import Organization
from bonobot.accounts.models.organizations import RegistryAccess
from bonobot.accounts.principals import Principal
from bonobot.core.api.parsers import JSONContentNegotiation
from bonobot.core.problems import InvalidInput, NotFound

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
        return list_entries(organization, principal)

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
        raise NotFound("Server cards are turned off.", code="unknown_server")


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
