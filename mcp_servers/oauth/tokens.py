"""Asking for tokens, and reading what is given: an expiry is always an absolute time."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from mcp_servers.oauth.accounts import Account
from mcp_servers.oauth.asking import Answer, asking
from mcp_servers.oauth.assertions import Client, proof
from mcp_servers.oauth.faults import LoginNeeded, OAuthProblem, Transient
from mcp_servers.oauth.metadata import Authority

LONGEST_TOKEN = 16_384
LONGEST_LIFE_S = 366 * 86_400
SHOWN = 200
# What a person has to put right: the grant or the client is not (any more) good there.
OVER = ("invalid_grant", "invalid_client", "unauthorized_client", "access_denied")


@dataclass(frozen=True)
class Tokens:
    """What an authorization server gave; printing it shows neither token."""

    access: str = field(repr=False)
    refresh: str = field(repr=False)
    expires_at: datetime | None
    scope: str


async def ask_for_tokens(
    account: Account, authority: Authority, client: Client, form: Mapping[str, str]
) -> Tokens:
    """Return the tokens given for a grant; the resource is always named (RFC 8707).

    Raises `LoginNeeded` when the grant or the client is refused, `Transient`, `OAuthProblem`.
    """
    headers, proven = proof(client, authority)
    whole = {**form, **proven, "resource": authority.resource}
    async with asking(account) as asker:
        answer = await asker.post(
            authority.token_endpoint, "token endpoint", form=whole, headers=headers
        )
    if answer.status >= 500 or answer.status == 429:
        raise Transient(
            say("The token endpoint answered with HTTP {status}.", status=answer.status),
            remedy="Try again later.",
        )
    if answer.status != 200:
        raise _refusal(answer)
    return _tokens(answer.body, whole.get("scope", ""))


def _refusal(answer: Answer) -> OAuthProblem:
    error = answer.body.get("error")
    said = answer.body.get("error_description")
    code = visible(error, 64) if isinstance(error, str) else f"HTTP {answer.status}"
    # What is said may quote what was sent, so only the standard's own word is repeated.
    if error in OVER or answer.status == 401:
        return LoginNeeded(say("The authorization server refused: {code}.", code=code))
    return OAuthProblem(
        say("The authorization server gave no token: {code}.", code=code),
        code="token_refused",
        remedy="Check client id, scopes and the kind of grant."
        + (" The server's own words are withheld." if isinstance(said, str) else ""),
    )


def _tokens(body: Mapping[str, Any], asked: str) -> Tokens:
    access, refresh = body.get("access_token"), body.get("refresh_token")
    kind = body.get("token_type", "Bearer")
    if not _sendable(access) or str(kind).lower() != "bearer":
        raise OAuthProblem(
            "The token endpoint answered without a bearer token.",
            code="token_refused",
            remedy="Ask who runs the authorization server.",
        )
    scope = body.get("scope")
    return Tokens(
        access=str(access),
        refresh=str(refresh) if _sendable(refresh) else "",
        expires_at=_expiry(body.get("expires_in")),
        scope=scope[:4096] if isinstance(scope, str) and scope else asked,
    )


def _sendable(token: Any) -> bool:
    return (
        isinstance(token, str)
        and 0 < len(token) <= LONGEST_TOKEN
        and token.isascii()
        and (token.isprintable() and " " not in token)
    )


def _expiry(seconds: Any) -> datetime | None:
    if isinstance(seconds, str) and seconds.isdecimal():
        seconds = int(seconds[:12])
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    if not math.isfinite(seconds) or seconds <= 0:
        return None
    return timezone.now() + timedelta(seconds=min(seconds, LONGEST_LIFE_S))
