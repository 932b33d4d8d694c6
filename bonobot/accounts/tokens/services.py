"""Create, update, revoke and authenticate tokens, and OAuth grants.

The public key finds the row; the digest is compared in constant time. Peppers are numbered, so that
a new one can be added while tokens of older ones keep working.

A grant is a token row of a user, listed, limited, audited and revoked like other tokens; its access
tokens begin with `bno_`. It is for one address (RFC 8707), never for REST, and allows no more than
its user may do: it ends when the user leaves, is disabled or gets a lesser role
(`TokenQuerySet.active`).

The OAuth protocol itself is in `oauth_server`.
"""

import hmac
import secrets
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID, uuid4

from django.conf import settings
from django.db.models import CharField, DateTimeField
from django.utils import timezone

from bonobot.accounts.models import Invitation, Organization, Token, User
from bonobot.accounts.principals import Principal, build_token_principal, build_user_principal
from bonobot.accounts.roles import Action, Role, TokenScope, list_roles_within
from bonobot.accounts.tokens import constraints
from bonobot.accounts.tokens.constraints import clean_constraints, is_in_networks, parse_networks
from bonobot.core.db.prepared_queries import PreparedQuery, QueryParameter
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, Forbidden, InvalidInput, Problem
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from bonobot.ledger.types import Actor, Opening
from bonobot.ledger.writer.writer_thread import get_writer

ISSUED_PREFIX = "bnb"
GRANT_PREFIX = "bno"
# Terms of a grant that can be changed: limits, but not what the user granted.
GRANT_TERM_NAMES = frozenset({"name", "networks", "calls_per_minute"})
# The last use is saved at most once in this time, so that reads don't become writes.
LAST_USE_INTERVAL = timedelta(minutes=1)
MAX_ADDRESS_LENGTH = 64
# Scopes that can be granted: those of the gateway, not REST.
GRANT_SCOPES = (TokenScope.TOOLS, TokenScope.AGENTS, TokenScope.MANAGE)


class InvalidToken(Problem):
    """The token is unknown, revoked, expired or used from a wrong network; one error for all."""

    code = "bad_token"
    status = 401


def _compute_digest(pepper_id: int, secret: str) -> str:
    pepper = settings.BONOBOT_TOKEN_PEPPERS[pepper_id]
    return hmac.new(pepper.encode(), secret.encode(), "sha256").hexdigest()


def create_token(principal: Principal, *, role: Role, **terms: Any) -> tuple[Token, str]:
    """Create a token and return it with its text, which isn't stored.

    `terms` are those of `constraints.TERM_NAMES`; only the name is required. Raises `InvalidInput`.
    """
    principal.require(Action.MANAGE_TOKENS)
    cleaned = clean_constraints({"name": ""} | terms)
    _check_platform_scope(principal, cleaned)
    secret = secrets.token_urlsafe(32)
    pepper_id, digest = hash_secret(secret)
    token = Token(
        organization_id=principal.organization_id,
        key=generate_token_key(),
        pepper_id=pepper_id,
        digest=digest,
        role=role,
        **cleaned,
    )
    with record_token_change(
        principal, token, "token_created", {"role": role} | _build_audit_details(cleaned)
    ):
        token.save()
    return token, f"{ISSUED_PREFIX}_{token.key}_{secret}"


def update_token(principal: Principal, token: Token, **terms: Any) -> None:
    """Update a token, effective on its next call; its text stays the same.

    Raises `InvalidInput`, and `Conflict` (`token_revoked`, or `grant_fixed` for terms that a user
    granted).
    """
    principal.require(Action.MANAGE_TOKENS)
    changed_values = {
        name: value
        for name, value in clean_constraints(terms).items()
        if value != getattr(token, name)
    }
    if not changed_values:
        return
    _check_platform_scope(principal, {"scopes": token.scopes})
    _check_platform_scope(principal, changed_values)
    if token.revoked_at is not None:
        raise Conflict(
            "The token was revoked.", code="token_revoked", remedy="Create a new one instead."
        )
    if token.kind == "grant" and not GRANT_TERM_NAMES.issuperset(changed_values):
        raise Conflict(
            "This token was granted by a user. Only that user can decide what it can do.",
            code="grant_fixed",
            remedy="Limit its networks or its rate, or revoke it.",
        )
    for name, value in changed_values.items():
        setattr(token, name, value)
    with record_token_change(
        principal, token, "token_updated", _build_audit_details(changed_values)
    ):
        token.save()


