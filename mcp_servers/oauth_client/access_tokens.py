"""Obtain access tokens, store and refresh them, and add them to requests.

A token is refreshed when it expires within `EXPIRY_MARGIN`. Within a process, callers share one
refresh task; across processes, a lease on the grant's row lets one process refresh, and the others
read what it stored. The lease is claimed by a conditional UPDATE and held during the request to the
authorization server, without an open transaction; a process that has lost it writes nothing. The
task outlives its callers, so that a canceled call can't lose a rotated refresh token.

A request rejected with 401 was not executed: the token is refreshed and the request sent once more.
The same applies to 403 with `insufficient_scope`, with more scopes. Connections are not keyed by
token, so sessions survive a refresh, but by subject, so that no two people share one.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from random import SystemRandom
from typing import Any
from uuid import UUID, uuid4

import httpx2
from django.conf import settings
from django.db import IntegrityError
from django.db.models import F, Q
from django.utils import timezone

from bonobot.accounts.models import Membership
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.runtime import Runtime, get_runtime
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError
from mcp_servers.models import OAuthGrant, Server
from mcp_servers.oauth_client import client_registration
from mcp_servers.oauth_client import metadata as oauth_client_metadata
from mcp_servers.oauth_client.dpop import sign_dpop_proof
from mcp_servers.oauth_client.metadata import (
    AuthorizationServer,
    BearerChallenge,
    discover_authorization_server,
)
from mcp_servers.oauth_client.token_requests import (
    OAuthTokens,
    build_workload_grant,
    request_tokens,
)
from mcp_servers.oauth_client.types import (
    AuthorizationServerUnavailable,
    LoginNeeded,
    OAuthAccount,
    OAuthProblem,
    join_scopes,
    parse_scopes,
)

# Refresh tokens this long before they expire, because a request takes time.
EXPIRY_MARGIN = timedelta(seconds=30)
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
TOKEN_REQUEST_TIMEOUT_S = 45.0  # shorter than the lease
REFRESH_WAIT_S = (
    70.0  # longer than the lease, so that the lease of a dead process expires meanwhile
)
POLL_INTERVAL_S = 0.1

# Separate from the shared generator, so that seeding that one does not affect polling.
_RANDOM = SystemRandom()


@dataclass(frozen=True)
class AccessToken:
    """The token of a grant, its version, and the key that it is bound to, if any."""

    token: str = field(repr=False)
    version: int
    dpop_key: str = field(default="", repr=False)


_Key = tuple[Runtime, str, str, int, str]
_running: dict[_Key, Future[AccessToken | Problem]] = {}
MAX_SENT_TOKENS = 4  # recent tokens of an account, masked in text from the server


def build_account_login_url(account: OAuthAccount) -> str:
    """Return the URL where a person signs in to the account's server."""
    return build_login_url(account.server_id)


def build_login_url(server_id: UUID) -> str:
    """Return the URL where a person signs in to a server."""
    return f"{settings.BONOBOT_URL}/oauth/start/{server_id}"


async def get_access_token(account: OAuthAccount) -> AccessToken:
    """Return a valid token; raises `OAuthProblem` (`needs_reauth` if a person must sign in).

    Only on the loop of `get_runtime()`.
    """
    grant, token = await get_runtime().run_orm(_load_grant_token, account)
    if token is not None:
        return token
    return await _await_refresh(account, grant.version, None, "")


async def replace_refused_token(
    account: OAuthAccount, rejected_token: AccessToken, challenge: BearerChallenge | None
) -> AccessToken:
    """Return a new token in place of one rejected with 401."""
    return await _await_refresh(account, rejected_token.version, challenge, "")


async def extend_token_scope(
    account: OAuthAccount, rejected_token: AccessToken, challenge: BearerChallenge
) -> AccessToken:
    """Return a token with the scopes of a challenge in addition to those requested before.

    Raises `LoginNeeded` if a person must grant them, `OAuthProblem` if they were requested already.
    """
    grant, _token = await get_runtime().run_orm(_load_grant_token, account)
    requested_scopes = parse_scopes(f"{grant.requested_scope} {grant.scope}") or account.scopes
    requested_scope = join_scopes(requested_scopes, challenge.scopes)
    # For sign-ins by a person only granted scopes count: wanted ones may not be granted yet.
    available_scope = grant.scope if account.interactive else grant.requested_scope
    already_requested = set(challenge.scopes) <= set(parse_scopes(available_scope))
    if account.interactive and not already_requested:
        await get_runtime().run_orm(store_requested_scope, grant, requested_scope)
        raise _build_login_error(account, "The server requires more scopes than were granted.")
    if already_requested:
        raise OAuthProblem(
            "The server requires scopes that its authorization server doesn't grant.",
            code="token_rejected",
            remedy="Grant the client more scopes at the authorization server.",
        )
    return await _await_refresh(account, rejected_token.version, challenge, requested_scope)


