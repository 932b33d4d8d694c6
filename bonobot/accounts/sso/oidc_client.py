"""OpenID Connect client: authorization code flow with PKCE.

State, nonce and verifier in the browser's session tie the callback to the request. An ID token is
accepted if a key of the issuer signed it (`jwks`) and its issuer, audience, nonce and expiry are
right. All connections use the guarded HTTP client.
"""

import base64
import json
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from hmac import compare_digest
from typing import Any, TypeGuard
from urllib.parse import quote_plus

import httpx2
import jwt

from bonobot.accounts.external_issuers import jwks
from bonobot.accounts.external_issuers.jwt_validation import LEEWAY_S, UNREADABLE, list_claim_texts
from bonobot.core.http.egress import EgressDenied, build_guarded_client
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.text.untrusted_text import make_visible

logger = logging.getLogger(__name__)

SCOPES = "openid email profile"
NEEDED = ("authorization_endpoint", "token_endpoint")
ENDPOINTS = (*NEEDED, "userinfo_endpoint", "end_session_endpoint")
ASKED_S = 10.0
LARGEST = 256 * 1024
LONGEST_TOKEN = 64 * 1024
LONGEST_CODE = 4_096
LONGEST_SUBJECT = 255
LONGEST_NAME = 150
LONGEST_EMAIL = 254
# Proxies refuse URLs of more than a few thousand characters.
LONGEST_HINT = 4_096


class IdentityProviderProblem(Problem):
    """The provider can't be reached, or its response isn't valid.

    Codes: `provider_unreachable`, `provider_refused`, `identity_refused`.
    """

    code = "provider_unreachable"
    status = 503
    title = "The identity provider"


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

    address: str
    kept: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProviderUser:
    """A user as the provider describes them; `email_verified` is None if it doesn't say.

    `logout_url` ends the session at the provider; empty if unsupported.
    """

    subject: str
    email: str
    verified: bool | None
    first_name: str
    last_name: str
    claims: Mapping[str, Any]
    leaving: str = ""


async def begin(client: OidcClient) -> PendingSignIn:
    """Return the authorization URL and session data; raises `IdentityProviderProblem`."""
    async with _build_http_client(client) as http:
        told = await _fetch_metadata(http, client)
    verifier, state, nonce = (secrets.token_urlsafe(48) for _ in range(3))
    digest = base64.urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    address = httpx2.URL(told["authorization_endpoint"]).copy_merge_params(
        {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": client.redirect_uri,
            "scope": SCOPES,
            "state": state,
            "nonce": nonce,
            "code_challenge": digest,
            "code_challenge_method": "S256",
        }
    )
    kept = {
        "state": state,
        "nonce": nonce,
        "verifier": verifier,
        "token_endpoint": told["token_endpoint"],
        "userinfo_endpoint": told.get("userinfo_endpoint", ""),
        "end_session_endpoint": told.get("end_session_endpoint", ""),
        "methods": told.get("token_endpoint_auth_methods_supported", []),
        "says_issuer": bool(told.get("authorization_response_iss_parameter_supported")),
    }
    return PendingSignIn(str(address), kept)


async def finish(
    client: OidcClient, kept: Mapping[str, Any], answer: Mapping[str, str]
) -> ProviderUser:
    """Return the user of a callback; raises `IdentityProviderProblem`."""
    issuer = answer.get("iss")
    if (issuer or kept["says_issuer"]) and issuer != client.issuer:
        raise _build_refused_error("another provider answered")
    if not compare_digest(answer.get("state", "").encode(), str(kept["state"]).encode()):
        raise _build_refused_error("it is not the answer to this sign-in")
    code = answer.get("code", "")
    if answer.get("error") or not 0 < len(code) <= LONGEST_CODE:
        why = make_visible(answer.get("error", "") or "no code", 80)
        raise IdentityProviderProblem(
            format_message("The identity provider let nobody in ({why}).", why=why),
            code="provider_refused",
            status=403,
            remedy="Try again, or ask whoever runs it.",
        )
    async with _build_http_client(client) as http:
        tokens = await _fetch_tokens(http, client, kept, code)
        claims = await verify_id_token(client, tokens["id_token"], nonce=kept["nonce"])
        if "email" not in claims and kept["userinfo_endpoint"] and tokens.get("access_token"):
            claims = claims | await _fetch_userinfo(
                http, client, kept, tokens["access_token"], claims["sub"]
            )
    return replace(
        _build_provider_user(claims), leaving=_build_logout_url(client, kept, tokens["id_token"])
    )


