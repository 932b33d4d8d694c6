"""Client registration: dynamic registration, metadata documents, redirect URIs, rate limit.

Anyone may register a client, so registration grants nothing: a user decides on the consent page,
which shows the redirect destination. Registrations are rate limited, and clients that nobody
authorized are deleted.

A redirect URI is https, loopback, or a custom scheme. The toolkit checks that it is one of the
client's; the port of a loopback URI is arbitrary.

Metadata documents are untrusted, so they are fetched through the egress guard: https, public
addresses, no redirects, small, with a short timeout, and only for the consent page of a signed-in
user.
"""

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
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
from bonobot.core.gcra import admit, compute_interval
from bonobot.core.http.egress import build_guarded_client
from bonobot.core.http.ip_addresses import extract_address_prefix
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible

LONGEST = 512
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_PORT = re.compile(r"(http://(?:127\.0\.0\.1|\[::1\]|localhost))(?::[0-9]{1,5})?(?=[/?]|$)")

Kind = Literal["site", "computer", "app"]


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


def is_named(uri: str, named: Collection[str]) -> bool:
    """Return whether a redirect URI equals a registered one, ignoring a loopback's port."""
    return uri in named or _PORT.sub(r"\1", uri) in {
        _PORT.sub(r"\1", one) for one in named if _PORT.match(one)
    }


def parse_redirect_uri(uri: str, schemes: Collection[str]) -> RedirectDestination | None:
    """Return the destination of a redirect URI, or None if it isn't allowed.

    `schemes` are the allowed custom schemes; reverse domain names (RFC 8252) are always allowed.
    """
    if not 0 < len(uri) <= LONGEST or not uri.isascii() or not uri.isprintable():
        return None
    if any(one in uri for one in ' #\\"<>'):
        return None
    try:
        parts = urlsplit(uri)
        host, _port = parts.hostname or "", parts.port
    except ValueError:
        return None
    if "@" in parts.netloc:
        return None
    if parts.scheme == "https":
        return RedirectDestination("site", parts.netloc) if host else None
    if parts.scheme == "http":
        return RedirectDestination("computer", host) if host in LOOPBACK else None
    own = parts.scheme in schemes or "." in parts.scheme
    return RedirectDestination("app", parts.scheme) if own else None


LONGEST_NAME = 100
MOST_REDIRECTS = 10
# How many clients without a grant are kept, and for how long.
MOST_UNUSED = 1_000
UNUSED = timedelta(days=1)
CODE_GRANT = "authorization_code"


class InvalidClientMetadata(Problem):
    """The client metadata isn't valid (RFC 7591 section 3.2.2)."""

    code = "invalid_client_metadata"
    status = 400


@dataclass(frozen=True, slots=True)
class ClientMetadata:
    """The metadata of a client; untrusted text."""

    name: str
    redirect_uris: tuple[str, ...]


def read(said: Mapping[str, Any]) -> ClientMetadata:
    """Parse client metadata; raises `InvalidClientMetadata`."""
    name = said.get("client_name", "")
    uris = said.get("redirect_uris")
    if not isinstance(name, str):
        raise InvalidClientMetadata("`client_name` must be a text.")
    if not isinstance(uris, list) or not 0 < len(uris) <= MOST_REDIRECTS:
        raise InvalidClientMetadata(
            format_message(
                "`redirect_uris` must have from 1 to {most_redirects} entries.",
                most_redirects=MOST_REDIRECTS,
            ),
            code="invalid_redirect_uri",
        )
    for uri in uris:
        if (
            not isinstance(uri, str)
            or parse_redirect_uri(uri, settings.BONOBOT_OAUTH_SCHEMES) is None
        ):
            raise InvalidClientMetadata(
                "A redirect URI must be https, of the loopback, or of a scheme that is known.",
                code="invalid_redirect_uri",
            )
    grants = said.get("grant_types", [CODE_GRANT])
    if not isinstance(grants, list) or CODE_GRANT not in grants:
        raise InvalidClientMetadata(
            format_message("`grant_types` must have `{code_grant}`.", code_grant=CODE_GRANT)
        )
    return ClientMetadata(make_visible(name.strip(), LONGEST_NAME), tuple(dict.fromkeys(uris)))


def register(program: ClientMetadata) -> Application:
    """Create a client and return it; delete the oldest unused clients beyond the maximum."""
    made = Application.objects.create(
        name=program.name,
        redirect_uris=" ".join(program.redirect_uris),
        client_type=Application.CLIENT_PUBLIC,
        authorization_grant_type=Application.GRANT_AUTHORIZATION_CODE,
        client_secret="",
        hash_client_secret=False,
        registration_source=Application.RegistrationSource.DCR,
    )
    kept = filter_unused_clients().order_by("-created").values("pk")[:MOST_UNUSED]
    filter_unused_clients().exclude(pk__in=list(kept.values_list("pk", flat=True))).delete()
    return made


