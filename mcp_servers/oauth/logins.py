"""Logins: an authorization code with PKCE, from the button to the stored grant.

The state belongs to one person and one browser session, works once and for ten minutes; the issuer
is recorded before anybody is sent there, and compared with what comes back (RFC 9207).
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlencode
from uuid import UUID

import httpx2
from django.utils import timezone

from bonobot.ledger.changes import Change
from bonobot.lib.problems import Conflict, Forbidden, Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.endpoints import endpoint_of
from mcp_servers.models import OAuthGrant, OAuthLogin, Server
from mcp_servers.oauth import clients, grants, keeper
from mcp_servers.oauth.accounts import Account, joined, scopes_of
from mcp_servers.oauth.faults import OAuthProblem, Transient
from mcp_servers.oauth.metadata import Authority, discover
from mcp_servers.oauth.parting import part
from mcp_servers.oauth.signing import OAuthEndpoint
from mcp_servers.oauth.tokens import Tokens, ask_for_tokens
from mcp_servers.recording import changing

T = TypeVar("T")
LONGEST_WAIT_S = 60.0
KEPT = timedelta(days=1)
AGAIN = "Start the sign-in again."
SHOWN = 200


class LoginRefused(Problem):
    """A browser came back with something that can't be gone on with.

    Codes: `state_unknown`, `state_expired`, `state_used`, `state_foreign`, `iss_missing`,
    `iss_mismatch`, `login_refused`, `login_outdated`.
    """

    code = "login_refused"
    title = "The sign-in did not work"


@dataclass(frozen=True)
class Begun:
    """Where to send the browser, and who is asked."""

    url: str
    issuer: str


def account_for(principal: Principal, server: Server) -> Account:
    """Return the account that this person signs in for: the organization's, or their own.

    Raises `Forbidden`, and `Conflict` (`no_login`) for a server that no person signs in to.
    """
    endpoint = endpoint_of(server)
    if not isinstance(endpoint, OAuthEndpoint) or not endpoint.account.interactive:
        raise Conflict(
            say("Nobody signs in to `{server}` in a browser.", server=server.name),
            code="no_login",
            remedy="Choose `authorization_code` as the grant of its OAuth sign-in.",
        )
    if not endpoint.account.by_person:
        principal.require(Action.MANAGE_SERVERS)
        return endpoint.account
    if not (principal.may(Action.CALL_TOOLS) or principal.may(Action.USE_TOOLS)):
        raise Forbidden(
            say("The role `{role}` uses no tools.", role=principal.role), rule="role:call_tools"
        )
    if principal.kind != "user":
        raise Forbidden("Only a person can sign in.", rule="person")
    return as_person(endpoint.account, UUID(principal.id))


def as_person(account: Account, person: UUID) -> Account:
    """Return the account with a person's own tokens."""
    return replace(account, subject=person)


def begin(principal: Principal, server: Server, *, user_id: UUID, session: str) -> Begun:
    """Record a login and return where it goes on; does network and ORM work, off the loop.

    Raises `OAuthProblem` (`pkce_unsupported`, `client_unknown` …), `EgressDenied`, `Forbidden`.
    """
    account = account_for(principal, server)
    pinned = grants.pinned_issuer(account) if account.client_id else ""
    authority, client_id = _waited(_prepared, account, pinned)
    _forget_old(server)
    grant = grants.grant_of(account)
    state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(64)
    scope = _scope(account, authority, grant)
    OAuthLogin.objects.create(
        organization_id=server.organization_id,
        server=server,
        user_id=user_id,
        subject=_subject(account),
        binding=account.binding,
        state_digest=_digest(state),
        session_digest=_digest(session),
        verifier=verifier,
        authority=authority.as_dict(),
        client_id=client_id,
        redirect_uri=clients.redirect_uri(),
        scope=scope,
        expires_at=timezone.now() + OAuthLogin.LIFETIME,
    )
    query = {
        "response_type": "code",
        "client_id": client_id,
        "redirect_uri": clients.redirect_uri(),
        "state": state,
        "code_challenge": _challenge(verifier),
        "code_challenge_method": "S256",
        "resource": authority.resource,
        **({"scope": scope} if scope else {}),
    }
    return Begun(_with_query(authority.authorization_endpoint, query), authority.issuer)


def finish(
    principal: Principal, answer: Mapping[str, str], *, user_id: UUID, session: str
) -> Server:
    """Take up the login that a browser came back with, and store what it brought.

    Raises `LoginRefused`, `OAuthProblem`, `EgressDenied`; a state is used up by its first try.
    """
    login = _claimed(answer.get("state", ""), user_id=user_id, session=session)
    server = Server.objects.get_or_404(principal.organization_id, pk=login.server_id)
    authority = Authority.of(login.authority)
    _check_iss(authority, answer.get("iss"))
    if error := answer.get("error"):
        raise LoginRefused(
            say(
                "`{issuer}` refused: {error}.",
                issuer=visible(authority.issuer, SHOWN),
                error=visible(error, 64),
            ),
            remedy=AGAIN,
        )
    account = account_for(principal, server)
    if account.binding != login.binding or account.subject != login.subject:
        raise LoginRefused(
            "The server's sign-in was changed meanwhile.", code="login_outdated", remedy=AGAIN
        )
    form = {
        "grant_type": "authorization_code",
        "code": answer.get("code", ""),
        "redirect_uri": login.redirect_uri,
        "code_verifier": login.verifier.open(),
    }
    tokens = _waited(_exchanged, account, authority, login.client_id, form)
    # Said nothing, an authorization server grants what was asked for (RFC 6749 5.1).
    tokens = replace(tokens, scope=tokens.scope or login.scope)
    _keep(principal, server, account, login, tokens)
    return server


