"""In-memory cache of verified tokens.

A verified token has the policy generation that it was read at, in the same query as its row. The
cache isn't notified of changes: callers that decide by it (admission) compare generations and read
it again if it is older, so that changes take effect on the next call, on every host.

Token texts are never stored, only digests. Invalid tokens aren't cached; an address that sends too
many of them is refused for a while.
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from hashlib import sha256
from threading import Lock
from time import monotonic, monotonic_ns
from typing import Any
from uuid import UUID

from django.db.models import OuterRef, Subquery
from django.utils import timezone

from bonobot.accounts.external_issuers import jwt_validation
from bonobot.accounts.models import Token
from bonobot.accounts.principals import Principal, build_token_principal
from bonobot.accounts.tokens.constraints import Network, is_in_networks, parse_networks
from bonobot.accounts.tokens.services import (
    LAST_USE_STEP,
    InvalidToken,
    build_invalid_token_error,
    check_address,
    is_matching_secret,
    parse_token,
    update_last_used,
)
from bonobot.core.db.transactions import AWAY
from bonobot.core.gcra import admit, compute_interval
from bonobot.core.http.ip_addresses import extract_address_prefix
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import Head
from bonobot.ledger.queries import load_policy_generation

logger = logging.getLogger(__name__)

KEPT = 10_000
# Failures allowed per address: a burst, then a number per minute.
FAILURES_AT_ONCE = 60
FAILURES_A_MINUTE = 60
ADDRESSES = 10_000


class TooManyFailures(Problem):
    """Too many invalid tokens came from an address; lookups are refused for a while."""

    code = "too_many_failures"
    status = 429
    title = "Too many failures"


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """A verified token: its principal, policy generation and expiry.

    `token_id` is set for tokens with a row, whose last use is recorded. `audiences` are the
    resources it is valid for; None means all.
    """

    principal: Principal
    generation: int
    expires_at: datetime | None = None
    networks: tuple[Network, ...] = ()
    token_id: UUID | None = None
    audiences: frozenset[str] | None = None

    def opens(self, address: str) -> bool:
        """Return whether it can be used now from this client address."""
        over = self.expires_at is not None and self.expires_at <= timezone.now()
        return not over and is_in_networks(address, self.networks)

    def is_for(self, resource: str) -> bool:
        """Return whether it is valid for this resource (RFC 8707)."""
        return self.audiences is None or resource in self.audiences


class VerifiedTokenCache:
    """A bounded, thread-safe cache of verified tokens."""

    def __init__(self, *, kept: int = KEPT) -> None:
        """Keep at most `max_tokens`; the least recently used is evicted first."""
        self._most = kept
        self._kept: OrderedDict[bytes, VerifiedToken] = OrderedDict()
        self._used: OrderedDict[UUID, float] = OrderedDict()
        self._failed: OrderedDict[str, int] = OrderedDict()
        self._lock = Lock()

    async def known(self, text: str, address: str) -> VerifiedToken:
        """Return the verified token, which may be older than the latest change.

        Raises `InvalidToken`, and `TooManyFailures` after too many failures of this address.
        """
        found = self.cached(text, address)
        if found is None:
            found = await self._read(text, address)
        self._note_use(found)
        return found

    async def current(self, text: str, address: str) -> VerifiedToken:
        """Return the verified token as of now (one query if cached); raises like `verify_token`.

        For responses without an admission check, such as lists and descriptions.
        """
        found = await self.known(text, address)
        if found.generation == await get_runtime().orm(
            load_policy_generation, found.principal.organization_id
        ):
            return found
        return await self._read(text, address)

    def renewal(self, text: str, address: str) -> Callable[[], Awaitable[Principal]]:
        """Return a function that reloads the principal, for calls decided by this token."""
        return partial(self._renewed, text, address)

    async def _renewed(self, text: str, address: str) -> Principal:
        if jwt_validation.is_bearer(text):
            return (await self._read(text, address)).principal
        return (await get_runtime().orm(self._reread, text, address)).principal

    def cached(self, text: str, address: str) -> VerifiedToken | None:
        """Return the cached token if it is usable from this address, else None."""
        key = _hash_text(text)
        with self._lock:
            found = self._kept.get(key)
            if found is None or not found.opens(address):
                return None
            self._kept.move_to_end(key)
            return found

    async def _read(self, text: str, address: str) -> VerifiedToken:
        """Verify and cache a token; raises like `verify_token`, and `IssuerUnreachable`."""
        if not jwt_validation.is_bearer(text):
            return await get_runtime().orm(self.read, text, address)
        if not self._was_good(text):
            self._check_failures(address)
        try:
            found = await jwt_validation.read(text)
        except InvalidToken:
            self._drop(text)
            self._count_failure(address)
            raise
        return self._keep(
            text,
            VerifiedToken(
                principal=found.principal,
                generation=found.generation,
                expires_at=found.expires_at,
                audiences=found.audiences,
            ),
        )

    def read(self, text: str, address: str) -> VerifiedToken:
        """Verify and cache a token of ours (queries); raises like `verify_token`."""
        self._check_failures(address)
        try:
            return self._reread(text, address)
        except InvalidToken:
            self._count_failure(address)
            raise

    def _reread(self, text: str, address: str) -> VerifiedToken:
        try:
            found = read_token(text, address)
        except InvalidToken:
            self._drop(text)
            raise
        return self._keep(text, found)

    def _was_good(self, text: str) -> bool:
        """Return whether a token was verified before, so that its holder isn't guessing."""
        with self._lock:
            return _hash_text(text) in self._kept

    def _drop(self, text: str) -> None:
        with self._lock:
            self._kept.pop(_hash_text(text), None)

    def _keep(self, text: str, found: VerifiedToken) -> VerifiedToken:
        key = _hash_text(text)
        with self._lock:
            other = self._kept.get(key)
            if other is None or other.generation <= found.generation:
                self._kept[key] = found
                self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return found

    def _note_use(self, found: VerifiedToken) -> None:
        """Save the last use in the background, at most once a minute."""
        if found.token_id is None:
            return
        now = monotonic()
        with self._lock:
            before = self._used.get(found.token_id)
            if before is not None and now - before < LAST_USE_STEP.total_seconds():
                return
            self._used[found.token_id] = now
            self._used.move_to_end(found.token_id)
            while len(self._used) > self._most:
                self._used.popitem(last=False)
        get_runtime().spawn(_write_use(found.token_id), name="token use")

    def _check_failures(self, address: str) -> None:
        with self._lock:
            verdict = self._failing(extract_address_prefix(address))
        if not verdict.allowed:
            seconds = max(1, -(-verdict.retry_after // 1_000_000))
            raise TooManyFailures(
                "Too many tokens that open nothing came from this address.",
                remedy=format_message(
                    "Try again in {seconds} s, with a token that is usable.", seconds=seconds
                ),
                retry_after=seconds,
            )

    def _count_failure(self, address: str) -> None:
        place = extract_address_prefix(address)
        with self._lock:
            self._failed[place] = self._failing(place).tat
            self._failed.move_to_end(place)
            while len(self._failed) > ADDRESSES:
                self._failed.popitem(last=False)

    def _failing(self, place: str) -> Any:
        now = monotonic_ns() // 1_000
        before = self._failed.get(place, 0)
        return admit(before, now, compute_interval(FAILURES_A_MINUTE), FAILURES_AT_ONCE)


def read_token(text: str, address: str) -> VerifiedToken:
    """Load and verify a token of ours (a query); raises `InvalidToken`."""
    key, secret = parse_token(text)
    heads = Head.objects.filter(pk=OuterRef("organization_id")).values("generation")[:1]
    # One query, so that the row belongs to exactly this generation.
    rows: Any = Token.objects.usable().annotate(read_at=Subquery(heads))
    token = rows.filter(key=key).first() if key else None
    if token is None or not is_matching_secret(token, secret):
        raise build_invalid_token_error()
    check_address(token, address)
    ends = [end for end in (token.expires_at, token.fresh_until) if end is not None]
    return VerifiedToken(
        principal=build_token_principal(token),
        generation=token.read_at or 0,
        expires_at=min(ends, default=None),
        networks=parse_networks(token.networks),
        token_id=token.pk,
        audiences=frozenset({token.resource}) if token.resource else None,
    )


async def _write_use(token_id: UUID) -> None:
    try:
        await get_runtime().orm(update_last_used, token_id)
    except AWAY as fault:
        logger.warning("a token's last use could not be written: %s", fault)


def _hash_text(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


_PASSES = VerifiedTokenCache()


def get_token_cache() -> VerifiedTokenCache:
    """Return the token cache of this process."""
    return _PASSES
