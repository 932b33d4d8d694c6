"""Visitors: who asks at which address, known before anything else is looked at (FEATURES D7).

A visitor is kept with its pass, so that a warm request reads nothing: admission tells whether it is
older than the latest change, and then it is renewed (`passes`). What no admission stands behind,
lists above all, asks for the current one.
"""

from collections import OrderedDict
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any

from django.conf import settings

from bonobot.gateway.places import Address, Place, find
from bonobot.ledger.heads import generation
from bonobot.lib.masking import Masker
from bonobot.lib.problems import NotFound
from bonobot.lib.runtime import runtime
from bonobot.tenancy.passes import Pass, passes
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.tokens import bad_token, parted

KEPT = 10_000
KEPT_MASKERS = 1_000


@dataclass(frozen=True, slots=True)
class Entry:
    """How somebody came in: with which token, at which address, from where."""

    token: str
    address: Address
    caller: str

    def __repr__(self) -> str:
        return f"Entry(…, {self.address!r}, {self.caller!r})"


@dataclass(frozen=True, slots=True)
class Visitor:
    """A principal at a place of the gateway, as of a policy generation."""

    known: Pass
    place: Place
    entry: Entry

    @property
    def principal(self) -> Principal:
        """Who asks."""
        return self.known.principal

    @property
    def key(self) -> str:
        """What tells this principal at this place from every other."""
        return f"{self.place.kind}:{self.place.id}:{self.principal.kind}:{self.principal.id}"

    def without_token(self, value: Any) -> Any:
        """Return a JSON value without the token that the visitor came in with, in whatever form.

        What a client shows to us is for us alone (MCP, security best practices: token passthrough).
        """
        return _masker(self.entry.token).exact(value)

    async def current(self) -> "Visitor":
        """Return the visitor as of now (one query where nothing changed); raises as `welcome`."""
        now = await runtime().orm(generation, self.principal.organization_id)
        return self if now == self.known.generation else await self.renewed()

    async def renewed(self) -> "Visitor":
        """Return the visitor, read again; raises as `welcome`."""
        entry = self.entry
        known = await passes().current(entry.token, entry.caller)
        return await _admitted(known, entry)

    async def principal_again(self) -> Principal:
        """Return the principal, read again, for a call at this very place; raises as `welcome`."""
        now = await self.renewed()
        if now.place.id != self.place.id:
            raise NotFound("This address means something else by now.", code="unknown_endpoint")
        return now.principal

    async def may_stay(self) -> bool:
        """Tell whether it is still the same principal with the same rights; raises as `welcome`."""
        now = await self.current()
        return (now.principal, now.place) == (self.principal, self.place)


# Whose message is being answered; the SDK carries it along with each message.
_visitor: ContextVar[Visitor] = ContextVar("visitor")
_kept: OrderedDict[tuple[bytes, Address], Visitor] = OrderedDict()


async def welcome(token: str, address: Address, caller: str) -> Visitor:
    """Return who a token is at an address, used from `caller`.

    Raises `BadToken`, `TooManyFailures`, `IssuerUnreachable`, `NotFound`. It may be older than the
    latest change.
    """
    known = await passes().known(token, caller)
    kept = _kept.get(_key(token, address))
    if kept is not None and kept.known is known:
        return kept
    return await _admitted(known, Entry(token, address, caller))


def entered(visitor: Visitor) -> None:
    """Have what this task does from now on be done for `visitor`."""
    _visitor.set(visitor)


def visitor() -> Visitor:
    """Return for whom this task works."""
    return _visitor.get()


async def _admitted(known: Pass, entry: Entry) -> Visitor:
    if not known.is_for(settings.BONOBOT_URL + entry.address.path):
        raise bad_token()  # it was issued for another address, or for something else altogether
    place = await runtime().orm(find, entry.address, known.principal)
    key = _key(entry.token, entry.address)
    found = _kept[key] = Visitor(known, place, entry)
    _kept.move_to_end(key)
    while len(_kept) > KEPT:
        _kept.popitem(last=False)
    return found


@lru_cache(KEPT_MASKERS)
def _masker(token: str) -> Masker:
    _, secret = parted(token)
    return Masker((token, secret))


def _key(token: str, address: Address) -> tuple[bytes, Address]:
    return sha256(token.encode("utf-8", "surrogatepass")).digest(), address
