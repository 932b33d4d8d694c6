"""OpenID Connect client: authorization code flow with PKCE.

State, nonce and verifier in the browser's session tie the callback to the request. An ID token is
accepted if a key of the issuer signed it (`jwks`) and its issuer, audience, nonce and expiry are
right. All connections use the guarded HTTP client.
"""

import base64
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from hmac import compare_digest
from typing import Any
from urllib.parse import quote_plus

import httpx2
import jwt

from bonobot.accounts.external_issuers import jwks
from bonobot.accounts.external_issuers.jwt_validation import (
    JWT_ERRORS,
    LEEWAY_S,
)
from bonobot.accounts.roles import list_claim_strings
from bonobot.accounts.sso.claims import ProviderUser, build_provider_user, is_plain_text
from bonobot.core.http.egress import EgressDenied, build_guarded_client
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.text.json_reader import parse_json_object
from bonobot.core.text.untrusted_text import make_visible

logger = logging.getLogger(__name__)

SCOPES = "openid email profile"
REQUIRED_ENDPOINTS = ("authorization_endpoint", "token_endpoint")
ENDPOINTS = (*REQUIRED_ENDPOINTS, "userinfo_endpoint", "end_session_endpoint")
TIMEOUT_S = 10.0
MAX_BODY_BYTES = 256 * 1024
MAX_TOKEN_LENGTH = 64 * 1024
MAX_CODE_LENGTH = 4_096
MAX_SUBJECT_LENGTH = 255
# Proxies refuse URLs of more than a few thousand characters.
MAX_HINT_LENGTH = 4_096


class IdentityProviderProblem(Problem):
    """The provider can't be reached, or its response isn't valid.

    Codes: `provider_unreachable`, `provider_denied`, `identity_rejected`.
    """

    code = "provider_unreachable"
    status = 503
    title = "Identity provider"


@dataclass(frozen=True, slots=True)
class OidcClient:
    """Our client registration at a provider."""

    issuer: str
    client_id: str
    secret: str
    redirect_uri: str
    allow_private: bool = False


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """A started sign-in: the URL to visit, and data to keep in the session until the callback."""

    authorization_url: str
    session_data: dict[str, Any]


async def start_sign_in(client: OidcClient) -> PendingSignIn:
    """Return the authorization URL and session data; raises `IdentityProviderProblem`."""
    async with _build_http_client(client) as http:
        metadata = await _fetch_metadata(http, client)
    verifier, state, nonce = (secrets.token_urlsafe(48) for _ in range(3))
    code_challenge = (
        base64.urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    )
    authorization_url = httpx2.URL(metadata["authorization_endpoint"]).copy_merge_params(
        {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": client.redirect_uri,
            "scope": SCOPES,
            "state": state,
            "nonce": nonce,
            "code_challenge": code_challenge,
            "code_challenge_method": "S256",
        }
    )
    session_data = {
        "issuer": client.issuer,
        "client_id": client.client_id,
        "state": state,
        "nonce": nonce,
        "verifier": verifier,
        "token_endpoint": metadata["token_endpoint"],
        "userinfo_endpoint": metadata.get("userinfo_endpoint", ""),
        "end_session_endpoint": metadata.get("end_session_endpoint", ""),
        "methods": metadata.get("token_endpoint_auth_methods_supported", []),
        "says_issuer": bool(metadata.get("authorization_response_iss_parameter_supported")),
    }
    return PendingSignIn(str(authorization_url), session_data)


