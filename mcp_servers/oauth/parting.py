"""Parting: tokens that nobody needs any more are withdrawn where they were given (RFC 7009).

Rows go first, in the transaction of whatever ends a sign-in, so the very next call has no token
whatever the authorization server says. It is asked after the commit, as far as it can be reached,
and what came of it is in the audit. A client that was registered for nobody else is removed there
too (RFC 7592).
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import TimeoutError as TooSlow
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.db import transaction
from django.utils import timezone

from bonobot.ledger.actors import Actor
from bonobot.ledger.changes import record
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.seals import UnreadableSecret
from mcp_servers.endpoints import endpoint_of
from mcp_servers.models import OAuthClient, OAuthGrant, OAuthLogin, Server
from mcp_servers.oauth import clients
from mcp_servers.oauth.accounts import Account
from mcp_servers.oauth.asking import asking
from mcp_servers.oauth.assertions import Client, proof
from mcp_servers.oauth.metadata import Authority
from mcp_servers.oauth.signing import OAuthEndpoint

ASKED_S = 15.0
WAITED_S = 3.0  # a command ends soon after its commit, and what it left under way with it
BESIDE_EACH_OTHER = 8
DONE = (200, 204)


@dataclass(frozen=True)
class Parting:
    """What is to be withdrawn at one authorization server; printing it shows no secret."""

    account: Account
    authority: Authority
    client: Client
    tokens: tuple[tuple[str, str], ...] = field(repr=False)  # what kind each is, refresh first


@dataclass(frozen=True)
class Registration:
    """A client of ours that is to be removed where it registered itself."""

    account: Account
    issuer: str
    url: str
    token: str = field(repr=False)


def account_of_server(server: Server) -> Account | None:
    """Return how we sign in to a server as its rows say; None without OAuth, or without keys."""
    if server.auth_type != Server.Auth.OAUTH2:
        return None
    try:
        endpoint = endpoint_of(server)
    except UnreadableSecret:
        return None
    return endpoint.account if isinstance(endpoint, OAuthEndpoint) else None


def part(
    server: Server, account: Account, actor: Actor, rows: Any, *, unregister: bool = False
) -> None:
    """Delete grants (a queryset) and withdraw their tokens once the transaction has committed.

    `account` is how they were obtained; `unregister` also drops a client that nobody else uses.
    """
    found = list(rows)
    partings = [one for row in found if (one := _parting(account, row)) is not None]
    OAuthGrant.objects.filter(pk__in=[row.pk for row in found]).delete()
    gone = list(_unused(server, account, found)) if unregister else []
    if partings or gone:
        note = partial(_note, server.organization_id, str(server.pk), server.name, actor)
        transaction.on_commit(partial(_go, partings, gone, note), robust=True)


def _parting(account: Account, row: OAuthGrant) -> Parting | None:
    try:
        kinds = (("refresh_token", row.refresh_token), ("access_token", row.access_token))
        tokens = tuple((kind, sealed.open()) for kind, sealed in kinds if sealed)
        authority = Authority.of(row.authority) if row.authority else None
        client = clients.known(account, row.issuer, row.client_id)
    except UnreadableSecret:
        return None  # nothing can be said to anybody with it
    return Parting(account, authority, client, tokens) if tokens and authority else None


def _unused(server: Server, account: Account, rows: Iterable[OAuthGrant]) -> Iterable[Registration]:
    """Delete the registrations that served these grants alone, and yield those to be removed."""
    for issuer in {row.issuer for row in rows if row.client_id != account.client_id}:
        mine = {"organization_id": server.organization_id}
        row = OAuthClient.objects.filter(**mine, issuer=issuer).first()
        if row is None or OAuthGrant.objects.filter(**mine, client_id=row.client_id).exists():
            continue
        under_way = OAuthLogin.objects.filter(
            **mine, client_id=row.client_id, used_at=None, expires_at__gt=timezone.now()
        )
        if under_way.exclude(server=server).exists():
            continue
        try:  # before it is deleted: a value is sealed for its row
            token = row.registration_token.open() if row.registration_token else ""
        except UnreadableSecret:
            token = ""
        row.delete()
        if token and row.registration_url:
            yield Registration(account, issuer, row.registration_url, token)


def _go(partings: list[Parting], gone: list[Registration], note: Callable[..., None]) -> None:
    """Ask in the background, and wait a moment for it."""
    going = runtime().spawn(_asked(partings, gone, note), name="withdraw tokens")
    try:
        going.result(WAITED_S)
    except TooSlow:
        return


async def _asked(
    partings: list[Parting], gone: list[Registration], note: Callable[..., None]
) -> None:
    gate = asyncio.Semaphore(BESIDE_EACH_OTHER)

    async def one(action: str, issuer: str, asked: Any) -> None:
        async with gate:
            outcome = await _outcome(asked)
        await runtime().orm(note, action, issuer, outcome)

    async with asyncio.TaskGroup() as group:
        for parting in partings:
            group.create_task(one("oauth_revoked", parting.authority.issuer, _revoked(parting)))
    # A client that is gone could withdraw nothing any more.
    async with asyncio.TaskGroup() as group:
        for registration in gone:
            group.create_task(
                one("oauth_unregistered", registration.issuer, _unregistered(registration))
            )


async def _outcome(asked: Any) -> str:
    """Return `done`, `not_supported`, `refused`, or the code of what went wrong."""
    try:
        async with asyncio.timeout(ASKED_S):
            return str(await asked)
    except TimeoutError:
        return "timeout"
    except Problem as problem:
        return problem.code


async def _revoked(parting: Parting) -> str:
    authority = parting.authority
    if not authority.revocation_endpoint:
        return "not_supported"
    outcomes = []
    async with asking(parting.account) as asker:
        for kind, token in parting.tokens:
            headers, proven = proof(parting.client, authority)
            form = {**proven, "token": token, "token_type_hint": kind}
            answer = await asker.post(
                authority.revocation_endpoint, "revocation endpoint", form=form, headers=headers
            )
            outcomes.append(answer.status in DONE)
    # Some take refresh tokens only: the access tokens of one end with it.
    return "done" if outcomes[0] else "refused"


async def _unregistered(registration: Registration) -> str:
    async with asking(registration.account) as asker:
        answer = await asker.delete(
            registration.url,
            "registration",
            headers={"Authorization": f"Bearer {registration.token}"},
        )
    return "done" if answer.status in DONE else "refused"


def _note(
    organization_id: Any,
    server_id: str,
    name: str,
    actor: Actor,
    action: str,
    issuer: str,
    outcome: str,
) -> None:
    record(
        organization_id=organization_id,
        actor=actor,
        action=action,
        resource_type="mcp_server",
        resource_id=server_id,
        resource_name=name,
        details={"issuer": issuer, "outcome": outcome},
        governed=False,
    )
