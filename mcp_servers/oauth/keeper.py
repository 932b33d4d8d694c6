"""The keeper of tokens: hands out the one that holds, and renews it once for everybody.

Within a process those who wait share one task; across processes a lease on the grant's row lets one
of them ask, and the others read what it stored. The task outlives its callers: a call that is
cancelled must not lose a refresh token that was rotated meanwhile.
"""

import asyncio
import time
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from random import SystemRandom
from uuid import UUID, uuid4

from django.conf import settings
from django.utils import timezone

from bonobot.lib.problems import Problem
from bonobot.lib.runtime import Runtime, runtime
from bonobot.lib.sayings import say
from mcp_servers.models import OAuthGrant
from mcp_servers.oauth import clients, grants
from mcp_servers.oauth.accounts import Account, joined, scopes_of
from mcp_servers.oauth.challenges import Challenge
from mcp_servers.oauth.faults import LoginNeeded, OAuthProblem, Transient
from mcp_servers.oauth.grants import Held
from mcp_servers.oauth.metadata import Authority, discover
from mcp_servers.oauth.tokens import Tokens, ask_for_tokens

EXCHANGE_S = 45.0  # shorter than the lease
WAIT_S = 70.0  # longer than the lease, so that a dead holder's is waited out
LOOK_AGAIN_S = 0.1

# Its own: nobody who seeds the one that all share decides when others look again.
_CHANCE = SystemRandom()

_Key = tuple[Runtime, str, str, int, str]
_running: dict[_Key, Future[Held | Problem]] = {}


def login_url(account: Account) -> str:
    """Return where a person signs in to the account's server."""
    return login_address(account.server_id)


def login_address(server_id: UUID) -> str:
    """Return where a person signs in to a server."""
    return f"{settings.BONOBOT_URL}/oauth/start/{server_id}"


async def bearer(account: Account) -> Held:
    """Return a token that holds; raises `OAuthProblem` (`needs_reauth` where a person is needed).

    On the loop of `runtime()` only.
    """
    grant, found = await runtime().orm(_look, account)
    if found is not None:
        return found
    return await _renewed(account, grant.version, None, "")


async def renewed(account: Account, refused: Held, challenge: Challenge | None) -> Held:
    """Return another token than the one that was refused with 401."""
    return await _renewed(account, refused.version, challenge, "")


async def stepped_up(account: Account, refused: Held, challenge: Challenge) -> Held:
    """Return a token with the scopes that a challenge asks for beside those asked for before.

    Raises `LoginNeeded` where only a person can agree to more, or more was asked for in vain.
    """
    grant, _found = await runtime().orm(_look, account)
    before = scopes_of(f"{grant.wanted_scope} {grant.scope}") or account.scopes
    wanted = joined(before, challenge.scopes)
    # Where a person signed in, only what was granted counts: what is wanted may still be to come.
    had = grant.scope if account.interactive else grant.wanted_scope
    in_vain = set(challenge.scopes) <= set(scopes_of(had))
    if account.interactive and not in_vain:
        await runtime().orm(grants.want, grant, wanted)
        raise _login(account, "The server wants more rights than were granted.")
    if in_vain:
        raise OAuthProblem(
            "The server wants rights that its authorization server does not give.",
            code="token_refused",
            remedy="Grant the client more scopes at the authorization server.",
        )
    return await _renewed(account, refused.version, challenge, wanted)


async def whoever(account: Account) -> Account:
    """Return the account of a member whose login still holds, for what nobody in particular asks.

    Discovery and health checks in the background go by it: who has to sign in again is passed over.
    Raises `LoginNeeded` where nobody is left.
    """
    for subject in await runtime().orm(grants.signed_in, account):
        theirs = replace(account, subject=subject)
        try:
            await bearer(theirs)
        except LoginNeeded:
            continue
        return theirs
    raise _login(account, "Nobody is signed in to this server.")


def _look(account: Account) -> tuple[OAuthGrant, Held | None]:
    try:
        grant = grants.grant_of(account)
    except LoginNeeded as problem:
        raise _login(account, str(problem)) from None
    return grant, grants.held(grant)


async def _renewed(account: Account, version: int, challenge: Challenge | None, scope: str) -> Held:
    own = runtime()
    key = (own, account.binding, f"{account.server_id}:{account.subject}", version, scope)
    if key not in _running:
        future = own.spawn(_renew(account, version, challenge, scope), name="renew a token")
        _running[key] = future
        future.add_done_callback(lambda _: _running.pop(key, None))
    outcome = await asyncio.shield(asyncio.wrap_future(_running[key]))
    if isinstance(outcome, Problem):
        raise outcome.with_traceback(None)
    return outcome