def forget(principal: Principal, server: Server) -> None:
    """Forget the tokens of an account: the very next call asks for a login, on every host."""
    account = account_for(principal, server)
    with _recorded(principal, server, "oauth_disconnected", account):
        part(server, account, principal.actor, _grants(server, account))
        if not account.by_person:
            grants.mark(
                account, say("Signed out. Sign in at {keeper}", keeper=keeper.login_url(account))
            )


def _grants(server: Server, account: Account) -> Any:
    return OAuthGrant.objects.filter(server=server, subject=_subject(account))


def _waited(fn: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    try:
        return runtime().call(fn, *args, timeout_s=LONGEST_WAIT_S)
    except TimeoutError:
        raise Transient(
            "The authorization server did not answer in time.", remedy="Try again later."
        ) from None


def _forget_old(server: Server) -> None:
    """Delete logins that nobody will finish any more."""
    old = timezone.now() - KEPT
    OAuthLogin.objects.filter(organization_id=server.organization_id, expires_at__lt=old).delete()


async def _prepared(account: Account, pinned: str) -> tuple[Authority, str]:
    authority = await discover(account, pinned=pinned)
    if not authority.authorization_endpoint:
        raise OAuthProblem(
            say("`{issuer}` has no page to sign in at.", issuer=visible(authority.issuer, SHOWN)),
            code="oauth_metadata_invalid",
            remedy="Use client credentials, or ask who runs the authorization server.",
        )
    if not authority.pkce:
        raise OAuthProblem(
            say(
                "`{issuer}` does not say that it checks PKCE (S256).",
                issuer=visible(authority.issuer, SHOWN),
            ),
            code="pkce_unsupported",
            remedy="Without it a stolen code could be used; ask who runs it.",
        )
    return authority, (await clients.client_for(account, authority)).id


async def _exchanged(
    account: Account, authority: Authority, client_id: str, form: Mapping[str, str]
) -> Tokens:
    client = await clients.client_named(account, authority, client_id)
    return await ask_for_tokens(account, authority, client, form)


def _claimed(state: str, *, user_id: UUID, session: str) -> OAuthLogin:
    login: OAuthLogin | None = OAuthLogin.objects.filter(state_digest=_digest(state)).first()
    if login is None:
        raise LoginRefused("This sign-in is unknown.", code="state_unknown", remedy=AGAIN)
    mine = hmac.compare_digest(login.session_digest, _digest(session))
    if login.user_id != user_id or not mine:
        # Not used up: else anybody who saw the state could end somebody else's sign-in.
        raise LoginRefused(
            "This sign-in was started by somebody else, or in another browser.",
            code="state_foreign",
            remedy=AGAIN,
            status=403,
        )
    if login.expires_at <= timezone.now():
        raise LoginRefused("This sign-in took too long.", code="state_expired", remedy=AGAIN)
    unused = OAuthLogin.objects.filter(pk=login.pk, used_at=None)
    if not unused.update(used_at=timezone.now()):
        raise LoginRefused("This sign-in was used already.", code="state_used", remedy=AGAIN)
    return login


def _check_iss(authority: Authority, iss: str | None) -> None:
    """Compare who answered with who was asked, letter by letter; errors are answers too."""
    if iss is None and authority.iss_named:
        raise LoginRefused(
            "The answer doesn't say who it is from, as it has to.", code="iss_missing", remedy=AGAIN
        )
    if iss is not None and iss != authority.issuer:
        raise LoginRefused(
            say("The answer is from `{iss}`, which nobody asked.", iss=visible(iss, SHOWN)),
            code="iss_mismatch",
            remedy="Somebody may be trying to mix up two authorization servers. " + AGAIN,
        )


def _keep(
    principal: Principal, server: Server, account: Account, login: OAuthLogin, tokens: Tokens
) -> None:
    authority = Authority.of(login.authority)
    with _recorded(principal, server, "oauth_connected", account, authority.issuer):
        grant = grants.grant_of(account)
        grants.store(
            grant,
            None,
            tokens,
            authority=login.authority,
            issuer=authority.issuer,
            client_id=login.client_id,
            wanted_scope=login.scope,
        )
        asked = Server.objects.enabled().filter(pk=server.pk)
        if account.by_person:  # others may be using it: only who waited for a login is woken
            asked = asked.filter(status=Server.Status.NEEDS_REAUTH)
        asked.update(
            status=Server.Status.DISCONNECTED,
            status_code="",
            status_detail="",
            next_check_at=None,
        )


def _recorded(
    principal: Principal, server: Server, action: str, account: Account, issuer: str = ""
) -> AbstractContextManager[Change]:
    details = {"per": account.per, "issuer": issuer}
    return changing(server, principal.actor, action, details, governed=False)


def _subject(account: Account) -> UUID:
    return account.subject or account.organization_id


def _scope(account: Account, authority: Authority, grant: OAuthGrant) -> str:
    wanted = joined(account.scopes or authority.scopes, scopes_of(grant.wanted_scope))
    # Without it many servers give no refresh token, and the login would be over within the hour.
    offline = ("offline_access",) if authority.offline_access and wanted else ()
    return joined(wanted.split(), offline)


def _with_query(url: str, query: Mapping[str, str]) -> str:
    parsed = httpx2.URL(url)
    own = parsed.query.decode("ascii")
    return str(parsed.copy_with(query="&".join(filter(None, (own, urlencode(query)))).encode()))


def _challenge(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode("ascii")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
