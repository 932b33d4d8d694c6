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

from bonobot.accounts.external_issuers.jwks import KINDS, IssuerAddress, get_jwks_cache
from bonobot.accounts.models import Issuer, Provider
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role, TokenScope
from bonobot.accounts.tokens.services import build_invalid_token_error
from bonobot.core.i18n.messages import format_message
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.models import Head

logger = logging.getLogger(__name__)

LONGEST = 8_192
LONGEST_KID = 255
LONGEST_SUBJECT = 255
LONGEST_LABEL = 200
MOST_AUDIENCES = 50
LEEWAY_S = 30
# How long a verified token is cached before its signature is checked again.
BELIEVED_S = 300
ACCESS = frozenset({"at+jwt", "application/at+jwt"})
ANY = ACCESS | {"jwt", "application/jwt", ""}
# Scopes that external tokens may have: the gateway's, not REST.
OF_GATEWAY = (TokenScope.TOOLS, TokenScope.AGENTS, TokenScope.MANAGE)
# Exceptions that malformed tokens cause.
UNREADABLE = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)


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
    kind: str


def is_bearer(text: str) -> bool:
    """Return whether a text could be a signed JWT; our own tokens never are."""
    return text.startswith("eyJ") and text.count(".") == 2


async def read(text: str) -> VerifiedJwt:
    """Verify a JWT; raises `InvalidToken`, `IssuerUnreachable`."""
    said = _parse_unverified_jwt(text)
    issuer = await get_runtime().orm(_find_issuer, said.issuer) if said else None
    if said is None or issuer is None:
        raise build_invalid_token_error()
    if said.kind not in (ANY if issuer.any_type else ACCESS):
        raise _build_bad_token(
            issuer,
            format_message("its type is {said_kind!r}", said_kind=make_visible(said.kind, 40)),
        )
    whose = IssuerAddress(issuer.url, issuer.allow_private)
    key = await get_jwks_cache().key(whose, said.kid, said.algorithm)
    if key is None:
        raise _build_bad_token(issuer, "its key is not one of the issuer's")
    claims = _verify_claims(text, key, said.algorithm, issuer)
    now = timezone.now()
    ends = min(claims["exp"] + LEEWAY_S, now.timestamp() + BELIEVED_S)
    return VerifiedJwt(
        principal=build_principal(issuer, claims),
        generation=issuer.read_at or 0,
        expires_at=datetime.fromtimestamp(ends, UTC),
        audiences=None
        if issuer.audience
        else frozenset(list_claim_texts(claims["aud"])[:MOST_AUDIENCES]),
    )


def build_principal(issuer: Issuer, claims: Mapping[str, Any]) -> Principal:
    """Return the principal of verified claims; raises `InvalidToken`."""
    subject = claim(claims, issuer.subject_claim)
    if not _is_plain_text(subject, LONGEST_SUBJECT):
        raise _build_bad_token(
            issuer,
            format_message(
                "it has no subject in {subject_claim!r}", subject_claim=issuer.subject_claim
            ),
        )
    role = find_claimed_role(issuer, claims)
    if role is None:
        raise _build_bad_token(issuer, "nothing in it gives a role")
    label = claim(claims, issuer.label_claim) if issuer.label_claim else None
    name = label if _is_plain_text(label, LONGEST) else subject
    number = uuid5(issuer.pk, subject)
    return Principal(
        kind="token",
        id=str(number),
        label=f"{make_visible(name, LONGEST_LABEL)} ({issuer.name})"[:LONGEST_SUBJECT],
        organization_id=issuer.organization_id,
        role=role,
        agent_ids=frozenset(map(UUID, issuer.agent_ids)),
        scopes=list_allowed_scopes(issuer, claims),
        token_id=number,
        calls_per_minute=issuer.calls_per_minute,
    )


def find_claimed_role(issuer: Issuer | Provider, claims: Mapping[str, Any]) -> Role | None:
    """Return the first role, in enum order, that a claim's values map to, else the default."""
    values = list_claim_texts(claim(claims, issuer.role_claim)) if issuer.role_claim else ()
    named = {issuer.roles.get(value) for value in values}
    found = next((role for role in Role if role in named), None)
    return found or (Role(issuer.role) if issuer.role else None)


def list_allowed_scopes(issuer: Issuer, claims: Mapping[str, Any]) -> frozenset[TokenScope]:
    """Return the scopes that the token has and the issuer's row allows."""
    allowed = frozenset(
        scope for scope in OF_GATEWAY if not issuer.scopes or scope in issuer.scopes
    )
    if not issuer.scope_claim:
        return allowed
    said = claim(claims, issuer.scope_claim)
    return allowed & set(said.split() if isinstance(said, str) else list_claim_texts(said))


def claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by name, or a nested field by a dotted path."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _is_plain_text(value: Any, most: int) -> TypeGuard[str]:
    """Return whether a value is a non-empty, printable string."""
    return isinstance(value, str) and 0 < len(value) <= most and value.isprintable()


def list_claim_texts(value: Any) -> tuple[str, ...]:
    """Return a string claim, or the strings of a list claim, as a tuple."""
    values = value if isinstance(value, list) else [value]
    return tuple(one for one in values if isinstance(one, str))


def _parse_unverified_jwt(text: str) -> _UnverifiedJwt | None:
    """Return the unverified header and issuer of a token; None if it is unacceptable."""
    if len(text) > LONGEST:
        return None
    try:
        whole = jwt.decode_complete(text, options={"verify_signature": False})
    except UNREADABLE:
        return None
    header, issuer = whole["header"], whole["payload"].get("iss")
    algorithm, kid = header.get("alg"), header.get("kid")
    kind = header.get("typ", "")
    known = isinstance(algorithm, str) and algorithm in KINDS
    named = kid is None or (isinstance(kid, str) and 0 < len(kid) <= LONGEST_KID)
    # Critical extensions (`crit`) and unencoded payloads (`b64`) aren't supported.
    plain = "crit" not in header and "b64" not in header and isinstance(kind, str)
    if not (known and named and plain and _is_plain_text(issuer, LONGEST)):
        return None
    return _UnverifiedJwt(issuer, algorithm, kid, kind.lower())


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
            raise ValueError("`exp` is no number")
    except UNREADABLE as fault:
        raise _build_bad_token(issuer, make_visible(str(fault), 200)) from None
    return claims


def _build_bad_token(issuer: Issuer, why: str) -> Exception:
    """Return the generic error; the reason is only logged."""
    logger.info("a token of the issuer %r was refused: %s", issuer.url, why)
    return build_invalid_token_error()
