"""In-memory cache of verified tokens.

A verified token has the policy generation that it was read at, in the same query as its row. The
cache isn't notified of changes: callers that decide by it (admission) compare generations and read
it again if it is older, so that changes take effect on the next call, on every host.

Token texts are never stored, only digests. Invalid tokens aren't cached; an address that sends too
many of them is refused for a while.
"""

import logging
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from threading import Lock
from time import monotonic, monotonic_ns
from typing import Any
from uuid import UUID

from django.db.models import OuterRef, Subquery
from django.utils import timezone

from bonobot.accounts.attempt_limits import INVALID_TOKENS
from bonobot.accounts.external_issuers import jwt_validation
from bonobot.accounts.models import Token
from bonobot.accounts.principals import Principal, build_token_principal
from bonobot.accounts.tokens.constraints import Network, is_in_networks, parse_networks
from bonobot.accounts.tokens.services import (
    LAST_USE_INTERVAL,
    InvalidToken,
    build_invalid_token_error,
    check_client_address,
    update_last_used,
)
from bonobot.accounts.tokens.token_secrets import is_matching_secret, parse_token
from bonobot.core.db.transactions import UNAVAILABLE_ERRORS
from bonobot.core.http.ip_addresses import extract_address_prefix
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.rate_limiter import admit_request, compute_interval
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import Head
from bonobot.ledger.policy_generations import load_policy_generation

logger = logging.getLogger(__name__)

_LAST_USE_INTERVAL_S = LAST_USE_INTERVAL.total_seconds()
MAX_TOKENS = 10_000
MAX_ADDRESSES = 10_000


class TooManyFailures(Problem):
    """Too many invalid tokens came from an address; lookups are refused for a while."""

    code = "too_many_failures"
    status = 429
    title = "Too many failed attempts"


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

    def is_usable_from(self, address: str) -> bool:
        """Return whether it can be used now from this client address."""
        is_expired = self.expires_at is not None and self.expires_at <= timezone.now()
        return not is_expired and (not self.networks or is_in_networks(address, self.networks))

    def is_for(self, resource: str) -> bool:
        """Return whether it is valid for this resource (RFC 8707)."""
        return self.audiences is None or resource in self.audiences


