"""Client ID metadata documents, which clients publish instead of registering.

Metadata documents are untrusted, so they are fetched through the egress guard: https, public
addresses, no redirects, small, with a short timeout, and only for the consent page of a signed-in
user. A stored document is used for new authorizations while its site can't be reached, for a
limited time, but not after the site responded without it.
"""

import asyncio
import json
import re
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx2
from django.utils import timezone
from oauth2_provider.cimd import CIMDError
from oauth2_provider.models import Application

from bonobot.core.http.egress import build_guarded_client
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from bonobot.oauth_server.client_registration import (
    MAX_LIFETIME_S,
    MIN_LIFETIME_S,
    InvalidClientMetadata,
    parse_client_metadata,
)
from bonobot.oauth_server.redirect_uris import is_plain_authority

MAX_CLIENT_ID_LENGTH = 255
MAX_BODY = 16 * 1024
CONNECT_TIMEOUT_S = 3
TOTAL_TIMEOUT_S = 6
# How long an expired document is used for new authorizations while its site can't be reached.
STALENESS_LIMIT = timedelta(days=7)
_TEMPORARY_STATUSES = frozenset({408, 425, 429})
_MAX_AGE = re.compile(r"max-age\s*=\s*([0-9]{1,9})", re.ASCII)


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
