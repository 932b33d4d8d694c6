"""Find instructions to models in definitions and results (pure).

In definitions, plain instructions are soft findings for review; disguised ones (encoded, look-alike
letters, comments) are hard, because a legitimate author has no reason to hide them.

Results have their own signals (`results.toml`) and classifier, and findings are only a warning: the
boundary is policy, flow labels and approvals.
"""

import re
from collections import Counter, deque
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from mcp_servers.scanning.classifier import read_model, score
from mcp_servers.scanning.deobfuscation import (
    extract_layers,
    find_original_positions,
    fold,
    has_wide_letters,
    split_identifier,
)
from mcp_servers.scanning.letters_only import read_letters
from mcp_servers.scanning.signals import IN_DEFINITIONS, IN_RESULTS, WINDOW, SignalHit, SignalSet

DEFINITION_THRESHOLD: Final = 1.0
# Hidden text has a lower threshold.
ENOUGH_HIDDEN: Final = 0.7
PIECE: Final = 16_384
OVERLAP: Final = 1_024
SHORT: Final = 512
MOST_PIECES: Final = 16
SHORTEST: Final = 6
TONE: Final = 0.25
MOST_TONE: Final = 0.3
# Valid in JSON, but the regex engine can't match them.
SURROGATES: Final = re.compile("[\ud800-\udfff]")
_CLOSED: Final = frozenset("\"'`\u201d\u2019\u00bb")
_OPAQUE: Final = ("encoded_", "hidden_")
# Layers that are a part of the text; other layers are the whole text decoded.
_PARTS: Final = ("encoded_base", "encoded_hex", "encoded_codes", "encoded_binary", "hidden_")


class InstructionMatch(NamedTuple):
    """An instruction in a text: its rule, position, score and disguise ("" if plain)."""

    rule: str
    start: int
    end: int
    score: float
    disguise: str = ""


def find_instructions(
    text: str, said: SignalSet = IN_DEFINITIONS, *, enough: float = DEFINITION_THRESHOLD
) -> list[InstructionMatch]:
    """Return the instructions to a model in the first 240,000 characters of `text`.

    Takes under 20 ms for 16 KiB: keep longer texts off the loop.
    """
    text = SURROGATES.sub("?", text)
    if len(text) <= SHORT:
        return list(_find_in_short_text(text, said, enough))
    if len(text) <= PIECE:
        return _find_in_piece(text, said, enough)
    found: dict[tuple[str, str, int], InstructionMatch] = {}
    for at in range(0, min(len(text), (PIECE - OVERLAP) * MOST_PIECES), PIECE - OVERLAP):
        for one in _find_in_piece(text[at : at + PIECE], said, enough):
            moved = one._replace(start=one.start + at, end=one.end + at)
            found.setdefault((one.rule, one.disguise, moved.start), moved)
    return list(found.values())


@lru_cache(maxsize=8_192)
def _find_in_short_text(text: str, said: SignalSet, enough: float) -> tuple[InstructionMatch, ...]:
    """Return the instructions of a short text; cached, because parameter texts repeat."""
    return tuple(_find_in_piece(text, said, enough))


def _find_in_piece(text: str, said: SignalSet, enough: float) -> list[InstructionMatch]:
    if len(text) < SHORTEST:
        return []
    hits = said.of(fold(text))
    plain = _find_heavy_windows(text, hits, enough, said)
    near = bool(plain or _find_heavy_windows(text, hits, ENOUGH_HIDDEN, said))
    found: list[InstructionMatch] = []
    for layer in extract_layers(text):
        needed = enough if near and not layer.rule.startswith(_OPAQUE) else ENOUGH_HIDDEN
        inner = said.of(fold(layer.text))
        seen = _find_heavy_windows(layer.text, inner, needed, said)
        whole = not layer.rule.startswith(_PARTS)
        # The layer adds nothing to the plain text.
        if not seen or (whole and plain and _compute_score(inner)[0] <= _compute_score(hits)[0]):
            continue
        best = max(seen, key=lambda one: one.score)
        span = (best.start, best.end) if layer.aligned else (layer.start, layer.end)
        found.append(InstructionMatch(best.rule, *span, best.score, layer.rule))
    if plain and has_wide_letters(text[plain[0].start : plain[0].end]):
        found.append(plain[0]._replace(disguise="wide_letters"))
    return found + plain


