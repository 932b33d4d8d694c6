"""Client registration: dynamic registration, metadata documents, redirect URIs, rate limit.

Anyone may register a client, so registration grants nothing: a user decides on the consent page,
which shows the redirect destination. Registrations are rate limited, and clients without an
authorization are deleted.

A redirect URI is https, loopback, or a custom scheme. The toolkit checks that it is one of the
client's; the port of a loopback URI is arbitrary.

Metadata documents are untrusted, so they are fetched through the egress guard: https, public
addresses, no redirects, small, with a short timeout, and only for the consent page of a signed-in
user. A stored document is used for new authorizations while its site can't be reached, for a
limited time, but not after the site responded without it.
"""

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv6Address
from threading import Lock
from time import monotonic_ns
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx2
from django.conf import settings
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone
from oauth2_provider.cimd import CIMDError
from oauth2_provider.models import Application

from bonobot.accounts.models import Token
from bonobot.core.http.egress import build_guarded_client
from bonobot.core.http.ip_addresses import extract_address_prefix
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.rate_limiter import admit_request, compute_interval
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible

MAX_URI_LENGTH = 512
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
_LOOPBACK_PORT = re.compile(
    r"(http://(?:127\.0\.0\.1|\[::1\]|localhost))(?::[0-9]{1,5})?(?=[/?]|$)"
)

