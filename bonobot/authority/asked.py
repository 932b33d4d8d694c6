"""What a program asks a person for: an authorization request, read and judged (OAuth 2.1).

Faults come in two kinds: those of which only the person may learn, since nobody knows where the
program is, and those that the program may be told, if the person sends them there. Nothing sends a
browser anywhere by itself: whoever registers a program could have it sent to any site.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.conf import settings
from django.http import HttpRequest
from oauth2_provider.exceptions import FatalClientError, OAuthToolkitError
from oauth2_provider.models import Application
from oauth2_provider.oauth2_backends import get_oauthlib_core
from oauthlib.common import add_params_to_uri
from oauthlib.oauth2.rfc6749 import errors

from bonobot.authority.addresses import address_of
from bonobot.authority.redirects import Destination, destination, is_named
from bonobot.gateway.places import Address
from bonobot.lib.problems import Problem
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from bonobot.tenancy.models import Token

CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
ONE_ADDRESS = "Say one address of ours as `resource` (RFC 8707)."
WITHOUT_DOCUMENTS = (
    "Where Bonobot can't reach the internet, BONOBOT_OAUTH_DOCUMENTS=false has programs register "
    "themselves instead."
)
SHOWN = 200


class Refused(Problem):
    """A request that nobody is asked about; `back` is where the program may be told, or blank."""

    code = "bad_request"
    status = 400

    def __init__(
        self, detail: str, *, code: str, back: str = "", sources: str = "", remedy: str = ""
    ) -> None:
        super().__init__(detail, code=code, remedy=remedy)
        self.back, self.sources = back, sources


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for, by whom, and where the answer goes."""

    program: Application
    redirect_uri: str
    destination: Destination
    address: Address
    scopes: tuple[str, ...]
    state: str
    credentials: dict[str, Any]

    @property
    def name(self) -> str:
        """What the program calls itself: a stranger's word."""
        said = self.program.name or self.host or self.program.client_id
        return " ".join(visible(said, SHOWN).split())

    @property
    def host(self) -> str:
        """Whose program it is, as far as that is known; blank for one that registered itself."""
        by_document = self.program.registration_source == Application.RegistrationSource.CIMD
        return urlsplit(self.program.client_id).netloc if by_document else ""

    @property
    def resource(self) -> str:
        """The address, as grants have it."""
        return f"{settings.BONOBOT_URL}{self.address.path}"

    def denied(self) -> str:
        """Return where the program learns that the person said no."""
        return told(self.redirect_uri, errors.AccessDeniedError(state=self.state or None))

    def granted(self, request: HttpRequest, grant: Token, scopes: tuple[str, ...]) -> str:
        """Return where the program gets its code; raises `Refused`."""
        more = {"grant": grant, "resource": [grant.resource], "nonce": None, "claims": None}
        try:
            found, _headers, _body, _status = get_oauthlib_core().create_authorization_response(
                request, list(scopes), self.credentials | more, allow=True
            )
        except OAuthToolkitError as fault:
            raise _refused(fault) from None
        if "code" not in parse_qs(urlsplit(found).query):
            raise Refused("The program asked for something else meanwhile.", code="bad_request")
        return str(found)


def read(request: HttpRequest) -> Asked:
    """Return what the address of the page asks for; raises `Refused`."""
    try:
        scopes, credentials = get_oauthlib_core().validate_authorization_request(request)
    except OAuthToolkitError as fault:
        raise _unread(request, fault) or _refused(fault) from None
    program: Application = credentials.pop("request").client
    leads = destination(credentials["redirect_uri"], settings.BONOBOT_OAUTH_SCHEMES)
    if leads is None or not is_named(credentials["redirect_uri"], program.redirect_uris.split()):
        raise Refused("It would send you to an address that nobody is sent to.", code="redirect")
    address = _address(request)
    if any(len(values) > 1 for name, values in request.GET.lists() if name != "resource"):
        twice = errors.InvalidRequestError("A parameter is there twice.")
        raise _told_refused(twice, credentials)
    if not _is_s256(credentials):
        raise _told_refused(errors.InvalidRequestError("PKCE by S256 is required."), credentials)
    if address is None:
        raise _told_refused(errors.CustomOAuth2Error("invalid_target", ONE_ADDRESS), credentials)
    return Asked(
        program=program,
        redirect_uri=credentials["redirect_uri"],
        destination=leads,
        address=address,
        scopes=tuple(dict.fromkeys(scopes)),
        state=credentials["state"] or "",
        credentials=credentials,
    )


def _address(request: HttpRequest) -> Address | None:
    resources = request.GET.getlist("resource")
    return address_of(resources[0]) if len(resources) == 1 else None


def _is_s256(credentials: Mapping[str, Any]) -> bool:
    said = credentials.get("code_challenge") or ""
    return credentials.get("code_challenge_method") == "S256" and bool(CHALLENGE.fullmatch(said))


def told(redirect_uri: str, fault: errors.OAuth2Error) -> str:
    """Return a program's address with an error in it, and with who says so (RFC 9207)."""
    members = [(name, value) for name, value in fault.twotuples if value]
    found: str = add_params_to_uri(redirect_uri, [*members, ("iss", settings.BONOBOT_URL)])
    return found


def _unread(request: HttpRequest, fault: OAuthToolkitError) -> Refused | None:
    """Return what a person is told of a program whose document can't be read, if that is it."""
    client_id = request.GET.get("client_id", "")
    unknown = isinstance(fault.oauthlib_error, errors.InvalidClientIdError)
    if not (unknown and client_id.startswith("https://")):
        return None
    return Refused(
        say(
            "The program says who it is at `{address}`: that can't be read here.",
            address=visible(client_id, SHOWN),
        ),
        code="document_unreadable",
        remedy=WITHOUT_DOCUMENTS,
    )


def _refused(fault: OAuthToolkitError) -> Refused:
    error: errors.OAuth2Error = fault.oauthlib_error
    if isinstance(fault, FatalClientError):
        return Refused(visible(error.description or error.error, SHOWN), code=error.error)
    return _told_refused(error, {"redirect_uri": error.redirect_uri, "state": error.state})


def _told_refused(error: errors.OAuth2Error, credentials: Mapping[str, Any]) -> Refused:
    uri, error.state = credentials["redirect_uri"] or "", credentials["state"]
    leads = destination(uri, settings.BONOBOT_OAUTH_SCHEMES)
    return Refused(
        visible(error.description or error.error, SHOWN),
        code=error.error,
        back=told(uri, error) if leads else "",
        sources=leads.sources if leads else "",
    )
