"""Token endpoint requests and client authentication."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from django.conf import settings
from django.utils import timezone

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.oauth_client.dpop import generate_dpop_key, sign_dpop_proof
from mcp_servers.oauth_client.http import OAuthResponse, build_basic_header, open_http_client
from mcp_servers.oauth_client.metadata import AuthorizationServer
from mcp_servers.oauth_client.types import (
    AuthorizationServerUnavailable,
    LoginNeeded,
    OAuthAccount,
    OAuthProblem,
)

ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
ASSERTION_LIFETIME_S = 120
JWT_BEARER_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
MIN_RSA_BITS = 2048
MAX_TOKEN_LENGTH = 16_384
MAX_LIFETIME_S = 366 * 86_400
SHOWN = 200
# Errors that a person has to fix: the grant or the client is not valid.
LOGIN_NEEDED_ERRORS = ("invalid_grant", "invalid_client", "unauthorized_client", "access_denied")


@dataclass(frozen=True)
class OAuthClientCredentials:
    """Our client at one authorization server; `repr` shows no secrets."""

    id: str
    secret: str = field(default="", repr=False)
    private_key: str = field(default="", repr=False)
    key_id: str = ""
    method: str = ""


def build_client_authentication(
    client: OAuthClientCredentials, authorization_server: AuthorizationServer
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the headers and form fields that authenticate `client`."""
    if client.private_key:
        assertion = _sign_assertion(
            client, authorization_server.issuer or authorization_server.token_endpoint
        )
        fields = {"client_id": client.id, "client_assertion_type": ASSERTION_TYPE}
        return {}, fields | {"client_assertion": assertion}
    if not client.secret:
        return {}, {"client_id": client.id} if client.id else {}
    method = client.method or _choose_auth_method(authorization_server)
    if method == "client_secret_post":
        return {}, {"client_id": client.id, "client_secret": client.secret}
    return build_basic_header(client.id, client.secret), {}