def _check_platform_scope(principal: Principal, terms: Mapping[str, Any]) -> None:
    """Raise `Forbidden` if the terms have `platform`, unless an administrator set them.

    A token can't create another one like it, so revoking it is enough.
    """
    if TokenScope.PLATFORM not in terms.get("scopes", ()):
        return
    if principal.platform_admin and principal.kind != "token":
        return
    raise Forbidden(
        "Only a platform administrator can create or change a token with the scope `platform`.",
        code="platform_admin_only",
        field="scopes",
        rule="platform_admin",
        remedy="Create it in the admin, or with `bonobot tokens create NAME --role owner "
        "--scope platform`.",
    )


def revoke_token(principal: Principal, token: Token) -> None:
    """Revoke a token; idempotent. Users can revoke their own grants."""
    is_grant_of_person = token.user_id is not None and principal.kind == "user"
    if not (is_grant_of_person and principal.id == str(token.user_id)):
        principal.require(Action.MANAGE_TOKENS)
    with record_token_change(principal, token, "token_revoked"):
        Token.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now())


_ISSUED_TOKEN = PreparedQuery(
    lambda: (
        Token.objects.usable_issued(QueryParameter("now", output_field=DateTimeField()))
        .filter(key=QueryParameter("key", output_field=CharField()), resource="")
        .order_by()[:1]
    )
)


def authenticate_token(text: str, address: str = "") -> Token:
    """Return the usable token with this text, used from `address`; raises `InvalidToken`.

    Tokens for one resource of the gateway are refused (RFC 8707).
    """
    key, secret = parse_token(text)
    token: Token | None = None
    if key and text.startswith(f"{GRANT_PREFIX}_"):
        token = Token.objects.usable().filter(key=key, resource="").first()
    elif key:
        token = _ISSUED_TOKEN.fetch_first(key=key, now=timezone.now())
    if token is None or not is_matching_secret(token, secret):
        raise build_invalid_token_error()
    check_client_address(token, address)
    if token.last_used_at is None or timezone.now() - token.last_used_at > LAST_USE_INTERVAL:
        update_last_used(token.pk)
    return token


def parse_token(text: str) -> tuple[str, str]:
    """Return the public key and secret of a token's text, or two blank strings."""
    prefix, _, secret_part = text.partition("_")
    key, _, secret = secret_part.partition("_")
    return (key, secret) if prefix in (ISSUED_PREFIX, GRANT_PREFIX) else ("", "")


def generate_token_key() -> str:
    return secrets.token_hex(6)


def get_newest_pepper() -> int:
    """Return the number of the pepper for new secrets."""
    return max(settings.BONOBOT_TOKEN_PEPPERS)


def hash_secret(secret: str) -> tuple[int, str]:
    """Return the pepper number and digest to store for a new secret."""
    return get_newest_pepper(), _compute_digest(get_newest_pepper(), secret)


def is_matching_secret(token: Token | Invitation, secret: str) -> bool:
    """Return whether `secret` is the token's, or the invitation's, in constant time."""
    if token.pepper_id not in settings.BONOBOT_TOKEN_PEPPERS:
        return False
    return hmac.compare_digest(token.digest, _compute_digest(token.pepper_id, secret))


def check_client_address(token: Token, address: str) -> None:
    """Raise `InvalidToken` and audit the refusal if the networks exclude the address."""
    if is_in_networks(address, parse_networks(token.networks)):
        return
    get_writer().record_refusal(
        Opening(
            call_id=uuid4(),
            organization_id=token.organization_id,
            action="token_rejected",
            event_type="connection",
            resource_type="token",
            resource_id=str(token.pk),
            resource_name=token.name,
            actor=build_token_principal(token).actor,
            decision="deny",
            rule="token:networks",
            code="token_network",
            details={"address": make_visible(address, MAX_ADDRESS_LENGTH)},
        )
    ).result()
    raise build_invalid_token_error()


def update_last_used(token_id: UUID) -> None:
    """Set a token's last use to now."""
    Token.objects.filter(pk=token_id).update(last_used_at=timezone.now())


def build_invalid_token_error() -> InvalidToken:
    return InvalidToken(
        "This token is unknown, revoked, expired, or not allowed from this IP address.",
        remedy="Create a new one: `bonobot tokens create NAME --role ROLE`.",
    )


def _build_audit_details(terms: Mapping[str, Any]) -> dict[str, Any]:
    """Return terms as details of an audit entry, without the name."""
    expires_at = terms.get("expires_at")
    details = {name: value for name, value in terms.items() if name not in ("name", "expires_at")}
    return details | (
        {"expires_at": expires_at.isoformat() if expires_at else None}
        if "expires_at" in terms
        else {}
    )


def record_token_change(
    principal: Principal, token: Token, action: str, details: Mapping[str, Any] | None = None
) -> AbstractContextManager[Any]:
    """Record a change of a token by the principal in the audit log."""
    return record_change(
        **describe_row("token", token), actor=principal.actor, action=action, details=details
    )


