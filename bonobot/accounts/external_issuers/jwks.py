"""Public keys of issuers, cached for a limited time.

Only the issuer's metadata says where its keys are (RFC 8414, OpenID); URLs in tokens are never
fetched. Concurrent requests for the same keys share one fetch, which their cancellation doesn't
stop. Without keys no token is accepted.
"""

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import httpx2
import jwt

from bonobot.core.http.egress import EgressDenied, build_guarded_client, check_url
from bonobot.core.http.well_known import list_metadata_urls
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible

logger = logging.getLogger(__name__)

# Keys are fetched again after `FRESH_S`; if that fails they are used up to `MAX_STALE_S`.
FRESH_S = 600.0
MAX_STALE_S = 3_600.0
# Minimum time between fetches for an unknown key or an issuer that does not answer.
RETRY_S = 30.0
FETCH_TIMEOUT_S = 10.0
MAX_BODY_BYTES = 256 * 1024
MAX_KEYS = 100
MAX_KEY_SETS = 1_000
MIN_RSA_BITS = 2_048

# Key type and curve by algorithm; only asymmetric algorithms are allowed.
ALGORITHM_KEY_TYPES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", "")),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
PUBLIC_KEY_FIELDS = ("kty", "n", "e", "crv", "x", "y")


class IssuerUnreachable(Problem):
    """The keys of an issuer can't be fetched, so its tokens can't be verified."""

    code = "issuer_unreachable"
    status = 503
    title = "Issuer unreachable"


@dataclass(frozen=True, slots=True)
class IssuerAddress:
    """The address of an issuer, and whether it may be private."""

    url: str
    allow_private: bool = False


@dataclass(frozen=True, slots=True)
class JwkSet:
    """The keys that an issuer published, unparsed."""

    keys: tuple[Mapping[str, Any], ...]
    read_at: float

    def find_key(self, kid: str | None, algorithm: str) -> Any | None:
        """Return the key for a token's header; without a `kid`, only if just one matches."""
        candidates = [key for key in self.keys if _is_key_for_algorithm(key, algorithm)]
        if kid is not None:
            candidates = [key for key in candidates if key.get("kid") == kid]
        return _parse_key(candidates[0], algorithm) if len(candidates) == 1 else None


class JwksCache:
    """The bounded key cache of this process; used on its event loop only."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._key_sets: OrderedDict[IssuerAddress, JwkSet] = OrderedDict()
        self._last_attempts: OrderedDict[IssuerAddress, float] = OrderedDict()
        self._fetches: dict[IssuerAddress, asyncio.Task[JwkSet]] = {}

    async def find_key(self, issuer: IssuerAddress, kid: str | None, algorithm: str) -> Any | None:
        """Return the key that a token refers to, or None.

        Raises `IssuerUnreachable` if there are no cached keys and they can't be fetched.
        """
        key_set = await self._get_key_set(issuer)
        key = key_set.find_key(kid, algorithm)
        if key is None and self._can_retry(issuer):
            # Issuers publish a new key before using it, so an unknown one may be new.
            key = (await self.fetch_keys(issuer)).find_key(kid, algorithm)
        return key

    async def fetch_keys(self, issuer: IssuerAddress) -> JwkSet:
        """Fetch the keys, or join a running fetch; raises `IssuerUnreachable`."""
        fetch = self._fetches.get(issuer)
        if fetch is None:
            fetch = self._fetches[issuer] = get_runtime().loop.create_task(
                self._fetch_and_store(issuer), name=f"keys of {issuer.url}"
            )
            fetch.add_done_callback(
                lambda finished_fetch: self._finish_fetch(issuer, finished_fetch)
            )
        return await asyncio.shield(fetch)

    async def _get_key_set(self, issuer: IssuerAddress) -> JwkSet:
        key_set, now = self._key_sets.get(issuer), self._clock()
        if key_set is not None and now - key_set.read_at <= FRESH_S:
            return key_set
        stale_set = (
            key_set if key_set is not None and now - key_set.read_at <= MAX_STALE_S else None
        )
        if not self._can_retry(issuer):
            if stale_set is None:
                raise _build_unreachable_error("didn't respond a moment ago")
            return stale_set
        try:
            return await self.fetch_keys(issuer)
        except IssuerUnreachable:
            if stale_set is None:
                raise
            return stale_set

    def _can_retry(self, issuer: IssuerAddress) -> bool:
        last_attempt = self._last_attempts.get(issuer)
        return (
            issuer in self._fetches
            or last_attempt is None
            or self._clock() - last_attempt >= RETRY_S
        )

    async def _fetch_and_store(self, issuer: IssuerAddress) -> JwkSet:
        self._last_attempts[issuer] = self._clock()
        self._last_attempts.move_to_end(issuer)
        while len(self._last_attempts) > MAX_KEY_SETS:
            self._last_attempts.popitem(last=False)
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                keys = await _fetch_keys(issuer)
        except (httpx2.HTTPError, EgressDenied, TimeoutError) as fault:
            reason = make_visible(str(fault) or "it does not answer in time", 200)
            raise _build_unreachable_error(
                format_message("can't be reached: {why}", why=reason)
            ) from fault
        key_set = self._key_sets[issuer] = JwkSet(keys, self._clock())
        self._key_sets.move_to_end(issuer)
        while len(self._key_sets) > MAX_KEY_SETS:
            self._key_sets.popitem(last=False)
        return key_set

    def _finish_fetch(self, issuer: IssuerAddress, finished_fetch: "asyncio.Task[JwkSet]") -> None:
        self._fetches.pop(issuer, None)
        if not finished_fetch.cancelled() and (fault := finished_fetch.exception()) is not None:
            logger.warning("the keys of %r could not be read: %s", issuer.url, fault)


async def _fetch_keys(issuer: IssuerAddress) -> tuple[Mapping[str, Any], ...]:
    """Fetch the keys from the URI in the issuer's metadata."""
    async with build_guarded_client(
        allow_private=issuer.allow_private,
        connect_s=FETCH_TIMEOUT_S,
        read_s=FETCH_TIMEOUT_S,
        max_body=MAX_BODY_BYTES,
    ) as client:
        jwks_uri = await _fetch_jwks_uri(client, issuer)
        keys = (await fetch_json_document(client, jwks_uri) or {}).get("keys")
    if not isinstance(keys, list):
        raise _build_unreachable_error("publishes no keys")
    return tuple(key for key in keys[:MAX_KEYS] if isinstance(key, dict))


