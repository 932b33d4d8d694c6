"""Making and checking tokens: `bnb_<key>_<secret>`, the secret kept only as a peppered HMAC.

The public key finds the row; the digest is compared in constant time. Peppers are numbered, so that
a new one can be added while tokens of the older ones go on working.
"""

import hmac
import secrets
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from bonobot.ledger.changes import change
from bonobot.lib.problems import Problem
from bonobot.tenancy.models import Token
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action, Role

PREFIX = "bnb"
# A token's last use is written at most once in this time: reads must not become writes.
LAST_USE_STEP = timedelta(minutes=1)


class BadToken(Problem):
    """The token is unknown, revoked or expired; one answer for all three."""

    code = "bad_token"
    status = 401


def _digest(pepper_id: int, secret: str) -> str:
    pepper = settings.BONOBOT_TOKEN_PEPPERS[pepper_id]
    return hmac.new(pepper.encode(), secret.encode(), "sha256").hexdigest()


def issue(
    principal: Principal,
    *,
    name: str,
    role: Role,
    agent_id: UUID | None = None,
    expires_at: datetime | None = None,
    calls_per_minute: int | None = None,
) -> tuple[Token, str]:
    """Make a token and return it with its text, which nobody can read again."""
    principal.require(Action.MANAGE_TOKENS)
    secret = secrets.token_urlsafe(32)
    pepper_id = max(settings.BONOBOT_TOKEN_PEPPERS)
    token = Token(
        organization_id=principal.organization_id,
        name=name,
        key=secrets.token_hex(6),
        pepper_id=pepper_id,
        digest=_digest(pepper_id, secret),
        role=role,
        agent_id=agent_id,
        expires_at=expires_at,
        calls_per_minute=calls_per_minute,
    )
    with change(
        organization_id=principal.organization_id,
        actor=principal.actor,
        action="token_created",
        resource_type="token",
        resource_id=str(token.pk),
        resource_name=name,
        details={"role": role, "agent_id": str(agent_id) if agent_id else None},
    ):
        token.save()
    return token, f"{PREFIX}_{token.key}_{secret}"


def revoke(principal: Principal, token: Token) -> None:
    """End a token at once; a second time changes nothing."""
    principal.require(Action.MANAGE_TOKENS)
    with change(
        organization_id=token.organization_id,
        actor=principal.actor,
        action="token_revoked",
        resource_type="token",
        resource_id=str(token.pk),
        resource_name=token.name,
    ):
        Token.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now())


def authenticate(text: str) -> Token:
    """Return the usable token that `text` is; raises `BadToken`."""
    prefix, _, rest = text.partition("_")
    key, _, secret = rest.partition("_")
    token = Token.objects.usable().filter(key=key).first() if prefix == PREFIX else None
    if token is None or token.pepper_id not in settings.BONOBOT_TOKEN_PEPPERS:
        raise _bad()
    if not hmac.compare_digest(token.digest, _digest(token.pepper_id, secret)):
        raise _bad()
    now = timezone.now()
    if token.last_used_at is None or now - token.last_used_at > LAST_USE_STEP:
        Token.objects.filter(pk=token.pk).update(last_used_at=now)
    return token


def _bad() -> BadToken:
    return BadToken(
        "This token is unknown, revoked or expired.",
        remedy="Make a new one: `bonobot tokens create NAME --role ROLE`.",
    )