async def complete_sign_in(
    client: OidcClient, session_data: Mapping[str, Any], callback: Mapping[str, str]
) -> ProviderUser:
    """Return the user of a callback; raises `IdentityProviderProblem`."""
    registration = (session_data.get("issuer"), session_data.get("client_id"))
    if registration != (client.issuer, client.client_id):
        # The endpoints in the session aren't those of the current secret.
        raise _build_refused_error("the provider was changed after this sign-in began")
    issuer = callback.get("iss")
    if (issuer or session_data["says_issuer"]) and issuer != client.issuer:
        raise _build_refused_error("the response came from a different provider")
    if not compare_digest(callback.get("state", "").encode(), str(session_data["state"]).encode()):
        raise _build_refused_error("it isn't the response to this sign-in")
    code = callback.get("code", "")
    if callback.get("error") or not 0 < len(code) <= MAX_CODE_LENGTH:
        reason = make_visible(callback.get("error", "") or "no code", 80)
        raise IdentityProviderProblem(
            format_message("The identity provider denied the sign-in ({why}).", why=reason),
            code="provider_denied",
            status=403,
            remedy="Try again, or contact the administrator of the identity provider.",
        )
    async with _build_http_client(client) as http:
        tokens = await _fetch_tokens(http, client, session_data, code)
        claims = await verify_id_token(client, tokens["id_token"], nonce=session_data["nonce"])
        if (
            "email" not in claims
            and session_data["userinfo_endpoint"]
            and tokens.get("access_token")
        ):
            # `email_verified` is about the address of the same document.
            claims.pop("email_verified", None)
            claims |= await _fetch_userinfo(
                http, session_data, tokens["access_token"], claims["sub"]
            )
    return replace(
        build_provider_user(claims),
        logout_url=_build_logout_url(client, session_data, tokens["id_token"]),
    )


async def verify_id_token(client: OidcClient, token: str, *, nonce: str) -> dict[str, Any]:
    """Return an ID token's claims; raises `IdentityProviderProblem` (`identity_rejected`)."""
    kid, algorithm = _read_token_header(token)
    issuer_address = jwks.IssuerAddress(client.issuer, client.allow_private)
    try:
        key = await jwks.get_jwks_cache().find_key(issuer_address, kid, algorithm)
    except jwks.IssuerUnreachable as problem:
        raise _build_unreachable_error(str(problem)) from problem
    if key is None:
        raise _build_refused_error("its key doesn't belong to the provider")
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            issuer=client.issuer,
            audience=client.client_id,
            leeway=timedelta(seconds=LEEWAY_S),
            options={"require": ["exp", "iat", "iss", "aud", "sub"]},
        )
    except JWT_ERRORS as fault:
        raise _build_refused_error(make_visible(str(fault), 200)) from None
    authorized_party = claims.get("azp")
    if (
        authorized_party is not None or len(list_claim_strings(claims["aud"])) > 1
    ) and authorized_party != client.client_id:
        raise _build_refused_error("it was issued for another party")
    claimed_nonce = claims.get("nonce")
    if not isinstance(claimed_nonce, str) or not compare_digest(
        claimed_nonce.encode(), nonce.encode()
    ):
        raise _build_refused_error("it belongs to another sign-in")
    if not is_plain_text(claims["sub"], MAX_SUBJECT_LENGTH):
        raise _build_refused_error("it has no subject")
    return claims


def _read_token_header(token: str) -> tuple[str | None, str]:
    """Return the key id and the algorithm of a token; both are allowed values."""
    if len(token) > MAX_TOKEN_LENGTH:
        raise _build_refused_error("it is too long")
    try:
        header = jwt.get_unverified_header(token)
    except JWT_ERRORS:
        raise _build_refused_error("it isn't a token") from None
    kid, algorithm = header.get("kid"), header.get("alg")
    has_valid_kid = kid is None or is_plain_text(kid, MAX_SUBJECT_LENGTH)
    has_known_algorithm = isinstance(algorithm, str) and algorithm in jwks.ALGORITHM_KEY_TYPES
    if not (has_valid_kid and has_known_algorithm) or "crit" in header or "b64" in header:
        raise _build_refused_error("it isn't signed with an accepted method")
    return kid, str(algorithm)


async def _fetch_metadata(http: httpx2.AsyncClient, client: OidcClient) -> dict[str, Any]:
    """Fetch the issuer's metadata and check its endpoints."""
    url = f"{client.issuer.rstrip('/')}/.well-known/openid-configuration"
    metadata = await _await_response(jwks.fetch_json_document(http, url))
    if metadata is None:
        raise _build_unreachable_error("it publishes no metadata")
    if metadata.get("issuer") != client.issuer:
        raise _build_unreachable_error("it publishes metadata of another issuer")
    for name in ENDPOINTS:
        endpoint = metadata.get(name)
        if endpoint is None and name not in REQUIRED_ENDPOINTS:
            continue
        if not isinstance(endpoint, str):
            raise _build_unreachable_error(
                format_message("it doesn't publish its {name}", name=name)
            )
        try:
            jwks.check_issuer_url(endpoint, allow_private=client.allow_private)
        except EgressDenied as problem:
            raise _build_unreachable_error(str(problem)) from None
    return metadata


