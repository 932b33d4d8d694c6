"""Parse and check authorization requests and resource indicators.

Some errors are shown to the user only, because the redirect URI isn't trusted; others may be sent
to the client if the user confirms. There are no automatic error redirects: otherwise anyone could
register a client to redirect browsers to any site.
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

from bonobot.accounts.models import Token
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.text.untrusted_text import make_visible
from bonobot.oauth_server.protected_resources import ResourceAddress, protected_resources
from bonobot.oauth_server.redirect_uris import (
    RedirectDestination,
    is_registered_uri,
    parse_redirect_uri,
)

CODE_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
RESOURCE_REQUIRED = "Exactly one URL of this gateway is required as `resource` (RFC 8707)."
OFFLINE_REMEDY = (
    "If Bonobot has no internet access, set BONOBOT_OAUTH_DOCUMENTS=false so that clients "
    "register themselves instead."
)
MAX_SHOWN_LENGTH = 200


def parse_resource_address(resource: str) -> ResourceAddress | None:
    """Return the gateway address of a resource URL, or None for other URLs."""
    origin = settings.BONOBOT_URL
    if not resource.startswith(f"{origin}/"):
        return None
    return protected_resources.get().parse(resource.removeprefix(origin))


def normalize_resource(resource: str) -> str:
    """Return a resource URL as stored in grants; blank if it isn't ours."""
    address = parse_resource_address(resource)
    return f"{settings.BONOBOT_URL}{address.path}" if address else ""


class AuthorizationRefused(Problem):
    """The request is invalid.

    `redirect_url` reports it to the client, and `form_action_sources` are those of a page that
    redirects there; both are blank if only the person sees the error.
    """

    code = "bad_request"
    status = 400

    def __init__(
        self,
        detail: str,
        *,
        code: str,
        redirect_url: str = "",
        form_action_sources: str = "",
        remedy: str = "",
    ) -> None:
        super().__init__(detail, code=code, remedy=remedy)
        self.redirect_url = redirect_url
        self.form_action_sources = form_action_sources


@dataclass(frozen=True, slots=True)
class AuthorizationRequest:
    """A valid authorization request of a client."""

    client: Application
    redirect_uri: str
    destination: RedirectDestination
    address: ResourceAddress
    scopes: tuple[str, ...]
    state: str
    credentials: dict[str, Any]

    @property
    def name(self) -> str:
        """The client's name for itself; untrusted text."""
        name = self.client.name or self.host or self.client.client_id
        return " ".join(make_visible(name, MAX_SHOWN_LENGTH).split())

    @property
    def host(self) -> str:
        """The host of the client's metadata document; blank after dynamic registration."""
        has_document = self.client.registration_source == Application.RegistrationSource.CIMD
        return urlsplit(self.client.client_id).netloc.lower() if has_document else ""

    @property
    def can_be_impersonated(self) -> bool:
        """Whether programs on the user's computer can use the ID of this client's document."""
        return bool(self.host) and self.destination.kind != "site"

    @property
    def resource(self) -> str:
        """The resource URL as stored in grants."""
        return f"{settings.BONOBOT_URL}{self.address.path}"

    def build_denial_redirect(self) -> str:
        """Return the redirect URL for a denied request."""
        return build_error_redirect(
            self.redirect_uri, errors.AccessDeniedError(state=self.state or None)
        )

    def create_code_redirect(
        self, request: HttpRequest, grant: Token, scopes: tuple[str, ...]
    ) -> str:
        """Create a code; return the redirect URL with it. Raises `AuthorizationRefused`."""
        grant_credentials = {
            "grant": grant,
            "resource": [grant.resource],
            "nonce": None,
            "claims": None,
        }
        try:
            redirect_url, _headers, _body, _status = (
                get_oauthlib_core().create_authorization_response(
                    request, list(scopes), self.credentials | grant_credentials, allow=True
                )
            )
        except OAuthToolkitError as error:
            raise _build_refusal(error) from None
        if "code" not in parse_qs(urlsplit(redirect_url).query):
            raise AuthorizationRefused(
                "The client changed its request in the meantime.", code="bad_request"
            )
        return str(redirect_url)


