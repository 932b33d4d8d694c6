"""Find text that gives orders to the model that reads it, in plain words or disguised (R15, R16).

Plain: soft, a person reads it. Disguised, by encoding, look-alike letters or a comment: hard,
because an honest author has no reason to. Lexical findings rank and hold; they are no boundary.
"""

import re
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from mcp_servers.scanning.folding import fold, origin
from mcp_servers.scanning.layers import layers, spoken, wide
from mcp_servers.scanning.signals import IN_DEFINITIONS, WINDOW, Hit, Signals

ENOUGH: Final = 1.0
# What somebody took the trouble to hide needs less to be told.
ENOUGH_HIDDEN: Final = 0.7
PIECE: Final = 16_384
OVERLAP: Final = 1_024
SHORT: Final = 512
MOST_PIECES: Final = 16
SHORTEST: Final = 6
TONE: Final = 0.25
MOST_TONE: Final = 0.3
# Legal in JSON, and no pattern can read them.
SURROGATES: Final = re.compile("[\ud800-\udfff]")
_CLOSED: Final = frozenset("\"'`\u201d\u2019\u00bb")
_OPAQUE: Final = ("encoded_", "hidden_")
# Pieces of a text that speak for themselves; other layers are the whole text in another reading.
_PARTS: Final = ("encoded_base", "encoded_hex", "encoded_codes", "encoded_binary", "hidden_")


class Order(NamedTuple):
    """Text that gives orders: which rule, where in the text, how it was hidden ("" for plainly)."""

    rule: str
    start: int
    end: int
    score: float
    disguise: str = ""


def orders(text: str, said: Signals = IN_DEFINITIONS, *, enough: float = ENOUGH) -> list[Order]:
    """Return what in `text` reads like orders to a model, in the first 240,000 characters.

    Takes under 20 ms for 16 KiB: keep longer texts off the loop.
    """
    text = SURROGATES.sub("?", text)
    if len(text) <= SHORT:
        return list(_orders_of_short(text, said, enough))
    if len(text) <= PIECE:
        return _orders(text, said, enough)
    found: dict[tuple[str, str, int], Order] = {}
    for at in range(0, min(len(text), (PIECE - OVERLAP) * MOST_PIECES), PIECE - OVERLAP):
        for one in _orders(text[at : at + PIECE], said, enough):
            moved = one._replace(start=one.start + at, end=one.end + at)
            found.setdefault((one.rule, one.disguise, moved.start), moved)
    return list(found.values())


@lru_cache(maxsize=8_192)
def _orders_of_short(text: str, said: Signals, enough: float) -> tuple[Order, ...]:
    """Return the orders of a short text: a catalogue says the same of many parameters."""
    return tuple(_orders(text, said, enough))


def _orders(text: str, said: Signals, enough: float) -> list[Order]:
    if len(text) < SHORTEST:
        return []
    hits = said.of(fold(text))
    plain = _windows(text, hits, enough, said)
    near = bool(plain or _windows(text, hits, ENOUGH_HIDDEN, said))
    found: list[Order] = []
    for layer in layers(text):
        needed = enough if near and not layer.rule.startswith(_OPAQUE) else ENOUGH_HIDDEN
        inner = said.of(fold(layer.text))
        seen = _windows(layer.text, inner, needed, said)
        whole = not layer.rule.startswith(_PARTS)
        # What was there plainly is no news.
        if not seen or (whole and plain and _weighed(inner)[0] <= _weighed(hits)[0]):
            continue
        best = max(seen, key=lambda one: one.score)
        span = (best.start, best.end) if layer.aligned else (layer.start, layer.end)
        found.append(Order(best.rule, *span, best.score, layer.rule))
    if plain and wide(text[plain[0].start : plain[0].end]):
        found.append(plain[0]._replace(disguise="wide_letters"))
    return found + plain


def named(name: str, *, enough: float = ENOUGH) -> list[Order]:
    """Return what an identifier says when it is read as words."""
    words = spoken(SURROGATES.sub("?", name))
    if words.count(" ") < 3:
        return []
    return [Order(one.rule, 0, len(name), one.score) for one in _judged(words, enough)[:1]]


def _judged(text: str, enough: float) -> list[Order]:
    """Return the windows of `text` whose signals weigh enough, as places in `text`."""
    return _windows(text, IN_DEFINITIONS.of(fold(text)), enough, IN_DEFINITIONS)


def _windows(text: str, hits: Iterable[Hit], enough: float, said: Signals) -> list[Order]:
    found: list[Order] = []
    inside: deque[Hit] = deque()
    last = -1
    for hit in hits:
        inside.append(hit)
        while inside[0].start < hit.start - WINDOW:
            inside.popleft()
        if inside[0].start < last:
            continue
        score, strongest = _weighed(inside)
        if score >= enough:
            start, end = inside[0].start, max(one.end for one in inside)
            first, final = origin(text, start, max(end - 1, start))
            if text[final + 1 : final + 2] in _CLOSED and said.mentions(text[:first]):
                inside.clear()
                continue
            found.append(Order(strongest, first, final + 1, score))
            last = end
    return found


def _weighed(hits: Iterable[Hit]) -> tuple[float, str]:
    """Add the heaviest signal of each rule; tone alone (important, must, a URL) weighs little."""
    heaviest: dict[str, float] = {}
    for hit in hits:
        heaviest[hit.rule] = max(heaviest.get(hit.rule, 0), hit.weight)
    tone = sum(weight for weight in heaviest.values() if weight <= TONE)
    score = sum(weight for weight in heaviest.values() if weight > TONE) + min(tone, MOST_TONE)
    return round(score, 2), max(heaviest, key=lambda rule: heaviest[rule])