Kind = Literal["site", "computer", "app"]
_PLAIN_AUTHORITY = re.compile(
    r"(?P<host>[a-z0-9_.-]+|\[(?P<address>[0-9a-f:.]+)\])(?::[0-9]{1,5})?",
    re.ASCII | re.IGNORECASE,
)
_PLAIN_LABEL = re.compile(r"(?!-).{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII | re.IGNORECASE)
MAX_NAME_LENGTH = 100
MAX_REDIRECT_URIS = 10
# How many clients without a grant are kept, and for how long.
MAX_UNUSED_CLIENTS = 1_000
UNUSED_RETENTION = timedelta(days=1)
CODE_GRANT = "authorization_code"
MAX_CLIENT_ID_LENGTH = 255
MAX_BODY = 16 * 1024
CONNECT_TIMEOUT_S = 3
TOTAL_TIMEOUT_S = 6
MIN_LIFETIME_S, MAX_LIFETIME_S = 300, 86_400
# How long an expired document is used for new authorizations while its site can't be reached.
STALENESS_LIMIT = timedelta(days=7)
_TEMPORARY_STATUSES = frozenset({408, 425, 429})
_MAX_AGE = re.compile(r"max-age\s*=\s*([0-9]{1,9})", re.ASCII)
BURST = 20
REGISTRATIONS_PER_MINUTE = 2
MAX_TRACKED_ADDRESSES = 10_000
_arrival_times: OrderedDict[str, int] = OrderedDict()
_lock = Lock()


@dataclass(frozen=True, slots=True)
class RedirectDestination:
    """The destination of a redirect: a site's host, this computer, or a custom scheme."""

    kind: Kind
    name: str

    @property
    def sources(self) -> str:
        """The `form-action` sources of a page that redirects there (Content-Security-Policy).

        Browsers check each redirect, and a site may redirect further.
        """
        kinds = {"site": "https:", "computer": "http: https:", "app": f"{self.name}:"}
        return f"'self' {kinds[self.kind]}"


def is_plain_authority(authority: str) -> bool:
    """Return whether browsers use the host of a URL as it is written.

    They decode `%2E`, map other dots, and read `0x7f.1` as an address, so that people would see
    another host than the one that is opened.
    """
    match = _PLAIN_AUTHORITY.fullmatch(authority)
    if match is None:
        return False
    labels = match["host"].split(".")
    try:
        if match["address"]:
            return bool(IPv6Address(match["address"]))
        if _NUMBER.fullmatch(labels[-1]):
            return bool(IPv4Address(match["host"]))
    except ValueError:
        return False
    return all(_PLAIN_LABEL.fullmatch(label) for label in labels)


def is_registered_uri(uri: str, registered: Collection[str]) -> bool:
    """Return whether a redirect URI equals a registered one, ignoring a loopback's port."""
    return uri in registered or _LOOPBACK_PORT.sub(r"\1", uri) in {
        _LOOPBACK_PORT.sub(r"\1", registered_uri)
        for registered_uri in registered
        if _LOOPBACK_PORT.match(registered_uri)
    }


def parse_redirect_uri(uri: str, schemes: Collection[str]) -> RedirectDestination | None:
    """Return the destination of a redirect URI, or None if it isn't allowed.

    `schemes` are the allowed custom schemes; reverse domain names (RFC 8252) are always allowed.
    """
    if not 0 < len(uri) <= MAX_URI_LENGTH or not uri.isascii() or not uri.isprintable():
        return None
    if any(character in uri for character in ' #\\"<>'):
        return None
    try:
        parts = urlsplit(uri)
        host, _port = parts.hostname or "", parts.port
    except ValueError:
        return None
    if "@" in parts.netloc:
        return None
    if parts.scheme in ("http", "https") and not is_plain_authority(parts.netloc):
        return None
    if parts.scheme == "https":
        return RedirectDestination("site", parts.netloc.lower())
    if parts.scheme == "http":
        return RedirectDestination("computer", host) if host in LOOPBACK_HOSTS else None
    is_app_scheme = parts.scheme in schemes or "." in parts.scheme
    return RedirectDestination("app", parts.scheme) if is_app_scheme else None


class InvalidClientMetadata(Problem):
    """The client metadata isn't valid (RFC 7591 section 3.2.2)."""

    code = "invalid_client_metadata"
    status = 400


@dataclass(frozen=True, slots=True)
class ClientMetadata:
    """The metadata of a client; untrusted text."""

    name: str
    redirect_uris: tuple[str, ...]


def parse_client_metadata(document: Mapping[str, Any]) -> ClientMetadata:
    """Parse client metadata; raises `InvalidClientMetadata`."""
    name = document.get("client_name", "")
    uris = document.get("redirect_uris")
    if not isinstance(name, str):
        raise InvalidClientMetadata("`client_name` must be a string.")
    if not isinstance(uris, list) or not 0 < len(uris) <= MAX_REDIRECT_URIS:
        raise InvalidClientMetadata(
            format_message(
                "`redirect_uris` must have 1 to {most_redirects} entries.",
                most_redirects=MAX_REDIRECT_URIS,
            ),
            code="invalid_redirect_uri",
        )
    for uri in uris:
        if (
            not isinstance(uri, str)
            or parse_redirect_uri(uri, settings.BONOBOT_OAUTH_SCHEMES) is None
        ):
            raise InvalidClientMetadata(
                "A redirect URI must use https, a loopback address, or an allowed scheme.",
                code="invalid_redirect_uri",
            )
    grants = document.get("grant_types", [CODE_GRANT])
    if not isinstance(grants, list) or CODE_GRANT not in grants:
        raise InvalidClientMetadata(
            format_message("`grant_types` must include `{grant_type}`.", grant_type=CODE_GRANT)
        )
    return ClientMetadata(make_visible(name.strip(), MAX_NAME_LENGTH), tuple(dict.fromkeys(uris)))


def create_client(metadata: ClientMetadata) -> Application:
    """Create a client and return it; delete the oldest unused clients beyond the maximum."""
    application = Application.objects.create(
        name=metadata.name,
        redirect_uris=" ".join(metadata.redirect_uris),
        client_type=Application.CLIENT_PUBLIC,
        authorization_grant_type=Application.GRANT_AUTHORIZATION_CODE,
        client_secret="",
        hash_client_secret=False,
        registration_source=Application.RegistrationSource.DCR,
    )
    newest = filter_unused_clients().order_by("-created").values("pk")[:MAX_UNUSED_CLIENTS]
    filter_unused_clients().exclude(pk__in=list(newest.values_list("pk", flat=True))).delete()
    return application


def filter_unused_clients(since: datetime | None = None) -> "QuerySet[Application]":
    """Return the self-registered clients that were never authorized."""
    grants = Token.objects.filter(client_id=OuterRef("client_id"))
    rows = Application.objects.filter(~Exists(grants)).exclude(
        registration_source=Application.RegistrationSource.MANUAL
    )
    return rows.filter(created__lt=since) if since else rows


def prune_unused_clients() -> int:
    """Delete clients that were not authorized within a day; return how many."""
    removed_count, _each = filter_unused_clients(timezone.now() - UNUSED_RETENTION).delete()
    return int(removed_count)


def build_registration_response(application: Application) -> dict[str, Any]:
    """Return the response to a registration, with the values that were actually registered.

    Clients are always public, so there is no secret.
    """
    return {
        "client_id": application.client_id,
        "client_id_issued_at": int(application.created.timestamp()),
        "client_name": application.name,
        "redirect_uris": application.redirect_uris.split(),
        "grant_types": [CODE_GRANT, "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }


def is_consent_page(request: Any) -> bool:
    """Return whether an oauthlib request is for a new authorization."""
    return urlsplit(str(request.uri)).path == "/oauth/authorize"


class ConsentPagePermission:
    """Allows fetching metadata documents on the consent page only.

    Other endpoints are called without a signed-in user, so unknown clients stay unknown there.
    """

    def has_permission(self, request: Any, client_id: str) -> bool:
        """Return whether a document may be fetched for this request."""
        return is_consent_page(request)


def is_document_too_old(application: Application) -> bool:
    """Return whether a client's document is removed, or expired longer than the limit ago."""
    has_document = application.registration_source == Application.RegistrationSource.CIMD
    expires_at = application.cimd_expires_at
    if not has_document or expires_at is None or expires_at >= timezone.now():
        return False
    application.refresh_from_db(fields=["cimd_expires_at"])  # a failed fetch may have changed it
    expires_at = application.cimd_expires_at
    return expires_at is not None and bool(expires_at + STALENESS_LIMIT < timezone.now())


class DocumentRemoved(ValueError):
    """A site responded without a valid document, so it withdrew the one that is stored."""


class ClientMetadataFetcher:
    """Fetches client metadata documents for the toolkit."""

    def fetch(self, client_id: str) -> tuple[dict[str, Any], int]:
        """Return a document and its lifetime in seconds; raises `CIMDError`."""
        _check_client_id(client_id)
        try:
            return get_runtime().call(_fetch_document, client_id)
        except (DocumentRemoved, InvalidClientMetadata) as error:
            expired_at = timezone.now() - STALENESS_LIMIT - timedelta(seconds=1)
            documents = Application.objects.filter(
                registration_source=Application.RegistrationSource.CIMD
            )
            documents.filter(client_id=client_id).update(cimd_expires_at=expired_at)
            raise CIMDError(make_visible(str(error), 200)) from None
        except (Problem, httpx2.HTTPError, TimeoutError, ValueError, RecursionError) as error:
            raise CIMDError(make_visible(str(error), 200)) from None


def _check_client_id(client_id: str) -> None:
    """Raise `CIMDError` if a client id isn't a valid document URL (section 3)."""
    try:
        parts = urlsplit(client_id)
        _port = parts.port
    except ValueError:
        raise CIMDError("it isn't a URL") from None
    is_plain = client_id.isascii() and client_id.isprintable() and " " not in client_id
    is_https_url = parts.scheme == "https" and is_plain_authority(parts.netloc)
    segments = parts.path.split("/")
    if not (
        is_plain
        and is_https_url
        and len(client_id) <= MAX_CLIENT_ID_LENGTH
        and "#" not in client_id
    ):
        raise CIMDError("it isn't the https URL of a document")
    if not parts.path or "." in segments or ".." in segments:
        raise CIMDError("its path is empty or contains `.` or `..`")


async def _fetch_document(client_id: str) -> tuple[dict[str, Any], int]:
    async with (
        asyncio.timeout(TOTAL_TIMEOUT_S),
        build_guarded_client(
            allow_private=False,
            connect_s=CONNECT_TIMEOUT_S,
            read_s=CONNECT_TIMEOUT_S,
            max_body=MAX_BODY,
        ) as client,
    ):
        response = await client.get(client_id, headers={"Accept": "application/json"})
    content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    text = f"it returned HTTP {response.status_code} and {make_visible(content_type, 80)!r}"
    if response.status_code >= 500 or response.status_code in _TEMPORARY_STATUSES:
        raise ValueError(text)
    if response.status_code != 200 or not re.fullmatch(
        r"application/([a-z0-9.-]+\+)?json", content_type
    ):
        raise DocumentRemoved(text)
    try:
        document = json.loads(response.content)
    except (ValueError, RecursionError):
        raise DocumentRemoved("it isn't JSON") from None
    if not isinstance(document, dict):
        raise InvalidClientMetadata("The metadata document isn't a JSON object.")
    if document.get("client_id") != client_id:
        raise InvalidClientMetadata("The document's `client_id` isn't its URL.")
    metadata = parse_client_metadata(document)
    # Return checked fields only, because the toolkit stores them.
    accepted = {
        "client_id": document.get("client_id"),
        "client_name": metadata.name,
        "redirect_uris": list(metadata.redirect_uris),
        "grant_types": ["authorization_code", "refresh_token"],
        "token_endpoint_auth_method": document.get("token_endpoint_auth_method", "none"),
    }
    blank_secrets = {name: "" for name in document if name.startswith("client_secret")}
    return accepted | blank_secrets, _parse_max_age(response.headers.get("cache-control", ""))


def _parse_max_age(cache_control: str) -> int:
    match = _MAX_AGE.search(cache_control.lower())
    if "no-store" in cache_control.lower() or "no-cache" in cache_control.lower():
        return MIN_LIFETIME_S
    return max(MIN_LIFETIME_S, min(int(match[1]) if match else MAX_LIFETIME_S, MAX_LIFETIME_S))


class TooManyRegistrations(Problem):
    """Too many registrations from the same address."""

    code = "too_many_registrations"
    status = 429


def check_registration_rate(address: str) -> None:
    """Count a registration; raises `TooManyRegistrations`."""
    prefix = extract_address_prefix(address)
    with _lock:
        result = admit_request(
            _arrival_times.get(prefix, 0),
            monotonic_ns() // 1_000,
            compute_interval(REGISTRATIONS_PER_MINUTE),
            BURST,
        )
        if result.allowed:
            _arrival_times[prefix] = result.tat
            _arrival_times.move_to_end(prefix)
        while len(_arrival_times) > MAX_TRACKED_ADDRESSES:
            _arrival_times.popitem(last=False)
    if not result.allowed:
        raise TooManyRegistrations(
            "Too many clients registered from this IP address. Try again later."
        )
