"""Signing: each HTTP request to an OAuth server gets its bearer token right before it leaves.

A request that is refused with 401 was not executed: the token is renewed once and the request goes
out once more. With 403 and `insufficient_scope` it is the same, with more scopes. The token is no
part of what tells connections apart, so sessions survive its renewal; the subject is, so that no
two people share one.
"""

import hashlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from uuid import UUID

import httpx2

from bonobot.lib.problems import Problem
from bonobot.lib.sayings import say
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.connections.errors import UpstreamError
from mcp_servers.oauth import challenges, keeper
from mcp_servers.oauth.accounts import Account
from mcp_servers.oauth.faults import Transient
from mcp_servers.oauth.grants import Held

TOKENS_KEPT = 4  # of one account, to take them out of what the server says


@dataclass(frozen=True, kw_only=True, repr=False)
class OAuthEndpoint(Endpoint):
    """An endpoint whose requests are signed for an account."""

    account: Account = field(repr=False)

    @cached_property
    def fingerprint(self) -> str:
        """Tell configurations and subjects apart."""
        # Not by `super()`, which would keep the bare one under the same name for a moment.
        bare: str = _bare("fingerprint", self)
        text = f"{bare}:{self.account.binding}:{self.account.subject}"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def secrets(self) -> tuple[str, ...]:  # not kept: tokens come and go
        """Return every opened value: what is never sent to this server, and the token that was."""
        return (*_bare("secrets", self), *self.account.secrets, *self.signer.sent)

    @cached_property
    def signer(self) -> "Signer":
        """Return what signs this endpoint's requests."""
        return Signer(self.account)

    @property
    def auth(self) -> httpx2.Auth:
        """Return what signs each request."""
        return self.signer


class Signer(httpx2.Auth):
    """Puts the account's token on a request, over whatever a configured header says."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self.sent: tuple[str, ...] = ()

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Sign, and sign once more where the first token was refused."""
        account = self._account
        try:
            held = await keeper.bearer(account)
            self._sign(request, held)
            response = yield request
            challenge = challenges.read(response.headers.get("www-authenticate", ""))
            if response.status_code == 401:
                held = await keeper.renewed(account, held, challenge)
            elif response.status_code == 403 and challenge and challenge.wants_more:
                held = await keeper.stepped_up(account, held, challenge)
            else:
                return
            self._sign(request, held)
        except Problem as problem:
            raise _upstream(account, problem) from problem
        yield request

    def _sign(self, request: httpx2.Request, held: Held) -> None:
        request.headers["Authorization"] = f"Bearer {held.token}"
        if held.token not in self.sent:
            self.sent = (*self.sent, held.token)[-TOKENS_KEPT:]


def _bare(name: str, endpoint: Endpoint) -> Any:
    return vars(Endpoint)[name].func(endpoint)


def by_person(endpoint: Endpoint) -> bool:
    """Tell whether each person signs in to this server for themselves."""
    return isinstance(endpoint, OAuthEndpoint) and endpoint.account.by_person


def subject_of(endpoint: Endpoint) -> UUID | None:
    """Return the person whose login an endpoint is signed with; None where it isn't a person's."""
    if not isinstance(endpoint, OAuthEndpoint) or not endpoint.account.by_person:
        return None
    return endpoint.account.subject


def for_person(endpoint: Endpoint, person: UUID | None) -> Endpoint:
    """Return the endpoint with the tokens of a person, where each signs in for themselves."""
    if not isinstance(endpoint, OAuthEndpoint) or not endpoint.account.by_person:
        return endpoint
    if person is None:
        raise UpstreamError(
            say(
                "Each person signs in to `{endpoint}`, and no person asks.", endpoint=endpoint.name
            ),
            code="needs_reauth",
            server=endpoint.name,
            sent=False,
            remedy="Ask as a person, or let the organization sign in to this server.",
        )
    return replace(endpoint, account=replace(endpoint.account, subject=person))


async def for_background(endpoint: Endpoint) -> Endpoint:
    """Return the endpoint as somebody who is signed in reaches it; the same for all others.

    Raises `LoginNeeded` where each person signs in and nobody's login holds.
    """
    if not isinstance(endpoint, OAuthEndpoint) or not endpoint.account.by_person:
        return endpoint
    return replace(endpoint, account=await keeper.whoever(endpoint.account))


def _upstream(account: Account, problem: Problem) -> UpstreamError:
    return UpstreamError(
        f"`{account.server_name}`: {problem}",
        code=problem.code,
        server=account.server_name,
        retryable=isinstance(problem, Transient),
        sent=False,
        remedy=problem.remedy,
    )
