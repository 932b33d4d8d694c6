"""Dynamic client registration, and its rate limit.

Anyone may register a client, so registration grants nothing: a user decides on the consent page,
which shows the redirect destination. Registrations are rate limited, and clients without an
authorization are deleted.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock
from time import monotonic_ns
from typing import Any

from django.conf import settings
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone
from oauth2_provider.models import Application

from bonobot.accounts.models import Token
from bonobot.core.http.ip_addresses import extract_address_prefix
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.rate_limiter import admit_request, compute_interval
from bonobot.core.text.untrusted_text import make_visible
from bonobot.oauth_server.redirect_uris import parse_redirect_uri

MAX_NAME_LENGTH = 100
MAX_REDIRECT_URIS = 10
# How many clients without a grant are kept, and for how long.
MAX_UNUSED_CLIENTS = 1_000
UNUSED_RETENTION = timedelta(days=1)
CODE_GRANT = "authorization_code"
MIN_LIFETIME_S, MAX_LIFETIME_S = 300, 86_400
BURST = 20
REGISTRATIONS_PER_MINUTE = 2
MAX_TRACKED_ADDRESSES = 10_000
_arrival_times: OrderedDict[str, int] = OrderedDict()
_lock = Lock()


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
