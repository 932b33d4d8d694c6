"""Making, changing and checking tokens: `bnb_<key>_<secret>`, the secret kept as a peppered HMAC.

Those that a program has from a person's grant begin with `bno_` (see `grants`). The public key
finds the row; the digest is compared in constant time. Peppers are numbered, so that
a new one can be added while tokens of the older ones go on working.
"""

import hmac
import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.utils import timezone

from bonobot.ledger.changes import change
from bonobot.ledger.entries import Opening
from bonobot.ledger.writer import writer
from bonobot.lib.problems import Conflict, Problem
from bonobot.lib.untrusted import visible
from bonobot.tenancy.invited import Invitation
from bonobot.tenancy.models import Token
from bonobot.tenancy.principals import Principal, principal_for_token
from bonobot.tenancy.roles import Action, Role
from bonobot.tenancy.terms import checked, inside, networks_of

PREFIX = "bnb"
OF_GRANTS = "bno"
# What may be said of a grant later: not what the person gave, but bounds around it.
ABOUT_GRANTS = frozenset({"name", "networks", "calls_per_minute"})
# A token's last use is written at most once in this time: reads must not become writes.
LAST_USE_STEP = timedelta(minutes=1)
LONGEST_ADDRESS = 64


class BadToken(Problem):
    """The token is unknown, revoked, expired or used from elsewhere; one answer for all."""

    code = "bad_token"
    status = 401


def _digest(pepper_id: int, secret: str) -> str:
    pepper = settings.BONOBOT_TOKEN_PEPPERS[pepper_id]
    return hmac.new(pepper.encode(), secret.encode(), "sha256").hexdigest()


def issue(principal: Principal, *, role: Role, **terms: Any) -> tuple[Token, str]:
    """Make a token and return it with its text, which nobody can read again.

    `terms` are those of `terms.TERMS`, of which only the name is needed; raises `Invalid`.
    """
    principal.require(Action.MANAGE_TOKENS)
    said = checked({"name": ""} | terms)
    secret = secrets.token_urlsafe(32)
    pepper_id, digest = sealed(secret)
    token = Token(
        organization_id=principal.organization_id,
        key=new_key(),
        pepper_id=pepper_id,
        digest=digest,
        role=role,
        **said,
    )
    with recorded(principal, token, "token_created", {"role": role} | _told(said)):
        token.save()
    return token, f"{PREFIX}_{token.key}_{secret}"


def alter(principal: Principal, token: Token, **terms: Any) -> None:
    """Change what was said of a token; it holds on its very next call. Its text stays the same.

    Raises `Invalid`, and `Conflict` (codes `token_revoked` for one that has ended, `grant_fixed`
    for what a person gave).
    """
    principal.require(Action.MANAGE_TOKENS)
    changed = {
        name: value for name, value in checked(terms).items() if value != getattr(token, name)
    }
    if not changed:
        return
    if token.revoked_at is not None:
        raise Conflict(
            "The token was revoked.", code="token_revoked", remedy="Make a new one instead."
        )
    if token.kind == "grant" and not ABOUT_GRANTS.issuperset(changed):
        raise Conflict(
            "A person gave this to a program: what it may do is theirs to say.",
            code="grant_fixed",
            remedy="Bound its networks or its rate, or revoke it.",
        )
    for name, value in changed.items():
        setattr(token, name, value)
    with recorded(principal, token, "token_changed", _told(changed)):
        token.save()


def revoke(principal: Principal, token: Token) -> None:
    """End a token at once; a second time changes nothing. What a person gave, they can end."""
    own = token.user_id is not None and principal.kind == "user"
    if not (own and principal.id == str(token.user_id)):
        principal.require(Action.MANAGE_TOKENS)
    with recorded(principal, token, "token_revoked"):
        Token.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now())


def authenticate(text: str, address: str = "") -> Token:
    """Return the usable token that `text` is, used from `address`; raises `BadToken`.

    A token for one address of the gateway is worth nothing elsewhere (RFC 8707).
    """
    key, secret = parted(text)
    of_grant = text.startswith(f"{OF_GRANTS}_")
    usable = Token.objects.usable() if of_grant else Token.objects.usable_issued()
    token = usable.filter(key=key, resource="").first() if key else None
    if token is None or not fits(token, secret):
        raise bad_token()
    check_address(token, address)
    if token.last_used_at is None or timezone.now() - token.last_used_at > LAST_USE_STEP:
        used(token.pk)
    return token


def parted(text: str) -> tuple[str, str]:
    """Return the public key and the secret of a token's text; two blanks for another text."""
    prefix, _, rest = text.partition("_")
    key, _, secret = rest.partition("_")
    return (key, secret) if prefix in (PREFIX, OF_GRANTS) else ("", "")


def new_key() -> str:
    """Return a public key for a new token."""
    return secrets.token_hex(6)


def newest_pepper() -> int:
    """Return the number of the pepper that new secrets are kept with."""
    return max(settings.BONOBOT_TOKEN_PEPPERS)


def sealed(secret: str) -> tuple[int, str]:
    """Return the pepper of a new secret and its digest: what is kept of it."""
    return newest_pepper(), _digest(newest_pepper(), secret)


def fits(token: Token | Invitation, secret: str) -> bool:
    """Tell whether `secret` is the token's, or the invitation's, in constant time."""
    if token.pepper_id not in settings.BONOBOT_TOKEN_PEPPERS:
        return False
    return hmac.compare_digest(token.digest, _digest(token.pepper_id, secret))


def check_address(token: Token, address: str) -> None:
    """Raise `BadToken`, and write it to the audit, where the token may not be used from there."""
    if inside(address, networks_of(token.networks)):
        return
    writer().refuse(
        Opening(
            call_id=uuid4(),
            organization_id=token.organization_id,
            action="token_refused",
            event_type="connection",
            resource_type="token",
            resource_id=str(token.pk),
            resource_name=token.name,
            actor=principal_for_token(token).actor,
            decision="deny",
            rule="token:networks",
            code="token_network",
            details={"address": visible(address, LONGEST_ADDRESS)},
        )
    ).result()
    raise bad_token()


def used(token_id: UUID) -> None:
    """Write that a token was used now."""
    Token.objects.filter(pk=token_id).update(last_used_at=timezone.now())


def bad_token() -> BadToken:
    """Return the one answer to a text that opens nothing here."""
    return BadToken(
        "This token is unknown, revoked or expired, or may not be used from here.",
        remedy="Make a new one: `bonobot tokens create NAME --role ROLE`.",
    )


def _told(terms: Mapping[str, Any]) -> dict[str, Any]:
    """Return terms as the audit keeps them; what is at its default isn't told."""
    ends = terms.get("expires_at")
    told = {name: value for name, value in terms.items() if name not in ("name", "expires_at")}
    return told | (
        {"expires_at": ends.isoformat() if ends else None} if "expires_at" in terms else {}
    )


def recorded(
    principal: Principal, token: Token, action: str, details: Mapping[str, Any] | None = None
) -> AbstractContextManager[Any]:
    """Have a change of a token recorded in the audit, as the principal's."""
    return change(
        organization_id=token.organization_id,
        actor=principal.actor,
        action=action,
        resource_type="token",
        resource_id=str(token.pk),
        resource_name=token.name,
        details=details,
    )
