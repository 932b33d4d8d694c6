"""OAuth metadata (RFC 9728, RFC 8414) and WWW-Authenticate challenges.

Documents are validated: the resource must cover the server's URL, and the issuer must be exactly
the identifier that its document was looked up by.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import httpx2

from bonobot.core.http.well_known import build_origin, list_metadata_urls
from bonobot.core.i18n.messages import format_message
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.models.oauth import ISSUER_LENGTH
from mcp_servers.oauth_client.http import OAuthHttpClient, open_http_client
from mcp_servers.oauth_client.types import (
    AuthorizationServerUnavailable,
    OAuthAccount,
    OAuthProblem,
)

_SCHEME = re.compile(r"(?i)(?:^|,)\s*bearer(?:\s+|$)")
# The next scheme in the same header: a word that is not a parameter name.
_NEXT_SCHEME = re.compile(r",\s*[A-Za-z][A-Za-z0-9-]*\s+[A-Za-z]")
_PARAMETER = re.compile(r'([A-Za-z_*]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
LONGEST = 8192


@dataclass(frozen=True)
class BearerChallenge:
    """A Bearer challenge: URL of the resource metadata, required scopes, error."""

    resource_metadata: str = ""
    scopes: tuple[str, ...] = ()
    error: str = ""

    @property
    def wants_more(self) -> bool:
        """Return whether the token is valid but lacks scopes."""
        return self.error == "insufficient_scope"


def read(header: str) -> BearerChallenge | None:
    """Return the Bearer challenge of a `WWW-Authenticate` header, or None."""
    header = header[:LONGEST]
    found = _SCHEME.search(header)
    if found is None:
        return None
    text = header[found.end() :]
    if following := _NEXT_SCHEME.search(text):
        text = text[: following.start()]
    members: dict[str, str] = {}
    for name, quoted, plain in _PARAMETER.findall(text):
        members.setdefault(name.lower(), re.sub(r"\\(.)", r"\1", quoted) or plain)
    return BearerChallenge(
        resource_metadata=members.get("resource_metadata", ""),
        scopes=tuple(members.get("scope", "").split()),
        error=members.get("error", ""),
    )


SHOWN = 200
BASIC_ONLY = ("client_secret_basic",)  # the default of RFC 8414


@dataclass(frozen=True, kw_only=True)
class AuthorizationServer:
    """An authorization server for one resource; `iss_named`: it sends `iss` (RFC 9207)."""

    issuer: str
    resource: str
    token_endpoint: str
    authorization_endpoint: str = ""
    registration_endpoint: str = ""
    revocation_endpoint: str = ""
    methods: tuple[str, ...] = BASIC_ONLY
    scopes: tuple[str, ...] = ()
    pkce: bool = False
    iss_named: bool = False
    client_documents: bool = False
    offline_access: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for a JSON column."""
        return asdict(self)

    @classmethod
    def of(cls, stored: dict[str, Any]) -> "AuthorizationServer":
        """Return the instance for a dict of `as_dict`."""
        lists = {name: tuple(stored.get(name, ())) for name in ("methods", "scopes")}
        return cls(**{**stored, **lists})


@dataclass(frozen=True)
class _ProtectedResource:
    identifier: str
    issuers: tuple[str, ...]
    scopes: tuple[str, ...]


async def discover(
    account: OAuthAccount, challenge: BearerChallenge | None = None, *, pinned: str = ""
) -> AuthorizationServer:
    """Find the authorization server that issues tokens for the account's server.

    `challenge` is the server's, if known already; `pinned` is the only issuer that the client's
    credentials may be sent to. Raises `OAuthProblem`, `EgressDenied`.
    """
    async with open_http_client(account) as asker:
        if challenge is None:
            challenge = read(await asker.challenge(account.url))
        resource = await _fetch_protected_resource(asker, account, challenge)
        issuer = _choose_issuer(resource, account.issuer or pinned)
        document = await _fetch_server_metadata(asker, issuer)
        scopes = (challenge.scopes if challenge else ()) or resource.scopes
        return _build_authorization_server(asker, issuer, document, resource.identifier, scopes)


async def _fetch_protected_resource(
    asker: OAuthHttpClient, account: OAuthAccount, challenge: BearerChallenge | None
) -> _ProtectedResource:
    named = challenge.resource_metadata if challenge else ""
    for url in (named,) if named else tuple(_list_resource_metadata_urls(account.url)):
        answer = await asker.get(url, "resource metadata")
        if answer.status == 200 and answer.body:
            return _read_resource(account, dict(answer.body))
        _check_status(answer.status, url)
    if named:
        raise _build_metadata_error(
            format_message(
                "There is no resource metadata at `{named}`.", named=make_visible(named, SHOWN)
            )
        )
    # Servers of 2025-03-26 have no resource metadata: they are their own authorization server.
    return _ProtectedResource(account.url, (build_origin(httpx2.URL(account.url)),), ())