def read_authorization_request(request: HttpRequest) -> AuthorizationRequest:
    """Parse the authorization request of the consent page; raises `AuthorizationRefused`."""
    try:
        scopes, credentials = get_oauthlib_core().validate_authorization_request(request)
    except OAuthToolkitError as error:
        raise _find_document_error(request, error) or _build_refusal(error) from None
    client: Application = credentials.pop("request").client
    destination = parse_redirect_uri(credentials["redirect_uri"], settings.BONOBOT_OAUTH_SCHEMES)
    if destination is None or not is_registered_uri(
        credentials["redirect_uri"], client.redirect_uris.split()
    ):
        raise AuthorizationRefused("The client's redirect URI isn't allowed.", code="redirect")
    address = _find_address(request)
    if any(len(values) > 1 for name, values in request.GET.lists() if name != "resource"):
        duplicate_error = errors.InvalidRequestError("A parameter occurs more than once.")
        raise _build_redirect_refusal(duplicate_error, credentials)
    if not _uses_s256(credentials):
        raise _build_redirect_refusal(
            errors.InvalidRequestError("PKCE with S256 is required."), credentials
        )
    if address is None:
        raise _build_redirect_refusal(
            errors.CustomOAuth2Error("invalid_target", RESOURCE_REQUIRED), credentials
        )
    return AuthorizationRequest(
        client=client,
        redirect_uri=credentials["redirect_uri"],
        destination=destination,
        address=address,
        scopes=tuple(dict.fromkeys(scopes)),
        state=credentials["state"] or "",
        credentials=credentials,
    )


def _find_address(request: HttpRequest) -> ResourceAddress | None:
    resources = request.GET.getlist("resource")
    return parse_resource_address(resources[0]) if len(resources) == 1 else None


def _uses_s256(credentials: Mapping[str, Any]) -> bool:
    challenge = credentials.get("code_challenge") or ""
    return credentials.get("code_challenge_method") == "S256" and bool(
        CODE_CHALLENGE.fullmatch(challenge)
    )


def build_error_redirect(redirect_uri: str, error: errors.OAuth2Error) -> str:
    """Return the redirect URL with an error and the issuer (RFC 9207)."""
    parameters = [(name, value) for name, value in error.twotuples if value]
    url: str = add_params_to_uri(redirect_uri, [*parameters, ("iss", settings.BONOBOT_URL)])
    return url


def _find_document_error(
    request: HttpRequest, error: OAuthToolkitError
) -> AuthorizationRefused | None:
    """Return the error for an unreadable client metadata document, if that is the cause."""
    client_id = request.GET.get("client_id", "")
    is_unknown_client = isinstance(error.oauthlib_error, errors.InvalidClientIdError)
    if not (is_unknown_client and client_id.startswith("https://")):
        return None
    return AuthorizationRefused(
        format_message(
            "The client's metadata document at `{address}` can't be read.",
            address=make_visible(client_id, MAX_SHOWN_LENGTH),
        ),
        code="document_unreadable",
        remedy=OFFLINE_REMEDY,
    )


def _build_refusal(toolkit_error: OAuthToolkitError) -> AuthorizationRefused:
    error: errors.OAuth2Error = toolkit_error.oauthlib_error
    if isinstance(toolkit_error, FatalClientError):
        return AuthorizationRefused(
            make_visible(error.description or error.error, MAX_SHOWN_LENGTH), code=error.error
        )
    return _build_redirect_refusal(
        error, {"redirect_uri": error.redirect_uri, "state": error.state}
    )


def _build_redirect_refusal(
    error: errors.OAuth2Error, credentials: Mapping[str, Any]
) -> AuthorizationRefused:
    uri, error.state = credentials["redirect_uri"] or "", credentials["state"]
    destination = parse_redirect_uri(uri, settings.BONOBOT_OAUTH_SCHEMES)
    return AuthorizationRefused(
        make_visible(error.description or error.error, MAX_SHOWN_LENGTH),
        code=error.error,
        redirect_url=build_error_redirect(uri, error) if destination else "",
        form_action_sources=destination.form_action_sources if destination else "",
    )