async def get_signed_in_account(account: OAuthAccount) -> OAuthAccount:
    """Return the account of any signed-in member, for background discovery and health checks.

    Raises `LoginNeeded` if no member is signed in.
    """
    for subject in await get_runtime().run_orm(list_signed_in_members, account):
        member_account = replace(account, subject=subject)
        try:
            await get_access_token(member_account)
        except LoginNeeded:
            continue
        return member_account
    raise _build_login_error(account, "No one is signed in to this server.")


def _load_grant_token(account: OAuthAccount) -> tuple[OAuthGrant, AccessToken | None]:
    try:
        grant = get_or_create_grant(account)
    except LoginNeeded as problem:
        raise _build_login_error(account, str(problem)) from None
    return grant, find_usable_token(grant)


async def _await_refresh(
    account: OAuthAccount, version: int, challenge: BearerChallenge | None, scope: str
) -> AccessToken:
    runtime = get_runtime()
    key = (runtime, account.binding, f"{account.server_id}:{account.subject}", version, scope)
    if key not in _running:
        future = runtime.spawn(
            _refresh_token(account, version, challenge, scope), name="renew a token"
        )
        _running[key] = future
        future.add_done_callback(lambda _: _running.pop(key, None))
    outcome = await asyncio.shield(asyncio.wrap_future(_running[key]))
    if isinstance(outcome, Problem):
        raise outcome.with_traceback(None)
    return outcome


async def _refresh_token(
    account: OAuthAccount, version: int, challenge: BearerChallenge | None, scope: str
) -> AccessToken | Problem:
    """Refresh, or wait for another process to; return failures, as many callers share them."""
    holder, started_at, orm = uuid4(), timezone.now(), get_runtime().run_orm
    gives_up_at = time.monotonic() + REFRESH_WAIT_S
    failures_since = started_at if account.interactive else started_at - FAILURE_TTL
    if challenge is not None or scope:
        failures_since = started_at
    while time.monotonic() < gives_up_at:
        try:
            grant, token = await orm(_load_grant_token, account)
        except Problem as problem:
            return problem
        if token is not None and token.version > version:
            return token
        if recent_failure := find_recent_failure(grant, failures_since - timedelta(milliseconds=1)):
            return recent_failure
        if account.interactive and not grant.refresh_token:
            return await _mark_login_ended(account, grant)
        if await orm(claim_lease, grant, holder):
            return await _refresh_under_lease(account, grant, holder, challenge, scope)
        await asyncio.sleep(POLL_INTERVAL_S * (0.5 + _RANDOM.random()))
    return AuthorizationServerUnavailable(
        "Another process didn't finish the sign-in.", remedy="Try again."
    )


async def _refresh_under_lease(
    account: OAuthAccount,
    grant: OAuthGrant,
    holder: UUID,
    challenge: BearerChallenge | None,
    scope: str,
) -> AccessToken | Problem:
    """Request new tokens under the lease, and store the outcome."""
    orm = get_runtime().run_orm
    try:
        async with asyncio.timeout(TOKEN_REQUEST_TIMEOUT_S):
            authorization_server, client_id, tokens = await _request_tokens(
                account, grant, challenge, scope
            )
    except TimeoutError:
        unavailable = AuthorizationServerUnavailable(
            "The authorization server didn't respond in time.", remedy="Try again."
        )
        await orm(record_failure, grant, holder, unavailable, is_final=False)
        return unavailable
    except Problem as problem:
        shown_problem = _add_login_link(account, problem)
        await orm(
            record_failure,
            grant,
            holder,
            shown_problem,
            is_final=shown_problem.code == LoginNeeded.code,
        )
        if shown_problem.code == LoginNeeded.code:
            await _mark_needs_reauth(account, shown_problem)
        return shown_problem
    stored_grant = await orm(
        store_tokens,
        grant,
        holder,
        tokens,
        authorization_server=authorization_server.as_dict(),
        issuer=authorization_server.issuer,
        client_id=client_id,
        requested_scope=scope or grant.requested_scope,
    )
    if not stored_grant:
        return AuthorizationServerUnavailable("The sign-in took too long.", remedy="Try again.")
    return AccessToken(tokens.access, grant.version + 1, tokens.dpop_key)