class VerifiedTokenCache:
    """A bounded, thread-safe cache of verified tokens."""

    def __init__(self, *, max_tokens: int = MAX_TOKENS) -> None:
        """Keep at most `max_tokens`; the least recently used is evicted first."""
        self._max_tokens = max_tokens
        self._tokens: OrderedDict[bytes, VerifiedToken] = OrderedDict()
        self._last_used: OrderedDict[UUID, float] = OrderedDict()
        self._failures: OrderedDict[str, int] = OrderedDict()
        self._lock = Lock()

    async def verify_token(self, text: str, address: str) -> VerifiedToken:
        """Return the verified token, which may be older than the latest change.

        Raises `InvalidToken`, and `TooManyFailures` after too many failures of this address.
        """
        token = self.find_cached(text, address)
        if token is None:
            token = await self._verify_uncached(text, address)
        self._record_use(token)
        return token

    async def verify_current_token(self, text: str, address: str) -> VerifiedToken:
        """Return the verified token as of now (one query if cached); raises like `verify_token`.

        For responses without an admission check, such as lists and descriptions.
        """
        token = await self.verify_token(text, address)
        if token.generation == await get_runtime().run_orm(
            load_policy_generation, token.principal.organization_id
        ):
            return token
        return await self._verify_uncached(text, address)

    def find_cached(self, text: str, address: str) -> VerifiedToken | None:
        """Return the cached token if it is usable from this address, else None."""
        key = _hash_text(text)
        with self._lock:
            token = self._tokens.get(key)
            if token is None or not token.is_usable_from(address):
                return None
            self._tokens.move_to_end(key)
            return token

    async def _verify_uncached(self, text: str, address: str) -> VerifiedToken:
        """Verify and cache a token; raises like `verify_token`, and `IssuerUnreachable`."""
        if not jwt_validation.is_jwt(text):
            return await get_runtime().run_orm(self.load_issued_token, text, address)
        if not self._is_cached(text):
            self._check_failures(address)
        try:
            verified = await jwt_validation.verify_jwt(text)
        except InvalidToken:
            self._evict(text)
            self._count_failure(address)
            raise
        return self._store(
            text,
            VerifiedToken(
                principal=verified.principal,
                generation=verified.generation,
                expires_at=verified.expires_at,
                audiences=verified.audiences,
            ),
        )

    def load_issued_token(self, text: str, address: str) -> VerifiedToken:
        """Verify and cache one of Bonobot's tokens (queries); raises like `verify_token`."""
        self._check_failures(address)
        try:
            return self._reload_issued_token(text, address)
        except InvalidToken:
            self._count_failure(address)
            raise

    def _reload_issued_token(self, text: str, address: str) -> VerifiedToken:
        try:
            token = load_verified_token(text, address)
        except InvalidToken:
            self._evict(text)
            raise
        return self._store(text, token)

    def _is_cached(self, text: str) -> bool:
        """Return whether a token was verified before, so that its holder isn't guessing."""
        with self._lock:
            return _hash_text(text) in self._tokens

    def _evict(self, text: str) -> None:
        with self._lock:
            self._tokens.pop(_hash_text(text), None)

    def _store(self, text: str, token: VerifiedToken) -> VerifiedToken:
        key = _hash_text(text)
        with self._lock:
            cached = self._tokens.get(key)
            if cached is None or cached.generation <= token.generation:
                self._tokens[key] = token
                self._tokens.move_to_end(key)
            while len(self._tokens) > self._max_tokens:
                self._tokens.popitem(last=False)
        return token

    def _record_use(self, token: VerifiedToken) -> None:
        """Save the last use in the background, at most once a minute."""
        if token.token_id is None:
            return
        now = monotonic()
        with self._lock:
            before = self._last_used.get(token.token_id)
            if before is not None and now - before < _LAST_USE_INTERVAL_S:
                return
            self._last_used[token.token_id] = now
            self._last_used.move_to_end(token.token_id)
            while len(self._last_used) > self._max_tokens:
                self._last_used.popitem(last=False)
        get_runtime().spawn(_save_last_use(token.token_id), name="token use")

    def _check_failures(self, address: str) -> None:
        with self._lock:
            verdict = self._evaluate_failure_rate(extract_address_prefix(address))
        if not verdict.allowed:
            seconds = max(1, -(-verdict.retry_after // 1_000_000))
            raise TooManyFailures(
                "Too many invalid tokens were sent from this IP address.",
                remedy=format_message(
                    "Try again in {seconds} s with a valid token.", seconds=seconds
                ),
                retry_after=seconds,
            )

    def _count_failure(self, address: str) -> None:
        address_prefix = extract_address_prefix(address)
        with self._lock:
            self._failures[address_prefix] = self._evaluate_failure_rate(address_prefix).tat
            self._failures.move_to_end(address_prefix)
            while len(self._failures) > MAX_ADDRESSES:
                self._failures.popitem(last=False)

    def _evaluate_failure_rate(self, address_prefix: str) -> Any:
        now = monotonic_ns() // 1_000
        before = self._failures.get(address_prefix, 0)
        interval = compute_interval(INVALID_TOKENS.per_minute)
        return admit_request(before, now, interval, INVALID_TOKENS.burst)


def load_verified_token(text: str, address: str) -> VerifiedToken:
    """Load and verify one of Bonobot's tokens (a query); raises `InvalidToken`."""
    key, secret = parse_token(text)
    heads = Head.objects.filter(pk=OuterRef("organization_id")).values("generation")[:1]
    # One query, so that the row belongs to exactly this generation.
    rows: Any = Token.objects.usable().annotate(read_at=Subquery(heads))
    token = rows.filter(key=key).first() if key else None
    if token is None or not is_matching_secret(token, secret):
        raise build_invalid_token_error()
    check_client_address(token, address)
    expiries = [
        expiry for expiry in (token.expires_at, token.access_expires_at) if expiry is not None
    ]
    return VerifiedToken(
        principal=build_token_principal(token, with_platform=False),
        generation=token.read_at or 0,
        expires_at=min(expiries, default=None),
        networks=parse_networks(token.networks),
        token_id=token.pk,
        audiences=frozenset({token.resource}) if token.resource else None,
    )


async def _save_last_use(token_id: UUID) -> None:
    try:
        await get_runtime().run_orm(update_last_used, token_id)
    except UNAVAILABLE_ERRORS as fault:
        logger.warning("a token's last use could not be written: %s", fault)


def _hash_text(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


_TOKEN_CACHE = VerifiedTokenCache()


def get_token_cache() -> VerifiedTokenCache:
    return _TOKEN_CACHE