def find_name_instructions(
    name: str, *, enough: float = DEFINITION_THRESHOLD
) -> list[InstructionMatch]:
    """Return the instructions in an identifier split into words."""
    words = split_identifier(SURROGATES.sub("?", name))
    if words.count(" ") < 3:
        return []
    return [
        InstructionMatch(one.rule, 0, len(name), one.score)
        for one in _evaluate_text(words, enough)[:1]
    ]


def _evaluate_text(text: str, enough: float) -> list[InstructionMatch]:
    """Return the windows of `text` whose score reaches the threshold."""
    return _find_heavy_windows(text, IN_DEFINITIONS.of(fold(text)), enough, IN_DEFINITIONS)


def _find_heavy_windows(
    text: str, hits: Iterable[SignalHit], enough: float, said: SignalSet
) -> list[InstructionMatch]:
    found: list[InstructionMatch] = []
    inside: deque[SignalHit] = deque()
    last = -1
    for hit in hits:
        inside.append(hit)
        while inside[0].start < hit.start - WINDOW:
            inside.popleft()
        if inside[0].start < last:
            continue
        score, strongest = _compute_score(inside)
        if score >= enough:
            start, end = inside[0].start, max(one.end for one in inside)
            first, final = find_original_positions(text, start, max(end - 1, start))
            if text[final + 1 : final + 2] in _CLOSED and said.mentions(text[:first]):
                inside.clear()
                continue
            found.append(InstructionMatch(strongest, first, final + 1, score))
            last = end
    return found


def _compute_score(hits: Iterable[SignalHit]) -> tuple[float, str]:
    """Return the sum of each rule's heaviest signal, limited for tone, and the strongest rule."""
    heaviest: dict[str, float] = {}
    for hit in hits:
        heaviest[hit.rule] = max(heaviest.get(hit.rule, 0), hit.weight)
    tone = sum(weight for weight in heaviest.values() if weight <= TONE)
    score = sum(weight for weight in heaviest.values() if weight > TONE) + min(tone, MOST_TONE)
    return round(score, 2), max(heaviest, key=lambda rule: heaviest[rule])


RULE: Final = "resembles_an_injection"
MODEL: Final = "results"
RESULT_THRESHOLD: Final = 2.5
# The same limit as for the rules.
MOST: Final = 240_000


def find_injections(text: str) -> list[InstructionMatch]:
    """Return the instructions to a model in the first 240,000 characters of a result.

    Takes under 60 ms for 16 KiB: keep longer texts off the loop.
    """
    return inspect_by_rules(text) or _find_resembling_part(text)


def inspect_by_rules(text: str) -> list[InstructionMatch]:
    """Return the matches of the rules, without the classifier."""
    return find_instructions(text, IN_RESULTS)


def count_injections(text: str) -> dict[str, int]:
    """Return the number of matches by rule."""
    return dict(Counter(one.disguise or one.rule for one in find_injections(text)))


def _find_resembling_part(text: str) -> list[InstructionMatch]:
    """Return the part of a text that resembles an injection most, if it reaches the threshold."""
    text = SURROGATES.sub("?", text[:MOST])
    folded = fold(text)
    letters = read_letters(folded)
    scored = score(read_model(MODEL), letters, IN_RESULTS.of(folded))
    if scored is None or scored.score < RESULT_THRESHOLD:
        return []
    first, last = letters.at[scored.window.start], letters.at[scored.window.end - 1]
    start, end = find_original_positions(text, first, last)
    return [InstructionMatch(RULE, start, end + 1, round(scored.score, 2))]
