"""Who we are at an authorization server: entered, described by our own document, or registered."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from mcp_servers.models import OAuthClient
from mcp_servers.oauth.accounts import Account
from mcp_servers.oauth.asking import asking
from mcp_servers.oauth.assertions import Client
from mcp_servers.oauth.faults import OAuthProblem
from mcp_servers.oauth.metadata import Authority, same_origin

CALLBACK = "/oauth/callback"
DOCUMENT = "/oauth/client-metadata.json"
METHODS = ("client_secret_basic", "client_secret_post", "none")
LONGEST = 2048


def redirect_uri() -> str:
    """Return where browsers come back to."""
    return f"{settings.BONOBOT_URL}{CALLBACK}"


def document_url() -> str:
    """Return where authorization servers can read about us; "" where they can't."""
    if settings.BONOBOT_OAUTH_CLIENT_ID:
        return str(settings.BONOBOT_OAUTH_CLIENT_ID)
    own = f"{settings.BONOBOT_URL}{DOCUMENT}"
    return own if own.startswith("https://") else ""


def document() -> dict[str, Any]:
    """Return what we publish about ourselves (a client id metadata document)."""
    return {
        "client_id": document_url() or f"{settings.BONOBOT_URL}{DOCUMENT}",
        "token_endpoint_auth_method": "none",
        **_about_us(),
    }


def entered(account: Account) -> Client:
    """Return the client that a person entered for this server."""
    return Client(
        id=account.client_id,
        secret=account.client_secret,
        private_key=account.private_key,
        key_id=account.key_id,
    )


async def client_for(account: Account, authority: Authority) -> Client:
    """Return who we are there, registering only where nothing else is left.

    Raises `OAuthProblem` (`client_unknown`) when a person has to enter a client id.
    """
    if account.client_id:
        return entered(account)
    if authority.client_documents and (url := document_url()):
        return Client(id=url)
    if registered := await runtime().orm(_registered, account, authority.issuer):
        return registered
    if authority.registration_endpoint:
        return await _register(account, authority)
    raise OAuthProblem(
        say("`{issuer}` has to know us first.", issuer=visible(authority.issuer, 200)),
        code="client_unknown",
        remedy=say(
            "Register a client there with the redirect URI {redirect_uri}, "
            "and enter its client id.",
            redirect_uri=redirect_uri(),
        ),
    )


async def client_named(account: Account, authority: Authority, client_id: str) -> Client:
    """Return the client under whose id a grant was given; it is used at its own issuer only."""
    return await runtime().orm(known, account, authority.issuer, client_id)


def known(account: Account, issuer: str, client_id: str) -> Client:
    """Return the client of that id at that issuer, as it was entered or registered (ORM work)."""
    if client_id == account.client_id:
        return entered(account)
    found = _registered(account, issuer)
    return found if found and found.id == client_id else Client(id=client_id)


def _registered(account: Account, issuer: str) -> Client | None:
    row = OAuthClient.objects.filter(
        organization_id=account.organization_id, issuer=issuer, redirect_uri=redirect_uri()
    ).first()
    if row is None or (row.expires_at is not None and row.expires_at <= timezone.now()):
        return None
    return Client(id=row.client_id, secret=row.client_secret.open(), method=row.method)


async def _register(account: Account, authority: Authority) -> Client:
    """Register dynamically (RFC 7591): deprecated, so the last resort."""
    method = "none" if "none" in authority.methods else _first_known(authority)
    wanted = {**_about_us(), "token_endpoint_auth_method": method}
    async with asking(account) as asker:
        answer = await asker.post(
            authority.registration_endpoint, "registration endpoint", document=wanted
        )
    body = answer.body
    client_id, secret = body.get("client_id"), body.get("client_secret", "")
    usable = isinstance(client_id, str) and 0 < len(client_id) <= LONGEST
    if answer.status not in (200, 201) or not usable or not isinstance(secret, str):
        raise OAuthProblem(
            say(
                "`{issuer}` did not register us (HTTP {status}).",
                issuer=visible(authority.issuer, 200),
                status=answer.status,
            ),
            code="client_unknown",
            remedy=say(
                "Register a client there with the redirect URI {redirect_uri}, "
                "and enter its client id.",
                redirect_uri=redirect_uri(),
            ),
        )
    given = body.get("token_endpoint_auth_method", method)
    client = Client(id=str(client_id), secret=secret, method=given if given in METHODS else method)
    await runtime().orm(_keep, account, authority, client, body)
    return client


def _keep(account: Account, authority: Authority, client: Client, body: Mapping[str, Any]) -> None:
    key = {
        "organization_id": account.organization_id,
        "issuer": authority.issuer,
        "redirect_uri": redirect_uri(),
    }
    row: Any = OAuthClient.objects.filter(**key).first() or OAuthClient(**key)
    row.client_id, row.method, row.expires_at = client.id, client.method, _expiry(body)
    row.client_secret = client.secret
    row.registration_url, row.registration_token = _managed(authority, body)
    row.save()


def _managed(authority: Authority, body: Mapping[str, Any]) -> tuple[str, str]:
    """Return where the registration can be removed, and the token for it (RFC 7592); or blanks."""
    url, token = body.get("registration_client_uri"), body.get("registration_access_token")
    if not (isinstance(url, str) and isinstance(token, str) and token.isprintable()):
        return "", ""
    if len(url) > LONGEST or len(token) > LONGEST or not token.isascii():
        return "", ""
    own = same_origin(url, authority.registration_endpoint)  # the token is for nobody else
    return (url, token) if own else ("", "")


def _first_known(authority: Authority) -> str:
    return next((one for one in METHODS if one in authority.methods), METHODS[0])


def _about_us() -> dict[str, Any]:
    return {
        "client_name": "Bonobot",
        "client_uri": settings.BONOBOT_URL,
        "redirect_uris": [redirect_uri()],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "application_type": "web",
    }


def _expiry(body: Any) -> datetime | None:
    seconds = body.get("client_secret_expires_at")
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 0 < seconds < 2**33:
        return None
    return datetime.fromtimestamp(seconds, UTC)
