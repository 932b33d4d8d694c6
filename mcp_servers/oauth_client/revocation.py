"""Revocation of tokens, also those of former members.

Rows are deleted in the transaction that ends a sign-in, so the next call has no token. The
authorization server is called after the commit, and the outcome is recorded in the audit log.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import TimeoutError as TooSlow
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import Exists, F, OuterRef

from bonobot.accounts.models import Membership, User
from bonobot.core.crypto.encrypted_fields import UnreadableSecret
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.audit.admin_changes import record_finished_change
from bonobot.ledger.types import Actor
from mcp_servers.audit import record_server_change
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.models import OAuthGrant, Server
from mcp_servers.oauth_client import client_registration
from mcp_servers.oauth_client.access_tokens import OAuthEndpoint
from mcp_servers.oauth_client.http import open_http_client
from mcp_servers.oauth_client.metadata import AuthorizationServer
from mcp_servers.oauth_client.token_requests import (
    OAuthClientCredentials,
    build_client_authentication,
)
from mcp_servers.oauth_client.types import OAuthAccount

REQUEST_TIMEOUT_S = 15.0
COMMIT_WAIT_S = 3.0  # a command may exit soon after its commit, with its background tasks
MAX_CONCURRENT_REQUESTS = 8
MAX_GRANTS = 200
SYSTEM = Actor(kind="system", id="oauth", label="sign-ins")


@dataclass(frozen=True)
class GrantRevocation:
    """Tokens to revoke at one authorization server; `repr` shows no secrets."""

    account: OAuthAccount
    authorization_server: AuthorizationServer
    client: OAuthClientCredentials
    tokens: tuple[tuple[str, str], ...] = field(repr=False)  # (type hint, token), refresh first


def find_server_account(server: Server) -> OAuthAccount | None:
    """Return the OAuth account of a server; None without OAuth or if it can't be decrypted."""
    if server.auth_type != Server.Auth.OAUTH2:
        return None
    try:
        endpoint = build_endpoint(server)
    except UnreadableSecret:
        return None
    return endpoint.account if isinstance(endpoint, OAuthEndpoint) else None


def revoke_grants(
    server: Server, account: OAuthAccount, actor: Actor, rows: Any, *, unregister: bool = False
) -> None:
    """Delete grants (a queryset) and revoke their tokens after the commit.

    `account` is the one that obtained them; `unregister` also deletes an unused registration.
    """
    grants = list(rows)
    revocations = [
        revocation for row in grants if (revocation := _build_revocation(account, row)) is not None
    ]
    OAuthGrant.objects.filter(pk__in=[row.pk for row in grants]).delete()
    unregistrations = (
        list(client_registration.delete_unused_registrations(server, account, grants))
        if unregister
        else []
    )
    if revocations or unregistrations:
        record_outcome = partial(
            _record_outcome, server.organization_id, str(server.pk), server.name, actor
        )
        transaction.on_commit(
            partial(_run_in_background, revocations, unregistrations, record_outcome), robust=True
        )


def _build_revocation(account: OAuthAccount, row: OAuthGrant) -> GrantRevocation | None:
    try:
        kinds = (("refresh_token", row.refresh_token), ("access_token", row.access_token))
        tokens = tuple(
            (kind, encrypted_token.open()) for kind, encrypted_token in kinds if encrypted_token
        )
        authorization_server = (
            AuthorizationServer.from_dict(row.authorization_server)
            if row.authorization_server
            else None
        )
        client = client_registration.load_client(account, row.issuer, row.client_id)
    except UnreadableSecret:
        return None  # a token that can't be decrypted can't be revoked
    return (
        GrantRevocation(account, authorization_server, client, tokens)
        if tokens and authorization_server
        else None
    )


def _run_in_background(
    revocations: list[GrantRevocation],
    unregistrations: list[client_registration.ClientUnregistration],
    record_outcome: Callable[..., None],
) -> None:
    """Send the requests in the background, and wait for them briefly."""
    future = get_runtime().spawn(
        _revoke_all(revocations, unregistrations, record_outcome), name="withdraw tokens"
    )
    try:
        future.result(COMMIT_WAIT_S)
    except TooSlow:
        return


async def _revoke_all(
    revocations: list[GrantRevocation],
    unregistrations: list[client_registration.ClientUnregistration],
    record_outcome: Callable[..., None],
) -> None:
    semaphore = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    async def run_request(action: str, issuer: str, request: Any) -> None:
        async with semaphore:
            outcome = await _await_outcome(request)
        await get_runtime().run_orm(record_outcome, action, issuer, outcome)

    async with asyncio.TaskGroup() as group:
        for revocation in revocations:
            group.create_task(
                run_request(
                    "oauth_revoked",
                    revocation.authorization_server.issuer,
                    _revoke_tokens(revocation),
                )
            )
    # Afterwards: an unregistered client could not revoke tokens.
    async with asyncio.TaskGroup() as group:
        for registration in unregistrations:
            group.create_task(
                run_request(
                    "oauth_unregistered",
                    registration.issuer,
                    client_registration.unregister_client(registration),
                )
            )


async def _await_outcome(request: Any) -> str:
    """Return `done`, `not_supported`, `refused`, or the code of what went wrong."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return str(await request)
    except TimeoutError:
        return "timeout"
    except Problem as problem:
        return problem.code


async def _revoke_tokens(revocation: GrantRevocation) -> str:
    authorization_server = revocation.authorization_server
    if not authorization_server.revocation_endpoint:
        return "not_supported"
    outcomes = []
    async with open_http_client(revocation.account) as http_client:
        for kind, token in revocation.tokens:
            headers, auth_fields = build_client_authentication(
                revocation.client, authorization_server
            )
            form = {**auth_fields, "token": token, "token_type_hint": kind}
            response = await http_client.post(
                authorization_server.revocation_endpoint,
                "revocation endpoint",
                form=form,
                headers=headers,
            )
            outcomes.append(response.status in client_registration.SUCCESS_STATUSES)
    # Some servers accept only refresh tokens, which also end their access tokens.
    return "done" if outcomes[0] else "refused"


def _record_outcome(
    organization_id: Any,
    server_id: str,
    name: str,
    actor: Actor,
    action: str,
    issuer: str,
    outcome: str,
) -> None:
    record_finished_change(
        organization_id=organization_id,
        actor=actor,
        action=action,
        resource_type="mcp_server",
        resource_id=server_id,
        resource_name=name,
        details={"issuer": issuer, "outcome": outcome},
        governed=False,
    )


def revoke_former_members() -> int:
    """Delete and revoke the grants of former members; return how many."""
    subject = OuterRef("subject")
    members = Membership.objects.filter(
        organization=OuterRef("organization_id"), user=subject, user__is_active=True
    )
    administrators = User.objects.filter(pk=subject, is_superuser=True, is_active=True)
    personal = OAuthGrant.objects.exclude(subject=F("organization_id"))
    former = (
        personal.exclude(Exists(members))
        .exclude(Exists(administrators))
        .order_by("pk")[:MAX_GRANTS]
    )
    grants = list(former.select_related("server"))
    for row in grants:
        _revoke_former_member(row.server, row)
    return len(grants)


def _revoke_former_member(server: Server, grant: OAuthGrant) -> None:
    account = find_server_account(server)
    with record_server_change(
        server,
        SYSTEM,
        "oauth_disconnected",
        {"per": "user", "issuer": grant.issuer, "reason": "left"},
        governed=False,
    ):
        rows = OAuthGrant.objects.filter(pk=grant.pk)
        if account is None:
            rows.delete()
        else:
            revoke_grants(server, account, SYSTEM, rows)
