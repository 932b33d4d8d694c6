"""Making, changing and checking tokens: `bnb_<key>_<secret>`, the secret kept as a peppered HMAC.

The public key finds the row; the digest is compared in constant time. Peppers are numbered, so that
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
from bonobot.tenancy.models import Token
from bonobot.tenancy.principals import Principal, principal_for_token
from bonobot.tenancy.roles import Action, Role
from bonobot.tenancy.terms import checked, inside, networks_of

PREFIX = "bnb"
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
    pepper_id = max(settings.BONOBOT_TOKEN_PEPPERS)
    token = Token(
        organization_id=principal.organization_id,
        key=secrets.token_hex(6),
        pepper_id=pepper_id,
        digest=_digest(pepper_id, secret),
        role=role,
        **said,
    )
    with _recorded(principal, token, "token_created", {"role": role} | _told(said)):
        token.save()
    return token, f"{PREFIX}_{token.key}_{secret}"


def alter(principal: Principal, token: Token, **terms: Any) -> None:
    """Change what was said of a token; it holds on its very next call. Its text stays the same.

    Raises `Invalid`, and `Conflict` (code `token_revoked`) for one that has ended.
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
    for name, value in changed.items():
        setattr(token, name, value)
    with _recorded(principal, token, "token_changed", _told(changed)):
        token.save()


def revoke(principal: Principal, token: Token) -> None:
    """End a token at once; a second time changes nothing."""
    principal.require(Action.MANAGE_TOKENS)
    with _recorded(principal, token, "token_revoked"):
        Token.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now())


def authenticate(text: str, address: str = "") -> Token:
    """Return the usable token that `text` is, used from `address`; raises `BadToken`."""
    key, secret = parted(text)
    token = Token.objects.usable().filter(key=key).first() if key else None
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
    return (key, secret) if prefix == PREFIX else ("", "")


def fits(token: Token, secret: str) -> bool:
    """Tell whether `secret` is the token's, in constant time."""
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


def _recorded(
    principal: Principal, token: Token, action: str, details: Mapping[str, Any] | None = None
) -> AbstractContextManager[Any]:
    return change(
        organization_id=token.organization_id,
        actor=principal.actor,
        action=action,
        resource_type="token",
        resource_id=str(token.pk),
        resource_name=token.name,
        details=details,
    )