async def _request_tokens(
    account: OAuthAccount, grant: OAuthGrant, challenge: BearerChallenge | None, scope: str
) -> tuple[AuthorizationServer, str, OAuthTokens]:
    if account.interactive:
        return await _send_refresh_request(account, grant)
    if account.token_url:
        authorization_server = AuthorizationServer(
            issuer=account.issuer,
            resource=account.url,
            token_endpoint=account.token_url,
            dpop=account.dpop == "required",
        )
    else:
        pinned = await get_runtime().run_orm(find_pinned_issuer, account)
        authorization_server = await discover_authorization_server(
            account, challenge, pinned=pinned
        )
    form = {"grant_type": "client_credentials"}
    if account.grant == "jwt_bearer":
        form = await asyncio.to_thread(build_workload_grant, account, authorization_server)
    requested_scope = (
        scope or grant.requested_scope or join_scopes(account.scopes or authorization_server.scopes)
    )
    if requested_scope:
        form["scope"] = requested_scope
    tokens = await request_tokens(
        account, authorization_server, client_registration.build_entered_client(account), form
    )
    return authorization_server, account.client_id, tokens


async def _send_refresh_request(
    account: OAuthAccount, grant: OAuthGrant
) -> tuple[AuthorizationServer, str, OAuthTokens]:
    authorization_server = AuthorizationServer.from_dict(grant.authorization_server)
    client = await client_registration.load_grant_client(
        account, authorization_server, grant.client_id
    )
    form = {"grant_type": "refresh_token", "refresh_token": grant.refresh_token.open()}
    return (
        authorization_server,
        grant.client_id,
        await request_tokens(
            account, authorization_server, client, form, dpop_key=grant.dpop_key.open()
        ),
    )


async def _mark_login_ended(account: OAuthAccount, grant: OAuthGrant) -> Problem:
    """Mark the server and return the error if there is no refresh token."""
    reason = "The sign-in is no longer valid." if grant.issuer else "No one has signed in yet."
    error = _build_login_error(account, reason)
    await _mark_needs_reauth(account, error)
    return error


async def _mark_needs_reauth(account: OAuthAccount, problem: Problem) -> None:
    if account.subject == account.organization_id:  # one person's login does not concern the others
        await get_runtime().run_orm(mark_needs_reauth, account, f"{problem} {problem.remedy}")


def _add_login_link(account: OAuthAccount, problem: Problem) -> Problem:
    return (
        _build_login_error(account, str(problem)) if isinstance(problem, LoginNeeded) else problem
    )


def _build_login_error(account: OAuthAccount, detail: str) -> LoginNeeded:
    if account.interactive:
        return LoginNeeded(
            detail,
            remedy=format_message(
                "Sign in at {login_url}", login_url=build_account_login_url(account)
            ),
        )
    if account.grant == "jwt_bearer":
        return LoginNeeded(
            detail, remedy="Let the authorization server accept this platform's workload token."
        )
    return LoginNeeded(detail, remedy="Enter valid client credentials for this server.")


@dataclass(frozen=True, kw_only=True, repr=False)
class OAuthEndpoint(ServerEndpoint):
    """An endpoint whose requests carry the token of an account."""

    account: OAuthAccount = field(repr=False)

    @cached_property
    def fingerprint(self) -> str:
        """Return a digest that changes with configuration and subject."""
        # Not `super()`, which would cache the base fingerprint under the same name.
        base_fingerprint: str = _get_base_property("fingerprint", self)
        text = f"{base_fingerprint}:{self.account.binding}:{self.account.subject}"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def secrets(self) -> tuple[str, ...]:  # not cached: tokens change
        """Return every decrypted value, the account's secrets and recently sent tokens."""
        return (*_get_base_property("secrets", self), *self.account.secrets, *self.bearer_auth.sent)

    @cached_property
    def bearer_auth(self) -> "BearerTokenAuth":
        """Return the auth that adds tokens to this endpoint's requests."""
        return BearerTokenAuth(self.account)

    @property
    def auth(self) -> httpx2.Auth:
        return self.bearer_auth


