"""OpenID Connect: sign in where an organization's people have their accounts, and believe little.

The code flow with PKCE alone. What leads there and what comes back belong together by state, nonce
and verifier, which only this browser's session has. An identity token is believed when its
signature is by a key that the issuer's own document publishes (`keyrings`), and it is from this
issuer, for us, for this sign-in, and still good. Every connection is the guarded client's.
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

from bonobot.lib.egress import EgressDenied, guarded_client
from bonobot.lib.problems import Problem
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from bonobot.tenancy import keyrings
from bonobot.tenancy.bearers import LEEWAY_S, UNREADABLE, texts

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
# Of an address, which proxies refuse beyond some thousands of characters.
LONGEST_HINT = 4_096


class ProviderProblem(Problem):
    """The provider can't be asked, or answered with something that isn't believed.

    Codes: `provider_unreachable`, `provider_refused`, `identity_refused`.
    """

    code = "provider_unreachable"
    status = 503
    title = "The identity provider"


@dataclass(frozen=True, slots=True)
class Client:
    """Who we are at a provider, and how it is reached."""

    issuer: str
    client_id: str
    secret: str
    redirect_uri: str
    allow_private: bool = False


@dataclass(frozen=True, slots=True)
class Begun:
    """A sign-in under way: where the browser goes, and what its session keeps until it is back."""

    address: str
    kept: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Arrival:
    """Who a provider says that somebody is; `verified` is None where it doesn't say.

    `leaving` is where their browser can end the session there; empty where it can't.
    """

    subject: str
    email: str
    verified: bool | None
    first_name: str
    last_name: str
    claims: Mapping[str, Any]
    leaving: str = ""


async def begin(client: Client) -> Begun:
    """Return where the browser is led to; raises `ProviderProblem`."""
    async with _http(client) as http:
        told = await _metadata(http, client)
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
    return Begun(str(address), kept)


async def finish(client: Client, kept: Mapping[str, Any], answer: Mapping[str, str]) -> Arrival:
    """Return who came back, by what the provider's redirect said; raises `ProviderProblem`."""
    issuer = answer.get("iss")
    if (issuer or kept["says_issuer"]) and issuer != client.issuer:
        raise _refused("another provider answered")
    if not compare_digest(answer.get("state", "").encode(), str(kept["state"]).encode()):
        raise _refused("it is not the answer to this sign-in")
    code = answer.get("code", "")
    if answer.get("error") or not 0 < len(code) <= LONGEST_CODE:
        why = visible(answer.get("error", "") or "no code", 80)
        raise ProviderProblem(
            say("The identity provider let nobody in ({why}).", why=why),
            code="provider_refused",
            status=403,
            remedy="Try again, or ask whoever runs it.",
        )
    async with _http(client) as http:
        tokens = await _tokens(http, client, kept, code)
        claims = await verified(client, tokens["id_token"], nonce=kept["nonce"])
        if "email" not in claims and kept["userinfo_endpoint"] and tokens.get("access_token"):
            claims = claims | await _more(http, client, kept, tokens["access_token"], claims["sub"])
    return replace(_arrival(claims), leaving=_leaving(client, kept, tokens["id_token"]))


async def verified(client: Client, token: str, *, nonce: str) -> dict[str, Any]:
    """Return an identity token's claims; raises `ProviderProblem` (code `identity_refused`)."""
    kid, algorithm = _header(token)
    whose = keyrings.Whose(client.issuer, client.allow_private)
    try:
        key = await keyrings.keyrings().key(whose, kid, algorithm)
    except keyrings.IssuerUnreachable as problem:
        raise _unreachable(str(problem)) from problem
    if key is None:
        raise _refused("its key is not one of the provider's")
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
        raise _refused(visible(str(fault), 200)) from None
    party = claims.get("azp")
    if (party is not None or len(texts(claims["aud"])) > 1) and party != client.client_id:
        raise _refused("it was made for another party")
    said = claims.get("nonce")
    if not isinstance(said, str) or not compare_digest(said.encode(), nonce.encode()):
        raise _refused("it belongs to another sign-in")
    if not _plain(claims["sub"], LONGEST_SUBJECT):
        raise _refused("it has no subject")
    return claims


def _header(token: str) -> tuple[str | None, str]:
    """Return the key's id and the algorithm that a token names, both among what is believed."""
    if len(token) > LONGEST_TOKEN:
        raise _refused("it is too long")
    try:
        header = jwt.get_unverified_header(token)
    except UNREADABLE:
        raise _refused("it is no token") from None
    kid, algorithm = header.get("kid"), header.get("alg")
    named = kid is None or _plain(kid, LONGEST_SUBJECT)
    known = isinstance(algorithm, str) and algorithm in keyrings.KINDS
    if not (named and known) or "crit" in header or "b64" in header:
        raise _refused("it is not signed in a way that is believed")
    return kid, str(algorithm)