async def verify_id_token(client: OidcClient, token: str, *, nonce: str) -> dict[str, Any]:
    """Return an ID token's claims; raises `IdentityProviderProblem` (`identity_refused`)."""
    kid, algorithm = _read_token_header(token)
    whose = jwks.IssuerAddress(client.issuer, client.allow_private)
    try:
        key = await jwks.get_jwks_cache().key(whose, kid, algorithm)
    except jwks.IssuerUnreachable as problem:
        raise _build_unreachable_error(str(problem)) from problem
    if key is None:
        raise _build_refused_error("its key is not one of the provider's")
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
    except UNREADABLE as fault:
        raise _build_refused_error(make_visible(str(fault), 200)) from None
    party = claims.get("azp")
    if (
        party is not None or len(list_claim_texts(claims["aud"])) > 1
    ) and party != client.client_id:
        raise _build_refused_error("it was made for another party")
    said = claims.get("nonce")
    if not isinstance(said, str) or not compare_digest(said.encode(), nonce.encode()):
        raise _build_refused_error("it belongs to another sign-in")
    if not _is_plain_text(claims["sub"], LONGEST_SUBJECT):
        raise _build_refused_error("it has no subject")
    return claims


def _read_token_header(token: str) -> tuple[str | None, str]:
    """Return the key id and the algorithm of a token; both are allowed values."""
    if len(token) > LONGEST_TOKEN:
        raise _build_refused_error("it is too long")
    try:
        header = jwt.get_unverified_header(token)
    except UNREADABLE:
        raise _build_refused_error("it is no token") from None
    kid, algorithm = header.get("kid"), header.get("alg")
    named = kid is None or _is_plain_text(kid, LONGEST_SUBJECT)
    known = isinstance(algorithm, str) and algorithm in jwks.KINDS
    if not (named and known) or "crit" in header or "b64" in header:
        raise _build_refused_error("it is not signed in a way that is believed")
    return kid, str(algorithm)


async def _fetch_metadata(http: httpx2.AsyncClient, client: OidcClient) -> dict[str, Any]:
    """Fetch the issuer's metadata and check its endpoints."""
    where = f"{client.issuer.rstrip('/')}/.well-known/openid-configuration"
    told = await _wait_for_answer(jwks.fetch_json_document(http, where))
    if told is None:
        raise _build_unreachable_error("it publishes no metadata")
    if told.get("issuer") != client.issuer:
        raise _build_unreachable_error("it publishes metadata of another issuer")
    for name in ENDPOINTS:
        address = told.get(name)
        if address is None and name not in NEEDED:
            continue
        if not isinstance(address, str):
            raise _build_unreachable_error(format_message("it does not say its {name}", name=name))
        try:
            jwks.check(address, allow_private=client.allow_private)
        except EgressDenied as problem:
            raise _build_unreachable_error(str(problem)) from None
    return told


async def _fetch_tokens(
    http: httpx2.AsyncClient, client: OidcClient, kept: Mapping[str, Any], code: str
) -> dict[str, Any]:
    """Exchange a code for tokens, with client authentication and PKCE verifier."""
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": client.redirect_uri,
        "code_verifier": str(kept["verifier"]),
    }
    proof: dict[str, Any] = {}
    if client.secret and ("client_secret_basic" in kept["methods"] or not kept["methods"]):
        # RFC 6749 2.3.1: both are form-encoded first.
        proof["auth"] = httpx2.BasicAuth(quote_plus(client.client_id), quote_plus(client.secret))
    else:
        form |= {"client_id": client.client_id}
        form |= {"client_secret": client.secret} if client.secret else {}
    answer = await _wait_for_answer(http.post(kept["token_endpoint"], data=form, **proof))
    found = _parse_json_object(answer)
    if answer.status_code != 200 or not isinstance(found.get("id_token"), str):
        why = make_visible(str(found.get("error") or f"HTTP {answer.status_code}"), 80)
        raise IdentityProviderProblem(
            format_message("The identity provider gave no identity token ({why}).", why=why),
            code="provider_refused",
            status=502,
            remedy="Check the client's id and secret, and the redirect address that it knows.",
        )
    return found


