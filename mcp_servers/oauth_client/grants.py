"""Stored grants and the lease for refreshing them.

A lease is claimed by a conditional UPDATE and held during the request to the authorization server,
without an open transaction; a process that has lost it writes nothing.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError
from django.db.models import F, Q
from django.utils import timezone

from bonobot.accounts.models import Membership
from bonobot.core.problems import Problem
from mcp_servers.models import OAuthGrant, Server
from mcp_servers.oauth_client.token_requests import OAuthTokens
from mcp_servers.oauth_client.types import LoginNeeded, OAuthAccount, OAuthProblem

LEASE = timedelta(seconds=60)
# A failure is reused for this long, so that a rejected client causes no flood of requests.
FAILURE_TTL = timedelta(seconds=10)
# So many members' grants are tried before a server counts as one without sign-in.
MAX_MEMBERS_TRIED = 20

_EMPTY_COLUMNS: dict[str, Any] = {
    "access_token": "",
    "refresh_token": "",
    "dpop_key": "",
    "expires_at": None,
    "signed_in_at": None,
    "scope": "",
    "authorization_server": {},
    "client_id": "",
    "failure": {},
    "failed_at": None,
    "lease_holder": None,
    "lease_until": None,
}


@dataclass(frozen=True)
class AccessToken:
    """The token of a grant, its version, and the key that it is bound to, if any."""

    token: str = field(repr=False)
    version: int
    dpop_key: str = field(default="", repr=False)


def get_or_create_grant(account: OAuthAccount) -> OAuthGrant:
    """Return the account's row; create it, or clear it if the sign-in has changed.

    Raises `LoginNeeded` for an account without subject, and `Server.DoesNotExist` if the server was
    deleted meanwhile.
    """
    if account.subject is None:
        raise LoginNeeded(
            "This server requires each person to sign in, but the request has no person."
        )
    try:
        row, _created = OAuthGrant.objects.get_or_create(
            server_id=account.server_id,
            subject=account.subject,
            defaults={"organization_id": account.organization_id, "binding": account.binding},
        )
    except IntegrityError as error:
        if Server.objects.filter(pk=account.server_id).exists():
            raise
        raise Server.DoesNotExist from error
    if row.binding != account.binding:
        OAuthGrant.objects.filter(pk=row.pk, binding=row.binding).update(
            **_EMPTY_COLUMNS,
            binding=account.binding,
            issuer="",
            requested_scope="",
            version=F("version") + 1,
        )
        row.refresh_from_db()
    return row


def list_signed_in_members(account: OAuthAccount) -> list[UUID]:
    """Return members whose grants may be valid, those with a usable token first."""
    rows = OAuthGrant.objects.filter(server=account.server_id, binding=account.binding)
    members = Membership.objects.filter(
        organization=account.organization_id, user__is_active=True
    ).values("user")
    valid_grants = [
        row for row in rows.filter(subject__in=members).order_by("pk") if row.can_authenticate()
    ]
    valid_grants.sort(key=lambda row: not row.is_usable())
    return [row.subject for row in valid_grants[:MAX_MEMBERS_TRIED]]


def find_usable_token(grant: OAuthGrant) -> AccessToken | None:
    """Return the token if it can still be sent; raises `UnreadableSecret`."""
    if not grant.is_usable():
        return None
    return AccessToken(grant.access_token.open(), grant.version, grant.dpop_key.open())


def find_pinned_issuer(account: OAuthAccount) -> str:
    """Return the issuer where the credentials were first used, or ""."""
    rows = OAuthGrant.objects.filter(server=account.server_id, binding=account.binding)
    return rows.exclude(issuer="").values_list("issuer", flat=True).first() or ""


def claim_lease(grant: OAuthGrant, holder: UUID) -> bool:
    """Claim the lease unless it is held or a newer version is stored."""
    now = timezone.now()
    free = Q(lease_until=None) | Q(lease_until__lt=now)
    rows = OAuthGrant.objects.filter(free, pk=grant.pk, version=grant.version)
    return bool(rows.update(lease_holder=holder, lease_until=now + LEASE))


def store_tokens(
    grant: OAuthGrant, holder: UUID | None, tokens: OAuthTokens, **columns: Any
) -> bool:
    """Store new tokens and release the lease; return False if it was lost meanwhile.

    A refresh token that isn't replaced stays. `holder` is None for a login, which needs no lease.
    """
    row: Any = grant  # assigning plain text to an encrypted field encrypts it
    row.access_token, row.dpop_key = tokens.access, tokens.dpop_key
    now = timezone.now()
    values: dict[str, Any] = {"access_token": row.access_token, "dpop_key": row.dpop_key}
    if tokens.refresh:
        row.refresh_token = tokens.refresh
        values["refresh_token"] = row.refresh_token
    elif holder is None:
        values["refresh_token"] = ""
    rows = OAuthGrant.objects.filter(pk=grant.pk)
    if holder is None:
        values["signed_in_at"] = now
    else:
        rows = rows.filter(lease_holder=holder)
    return bool(
        rows.update(
            **values,
            **columns,
            expires_at=tokens.expires_at,
            scope=tokens.scope,
            version=F("version") + 1,
            updated_at=now,
            failure={},
            failed_at=None,
            lease_holder=None,
            lease_until=None,
        )
    )


def record_failure(grant: OAuthGrant, holder: UUID, problem: Problem, *, is_final: bool) -> None:
    """Store why there is no new token and release the lease; `is_final` deletes the tokens."""
    cleared = {"access_token": "", "refresh_token": "", "dpop_key": ""} if is_final else {}
    OAuthGrant.objects.filter(pk=grant.pk, lease_holder=holder).update(
        **cleared,
        failure={"code": problem.code, "detail": str(problem), "remedy": problem.remedy},
        failed_at=timezone.now(),
        lease_holder=None,
        lease_until=None,
    )


def store_requested_scope(grant: OAuthGrant, scope: str) -> None:
    """Store the scopes that the next login requests."""
    OAuthGrant.objects.filter(pk=grant.pk).update(requested_scope=scope)


def find_recent_failure(grant: OAuthGrant, since: datetime) -> OAuthProblem | None:
    """Return the stored failure if it is newer than `since`."""
    if grant.failed_at is None or grant.failed_at < since or not grant.failure:
        return None
    kind = LoginNeeded if grant.failure["code"] == LoginNeeded.code else OAuthProblem
    return kind(grant.failure["detail"], code=grant.failure["code"], remedy=grant.failure["remedy"])


def mark_needs_reauth(account: OAuthAccount, detail: str) -> None:
    """Set the server's status to `needs_reauth`."""
    servers = Server.objects.filter(pk=account.server_id, enabled=True)
    servers.exclude(status=Server.Status.NEEDS_REAUTH, status_detail=detail).update(
        status=Server.Status.NEEDS_REAUTH,
        status_code=LoginNeeded.code,
        status_detail=detail,
        checked_at=timezone.now(),
    )
