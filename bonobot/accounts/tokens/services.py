"""Create, update, revoke and authenticate tokens.

The public key finds the row; the digest is compared in constant time.
"""

import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from django.db.models import CharField, DateTimeField
from django.utils import timezone

from bonobot.accounts.models import Token
from bonobot.accounts.principals import Principal, build_token_principal
from bonobot.accounts.roles import Action, Role, TokenScope
from bonobot.accounts.tokens.constraints import clean_constraints, is_in_networks, parse_networks
from bonobot.accounts.tokens.token_secrets import (
    GRANT_PREFIX,
    ISSUED_PREFIX,
    generate_token_key,
    hash_secret,
    is_matching_secret,
    parse_token,
)
from bonobot.core.db.prepared_queries import PreparedQuery, QueryParameter
from bonobot.core.problems import Conflict, Forbidden, Problem
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from bonobot.ledger.types import Opening
from bonobot.ledger.writer.writer_thread import get_writer

# Terms of a grant that can be changed: limits, but not what the user granted.
GRANT_TERM_NAMES = frozenset({"name", "networks", "calls_per_minute"})

# The last use is saved at most once in this time, so that reads don't become writes.
LAST_USE_INTERVAL = timedelta(minutes=1)
MAX_ADDRESS_LENGTH = 64


class InvalidToken(Problem):
    """The token is unknown, revoked, expired or used from a wrong network; one error for all."""

    code = "bad_token"
    status = 401


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
