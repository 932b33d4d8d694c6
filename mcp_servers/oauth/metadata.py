"""Where to sign in to a server: RFC 9728 about the server, then RFC 8414 or OpenID about who.

Every document is checked before it is believed: the resource has to cover the server's URL, and
the issuer has to be, letter by letter, the identifier that its document was looked up by.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import httpx2

from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from bonobot.lib.well_known import authority_urls, origin
from mcp_servers.models.grants import ISSUER_LENGTH
from mcp_servers.oauth import challenges
from mcp_servers.oauth.accounts import Account
from mcp_servers.oauth.asking import Asker, asking
from mcp_servers.oauth.challenges import Challenge
from mcp_servers.oauth.faults import OAuthProblem, Transient

SHOWN = 200
BASIC_ONLY = ("client_secret_basic",)  # what RFC 8414 says where nothing is said


@dataclass(frozen=True, kw_only=True)
class Authority:
    """An authorization server for one resource; `iss_named`: it names itself (RFC 9207)."""

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
        """Return it for a JSON column."""
        return asdict(self)

    @classmethod
    def of(cls, stored: dict[str, Any]) -> "Authority":
        """Return what `as_dict` gave."""
        lists = {name: tuple(stored.get(name, ())) for name in ("methods", "scopes")}
        return cls(**{**stored, **lists})


@dataclass(frozen=True)
class _Resource:
    identifier: str
    issuers: tuple[str, ...]
    scopes: tuple[str, ...]


async def discover(
    account: Account, challenge: Challenge | None = None, *, pinned: str = ""
) -> Authority:
    """Find out where tokens for the account's server are given.

    `challenge` is what the server said, if it was asked already; `pinned` is the issuer that knows
    the account's client, which no other one gets to see. Raises `OAuthProblem`, `EgressDenied`.
    """
    async with asking(account) as asker:
        if challenge is None:
            challenge = challenges.read(await asker.challenge(account.url))
        resource = await _resource(asker, account, challenge)
        issuer = _chosen(resource, account.issuer or pinned)
        document = await _document(asker, issuer)
        scopes = (challenge.scopes if challenge else ()) or resource.scopes
        return _authority(asker, issuer, document, resource.identifier, scopes)


async def _resource(asker: Asker, account: Account, challenge: Challenge | None) -> _Resource:
    named = challenge.resource_metadata if challenge else ""
    for url in (named,) if named else tuple(_resource_urls(account.url)):
        answer = await asker.get(url, "resource metadata")
        if answer.status == 200 and answer.body:
            return _read_resource(account, dict(answer.body))
        _not_away(answer.status, url)
    if named:
        raise _invalid(
            say("There is no resource metadata at `{named}`.", named=visible(named, SHOWN))
        )
    # Servers of 2025-03-26 say nothing about themselves: they are their own authority.
    return _Resource(account.url, (origin(httpx2.URL(account.url)),), ())


def _read_resource(account: Account, document: dict[str, Any]) -> _Resource:
    identifier = document.get("resource")
    if not isinstance(identifier, str) or not _covers(identifier, account.url):
        raise OAuthProblem(
            say(
                "The resource metadata is about `{identifier}`, not about this server.",
                identifier=visible(str(identifier), SHOWN),
            ),
            code="resource_mismatch",
            remedy="Check the server's URL; if it is right, ask who runs the server.",
        )
    issuers = _texts(document.get("authorization_servers"))
    if not issuers:
        raise _invalid("The resource metadata names no authorization server.")
    return _Resource(identifier, issuers, _texts(document.get("scopes_supported")))


def _chosen(resource: _Resource, pinned: str) -> str:
    if not pinned:
        return resource.issuers[0]
    if pinned in resource.issuers:
        return pinned
    raise OAuthProblem(
        say(
            "The server wants its tokens from `{issuers}` now; our "
            "credentials belong to `{pinned}`.",
            issuers=visible(resource.issuers[0], SHOWN),
            pinned=visible(pinned, SHOWN),
        ),
        code="issuer_changed",
        remedy="If that is right, enter credentials of the new authorization server.",
    )


async def _document(asker: Asker, issuer: str) -> dict[str, Any]:
    if len(asker.check(issuer, "authorization server")) > ISSUER_LENGTH:
        raise _invalid("The authorization server's identifier is too long.")
    for url in authority_urls(issuer):
        answer = await asker.get(url, "authorization server's metadata")
        if answer.status == 200 and answer.body:
            found = answer.body.get("issuer")
            if found != issuer:
                raise OAuthProblem(
                    say(
                        "The metadata of `{issuer}` was issued by `{found}`.",
                        issuer=visible(issuer, SHOWN),
                        found=visible(str(found), SHOWN),
                    ),
                    code="issuer_mismatch",
                    remedy="The two have to be the same text; ask who runs the server.",
                )
            return dict(answer.body)
        _not_away(answer.status, url)
    raise _invalid(say("`{issuer}` publishes no metadata.", issuer=visible(issuer, SHOWN)))


def _authority(
    asker: Asker,
    issuer: str,
    document: dict[str, Any],
    resource: str,
    scopes: tuple[str, ...],
) -> Authority:
    optional = {
        name: asker.check(document[name], name.replace("_", " "))
        for name in ("authorization_endpoint", "registration_endpoint", "revocation_endpoint")
        if document.get(name)
    }
    return Authority(
        issuer=issuer,
        resource=resource,
        token_endpoint=asker.check(document.get("token_endpoint"), "token endpoint"),
        methods=_texts(document.get("token_endpoint_auth_methods_supported")) or BASIC_ONLY,
        scopes=scopes,
        pkce="S256" in _texts(document.get("code_challenge_methods_supported")),
        iss_named=document.get("authorization_response_iss_parameter_supported") is True,
        client_documents=document.get("client_id_metadata_document_supported") is True,
        offline_access="offline_access" in _texts(document.get("scopes_supported")),
        **optional,
    )


def _resource_urls(url: str) -> Iterator[str]:
    parsed = httpx2.URL(url)
    well_known = f"{origin(parsed)}/.well-known/oauth-protected-resource"
    path = parsed.path.rstrip("/")
    if path:
        yield well_known + path
    yield well_known


def _covers(identifier: str, url: str) -> bool:
    try:
        wide, own = httpx2.URL(identifier), httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError):
        return False
    inside = f"{own.path.rstrip('/')}/".startswith(f"{wide.path.rstrip('/')}/")
    return origin(wide) == origin(own) and inside and not wide.fragment


def same_origin(one: str, other: str) -> bool:
    """Tell whether two URLs have the same scheme, host and port."""
    try:
        return origin(httpx2.URL(one)) == origin(httpx2.URL(other))
    except (httpx2.InvalidURL, ValueError):
        return False


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(one for one in value if isinstance(one, str))


def _not_away(status: int, url: str) -> None:
    if status >= 500 or status == 429:
        raise Transient(
            say(
                "`{host}` answered with HTTP {status}.",
                host=visible(httpx2.URL(url).host, SHOWN),
                status=status,
            ),
            remedy="Try again later.",
        )


def _invalid(detail: str) -> OAuthProblem:
    return OAuthProblem(
        detail,
        code="oauth_metadata_invalid",
        remedy="Enter `token_url` for client credentials, or ask who runs the server.",
    )