async def _fetch_tokens(
    http: httpx2.AsyncClient, client: OidcClient, session_data: Mapping[str, Any], code: str
) -> dict[str, Any]:
    """Exchange a code for tokens, with client authentication and PKCE verifier."""
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": client.redirect_uri,
        "code_verifier": str(session_data["verifier"]),
    }
    client_auth: dict[str, Any] = {}
    if client.secret and (
        "client_secret_basic" in session_data["methods"] or not session_data["methods"]
    ):
        # RFC 6749 2.3.1: both are form-encoded first.
        client_auth["auth"] = httpx2.BasicAuth(
            quote_plus(client.client_id), quote_plus(client.secret)
        )
    else:
        form |= {"client_id": client.client_id}
        form |= {"client_secret": client.secret} if client.secret else {}
    response = await _await_response(
        http.post(session_data["token_endpoint"], data=form, **client_auth)
    )
    tokens = parse_json_object(response.content)
    if response.status_code != 200 or not isinstance(tokens.get("id_token"), str):
        reason = make_visible(str(tokens.get("error") or f"HTTP {response.status_code}"), 80)
        raise IdentityProviderProblem(
            format_message("The identity provider returned no ID token ({why}).", why=reason),
            code="provider_denied",
            status=502,
            remedy="Check the client ID and secret, and the redirect URI registered for the "
            "client.",
        )
    return tokens


async def _fetch_userinfo(
    http: httpx2.AsyncClient,
    session_data: Mapping[str, Any],
    access_token: Any,
    subject: str,
) -> dict[str, Any]:
    """Return claims that the ID token lacks from the userinfo endpoint."""
    request_headers = {"Authorization": f"Bearer {access_token}", "Accept": "application/json"}
    response = await _await_response(
        http.get(session_data["userinfo_endpoint"], headers=request_headers)
    )
    userinfo = parse_json_object(response.content)
    if response.status_code != 200 or userinfo.get("sub") != subject:
        raise _build_refused_error("the provider returned a different user")
    # Only these claims: userinfo is not signed and must not override the verified ones.
    claim_names = ("email", "email_verified", "name", "given_name", "family_name")
    return {name: userinfo[name] for name in claim_names if name in userinfo}


def _build_logout_url(client: OidcClient, session_data: Mapping[str, Any], id_token: str) -> str:
    """Return the logout URL (OpenID Connect RP-Initiated Logout 1.0, section 2), or "".

    No redirect URI is sent: few providers have ours registered, and the others would refuse.
    """
    if not (endpoint := session_data.get("end_session_endpoint")):
        return ""
    parameters = {"client_id": client.client_id}
    parameters |= {"id_token_hint": id_token} if len(id_token) <= MAX_HINT_LENGTH else {}
    return str(httpx2.URL(endpoint).copy_merge_params(parameters))


def _build_http_client(client: OidcClient) -> httpx2.AsyncClient:
    return build_guarded_client(
        allow_private=client.allow_private,
        connect_s=TIMEOUT_S,
        read_s=TIMEOUT_S,
        max_body=MAX_BODY_BYTES,
    )


async def _await_response(response: Any) -> Any:
    """Await a response; failures become an `IdentityProviderProblem`."""
    try:
        return await response
    except (httpx2.HTTPError, EgressDenied, jwks.IssuerUnreachable) as fault:
        raise _build_unreachable_error(
            make_visible(str(fault) or "it does not answer in time", 200)
        ) from fault


def _build_unreachable_error(reason: str) -> IdentityProviderProblem:
    return IdentityProviderProblem(
        format_message("The identity provider can't be reached: {why}", why=reason),
        remedy="Try again later. An administrator of the identity provider or of this "
        "installation can check the settings.",
    )


def _build_refused_error(reason: str) -> IdentityProviderProblem:
    """Return the generic error; the reason is only logged."""
    logger.info("an identity token was refused: %s", reason)
    return IdentityProviderProblem(
        "The identity provider's response couldn't be verified.",
        code="identity_rejected",
        status=403,
        remedy="Start the sign-in again. If it fails again, ask an administrator to check the log.",
    )