def detect_signing_algorithm(pem: str) -> str:
    """Return the signing algorithm of a private key; raises `InvalidInput` (`bad_private_key`)."""
    try:
        key = serialization.load_pem_private_key(pem.encode("utf-8"), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise _build_key_error("The private key can't be read.") from None
    if isinstance(key, RSAPrivateKey):
        if key.key_size < MIN_RSA_BITS:
            raise _build_key_error(
                format_message("The RSA key has only {bits} bits.", bits=key.key_size)
            )
        return "RS256"
    if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name in CURVES:
        return CURVES[key.curve.name]
    raise _build_key_error("OAuth servers don't accept this type of private key.")


def _sign_assertion(client: OAuthClientCredentials, audience: str) -> str:
    import jwt

    now = int(time.time())
    claims: dict[str, Any] = {
        "iss": client.id,
        "sub": client.id,
        "aud": audience,
        "iat": now,
        "exp": now + ASSERTION_LIFETIME_S,
        "jti": str(uuid4()),
    }
    headers = {"kid": client.key_id} if client.key_id else None
    return jwt.encode(
        claims,
        client.private_key,
        algorithm=detect_signing_algorithm(client.private_key),
        headers=headers,
    )


def build_workload_grant(
    account: OAuthAccount, authorization_server: AuthorizationServer
) -> dict[str, str]:
    """Return the form fields with the platform's token; reads a file, off the loop.

    The token is sent only to the authorization server that it names as its audience: any other one
    could use it there. Raises `OAuthProblem` (`workload_token_unusable`).
    """
    import jwt

    issuer = authorization_server.issuer.rstrip("/")
    audiences = {issuer, f"{issuer}/", authorization_server.token_endpoint}
    # Without the setting, there is no such folder.
    folder = Path(settings.BONOBOT_WORKLOAD_TOKENS or "/", str(account.organization_id))
    try:
        with (folder / Path(account.workload_token).name).open(encoding="ascii") as file:
            assertion = file.read(MAX_TOKEN_LENGTH).strip()
        audience = jwt.decode(assertion, options={"verify_signature": False}).get("aud")
    except (OSError, ValueError, jwt.InvalidTokenError):
        audience = None
    if audiences.isdisjoint([audience] if isinstance(audience, str) else audience or ()):
        raise OAuthProblem(
            format_message(
                "There is no workload token `{name}` for `{issuer}`.",
                name=account.workload_token,
                issuer=make_visible(issuer, SHOWN),
            ),
            code="workload_token_unusable",
            remedy="The platform administrator provides it in the organization's folder of "
            "`BONOBOT_WORKLOAD_TOKENS`. Its audience must be the authorization server.",
        )
    return {"grant_type": JWT_BEARER_GRANT, "assertion": assertion}


def _choose_auth_method(authorization_server: AuthorizationServer) -> str:
    supports_post = "client_secret_post" in authorization_server.methods
    return (
        "client_secret_post"
        if supports_post and "client_secret_basic" not in authorization_server.methods
        else "client_secret_basic"
    )


def _build_key_error(detail: str) -> InvalidInput:
    return InvalidInput(
        detail,
        code="bad_private_key",
        field="auth_config.private_key",
        remedy="Paste an unencrypted PEM key: RSA with at least 2048 bits, or EC P-256/384/521.",
    )


@dataclass(frozen=True)
class OAuthTokens:
    """Tokens from an authorization server, and the key that they are bound to, if any."""

    access: str = field(repr=False)
    refresh: str = field(repr=False)
    expires_at: datetime | None
    scope: str
    dpop_key: str = field(default="", repr=False)


async def request_tokens(
    account: OAuthAccount,
    authorization_server: AuthorizationServer,
    client: OAuthClientCredentials,
    form: Mapping[str, str],
    *,
    dpop_key: str = "",
) -> OAuthTokens:
    """Request tokens for a grant, always with the resource (RFC 8707).

    `dpop_key` is the key that a refresh token is bound to.
    Raises `LoginNeeded` if the grant or the client is rejected, and other `OAuthProblem`s.
    """
    if authorization_server.dpop and not dpop_key:
        dpop_key = generate_dpop_key()
    response = await _send_token_request(account, authorization_server, client, form, dpop_key)
    if response.status >= 500 or response.status == 429:
        raise AuthorizationServerUnavailable(
            format_message("The token endpoint returned HTTP {status}.", status=response.status),
            remedy="Try again later.",
        )
    if response.status != 200:
        raise _build_token_error(response)
    tokens = _parse_tokens(response.body, form.get("scope", ""), dpop_key)
    if account.dpop == "required" and not tokens.dpop_key:
        raise OAuthProblem(
            "The authorization server issued a token that isn't bound to a key.",
            code="token_rejected",
            remedy="Contact the administrator of the authorization server.",
        )
    return tokens


async def _send_token_request(
    account: OAuthAccount,
    authorization_server: AuthorizationServer,
    client: OAuthClientCredentials,
    form: Mapping[str, str],
    dpop_key: str,
) -> OAuthResponse:
    """Post the form, once more if the authorization server requires its nonce in the proof."""
    url, nonce = authorization_server.token_endpoint, ""
    async with open_http_client(account) as http_client:
        while True:
            headers, auth_fields = build_client_authentication(client, authorization_server)
            if dpop_key:
                proof = sign_dpop_proof(dpop_key, "POST", httpx2.URL(url), nonce=nonce)
                headers = {**headers, "DPoP": proof}
            fields = {**form, **auth_fields, "resource": authorization_server.resource}
            response = await http_client.post(url, "token endpoint", form=fields, headers=headers)
            nonce_required = dpop_key and response.body.get("error") == "use_dpop_nonce"
            if nonce or not nonce_required or not response.dpop_nonce:
                return response
            nonce = response.dpop_nonce


def _build_token_error(response: OAuthResponse) -> OAuthProblem:
    error = response.body.get("error")
    description = response.body.get("error_description")
    code = make_visible(error, 64) if isinstance(error, str) else f"HTTP {response.status}"
    # The description may quote what was sent, so only the standard error code is shown.
    if error in LOGIN_NEEDED_ERRORS or response.status == 401:
        return LoginNeeded(
            format_message("The authorization server denied the request: {code}.", code=code)
        )
    return OAuthProblem(
        format_message("The authorization server didn't issue a token: {code}.", code=code),
        code="token_rejected",
        remedy="Check the client ID, the scopes, and the grant type."
        + (" The server's own error message is withheld." if isinstance(description, str) else ""),
    )


def _parse_tokens(body: Mapping[str, Any], requested_scope: str, dpop_key: str) -> OAuthTokens:
    access, refresh = body.get("access_token"), body.get("refresh_token")
    kind = str(body.get("token_type", "Bearer")).lower()
    if not _is_sendable(access) or kind not in ("bearer", "dpop" if dpop_key else "bearer"):
        raise OAuthProblem(
            "The token endpoint returned no token of a supported type.",
            code="token_rejected",
            remedy="Contact the administrator of the authorization server.",
        )
    scope = body.get("scope")
    return OAuthTokens(
        access=str(access),
        refresh=str(refresh) if _is_sendable(refresh) else "",
        dpop_key=dpop_key if kind == "dpop" else "",
        expires_at=_parse_token_expiry(body.get("expires_in")),
        scope=scope[:4096] if isinstance(scope, str) and scope else requested_scope,
    )


def _is_sendable(token: Any) -> bool:
    return (
        isinstance(token, str)
        and 0 < len(token) <= MAX_TOKEN_LENGTH
        and token.isascii()
        and (token.isprintable() and " " not in token)
    )


def _parse_token_expiry(seconds: Any) -> datetime | None:
    if isinstance(seconds, str) and seconds.isdecimal():
        seconds = int(seconds[:12])
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    if not math.isfinite(seconds) or seconds <= 0:
        return None
    return timezone.now() + timedelta(seconds=min(seconds, MAX_LIFETIME_S))