def get_oauth_lifetime(
    kind: Literal["AUTHORIZATION_CODE", "ACCESS_TOKEN", "REFRESH_TOKEN"],
) -> timedelta:
    """Return the lifetime, as `bonobot/settings/oauth_server.py` declares it."""
    return timedelta(seconds=settings.OAUTH2_PROVIDER[f"{kind}_EXPIRE_SECONDS"])


def create_grant(
    user: User,
    organization: Organization,
    *,
    role: Role,
    resource: str,
    client_id: str,
    client: str,
    scopes: Collection[str],
    agent_ids: Collection[UUID] = (),
) -> Token:
    """Authorize an OAuth client for one address as `user`; it has a minute to fetch its token.

    Raises `Forbidden` for non-members and for a role beyond the user's own, `InvalidInput` for
    scopes that can't be granted.
    """
    principal = build_user_principal(user, organization)
    cleaned = constraints.clean_constraints(
        {"name": f"{client} ({user.get_username()})"[: constraints.MAX_NAME_LENGTH]}
        | {
            "client": client[: constraints.MAX_CLIENT_LENGTH],
            "scopes": scopes,
            "agent_ids": agent_ids,
        }
    )
    _check_grant(principal, role, cleaned["scopes"])
    token = Token(
        organization_id=organization.pk,
        key=generate_token_key(),
        pepper_id=get_newest_pepper(),
        digest="",
        role=role,
        user=user,
        client_id=client_id,
        resource=resource,
        access_expires_at=timezone.now(),
        expires_at=timezone.now() + get_oauth_lifetime("AUTHORIZATION_CODE"),
        **cleaned,
    )
    audited_terms = {name: cleaned[name] for name in ("client", "scopes", "agent_ids")}
    grant_details = {"role": role, "resource": resource, "client_id": client_id}
    with record_token_change(
        principal, token, "client_access_granted", audited_terms | grant_details
    ):
        token.save()
    return token


def _check_grant(principal: Principal, role: Role, scopes: Collection[str]) -> None:
    if role not in list_roles_within(principal.role):
        raise Forbidden(
            format_message(
                "You can't assign the role `{role}` because it has permissions that your "
                "role lacks.",
                role=role,
            ),
            rule=f"role:{role}",
            remedy=format_message(
                "Choose from: {names}.", names=", ".join(list_roles_within(principal.role))
            ),
        )
    if not scopes or not set(GRANT_SCOPES).issuperset(scopes):
        raise InvalidInput(
            "An OAuth client needs an MCP scope.",
            field="scopes",
            remedy=format_message("Choose from: {names}.", names=", ".join(GRANT_SCOPES)),
        )


def rotate_grant(token: Token, *, first: bool) -> str | None:
    """Return a new access token for an active grant and invalidate the previous one.

    Returns None if the grant isn't active or `first` is wrong: of concurrent first fetches, only
    one succeeds.
    """
    secret = secrets.token_urlsafe(32)
    pepper_id, digest = hash_secret(secret)
    now = timezone.now()
    grants = Token.objects.filter(pk=token.pk, pk__in=Token.objects.active().values("pk"))
    grants = grants.filter(digest="") if first else grants.exclude(digest="")
    updated = grants.update(
        pepper_id=pepper_id,
        digest=digest,
        access_expires_at=now + get_oauth_lifetime("ACCESS_TOKEN"),
        expires_at=now + get_oauth_lifetime("REFRESH_TOKEN"),
    )
    return f"{GRANT_PREFIX}_{token.key}_{secret}" if updated else None


def end_grant(token: Token, *, reason: str, user: User | None = None) -> None:
    """End a grant at the request of its client, the protocol, or its user; idempotent."""
    if token.revoked_at is not None:
        return
    actor = Actor(kind="token", id=str(token.pk), label=token.name)
    if user is not None:
        actor = Actor(kind="user", id=str(user.pk), label=user.get_username())
    with record_change(
        **describe_row("token", token),
        actor=actor,
        action="client_access_revoked",
        details={"why": reason},
    ):
        Token.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now())


def end_user_grants(user: User, *, reason: str) -> None:
    """End all grants of a user in all organizations, also those without a token yet."""
    for grant in Token.objects.active().filter(user=user):
        end_grant(grant, reason=reason, user=user)


def list_user_grants(user_id: UUID) -> list[Token]:
    """Return a user's active grants in all organizations, newest first."""
    grants = Token.objects.active().filter(user_id=user_id).exclude(digest="")
    return list(grants.select_related("organization").order_by("-created_at"))