async def _fetch_userinfo(
    http: httpx2.AsyncClient,
    client: OidcClient,
    kept: Mapping[str, Any],
    access_token: Any,
    subject: str,
) -> dict[str, Any]:
    """Return claims that the ID token lacks from the userinfo endpoint."""
    bearer = {"Authorization": f"Bearer {access_token}", "Accept": "application/json"}
    answer = await _wait_for_answer(http.get(kept["userinfo_endpoint"], headers=bearer))
    found = _parse_json_object(answer)
    if answer.status_code != 200 or found.get("sub") != subject:
        raise _build_refused_error("the provider tells of somebody else")
    # Only these claims: userinfo is not signed and must not override the verified ones.
    about = ("email", "email_verified", "name", "given_name", "family_name")
    return {name: found[name] for name in about if name in found}


def _build_provider_user(claims: Mapping[str, Any]) -> ProviderUser:
    email = claims.get("email")
    first, last = claims.get("given_name"), claims.get("family_name")
    if not first and not last and isinstance(claims.get("name"), str):
        first, _, last = claims["name"].partition(" ")
    said = claims.get("email_verified")
    return ProviderUser(
        subject=str(claims["sub"]),
        email=email.strip().lower() if _is_plain_text(email, LONGEST_EMAIL) else "",
        verified=None if said is None else said is True,
        first_name=_clean_name(first),
        last_name=_clean_name(last),
        claims=claims,
    )


def _build_logout_url(client: OidcClient, kept: Mapping[str, Any], token: str) -> str:
    """Return the logout URL (OpenID Connect RP-Initiated Logout 1.0, section 2), or "".

    No redirect URI is sent: few providers have ours registered, and the others would refuse.
    """
    if not (endpoint := kept.get("end_session_endpoint")):
        return ""
    said = {"client_id": client.client_id}
    said |= {"id_token_hint": token} if len(token) <= LONGEST_HINT else {}
    return str(httpx2.URL(endpoint).copy_merge_params(said))


def _clean_name(text: Any) -> str:
    return make_visible(text, LONGEST_NAME) if isinstance(text, str) else ""


def _is_plain_text(value: Any, most: int) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= most and value.isprintable()


def _build_http_client(client: OidcClient) -> httpx2.AsyncClient:
    return build_guarded_client(
        allow_private=client.allow_private, connect_s=ASKED_S, read_s=ASKED_S, max_body=LARGEST
    )


async def _wait_for_answer(answer: Any) -> Any:
    """Await a response; failures become an `IdentityProviderProblem`."""
    try:
        return await answer
    except (httpx2.HTTPError, EgressDenied, jwks.IssuerUnreachable) as fault:
        raise _build_unreachable_error(
            make_visible(str(fault) or "it does not answer in time", 200)
        ) from fault


def _parse_json_object(answer: httpx2.Response) -> dict[str, Any]:
    try:
        found = json.loads(answer.content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _build_unreachable_error(why: str) -> IdentityProviderProblem:
    return IdentityProviderProblem(
        format_message("The identity provider can't be asked: {why}", why=why),
        remedy="Try again later. Who runs it, or this installation, can look at its settings.",
    )


def _build_refused_error(why: str) -> IdentityProviderProblem:
    """Return the generic error; the reason is only logged."""
    logger.info("an identity token was refused: %s", why)
    return IdentityProviderProblem(
        "What the identity provider sent is not believed.",
        code="identity_refused",
        status=403,
        remedy="Begin the sign-in again. If it stays so, ask an administrator: the log says why.",
    )