async def _metadata(http: httpx2.AsyncClient, client: Client) -> dict[str, Any]:
    """Return what the issuer's own document says, with every address in it checked."""
    where = f"{client.issuer.rstrip('/')}/.well-known/openid-configuration"
    told = await _asked(keyrings.document_at(http, where))
    if told is None:
        raise _unreachable("it publishes no metadata")
    if told.get("issuer") != client.issuer:
        raise _unreachable("it publishes metadata of another issuer")
    for name in ENDPOINTS:
        address = told.get(name)
        if address is None and name not in NEEDED:
            continue
        if not isinstance(address, str):
            raise _unreachable(say("it does not say its {name}", name=name))
        try:
            keyrings.check(address, allow_private=client.allow_private)
        except EgressDenied as problem:
            raise _unreachable(str(problem)) from None
    return told


async def _tokens(
    http: httpx2.AsyncClient, client: Client, kept: Mapping[str, Any], code: str
) -> dict[str, Any]:
    """Exchange a code for tokens, proving who we are and that the code was asked for here."""
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": client.redirect_uri,
        "code_verifier": str(kept["verifier"]),
    }
    proof: dict[str, Any] = {}
    if client.secret and ("client_secret_basic" in kept["methods"] or not kept["methods"]):
        # RFC 6749 2.3.1: both are written like a form's values first.
        proof["auth"] = httpx2.BasicAuth(quote_plus(client.client_id), quote_plus(client.secret))
    else:
        form |= {"client_id": client.client_id}
        form |= {"client_secret": client.secret} if client.secret else {}
    answer = await _asked(http.post(kept["token_endpoint"], data=form, **proof))
    found = _json(answer)
    if answer.status_code != 200 or not isinstance(found.get("id_token"), str):
        why = visible(str(found.get("error") or f"HTTP {answer.status_code}"), 80)
        raise ProviderProblem(
            say("The identity provider gave no identity token ({why}).", why=why),
            code="provider_refused",
            status=502,
            remedy="Check the client's id and secret, and the redirect address that it knows.",
        )
    return found


async def _more(
    http: httpx2.AsyncClient,
    client: Client,
    kept: Mapping[str, Any],
    access_token: Any,
    subject: str,
) -> dict[str, Any]:
    """Return what the identity token leaves out, from the provider's own answer about the same."""
    bearer = {"Authorization": f"Bearer {access_token}", "Accept": "application/json"}
    answer = await _asked(http.get(kept["userinfo_endpoint"], headers=bearer))
    found = _json(answer)
    if answer.status_code != 200 or found.get("sub") != subject:
        raise _refused("the provider tells of somebody else")
    # What the signed token says holds; `verified` has looked at nothing of this.
    about = ("email", "email_verified", "name", "given_name", "family_name")
    return {name: found[name] for name in about if name in found}


def _arrival(claims: Mapping[str, Any]) -> Arrival:
    email = claims.get("email")
    first, last = claims.get("given_name"), claims.get("family_name")
    if not first and not last and isinstance(claims.get("name"), str):
        first, _, last = claims["name"].partition(" ")
    said = claims.get("email_verified")
    return Arrival(
        subject=str(claims["sub"]),
        email=email.strip().lower() if _plain(email, LONGEST_EMAIL) else "",
        verified=None if said is None else said is True,
        first_name=_name(first),
        last_name=_name(last),
        claims=claims,
    )


def _leaving(client: Client, kept: Mapping[str, Any], token: str) -> str:
    """Return where the session there is ended (OpenID Connect RP-Initiated Logout 1.0, section 2).

    No address to come back to is sent: few providers know ours, and the others refuse all then.
    """
    if not (endpoint := kept.get("end_session_endpoint")):
        return ""
    said = {"client_id": client.client_id}
    said |= {"id_token_hint": token} if len(token) <= LONGEST_HINT else {}
    return str(httpx2.URL(endpoint).copy_merge_params(said))


def _name(text: Any) -> str:
    return visible(text, LONGEST_NAME) if isinstance(text, str) else ""


def _plain(value: Any, most: int) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= most and value.isprintable()


def _http(client: Client) -> httpx2.AsyncClient:
    return guarded_client(
        allow_private=client.allow_private, connect_s=ASKED_S, read_s=ASKED_S, max_body=LARGEST
    )


async def _asked(answer: Any) -> Any:
    """Await an answer; what keeps it away becomes a `ProviderProblem`."""
    try:
        return await answer
    except (httpx2.HTTPError, EgressDenied, keyrings.IssuerUnreachable) as fault:
        raise _unreachable(visible(str(fault) or "it does not answer in time", 200)) from fault


def _json(answer: httpx2.Response) -> dict[str, Any]:
    try:
        found = json.loads(answer.content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _unreachable(why: str) -> ProviderProblem:
    return ProviderProblem(
        say("The identity provider can't be asked: {why}", why=why),
        remedy="Try again later. Who runs it, or this installation, can look at its settings.",
    )


def _refused(why: str) -> ProviderProblem:
    """Return the one answer there is; why is told to whoever runs the platform only."""
    logger.info("an identity token was refused: %s", why)
    return ProviderProblem(
        "What the identity provider sent is not believed.",
        code="identity_refused",
        status=403,
        remedy="Begin the sign-in again. If it stays so, ask an administrator: the log says why.",
    )
