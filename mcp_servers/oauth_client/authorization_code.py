"""Sign-in with the authorization code grant and PKCE.

The state is valid for one person and browser session, once, for ten minutes. The issuer is stored
before the redirect and compared with the one in the callback (RFC 9207).
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

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, Forbidden, Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.audit.admin_changes import AdminChange
from mcp_servers.audit import record_server_change
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.models import OAuthGrant, OAuthLogin, Server
from mcp_servers.oauth_client import access_tokens, client_registration
from mcp_servers.oauth_client.access_tokens import OAuthEndpoint
from mcp_servers.oauth_client.metadata import AuthorizationServer, discover_authorization_server
from mcp_servers.oauth_client.revocation import revoke_grants
from mcp_servers.oauth_client.token_requests import OAuthTokens, request_tokens
from mcp_servers.oauth_client.types import (
    AuthorizationServerUnavailable,
    OAuthAccount,
    OAuthProblem,
    join_scopes,
    parse_scopes,
)

T = TypeVar("T")
LOOP_TIMEOUT_S = 60.0
LOGIN_RETENTION = timedelta(days=1)
START_AGAIN = "Start the sign-in again."
MAX_SHOWN_LENGTH = 200
# A person who may do one of these signs in to a server with their own account.
PERSONAL_LOGIN_ACTIONS = (Action.CALL_TOOLS, Action.USE_TOOLS)


class LoginRefused(Problem):
    """The callback of a sign-in is not acceptable.

    Codes: `state_unknown`, `state_expired`, `state_used`, `state_mismatch`, `iss_missing`,
    `iss_mismatch`, `login_rejected`, `login_outdated`.
    """

    code = "login_rejected"
    title = "Sign-in failed"


@dataclass(frozen=True)
class LoginRedirect:
    """Where to redirect the browser, and the issuer there."""

    url: str
    issuer: str


def get_login_account(principal: Principal, server: Server) -> OAuthAccount:
    """Return the account that this person signs in to: the organization's or their own.

    Raises `Forbidden`, and `Conflict` (`no_login`) for a server without sign-in by a person.
    """
    endpoint = build_endpoint(server)
    if not isinstance(endpoint, OAuthEndpoint) or not endpoint.account.interactive:
        raise Conflict(
            format_message("`{server}` doesn't use sign-in in a browser.", server=server.name),
            code="no_login",
            remedy="Set the grant of its OAuth sign-in to `authorization_code`.",
        )
    if not endpoint.account.by_person:
        principal.require(Action.MANAGE_SERVERS)
        return endpoint.account
    if not any(principal.may(action) for action in PERSONAL_LOGIN_ACTIONS):
        raise Forbidden(
            format_message("The role `{role}` can't use tools.", role=principal.role),
            rule="role:call_tools",
        )
    if principal.kind != "user":
        raise Forbidden("Only a person can sign in.", rule="person")
    return build_person_account(endpoint.account, UUID(principal.id))


def build_person_account(account: OAuthAccount, person_id: UUID) -> OAuthAccount:
    return replace(account, subject=person_id)


def start_login(
    principal: Principal, server: Server, *, user_id: UUID, session: str
) -> LoginRedirect:
    """Store a login and return its redirect; does network and ORM work, off the loop.

    Raises `OAuthProblem` (`pkce_unsupported`, `client_unknown` …), `EgressDenied`, `Forbidden`.
    """
    account = get_login_account(principal, server)
    pinned = access_tokens.find_pinned_issuer(account) if account.client_id else ""
    authorization_server, client_id = _run_on_loop(_prepare_login, account, pinned)
    _delete_expired_logins(server)
    grant = access_tokens.get_or_create_grant(account)
    state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(64)
    scope = _build_scope(account, authorization_server, grant)
    OAuthLogin.objects.create(
        organization_id=server.organization_id,
        server=server,
        user_id=user_id,
        subject=_get_subject(account),
        binding=account.binding,
        state_digest=_hash_text(state),
        session_digest=_hash_text(session),
        verifier=verifier,
        authorization_server=authorization_server.as_dict(),
        client_id=client_id,
        redirect_uri=client_registration.get_redirect_uri(),
        scope=scope,
        expires_at=timezone.now() + OAuthLogin.LIFETIME,
    )
    query = {
        "response_type": "code",
        "client_id": client_id,
        "redirect_uri": client_registration.get_redirect_uri(),
        "state": state,
        "code_challenge": _build_code_challenge(verifier),
        "code_challenge_method": "S256",
        "resource": authorization_server.resource,
        **({"scope": scope} if scope else {}),
    }
    return LoginRedirect(
        _add_query(authorization_server.authorization_endpoint, query), authorization_server.issuer
    )


def complete_login(
    principal: Principal, params: Mapping[str, str], *, user_id: UUID, session: str
) -> Server:
    """Complete the login of a callback and store its tokens.

    Raises `LoginRefused`, `OAuthProblem`, `EgressDenied`; a state works once, even if that fails.
    """
    login = _claim_login(params.get("state", ""), user_id=user_id, session=session)
    server = Server.objects.get_or_404(principal.organization_id, pk=login.server_id)
    authorization_server = AuthorizationServer.from_dict(login.authorization_server)
    _check_issuer(authorization_server, params.get("iss"))
    if error := params.get("error"):
        raise LoginRefused(
            format_message(
                "`{issuer}` rejected the request: {error}.",
                issuer=make_visible(authorization_server.issuer, MAX_SHOWN_LENGTH),
                error=make_visible(error, 64),
            ),
            remedy=START_AGAIN,
        )
    account = get_login_account(principal, server)
    if account.binding != login.binding or account.subject != login.subject:
        raise LoginRefused(
            "The server's authentication was changed in the meantime.",
            code="login_outdated",
            remedy=START_AGAIN,
        )
    form = {
        "grant_type": "authorization_code",
        "code": params.get("code", ""),
        "redirect_uri": login.redirect_uri,
        "code_verifier": login.verifier.open(),
    }
    tokens = _run_on_loop(_request_tokens, account, authorization_server, login.client_id, form)
    # Without a scope in the response, the requested one was granted (RFC 6749 5.1).
    tokens = replace(tokens, scope=tokens.scope or login.scope)
    _save_tokens(principal, server, account, login, tokens)
    return server


def sign_out(principal: Principal, server: Server) -> None:
    """Delete and revoke the tokens of an account, effective with the next call."""
    account = get_login_account(principal, server)
    with _record_login_change(principal, server, "oauth_disconnected", account):
        revoke_grants(server, account, principal.actor, _filter_grants(server, account))
        if not account.by_person:
            access_tokens.mark_needs_reauth(
                account,
                format_message(
                    "Signed out. Sign in at {url}",
                    url=access_tokens.build_account_login_url(account),
                ),
            )


def _filter_grants(server: Server, account: OAuthAccount) -> Any:
    return OAuthGrant.objects.filter(server=server, subject=_get_subject(account))


def _run_on_loop(fn: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    try:
        return get_runtime().call(fn, *args, timeout_s=LOOP_TIMEOUT_S)
    except TimeoutError:
        raise AuthorizationServerUnavailable(
            "The authorization server didn't respond in time.", remedy="Try again later."
        ) from None


def _delete_expired_logins(server: Server) -> None:
    """Delete logins that expired more than a day ago."""
    expired_before = timezone.now() - LOGIN_RETENTION
    OAuthLogin.objects.filter(
        organization_id=server.organization_id, expires_at__lt=expired_before
    ).delete()


async def _prepare_login(account: OAuthAccount, pinned: str) -> tuple[AuthorizationServer, str]:
    authorization_server = await discover_authorization_server(account, pinned=pinned)
    if not authorization_server.authorization_endpoint:
        raise OAuthProblem(
            format_message(
                "`{issuer}` has no sign-in page.",
                issuer=make_visible(authorization_server.issuer, MAX_SHOWN_LENGTH),
            ),
            code="oauth_metadata_invalid",
            remedy="Use client credentials, or contact the administrator of the authorization "
            "server.",
        )
    if not authorization_server.pkce:
        raise OAuthProblem(
            format_message(
                "`{issuer}` doesn't declare support for PKCE (S256).",
                issuer=make_visible(authorization_server.issuer, MAX_SHOWN_LENGTH),
            ),
            code="pkce_unsupported",
            remedy="Without it, a stolen code could be used. Contact the administrator of the "
            "authorization server.",
        )
    return authorization_server, (
        await client_registration.resolve_client(account, authorization_server)
    ).id


async def _request_tokens(
    account: OAuthAccount,
    authorization_server: AuthorizationServer,
    client_id: str,
    form: Mapping[str, str],
) -> OAuthTokens:
    client = await client_registration.load_grant_client(account, authorization_server, client_id)
    return await request_tokens(account, authorization_server, client, form)


def _claim_login(state: str, *, user_id: UUID, session: str) -> OAuthLogin:
    login: OAuthLogin | None = OAuthLogin.objects.filter(state_digest=_hash_text(state)).first()
    if login is None:
        raise LoginRefused("This sign-in is unknown.", code="state_unknown", remedy=START_AGAIN)
    same_session = hmac.compare_digest(login.session_digest, _hash_text(session))
    if login.user_id != user_id or not same_session:
        # The state stays valid: else anyone who saw it could end another person's sign-in.
        raise LoginRefused(
            "This sign-in was started by another person or in another browser.",
            code="state_mismatch",
            remedy=START_AGAIN,
            status=403,
        )
    if login.expires_at <= timezone.now():
        raise LoginRefused("The sign-in took too long.", code="state_expired", remedy=START_AGAIN)
    unused = OAuthLogin.objects.filter(pk=login.pk, used_at=None)
    if not unused.update(used_at=timezone.now()):
        raise LoginRefused(
            "This sign-in has already been used.", code="state_used", remedy=START_AGAIN
        )
    return login


def _check_issuer(authorization_server: AuthorizationServer, iss: str | None) -> None:
    """Raise unless the issuer of the callback, also of an error, is exactly the expected one."""
    if iss is None and authorization_server.iss_named:
        raise LoginRefused(
            "The response doesn't name its issuer, which is required.",
            code="iss_missing",
            remedy=START_AGAIN,
        )
    if iss is not None and iss != authorization_server.issuer:
        raise LoginRefused(
            format_message(
                "The response is from `{iss}`, which didn't receive a request.",
                iss=make_visible(iss, MAX_SHOWN_LENGTH),
            ),
            code="iss_mismatch",
            remedy="This may be an attempt to mix up two authorization servers. " + START_AGAIN,
        )


def _save_tokens(
    principal: Principal,
    server: Server,
    account: OAuthAccount,
    login: OAuthLogin,
    tokens: OAuthTokens,
) -> None:
    authorization_server = AuthorizationServer.from_dict(login.authorization_server)
    with _record_login_change(
        principal, server, "oauth_connected", account, authorization_server.issuer
    ):
        grant = access_tokens.get_or_create_grant(account)
        access_tokens.store_tokens(
            grant,
            None,
            tokens,
            authorization_server=login.authorization_server,
            issuer=authorization_server.issuer,
            client_id=login.client_id,
            requested_scope=login.scope,
        )
        servers = Server.objects.enabled().filter(pk=server.pk)
        if account.by_person:  # others may be using it: reset it only if it needs a login
            servers = servers.filter(status=Server.Status.NEEDS_REAUTH)
        servers.update(
            status=Server.Status.DISCONNECTED,
            status_code="",
            status_detail="",
            next_check_at=None,
        )


def _record_login_change(
    principal: Principal, server: Server, action: str, account: OAuthAccount, issuer: str = ""
) -> AbstractContextManager[AdminChange]:
    details = {"per": account.per, "issuer": issuer}
    return record_server_change(server, principal.actor, action, details, governed=False)


def _get_subject(account: OAuthAccount) -> UUID:
    return account.subject or account.organization_id


def _build_scope(
    account: OAuthAccount, authorization_server: AuthorizationServer, grant: OAuthGrant
) -> str:
    requested_scope = join_scopes(
        account.scopes or authorization_server.scopes, parse_scopes(grant.requested_scope)
    )
    # Many servers issue no refresh token without it, and the login would end within the hour.
    offline_scopes = (
        ("offline_access",) if authorization_server.offline_access and requested_scope else ()
    )
    return join_scopes(requested_scope.split(), offline_scopes)


def _add_query(url: str, query: Mapping[str, str]) -> str:
    parsed = httpx2.URL(url)
    existing_query = parsed.query.decode("ascii")
    return str(
        parsed.copy_with(query="&".join(filter(None, (existing_query, urlencode(query)))).encode())
    )


def _build_code_challenge(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode("ascii")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