async def _renew(
    account: Account, version: int, challenge: Challenge | None, scope: str
) -> Held | Problem:
    """Renew, or wait for whoever does; failures are returned, since many wait for them."""
    holder, began, orm = uuid4(), timezone.now(), runtime().orm
    gives_up_at = time.monotonic() + WAIT_S
    remembered = began if account.interactive else began - grants.REMEMBERED
    if challenge is not None or scope:
        remembered = began
    while time.monotonic() < gives_up_at:
        try:
            grant, found = await orm(_look, account)
        except Problem as problem:
            return problem
        if found is not None and found.version > version:
            return found
        if failed := grants.failure(grant, remembered - timedelta(milliseconds=1)):
            return failed
        if account.interactive and not grant.refresh_token:
            return await _ended(account, grant)
        if await orm(grants.claim, grant, holder):
            return await _exchanged(account, grant, holder, challenge, scope)
        await asyncio.sleep(LOOK_AGAIN_S * (0.5 + _CHANCE.random()))
    return Transient("Another process did not finish signing in.", remedy="Try again.")


async def _exchanged(
    account: Account, grant: OAuthGrant, holder: UUID, challenge: Challenge | None, scope: str
) -> Held | Problem:
    """Ask for new tokens under the lease, and write what came of it."""
    orm = runtime().orm
    try:
        async with asyncio.timeout(EXCHANGE_S):
            authority, client_id, tokens = await _obtained(account, grant, challenge, scope)
    except TimeoutError:
        away = Transient("The authorization server did not answer in time.", remedy="Try again.")
        await orm(grants.fail, grant, holder, away, over=False)
        return away
    except Problem as problem:
        told = _told(account, problem)
        await orm(grants.fail, grant, holder, told, over=told.code == LoginNeeded.code)
        if told.code == LoginNeeded.code:
            await _mark(account, told)
        return told
    stored = await orm(
        grants.store,
        grant,
        holder,
        tokens,
        authority=authority.as_dict(),
        issuer=authority.issuer,
        client_id=client_id,
        wanted_scope=scope or grant.wanted_scope,
    )
    if not stored:
        return Transient("Signing in took too long.", remedy="Try again.")
    return Held(tokens.access, grant.version + 1, tokens.scope)


async def _obtained(
    account: Account, grant: OAuthGrant, challenge: Challenge | None, scope: str
) -> tuple[Authority, str, Tokens]:
    if account.interactive:
        return await _refreshed(account, grant)
    if account.token_url:
        authority = Authority(
            issuer=account.issuer, resource=account.url, token_endpoint=account.token_url
        )
    else:
        pinned = await runtime().orm(grants.pinned_issuer, account)
        authority = await discover(account, challenge, pinned=pinned)
    form = {"grant_type": "client_credentials"}
    wanted = scope or grant.wanted_scope or joined(account.scopes or authority.scopes)
    if wanted:
        form["scope"] = wanted
    tokens = await ask_for_tokens(account, authority, clients.entered(account), form)
    return authority, account.client_id, tokens


async def _refreshed(account: Account, grant: OAuthGrant) -> tuple[Authority, str, Tokens]:
    authority = Authority.of(grant.authority)
    client = await clients.client_named(account, authority, grant.client_id)
    form = {"grant_type": "refresh_token", "refresh_token": grant.refresh_token.open()}
    return authority, grant.client_id, await ask_for_tokens(account, authority, client, form)


async def _ended(account: Account, grant: OAuthGrant) -> Problem:
    """Return what to say where there is nothing left to renew with."""
    why = "The sign-in has ended." if grant.issuer else "Nobody has signed in yet."
    ended = _login(account, why)
    await _mark(account, ended)
    return ended


async def _mark(account: Account, problem: Problem) -> None:
    if account.subject == account.organization_id:  # one person's login is no task for all
        await runtime().orm(grants.mark, account, f"{problem} {problem.remedy}")


def _told(account: Account, problem: Problem) -> Problem:
    return _login(account, str(problem)) if isinstance(problem, LoginNeeded) else problem


def _login(account: Account, detail: str) -> LoginNeeded:
    if account.interactive:
        return LoginNeeded(
            detail, remedy=say("Sign in at {login_url}", login_url=login_url(account))
        )
    return LoginNeeded(detail, remedy="Enter valid client credentials for this server.")
