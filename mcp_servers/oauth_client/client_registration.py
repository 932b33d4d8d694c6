"""The OAuth client id of Bonobot: entered, from a metadata document, or registered.

A registration that is no longer used is deleted at its authorization server (RFC 7592).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from bonobot.core.crypto.encrypted_fields import UnreadableSecret
from bonobot.core.i18n.messages import format_message
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.models import OAuthClient, OAuthGrant, OAuthLogin, Server
from mcp_servers.oauth_client.http import open_http_client
from mcp_servers.oauth_client.metadata import AuthorizationServer, is_same_origin
from mcp_servers.oauth_client.token_requests import OAuthClientCredentials
from mcp_servers.oauth_client.types import OAuthAccount, OAuthProblem

SUCCESS_STATUSES = (200, 204)
CALLBACK_PATH = "/oauth/callback"
METADATA_PATH = "/oauth/client-metadata.json"
AUTH_METHODS = ("client_secret_basic", "client_secret_post", "none")
MAX_LENGTH = 2048


def get_redirect_uri() -> str:
    return f"{settings.BONOBOT_URL}{CALLBACK_PATH}"


def get_metadata_document_url() -> str:
    """Return the URL of our client metadata document; "" if it is not https."""
    if settings.BONOBOT_OAUTH_CLIENT_ID:
        return str(settings.BONOBOT_OAUTH_CLIENT_ID)
    default_url = f"{settings.BONOBOT_URL}{METADATA_PATH}"
    return default_url if default_url.startswith("https://") else ""


def build_metadata_document() -> dict[str, Any]:
    """Return our client id metadata document."""
    return {
        "client_id": get_metadata_document_url() or f"{settings.BONOBOT_URL}{METADATA_PATH}",
        "token_endpoint_auth_method": "none",
        **_build_registration_metadata(),
    }


def build_entered_client(account: OAuthAccount) -> OAuthClientCredentials:
    """Return the client that a person entered for this server."""
    return OAuthClientCredentials(
        id=account.client_id,
        secret=account.client_secret,
        private_key=account.private_key,
        key_id=account.key_id,
    )


async def resolve_client(
    account: OAuthAccount, authorization_server: AuthorizationServer
) -> OAuthClientCredentials:
    """Return our client at an authorization server; register it only as a last resort.

    Raises `OAuthProblem` (`client_unknown`) if a person has to enter a client id.
    """
    if account.client_id:
        return build_entered_client(account)
    if authorization_server.client_documents and (url := get_metadata_document_url()):
        return OAuthClientCredentials(id=url)
    if registered := await get_runtime().run_orm(
        _find_registered_client, account, authorization_server.issuer
    ):
        return registered
    if authorization_server.registration_endpoint:
        return await _register(account, authorization_server)
    raise OAuthProblem(
        format_message(
            "`{issuer}` requires a registered client.",
            issuer=make_visible(authorization_server.issuer, 200),
        ),
        code="client_unknown",
        remedy=format_message(
            "Register a client there with the redirect URI {redirect_uri}, then enter its "
            "client ID.",
            redirect_uri=get_redirect_uri(),
        ),
    )


async def load_grant_client(
    account: OAuthAccount, authorization_server: AuthorizationServer, client_id: str
) -> OAuthClientCredentials:
    """Return the client that a grant was issued to; it is used only at its own issuer."""
    return await get_runtime().run_orm(load_client, account, authorization_server.issuer, client_id)


def load_client(account: OAuthAccount, issuer: str, client_id: str) -> OAuthClientCredentials:
    """Return the entered or registered client with that id at that issuer (ORM work)."""
    if client_id == account.client_id:
        return build_entered_client(account)
    registered = _find_registered_client(account, issuer)
    return (
        registered
        if registered and registered.id == client_id
        else OAuthClientCredentials(id=client_id)
    )


def _find_registered_client(account: OAuthAccount, issuer: str) -> OAuthClientCredentials | None:
    row = OAuthClient.objects.filter(
        organization_id=account.organization_id, issuer=issuer, redirect_uri=get_redirect_uri()
    ).first()
    if row is None or (row.expires_at is not None and row.expires_at <= timezone.now()):
        return None
    return OAuthClientCredentials(
        id=row.client_id, secret=row.client_secret.open(), method=row.method
    )


async def _register(
    account: OAuthAccount, authorization_server: AuthorizationServer
) -> OAuthClientCredentials:
    """Register a client dynamically (RFC 7591), which is deprecated."""
    method = (
        "none"
        if "none" in authorization_server.methods
        else _choose_registration_method(authorization_server)
    )
    document = {**_build_registration_metadata(), "token_endpoint_auth_method": method}
    async with open_http_client(account) as http_client:
        response = await http_client.post(
            authorization_server.registration_endpoint, "registration endpoint", document=document
        )
    body = response.body
    client_id, secret = body.get("client_id"), body.get("client_secret", "")
    has_client_id = isinstance(client_id, str) and 0 < len(client_id) <= MAX_LENGTH
    if response.status not in (200, 201) or not has_client_id or not isinstance(secret, str):
        raise OAuthProblem(
            format_message(
                "`{issuer}` rejected the client registration (HTTP {status}).",
                issuer=make_visible(authorization_server.issuer, 200),
                status=response.status,
            ),
            code="client_unknown",
            remedy=format_message(
                "Register a client there with the redirect URI {redirect_uri}, then enter "
                "its client ID.",
                redirect_uri=get_redirect_uri(),
            ),
        )
    assigned_method = body.get("token_endpoint_auth_method", method)
    client = OAuthClientCredentials(
        id=str(client_id),
        secret=secret,
        method=assigned_method if assigned_method in AUTH_METHODS else method,
    )
    await get_runtime().run_orm(_save_client, account, authorization_server, client, body)
    return client


def _save_client(
    account: OAuthAccount,
    authorization_server: AuthorizationServer,
    client: OAuthClientCredentials,
    body: Mapping[str, Any],
) -> None:
    key = {
        "organization_id": account.organization_id,
        "issuer": authorization_server.issuer,
        "redirect_uri": get_redirect_uri(),
    }
    row: Any = OAuthClient.objects.filter(**key).first() or OAuthClient(**key)
    row.client_id, row.method, row.expires_at = client.id, client.method, _parse_secret_expiry(body)
    row.client_secret = client.secret
    row.registration_url, row.registration_token = _parse_management_endpoint(
        authorization_server, body
    )
    row.save()


def _parse_management_endpoint(
    authorization_server: AuthorizationServer, body: Mapping[str, Any]
) -> tuple[str, str]:
    """Return URL and token for deleting the registration (RFC 7592), or blanks."""
    url, token = body.get("registration_client_uri"), body.get("registration_access_token")
    if not (isinstance(url, str) and isinstance(token, str) and token.isprintable()):
        return "", ""
    if len(url) > MAX_LENGTH or len(token) > MAX_LENGTH or not token.isascii():
        return "", ""
    same_origin = is_same_origin(
        url, authorization_server.registration_endpoint
    )  # never send the token elsewhere
    return (url, token) if same_origin else ("", "")


def _choose_registration_method(authorization_server: AuthorizationServer) -> str:
    return next(
        (method for method in AUTH_METHODS if method in authorization_server.methods),
        AUTH_METHODS[0],
    )


def _build_registration_metadata() -> dict[str, Any]:
    return {
        "client_name": "Bonobot",
        "client_uri": settings.BONOBOT_URL,
        "redirect_uris": [get_redirect_uri()],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "application_type": "web",
    }


def _parse_secret_expiry(body: Any) -> datetime | None:
    seconds = body.get("client_secret_expires_at")
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 0 < seconds < 2**33:
        return None
    return datetime.fromtimestamp(seconds, UTC)


@dataclass(frozen=True)
class ClientUnregistration:
    """A registration to delete at its authorization server."""

    account: OAuthAccount
    issuer: str
    url: str
    token: str = field(repr=False)


def delete_unused_registrations(
    server: Server, account: OAuthAccount, rows: Iterable[OAuthGrant]
) -> Iterable[ClientUnregistration]:
    """Delete registrations that only these grants used; yield those to delete there."""
    for issuer in {row.issuer for row in rows if row.client_id != account.client_id}:
        organization_filter = {"organization_id": server.organization_id}
        row = OAuthClient.objects.filter(**organization_filter, issuer=issuer).first()
        if (
            row is None
            or OAuthGrant.objects.filter(**organization_filter, client_id=row.client_id).exists()
        ):
            continue
        pending_logins = OAuthLogin.objects.filter(
            **organization_filter,
            client_id=row.client_id,
            used_at=None,
            expires_at__gt=timezone.now(),
        )
        if pending_logins.exclude(server=server).exists():
            continue
        try:  # before deleting it: decryption needs the row
            token = row.registration_token.open() if row.registration_token else ""
        except UnreadableSecret:
            token = ""
        row.delete()
        if token and row.registration_url:
            yield ClientUnregistration(account, issuer, row.registration_url, token)


async def unregister_client(registration: ClientUnregistration) -> str:
    """Delete a registration at its authorization server; return `done` or `refused`."""
    async with open_http_client(registration.account) as http_client:
        response = await http_client.delete(
            registration.url,
            "registration",
            headers={"Authorization": f"Bearer {registration.token}"},
        )
    return "done" if response.status in SUCCESS_STATUSES else "refused"