class BearerTokenAuth(httpx2.Auth):
    """Adds the account's token to requests, with a proof if it is bound to a key."""

    def __init__(self, account: OAuthAccount) -> None:
        self._account = account
        self._dpop_nonce = ""
        self.sent: tuple[str, ...] = ()

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Add the token; retry once with a new one if it was rejected."""
        account = self._account
        try:
            token = await get_access_token(account)
            self._add_token(request, token)
            response = yield request
            challenge = self._read_challenge(response)
            if challenge and challenge.error == "use_dpop_nonce" and self._dpop_nonce:
                self._add_token(request, token)
                response = yield request
                challenge = self._read_challenge(response)
            if response.status_code == 401:
                token = await replace_refused_token(account, token, challenge)
            elif response.status_code == 403 and challenge and challenge.wants_more_scopes:
                token = await extend_token_scope(account, token, challenge)
            else:
                return
            self._add_token(request, token)
        except Problem as problem:
            raise _build_upstream_error(account, problem) from problem
        yield request

    def _read_challenge(self, response: httpx2.Response) -> BearerChallenge | None:
        """Return the challenge, and store a nonce for the next proof."""
        self._dpop_nonce = response.headers.get("dpop-nonce", self._dpop_nonce)
        return oauth_client_metadata.parse_challenge(response.headers.get("www-authenticate", ""))

    def _add_token(self, request: httpx2.Request, token: AccessToken) -> None:
        request.headers["Authorization"] = f"Bearer {token.token}"
        if token.dpop_key:
            request.headers["Authorization"] = f"DPoP {token.token}"
            request.headers["DPoP"] = sign_dpop_proof(
                token.dpop_key,
                request.method,
                request.url,
                token=token.token,
                nonce=self._dpop_nonce,
            )
        if token.token not in self.sent:
            self.sent = (*self.sent, token.token)[-MAX_SENT_TOKENS:]


def _get_base_property(name: str, endpoint: ServerEndpoint) -> Any:
    return vars(ServerEndpoint)[name].func(endpoint)


def is_per_person(endpoint: ServerEndpoint) -> bool:
    """Return whether each person signs in to this server separately."""
    return isinstance(endpoint, OAuthEndpoint) and endpoint.account.by_person


def find_person_id(endpoint: ServerEndpoint) -> UUID | None:
    """Return the person whose login an endpoint uses; None if it isn't a person's."""
    if not isinstance(endpoint, OAuthEndpoint) or not endpoint.account.by_person:
        return None
    return endpoint.account.subject


def build_person_endpoint(endpoint: ServerEndpoint, person_id: UUID | None) -> ServerEndpoint:
    """Return the endpoint with a person's tokens, if each person signs in separately."""
    if not isinstance(endpoint, OAuthEndpoint) or not endpoint.account.by_person:
        return endpoint
    if person_id is None:
        raise UpstreamError(
            format_message(
                "`{endpoint}` requires each person to sign in, but this call isn't "
                "made by a person.",
                endpoint=endpoint.name,
            ),
            code="needs_reauth",
            server=endpoint.name,
            sent=False,
            remedy="Make the call as a person, or sign in to this server for the organization.",
        )
    return replace(endpoint, account=replace(endpoint.account, subject=person_id))


async def build_background_endpoint(endpoint: ServerEndpoint) -> ServerEndpoint:
    """Return the endpoint with any member's login, if each person signs in separately.

    Raises `LoginNeeded` if no member is signed in.
    """
    if not isinstance(endpoint, OAuthEndpoint) or not endpoint.account.by_person:
        return endpoint
    return replace(endpoint, account=await get_signed_in_account(endpoint.account))


def _build_upstream_error(account: OAuthAccount, problem: Problem) -> UpstreamError:
    return UpstreamError(
        f"`{account.server_name}`: {problem}",
        code=problem.code,
        server=account.server_name,
        temporary=isinstance(problem, AuthorizationServerUnavailable),
        sent=False,
        remedy=problem.remedy,
    )


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
        row for row in rows.filter(subject__in=members).order_by("pk") if can_authenticate(row)
    ]
    valid_grants.sort(key=lambda row: not is_usable(row))
    return [row.subject for row in valid_grants[:MAX_MEMBERS_TRIED]]


def is_usable(grant: OAuthGrant) -> bool:
    """Tell whether the access token can still be sent."""
    return bool(grant.access_token) and (
        grant.expires_at is None or grant.expires_at - EXPIRY_MARGIN > timezone.now()
    )


def can_authenticate(grant: OAuthGrant) -> bool:
    """Tell whether the access token can be sent or refreshed without a person."""
    return is_usable(grant) or bool(grant.refresh_token)


def find_usable_token(grant: OAuthGrant) -> AccessToken | None:
    """Return the token if it can still be sent; raises `UnreadableSecret`."""
    if not is_usable(grant):
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