def _read_resource(account: OAuthAccount, document: dict[str, Any]) -> _ProtectedResource:
    identifier = document.get("resource")
    if not isinstance(identifier, str) or not _is_resource_for(identifier, account.url):
        raise OAuthProblem(
            format_message(
                "The resource metadata is about `{identifier}`, not about this server.",
                identifier=make_visible(str(identifier), SHOWN),
            ),
            code="resource_mismatch",
            remedy="Check the server's URL; if it is right, ask who runs the server.",
        )
    issuers = _filter_strings(document.get("authorization_servers"))
    if not issuers:
        raise _build_metadata_error("The resource metadata names no authorization server.")
    return _ProtectedResource(
        identifier, issuers, _filter_strings(document.get("scopes_supported"))
    )


def _choose_issuer(resource: _ProtectedResource, pinned: str) -> str:
    if not pinned:
        return resource.issuers[0]
    if pinned in resource.issuers:
        return pinned
    raise OAuthProblem(
        format_message(
            "The server wants its tokens from `{issuers}` now; our "
            "credentials belong to `{pinned}`.",
            issuers=make_visible(resource.issuers[0], SHOWN),
            pinned=make_visible(pinned, SHOWN),
        ),
        code="issuer_changed",
        remedy="If that is right, enter credentials of the new authorization server.",
    )


async def _fetch_server_metadata(asker: OAuthHttpClient, issuer: str) -> dict[str, Any]:
    if len(asker.check(issuer, "authorization server")) > ISSUER_LENGTH:
        raise _build_metadata_error("The authorization server's identifier is too long.")
    for url in list_metadata_urls(issuer):
        answer = await asker.get(url, "authorization server's metadata")
        if answer.status == 200 and answer.body:
            found = answer.body.get("issuer")
            if found != issuer:
                raise OAuthProblem(
                    format_message(
                        "The metadata of `{issuer}` was issued by `{found}`.",
                        issuer=make_visible(issuer, SHOWN),
                        found=make_visible(str(found), SHOWN),
                    ),
                    code="issuer_mismatch",
                    remedy="The two have to be the same text; ask who runs the server.",
                )
            return dict(answer.body)
        _check_status(answer.status, url)
    raise _build_metadata_error(
        format_message("`{issuer}` publishes no metadata.", issuer=make_visible(issuer, SHOWN))
    )


def _build_authorization_server(
    asker: OAuthHttpClient,
    issuer: str,
    document: dict[str, Any],
    resource: str,
    scopes: tuple[str, ...],
) -> AuthorizationServer:
    optional = {
        name: asker.check(document[name], name.replace("_", " "))
        for name in ("authorization_endpoint", "registration_endpoint", "revocation_endpoint")
        if document.get(name)
    }
    return AuthorizationServer(
        issuer=issuer,
        resource=resource,
        token_endpoint=asker.check(document.get("token_endpoint"), "token endpoint"),
        methods=_filter_strings(document.get("token_endpoint_auth_methods_supported"))
        or BASIC_ONLY,
        scopes=scopes,
        pkce="S256" in _filter_strings(document.get("code_challenge_methods_supported")),
        iss_named=document.get("authorization_response_iss_parameter_supported") is True,
        client_documents=document.get("client_id_metadata_document_supported") is True,
        offline_access="offline_access" in _filter_strings(document.get("scopes_supported")),
        **optional,
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
        wide, own = httpx2.URL(identifier), httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError):
        return False
    inside = f"{own.path.rstrip('/')}/".startswith(f"{wide.path.rstrip('/')}/")
    return build_origin(wide) == build_origin(own) and inside and not wide.fragment


def is_same_origin(one: str, other: str) -> bool:
    """Return whether two URLs have the same scheme, host and port."""
    try:
        return build_origin(httpx2.URL(one)) == build_origin(httpx2.URL(other))
    except (httpx2.InvalidURL, ValueError):
        return False


def _filter_strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(one for one in value if isinstance(one, str))


def _check_status(status: int, url: str) -> None:
    if status >= 500 or status == 429:
        raise AuthorizationServerUnavailable(
            format_message(
                "`{host}` answered with HTTP {status}.",
                host=make_visible(httpx2.URL(url).host, SHOWN),
                status=status,
            ),
            remedy="Try again later.",
        )


def _build_metadata_error(detail: str) -> OAuthProblem:
    return OAuthProblem(
        detail,
        code="oauth_metadata_invalid",
        remedy="Enter `token_url` for client credentials, or ask who runs the server.",
    )