async def _fetch_jwks_uri(client: httpx2.AsyncClient, issuer: IssuerAddress) -> str:
    for url in list_metadata_urls(issuer.url):
        document = await fetch_json_document(client, url)
        if document is None:
            continue
        if document.get("issuer") != issuer.url:
            raise _build_unreachable_error("publishes metadata of another issuer")
        jwks_uri = document.get("jwks_uri")
        if not isinstance(jwks_uri, str):
            raise _build_unreachable_error("doesn't publish the URL of its keys")
        check_issuer_url(jwks_uri, allow_private=issuer.allow_private)
        return jwks_uri
    raise _build_unreachable_error("publishes no metadata")


async def fetch_json_document(client: httpx2.AsyncClient, url: str) -> dict[str, Any] | None:
    """Fetch a JSON object; return None if there is none."""
    response = await client.get(url, headers={"Accept": "application/json"})
    if response.status_code >= 500 or response.status_code == 429:
        raise _build_unreachable_error(
            format_message("returned HTTP {status_code}", status_code=response.status_code)
        )
    if response.status_code != 200:
        return None
    try:
        document = json.loads(response.content)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def check_issuer_url(url: str, *, allow_private: bool) -> None:
    """Check the URL of an issuer or of its keys; raises `EgressDenied`."""
    check_url(url, allow_private=allow_private)
    if not allow_private and not url.lower().startswith("https:"):
        raise EgressDenied(
            "The URLs of an issuer and its keys must start with https.",
            code="bad_url",
            field="url",
            remedy="Use https. In a private network, allow private addresses for it.",
        )


def _is_key_for_algorithm(key: Mapping[str, Any], algorithm: str) -> bool:
    """Return whether a published key can verify signatures of this algorithm."""
    kind, curve = ALGORITHM_KEY_TYPES[algorithm]
    return (
        key.get("kty") == kind
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
        and (not curve or key.get("crv") == curve)
    )


def _parse_key(published: Mapping[str, Any], algorithm: str) -> Any | None:
    """Return a published key as an object; None if it is invalid or too weak."""
    public_fields = {
        name: published[name] for name in PUBLIC_KEY_FIELDS if isinstance(published.get(name), str)
    }
    try:
        key = jwt.PyJWK.from_dict(public_fields, algorithm=algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if ALGORITHM_KEY_TYPES[algorithm][0] == "RSA" and key.key_size < MIN_RSA_BITS:
        return None
    return key


def _build_unreachable_error(reason: str) -> IssuerUnreachable:
    return IssuerUnreachable(
        format_message("The issuer of the token {why}.", why=reason),
        remedy="Try again later. A platform administrator can run `bonobot issuers check`.",
        retry_after=RETRY_S,
    )


_JWKS_CACHE = JwksCache()


def get_jwks_cache() -> JwksCache:
    """Return the key cache of this process."""
    return _JWKS_CACHE
