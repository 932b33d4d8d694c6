"""Verify JWT access tokens of external issuers (RFC 9068, RFC 8725).

The token doesn't decide how it is verified: only some asymmetric algorithms are allowed, the key is
one that the issuer publishes, and `jku`, `x5u`, `jwk` and `x5c` headers are ignored. The result is
a principal, limited by the issuer's row.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeGuard
from uuid import UUID, uuid5

import jwt
from django.db.models import OuterRef, Subquery
from django.utils import timezone

from bonobot.accounts.external_issuers.jwks import (
    ALGORITHM_KEY_TYPES,
    IssuerAddress,
    get_jwks_cache,
)
from bonobot.accounts.models import Issuer
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import TokenScope, find_claimed_role, get_claim, list_claim_strings
from bonobot.accounts.tokens.services import build_invalid_token_error
from bonobot.core.i18n.messages import format_message
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.models import Head

logger = logging.getLogger(__name__)

MAX_TOKEN_LENGTH = 8_192
MAX_KID_LENGTH = 255
MAX_SUBJECT_LENGTH = 255
MAX_LABEL_LENGTH = 200
MAX_AUDIENCES = 50
LEEWAY_S = 30
# How long a verified token is cached before its signature is checked again.
MAX_CACHE_S = 300
ACCESS_TOKEN_TYPES = frozenset({"at+jwt", "application/at+jwt"})
ALL_TOKEN_TYPES = ACCESS_TOKEN_TYPES | {"jwt", "application/jwt", ""}
# Scopes that external tokens may have: the gateway's, not REST.
GATEWAY_SCOPES = (TokenScope.TOOLS, TokenScope.AGENTS, TokenScope.MANAGE)
# Exceptions that malformed tokens cause.
JWT_ERRORS = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class VerifiedJwt:
    """A verified token: its principal, policy generation and expiry.

    It is valid for the resources in `audiences`; None means all.
    """

    principal: Principal
    generation: int
    expires_at: datetime
    audiences: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class _UnverifiedJwt:
    """The header and issuer of a token before verification."""

    issuer: str
    algorithm: str
    kid: str | None
    token_type: str


def is_jwt(text: str) -> bool:
    """Return whether a text could be a signed JWT; our own tokens never are."""
    return text.startswith("eyJ") and text.count(".") == 2


async def verify_jwt(text: str) -> VerifiedJwt:
    """Verify a JWT; raises `InvalidToken`, `IssuerUnreachable`."""
    unverified = _parse_unverified_jwt(text)
    issuer = await get_runtime().run_orm(_find_issuer, unverified.issuer) if unverified else None
    if unverified is None or issuer is None:
        raise build_invalid_token_error()
    if unverified.token_type not in (ALL_TOKEN_TYPES if issuer.any_type else ACCESS_TOKEN_TYPES):
        raise _build_bad_token(
            issuer,
            format_message("its type is {type!r}", type=make_visible(unverified.token_type, 40)),
        )
    issuer_address = IssuerAddress(issuer.url, issuer.allow_private)
    key = await get_jwks_cache().find_key(issuer_address, unverified.kid, unverified.algorithm)
    if key is None:
        raise _build_bad_token(issuer, "its key doesn't belong to the issuer")
    claims = _verify_claims(text, key, unverified.algorithm, issuer)
    now = timezone.now()
    expires_at = min(claims["exp"] + LEEWAY_S, now.timestamp() + MAX_CACHE_S)
    return VerifiedJwt(
        principal=build_issuer_principal(issuer, claims),
        generation=issuer.read_at or 0,
        expires_at=datetime.fromtimestamp(expires_at, UTC),
        audiences=None
        if issuer.audience
        else frozenset(list_claim_strings(claims["aud"])[:MAX_AUDIENCES]),
    )


def build_issuer_principal(issuer: Issuer, claims: Mapping[str, Any]) -> Principal:
    """Return the principal of verified claims; raises `InvalidToken`."""
    subject = get_claim(claims, issuer.subject_claim)
    if not _is_plain_text(subject, MAX_SUBJECT_LENGTH):
        raise _build_bad_token(
            issuer,
            format_message("it has no subject in {claim!r}", claim=issuer.subject_claim),
        )
    role = find_claimed_role(issuer, claims)
    if role is None:
        raise _build_bad_token(issuer, "none of its claims assigns a role")
    label = get_claim(claims, issuer.label_claim) if issuer.label_claim else None
    name = label if _is_plain_text(label, MAX_TOKEN_LENGTH) else subject
    principal_id = uuid5(issuer.pk, subject)
    return Principal(
        kind="token",
        id=str(principal_id),
        label=f"{make_visible(name, MAX_LABEL_LENGTH)} ({issuer.name})"[:MAX_SUBJECT_LENGTH],
        organization_id=issuer.organization_id,
        role=role,
        agent_ids=frozenset(map(UUID, issuer.agent_ids)),
        scopes=list_allowed_scopes(issuer, claims),
        token_id=principal_id,
        calls_per_minute=issuer.calls_per_minute,
    )


def list_allowed_scopes(issuer: Issuer, claims: Mapping[str, Any]) -> frozenset[TokenScope]:
    allowed_scopes = frozenset(
        scope for scope in GATEWAY_SCOPES if not issuer.scopes or scope in issuer.scopes
    )
    if not issuer.scope_claim:
        return allowed_scopes
    scopes = get_claim(claims, issuer.scope_claim)
    return allowed_scopes & set(
        scopes.split() if isinstance(scopes, str) else list_claim_strings(scopes)
    )


def _is_plain_text(value: Any, max_length: int) -> TypeGuard[str]:
    """Return whether a value is a non-empty, printable string."""
    return isinstance(value, str) and 0 < len(value) <= max_length and value.isprintable()


def _parse_unverified_jwt(text: str) -> _UnverifiedJwt | None:
    """Return the unverified header and issuer of a token; None if it is unacceptable."""
    if len(text) > MAX_TOKEN_LENGTH:
        return None
    try:
        decoded = jwt.decode_complete(text, options={"verify_signature": False})
    except JWT_ERRORS:
        return None
    header, issuer = decoded["header"], decoded["payload"].get("iss")
    algorithm, kid = header.get("alg"), header.get("kid")
    token_type = header.get("typ", "")
    has_known_algorithm = isinstance(algorithm, str) and algorithm in ALGORITHM_KEY_TYPES
    has_valid_kid = kid is None or (isinstance(kid, str) and 0 < len(kid) <= MAX_KID_LENGTH)
    # Critical extensions (`crit`) and unencoded payloads (`b64`) aren't supported.
    has_plain_header = "crit" not in header and "b64" not in header and isinstance(token_type, str)
    if not (
        has_known_algorithm
        and has_valid_kid
        and has_plain_header
        and _is_plain_text(issuer, MAX_TOKEN_LENGTH)
    ):
        return None
    return _UnverifiedJwt(issuer, algorithm, kid, token_type.lower())


def _find_issuer(url: str) -> Any:
    """Return the enabled issuer with its policy generation, in one query."""
    heads = Head.objects.filter(pk=OuterRef("organization_id")).values("generation")[:1]
    rows: Any = Issuer.objects.enabled().annotate(read_at=Subquery(heads))
    # Databases may ignore case, but issuer identifiers are case-sensitive.
    return next((row for row in rows.filter(url=url) if row.url == url), None)


def _verify_claims(text: str, key: Any, algorithm: str, issuer: Issuer) -> dict[str, Any]:
    """Return the claims of a valid token; raises `InvalidToken`."""
    options: Any = {"require": ["exp", "iat", "iss", "aud"]}
    if not issuer.audience:
        options["verify_aud"] = False  # the gateway checks it, as it depends on the resource
    try:
        claims: dict[str, Any] = jwt.decode(
            text,
            key,
            algorithms=[algorithm],
            issuer=issuer.url,
            audience=issuer.audience or None,
            leeway=timedelta(seconds=LEEWAY_S),
            options=options,
        )
        exp = claims["exp"]
        if isinstance(exp, bool) or not isinstance(exp, int | float):
            raise ValueError("`exp` isn't a number")
        if claims.get("cnf") is not None:
            # A thief could use it, because the proof of the key isn't checked (RFC 9449 7.2).
            raise ValueError("it is bound to a key (`cnf`), which isn't supported")
    except JWT_ERRORS as fault:
        raise _build_bad_token(issuer, make_visible(str(fault), 200)) from None
    return claims


def _build_bad_token(issuer: Issuer, reason: str) -> Exception:
    """Return the generic error; the reason is only logged."""
    logger.info("a token of the issuer %r was refused: %s", issuer.url, reason)
    return build_invalid_token_error()
