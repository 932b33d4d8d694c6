"""OAuth metadata (RFC 9728, RFC 8414) and WWW-Authenticate challenges.

Documents are validated: the resource must cover the server's URL, and the issuer must be exactly
the identifier that its document was looked up by.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import httpx2

from bonobot.core.http.well_known import build_origin, list_metadata_urls
from bonobot.core.i18n.messages import format_message
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.models.oauth import MAX_ISSUER_LENGTH
from mcp_servers.oauth_client.dpop import DPOP_ALGORITHM, DPOP_ALGORITHMS_FIELD, uses_dpop
from mcp_servers.oauth_client.http import OAuthHttpClient, open_http_client
from mcp_servers.oauth_client.types import (
    AuthorizationServerUnavailable,
    OAuthAccount,
    OAuthProblem,
)

_SCHEME = re.compile(r"(?i)(?:^|,)\s*(bearer|dpop)(?:\s+|$)")
# The next scheme in the same header: a word that is not a parameter name.
_NEXT_SCHEME = re.compile(r",\s*[A-Za-z][A-Za-z0-9-]*\s+[A-Za-z]")
_PARAMETER = re.compile(r'([A-Za-z_*]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
MAX_HEADER_LENGTH = 8192
MAX_SHOWN_LENGTH = 200
DEFAULT_AUTH_METHODS = ("client_secret_basic",)  # the default of RFC 8414


@dataclass(frozen=True)
class BearerChallenge:
    """A Bearer or DPoP challenge: URL of the resource metadata, required scopes, error."""

    resource_metadata: str = ""
    scopes: tuple[str, ...] = ()
    error: str = ""
    dpop: bool = False

    @property
    def wants_more_scopes(self) -> bool:
        """Return whether the token is valid but lacks scopes."""
        return self.error == "insufficient_scope"


def parse_challenge(header: str) -> BearerChallenge | None:
    """Return the Bearer and DPoP challenges of a `WWW-Authenticate` header as one, or None."""
    header = header[:MAX_HEADER_LENGTH]
    matches = list(_SCHEME.finditer(header))
    if not matches:
        return None
    parameters: dict[str, str] = {}
    for match in matches:
        text = header[match.end() :]
        if next_scheme := _NEXT_SCHEME.search(text):
            text = text[: next_scheme.start()]
        for name, quoted, unquoted in _PARAMETER.findall(text):
            parameters.setdefault(name.lower(), re.sub(r"\\(.)", r"\1", quoted) or unquoted)
    return BearerChallenge(
        resource_metadata=parameters.get("resource_metadata", ""),
        scopes=tuple(parameters.get("scope", "").split()),
        error=parameters.get("error", ""),
        dpop=any(match[1].lower() == "dpop" for match in matches),
    )


@dataclass(frozen=True, kw_only=True)
class AuthorizationServer:
    """An authorization server for one resource.

    `iss_named`: it sends `iss` (RFC 9207); `dpop`: tokens are bound to a key (RFC 9449).
    """

    issuer: str
    resource: str
    token_endpoint: str
    authorization_endpoint: str = ""
    registration_endpoint: str = ""
    revocation_endpoint: str = ""
    methods: tuple[str, ...] = DEFAULT_AUTH_METHODS
    scopes: tuple[str, ...] = ()
    pkce: bool = False
    iss_named: bool = False
    client_documents: bool = False
    offline_access: bool = False
    dpop: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for a JSON column."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored_metadata: dict[str, Any]) -> "AuthorizationServer":
        """Return the instance for a dict of `as_dict`."""
        lists = {name: tuple(stored_metadata.get(name, ())) for name in ("methods", "scopes")}
        return cls(**{**stored_metadata, **lists})


@dataclass(frozen=True)
class _ProtectedResource:
    identifier: str
    issuers: tuple[str, ...]
    scopes: tuple[str, ...]
    has_metadata: bool = True
    dpop: bool = False


async def discover_authorization_server(
    account: OAuthAccount, challenge: BearerChallenge | None = None, *, pinned: str = ""
) -> AuthorizationServer:
    """Find the authorization server that issues tokens for the account's server.

    `challenge` is the server's, if known already; `pinned` is the only issuer that the client's
    credentials may be sent to. Raises `OAuthProblem`, `EgressDenied`.
    """
    async with open_http_client(account) as http_client:
        if challenge is None:
            challenge = parse_challenge(await http_client.fetch_challenge(account.url))
        resource = await _fetch_protected_resource(http_client, account, challenge)
        issuer = _choose_issuer(resource, account.issuer or pinned)
        document = await _fetch_server_metadata(http_client, issuer)
        if document is None and (resource.has_metadata or not account.interactive):
            raise _build_metadata_error(
                format_message(
                    "`{issuer}` doesn't publish any metadata.",
                    issuer=make_visible(issuer, MAX_SHOWN_LENGTH),
                )
            )
        document = document or _build_default_metadata(issuer)
        scopes = (challenge.scopes if challenge else ()) or resource.scopes
        authorization_server = _build_authorization_server(
            http_client, issuer, document, resource.identifier, scopes
        )
        algorithms = _filter_strings(document.get(DPOP_ALGORITHMS_FIELD))
        dpop_requested = resource.dpop or (challenge is not None and challenge.dpop)
        return replace(
            authorization_server, dpop=uses_dpop(account, algorithms, requested=dpop_requested)
        )


async def _fetch_protected_resource(
    http_client: OAuthHttpClient, account: OAuthAccount, challenge: BearerChallenge | None
) -> _ProtectedResource:
    metadata_url = challenge.resource_metadata if challenge else ""
    for url in (
        (metadata_url,) if metadata_url else tuple(_list_resource_metadata_urls(account.url))
    ):
        response = await http_client.get(url, "resource metadata")
        if response.status == 200 and response.body:
            return _parse_protected_resource(account, dict(response.body))
        _check_status(response.status, url)
    if metadata_url:
        raise _build_metadata_error(
            format_message(
                "No resource metadata found at `{url}`.",
                url=make_visible(metadata_url, MAX_SHOWN_LENGTH),
            )
        )
    # Servers of 2025-03-26 have no resource metadata: they are their own authorization server.
    origin = build_origin(httpx2.URL(account.url))
    return _ProtectedResource(account.url, (origin,), (), has_metadata=False)


def _parse_protected_resource(
    account: OAuthAccount, document: dict[str, Any]
) -> _ProtectedResource:
    identifier = document.get("resource")
    if not isinstance(identifier, str) or not _is_resource_for(identifier, account.url):
        raise OAuthProblem(
            format_message(
                "The resource metadata describes `{identifier}`, not this server.",
                identifier=make_visible(str(identifier), MAX_SHOWN_LENGTH),
            ),
            code="resource_mismatch",
            remedy="Check the server's URL. If it is correct, contact the server's administrator.",
        )
    issuers = _filter_strings(document.get("authorization_servers"))
    if not issuers:
        raise _build_metadata_error("The resource metadata doesn't list an authorization server.")
    return _ProtectedResource(
        identifier,
        issuers,
        _filter_strings(document.get("scopes_supported")),
        dpop=document.get("dpop_bound_access_tokens_required") is True
        or DPOP_ALGORITHM in _filter_strings(document.get(DPOP_ALGORITHMS_FIELD)),
    )


def _choose_issuer(resource: _ProtectedResource, pinned: str) -> str:
    if not pinned:
        return resource.issuers[0]
    if pinned in resource.issuers:
        return pinned
    raise OAuthProblem(
        format_message(
            "The server now requires tokens from `{issuers}`, but the stored credentials "
            "belong to `{pinned}`.",
            issuers=make_visible(resource.issuers[0], MAX_SHOWN_LENGTH),
            pinned=make_visible(pinned, MAX_SHOWN_LENGTH),
        ),
        code="issuer_changed",
        remedy="If this change is expected, enter credentials for the new authorization server.",
    )


async def _fetch_server_metadata(
    http_client: OAuthHttpClient, issuer: str
) -> dict[str, Any] | None:
    """Return the metadata document of an authorization server, or None if it has none."""
    if len(http_client.clean_url(issuer, "authorization server")) > MAX_ISSUER_LENGTH:
        raise _build_metadata_error("The authorization server's identifier is too long.")
    for url in list_metadata_urls(issuer):
        response = await http_client.get(url, "authorization server metadata")
        if response.status == 200 and response.body:
            declared_issuer = response.body.get("issuer")
            if declared_issuer != issuer:
                raise OAuthProblem(
                    format_message(
                        "The metadata of `{issuer}` names a different issuer: `{other_issuer}`.",
                        issuer=make_visible(issuer, MAX_SHOWN_LENGTH),
                        other_issuer=make_visible(str(declared_issuer), MAX_SHOWN_LENGTH),
                    ),
                    code="issuer_mismatch",
                    remedy="Both values must be identical. Contact the server's administrator.",
                )
            return dict(response.body)
        _check_status(response.status, url)
    return None


def _build_default_metadata(origin: str) -> dict[str, Any]:
    """Return what MCP 2025-03-26 defines for a server at `origin` without any metadata.

    That revision requires PKCE of every authorization server.
    """
    return {
        "authorization_endpoint": f"{origin}/authorize",
        "token_endpoint": f"{origin}/token",
        "registration_endpoint": f"{origin}/register",
        "code_challenge_methods_supported": ["S256"],
    }


def _build_authorization_server(
    http_client: OAuthHttpClient,
    issuer: str,
    document: dict[str, Any],
    resource: str,
    scopes: tuple[str, ...],
) -> AuthorizationServer:
    optional_endpoints: dict[str, Any] = {
        name: http_client.clean_url(document[name], name.replace("_", " "))
        for name in ("authorization_endpoint", "registration_endpoint", "revocation_endpoint")
        if document.get(name)
    }
    return AuthorizationServer(
        issuer=issuer,
        resource=resource,
        token_endpoint=http_client.clean_url(document.get("token_endpoint"), "token endpoint"),
        methods=_filter_strings(document.get("token_endpoint_auth_methods_supported"))
        or DEFAULT_AUTH_METHODS,
        scopes=scopes,
        pkce="S256" in _filter_strings(document.get("code_challenge_methods_supported")),
        iss_named=document.get("authorization_response_iss_parameter_supported") is True,
        client_documents=document.get("client_id_metadata_document_supported") is True,
        offline_access="offline_access" in _filter_strings(document.get("scopes_supported")),
        **optional_endpoints,
    )


def _list_resource_metadata_urls(url: str) -> Iterator[str]:
    parsed = httpx2.URL(url)
    well_known = f"{build_origin(parsed)}/.well-known/oauth-protected-resource"
    path = parsed.path.rstrip("/")
    if path:
        yield well_known + path
    yield well_known


def _is_resource_for(identifier: str, url: str) -> bool:
    try:
        resource_url, server_url = httpx2.URL(identifier), httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError):
        return False
    is_below = f"{server_url.path.rstrip('/')}/".startswith(f"{resource_url.path.rstrip('/')}/")
    return (
        build_origin(resource_url) == build_origin(server_url)
        and is_below
        and not resource_url.fragment
    )


def is_same_origin(first: str, second: str) -> bool:
    """Return whether two URLs have the same scheme, host and port."""
    try:
        return build_origin(httpx2.URL(first)) == build_origin(httpx2.URL(second))
    except (httpx2.InvalidURL, ValueError):
        return False


def _filter_strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(item for item in value if isinstance(item, str))


def _check_status(status: int, url: str) -> None:
    if status >= 500 or status == 429:
        raise AuthorizationServerUnavailable(
            format_message(
                "`{host}` returned HTTP {status}.",
                host=make_visible(httpx2.URL(url).host, MAX_SHOWN_LENGTH),
                status=status,
            ),
            remedy="Try again later.",
        )


def _build_metadata_error(detail: str) -> OAuthProblem:
    return OAuthProblem(
        detail,
        code="oauth_metadata_invalid",
        remedy="Enter `token_url` for client credentials, or contact the server's administrator.",
    )
