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
KEPT_S = 3_600.0
# Minimum time between fetches for an unknown key or an issuer that does not answer.
AGAIN_S = 30.0
FETCH_S = 10.0
LARGEST = 256 * 1024
MOST_KEYS = 100
MOST_RINGS = 1_000
LEAST_RSA_BITS = 2_048

# Key type and curve by algorithm; only asymmetric algorithms are allowed.
KINDS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", "")),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
PUBLIC = ("kty", "n", "e", "crv", "x", "y")


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

    def find(self, kid: str | None, algorithm: str) -> Any | None:
        """Return the key for a token's header; without a `kid`, only if just one matches."""
        fit = [key for key in self.keys if _is_key_for_algorithm(key, algorithm)]
        if kid is not None:
            fit = [key for key in fit if key.get("kid") == kid]
        return _parse_key(fit[0], algorithm) if len(fit) == 1 else None


class JwksCache:
    """The bounded key cache of this process; used on its event loop only."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._rings: OrderedDict[IssuerAddress, JwkSet] = OrderedDict()
        self._tried: OrderedDict[IssuerAddress, float] = OrderedDict()
        self._reading: dict[IssuerAddress, asyncio.Task[JwkSet]] = {}

    async def key(self, whose: IssuerAddress, kid: str | None, algorithm: str) -> Any | None:
        """Return the key that a token refers to, or None.

        Raises `IssuerUnreachable` if there are no cached keys and they can't be fetched.
        """
        ring = await self._at_hand(whose)
        found = ring.find(kid, algorithm)
        if found is None and self._may_try(whose):
            # Issuers publish a new key before using it, so an unknown one may be new.
            found = (await self.read(whose)).find(kid, algorithm)
        return found

    async def read(self, whose: IssuerAddress) -> JwkSet:
        """Fetch the keys, or join a running fetch; raises `IssuerUnreachable`."""
        reading = self._reading.get(whose)
        if reading is None:
            reading = self._reading[whose] = get_runtime().loop.create_task(
                self._read(whose), name=f"keys of {whose.url}"
            )
            reading.add_done_callback(lambda done: self._over(whose, done))
        return await asyncio.shield(reading)

    async def _at_hand(self, whose: IssuerAddress) -> JwkSet:
        ring, now = self._rings.get(whose), self._clock()
        if ring is not None and now - ring.read_at <= FRESH_S:
            return ring
        held = ring if ring is not None and now - ring.read_at <= KEPT_S else None
        if not self._may_try(whose):
            if held is None:
                raise _build_unreachable_error("did not answer a moment ago")
            return held
        try:
            return await self.read(whose)
        except IssuerUnreachable:
            if held is None:
                raise
            return held

    def _may_try(self, whose: IssuerAddress) -> bool:
        tried = self._tried.get(whose)
        return whose in self._reading or tried is None or self._clock() - tried >= AGAIN_S

    async def _read(self, whose: IssuerAddress) -> JwkSet:
        self._tried[whose] = self._clock()
        self._tried.move_to_end(whose)
        while len(self._tried) > MOST_RINGS:
            self._tried.popitem(last=False)
        try:
            async with asyncio.timeout(FETCH_S):
                keys = await _fetch_keys(whose)
        except (httpx2.HTTPError, EgressDenied, TimeoutError) as fault:
            why = make_visible(str(fault) or "it does not answer in time", 200)
            raise _build_unreachable_error(
                format_message("could not be asked: {why}", why=why)
            ) from fault
        ring = self._rings[whose] = JwkSet(keys, self._clock())
        self._rings.move_to_end(whose)
        while len(self._rings) > MOST_RINGS:
            self._rings.popitem(last=False)
        return ring

    def _over(self, whose: IssuerAddress, done: "asyncio.Task[JwkSet]") -> None:
        self._reading.pop(whose, None)
        if not done.cancelled() and (fault := done.exception()) is not None:
            logger.warning("the keys of %r could not be read: %s", whose.url, fault)


async def _fetch_keys(whose: IssuerAddress) -> tuple[Mapping[str, Any], ...]:
    """Fetch the keys from the URI in the issuer's metadata."""
    async with build_guarded_client(
        allow_private=whose.allow_private, connect_s=FETCH_S, read_s=FETCH_S, max_body=LARGEST
    ) as client:
        where = await _fetch_jwks_uri(client, whose)
        keys = (await fetch_json_document(client, where) or {}).get("keys")
    if not isinstance(keys, list):
        raise _build_unreachable_error("publishes no keys")
    return tuple(key for key in keys[:MOST_KEYS] if isinstance(key, dict))


async def _fetch_jwks_uri(client: httpx2.AsyncClient, whose: IssuerAddress) -> str:
    for url in list_metadata_urls(whose.url):
        document = await fetch_json_document(client, url)
        if document is None:
            continue
        if document.get("issuer") != whose.url:
            raise _build_unreachable_error("publishes metadata of another issuer")
        where = document.get("jwks_uri")
        if not isinstance(where, str):
            raise _build_unreachable_error("does not say where its keys are")
        check(where, allow_private=whose.allow_private)
        return where
    raise _build_unreachable_error("publishes no metadata")


async def fetch_json_document(client: httpx2.AsyncClient, url: str) -> dict[str, Any] | None:
    """Fetch a JSON object; return None if there is none."""
    answer = await client.get(url, headers={"Accept": "application/json"})
    if answer.status_code >= 500 or answer.status_code == 429:
        raise _build_unreachable_error(
            format_message("answered with HTTP {status_code}", status_code=answer.status_code)
        )
    if answer.status_code != 200:
        return None
    try:
        found = json.loads(answer.content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def check(url: str, *, allow_private: bool) -> None:
    """Check the URL of an issuer or of its keys; raises `EgressDenied`."""
    check_url(url, allow_private=allow_private)
    if not allow_private and not url.lower().startswith("https:"):
        raise EgressDenied(
            "An issuer, and its keys, are at an address that begins with https.",
            code="bad_url",
            field="url",
            remedy="Use https; inside of a private network, allow private addresses for it.",
        )


def _is_key_for_algorithm(key: Mapping[str, Any], algorithm: str) -> bool:
    """Return whether a published key can verify signatures of this algorithm."""
    kind, curve = KINDS[algorithm]
    return (
        key.get("kty") == kind
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
        and (not curve or key.get("crv") == curve)
    )


def _parse_key(published: Mapping[str, Any], algorithm: str) -> Any | None:
    """Return a published key as an object; None if it is invalid or too weak."""
    public = {name: published[name] for name in PUBLIC if isinstance(published.get(name), str)}
    try:
        key = jwt.PyJWK.from_dict(public, algorithm=algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if KINDS[algorithm][0] == "RSA" and key.key_size < LEAST_RSA_BITS:
        return None
    return key


def _build_unreachable_error(why: str) -> IssuerUnreachable:
    return IssuerUnreachable(
        format_message("The issuer of the token {why}.", why=why),
        remedy="Try again later; whoever runs this platform can look at `bonobot issuers check`.",
        retry_after=AGAIN_S,
    )


_KEYRINGS = JwksCache()


def get_jwks_cache() -> JwksCache:
    """Return the key cache of this process."""
    return _KEYRINGS