def filter_unused_clients(since: datetime | None = None) -> "QuerySet[Application]":
    """Return the self-registered clients that were never authorized."""
    let_in = Token.objects.filter(client_id=OuterRef("client_id"))
    found = Application.objects.filter(~Exists(let_in)).exclude(
        registration_source=Application.RegistrationSource.MANUAL
    )
    return found.filter(created__lt=since) if since else found


def prune() -> int:
    """Delete clients that nobody authorized within a day; return how many."""
    removed, _each = filter_unused_clients(timezone.now() - UNUSED).delete()
    return int(removed)


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


LONGEST_URL = 255
MAX_BODY = 16 * 1024
CONNECT_S = 3
WHOLE_S = 6
SOONEST_S, LATEST_S = 300, 86_400
_MAX_AGE = re.compile(r"max-age\s*=\s*([0-9]{1,9})", re.ASCII)


class ConsentPagePermission:
    """Allows fetching metadata documents on the consent page only.

    Other endpoints are called without a signed-in user, so unknown clients stay unknown there.
    """

    def has_permission(self, request: Any, client_id: str) -> bool:
        """Return whether a document may be fetched for this request."""
        return urlsplit(str(request.uri)).path == "/oauth/authorize"


class ClientMetadataFetcher:
    """Fetches client metadata documents for the toolkit."""

    def fetch(self, client_id: str) -> tuple[dict[str, Any], int]:
        """Return a document and its lifetime in seconds; raises `CIMDError`."""
        _check(client_id)
        try:
            return get_runtime().call(_fetch, client_id)
        except (Problem, httpx2.HTTPError, TimeoutError, ValueError, RecursionError) as fault:
            raise CIMDError(make_visible(str(fault), 200)) from None


def _check(client_id: str) -> None:
    """Raise `CIMDError` if a client id isn't a valid document URL (section 3)."""
    try:
        parts = urlsplit(client_id)
        _port = parts.port
    except ValueError:
        raise CIMDError("it is no URL") from None
    plain = client_id.isascii() and client_id.isprintable() and " " not in client_id
    named = parts.scheme == "https" and parts.hostname and "@" not in parts.netloc
    steps = parts.path.split("/")
    if not (plain and named and len(client_id) <= LONGEST_URL and "#" not in client_id):
        raise CIMDError("it is not an https URL of a document")
    if not parts.path or "." in steps or ".." in steps:
        raise CIMDError("its path is blank, or goes up and down")


async def _fetch(client_id: str) -> tuple[dict[str, Any], int]:
    async with (
        asyncio.timeout(WHOLE_S),
        build_guarded_client(
            allow_private=False, connect_s=CONNECT_S, read_s=CONNECT_S, max_body=MAX_BODY
        ) as client,
    ):
        answer = await client.get(client_id, headers={"Accept": "application/json"})
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if answer.status_code != 200 or not re.fullmatch(r"application/([a-z0-9.-]+\+)?json", kind):
        raise ValueError(
            f"it answered with HTTP {answer.status_code} and {make_visible(kind, 80)!r}"
        )
    document = json.loads(answer.content)
    if not isinstance(document, dict):
        raise InvalidClientMetadata("It is no object.")
    program = read(document)
    # Return checked fields only, because the toolkit stores them.
    known = {
        "client_id": document.get("client_id"),
        "client_name": program.name,
        "redirect_uris": list(program.redirect_uris),
        "grant_types": ["authorization_code", "refresh_token"],
        "token_endpoint_auth_method": document.get("token_endpoint_auth_method", "none"),
    }
    secret = {name: "" for name in document if name.startswith("client_secret")}
    return known | secret, _parse_max_age(answer.headers.get("cache-control", ""))


def _parse_max_age(cache_control: str) -> int:
    found = _MAX_AGE.search(cache_control.lower())
    if "no-store" in cache_control.lower() or "no-cache" in cache_control.lower():
        return SOONEST_S
    return max(SOONEST_S, min(int(found[1]) if found else LATEST_S, LATEST_S))


AT_ONCE = 20
A_MINUTE = 2
PLACES = 10_000

_taken: OrderedDict[str, int] = OrderedDict()
_lock = Lock()


class TooManyRegistrations(Problem):
    """Too many registrations from the same address."""

    code = "too_many_registrations"
    status = 429


def check(address: str) -> None:
    """Count a registration; raises `TooManyRegistrations`."""
    place = extract_address_prefix(address)
    with _lock:
        verdict = admit(
            _taken.get(place, 0), monotonic_ns() // 1_000, compute_interval(A_MINUTE), AT_ONCE
        )
        if verdict.allowed:
            _taken[place] = verdict.tat
            _taken.move_to_end(place)
        while len(_taken) > PLACES:
            _taken.popitem(last=False)
    if not verdict.allowed:
        raise TooManyRegistrations(
            "Too many programs registered from this address. Try again later."
        )
