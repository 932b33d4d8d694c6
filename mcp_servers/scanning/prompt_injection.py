"""Find instructions to models in definitions and results (pure).

In definitions, plain instructions are soft findings for review; disguised ones (encoded, look-alike
letters, comments) are hard, because a legitimate author has no reason to hide them.

Results have their own signals (`result_signals.toml`) and classifier, and findings are only a
warning: the boundary is policy, flow labels and approvals.
"""

import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from mcp_servers.scanning.classifier import find_heaviest_window, read_model
from mcp_servers.scanning.deobfuscation import (
    extract_layers,
    extract_letters,
    find_original_positions,
    fold_text,
    has_wide_letters,
    split_identifier,
)
from mcp_servers.scanning.signals import (
    DEFINITION_SIGNALS,
    RESULT_SIGNALS,
    WINDOW_CHARACTERS,
    SignalHit,
    SignalSet,
    discount_shared_words,
)

DEFINITION_THRESHOLD: Final = 1.0
# Hidden text has a lower threshold.
HIDDEN_THRESHOLD: Final = 0.7
PIECE_CHARACTERS: Final = 16_384
PIECE_OVERLAP: Final = 1_024
MAX_CACHED_CHARACTERS: Final = 512
MAX_PIECES: Final = 16
MIN_CHARACTERS: Final = 6
MAX_TONE_WEIGHT: Final = 0.25
MAX_TONE_SCORE: Final = 0.3
# Valid in JSON, but the regex engine can't match them.
SURROGATES: Final = re.compile("[\ud800-\udfff]")
_CLOSING_QUOTES: Final = frozenset("\"'`\u201d\u2019\u00bb")
_OPAQUE_RULES: Final = ("encoded_", "hidden_")
# Layers that are a part of the text; other layers are the whole text decoded.
_PARTIAL_RULES: Final = (
    "encoded_base",
    "encoded_hex",
    "encoded_codes",
    "encoded_binary",
    "hidden_",
)


class InstructionMatch(NamedTuple):
    """An instruction in a text: its rule, position, score and disguise ("" if plain)."""

    rule: str
    start: int
    end: int
    score: float
    disguise: str = ""


def find_instructions(
    text: str, signals: SignalSet = DEFINITION_SIGNALS, *, threshold: float = DEFINITION_THRESHOLD
) -> list[InstructionMatch]:
    """Return the instructions to a model in the first 240,000 characters of `text`.

    Takes under 20 ms for 16 KiB: keep longer texts off the loop.
    """
    text = SURROGATES.sub("?", text)
    if len(text) <= MAX_CACHED_CHARACTERS:
        return list(_find_in_short_text(text, signals, threshold))
    if len(text) <= PIECE_CHARACTERS:
        return _find_in_piece(text, signals, threshold)
    matches: dict[tuple[str, str, int], InstructionMatch] = {}
    for offset in range(
        0,
        min(len(text), (PIECE_CHARACTERS - PIECE_OVERLAP) * MAX_PIECES),
        PIECE_CHARACTERS - PIECE_OVERLAP,
    ):
        for match in _find_in_piece(text[offset : offset + PIECE_CHARACTERS], signals, threshold):
            moved = match._replace(start=match.start + offset, end=match.end + offset)
            matches.setdefault((match.rule, match.disguise, moved.start), moved)
    return list(matches.values())


@lru_cache(maxsize=8_192)
def _find_in_short_text(
    text: str, signals: SignalSet, threshold: float
) -> tuple[InstructionMatch, ...]:
    """Return the instructions of a short text; cached, because parameter texts repeat."""
    return tuple(_find_in_piece(text, signals, threshold))


def _find_in_piece(text: str, signals: SignalSet, threshold: float) -> list[InstructionMatch]:
    if len(text) < MIN_CHARACTERS:
        return []
    hits = signals.find_signals(fold_text(text))
    plain_matches = _find_heavy_windows(text, hits, threshold, signals)
    is_suspicious = bool(
        plain_matches or _find_heavy_windows(text, hits, HIDDEN_THRESHOLD, signals)
    )
    matches: list[InstructionMatch] = []
    for layer in extract_layers(text):
        layer_threshold = (
            threshold
            if is_suspicious and not layer.rule.startswith(_OPAQUE_RULES)
            else HIDDEN_THRESHOLD
        )
        layer_hits = signals.find_signals(fold_text(layer.text))
        layer_matches = _find_heavy_windows(layer.text, layer_hits, layer_threshold, signals)
        is_whole_text = not layer.rule.startswith(_PARTIAL_RULES)
        # The layer adds nothing to the plain text.
        if not layer_matches or (
            is_whole_text
            and plain_matches
            and _compute_score(layer_hits)[0] <= _compute_score(hits)[0]
        ):
            continue
        best = max(layer_matches, key=lambda match: match.score)
        span = (best.start, best.end) if layer.aligned else (layer.start, layer.end)
        matches.append(InstructionMatch(best.rule, *span, best.score, layer.rule))
    if plain_matches and has_wide_letters(text[plain_matches[0].start : plain_matches[0].end]):
        matches.append(plain_matches[0]._replace(disguise="wide_letters"))
    return matches + plain_matches


def find_name_instructions(name: str) -> list[InstructionMatch]:
    """Return the instructions in an identifier split into words."""
    split_name = split_identifier(SURROGATES.sub("?", name))
    if split_name.count(" ") < 3:
        return []
    return [
        InstructionMatch(match.rule, 0, len(name), match.score)
        for match in _evaluate_text(split_name, DEFINITION_THRESHOLD)[:1]
    ]


def _evaluate_text(text: str, threshold: float) -> list[InstructionMatch]:
    """Return the windows of `text` whose score reaches the threshold."""
    return _find_heavy_windows(
        text, DEFINITION_SIGNALS.find_signals(fold_text(text)), threshold, DEFINITION_SIGNALS
    )


def _find_heavy_windows(
    text: str, hits: Sequence[SignalHit], threshold: float, signals: SignalSet
) -> list[InstructionMatch]:
    matches: list[InstructionMatch] = []
    window: deque[SignalHit] = deque()
    last_end = -1
    for hit in discount_shared_words(hits):
        window.append(hit)
        while window[0].start < hit.start - WINDOW_CHARACTERS:
            window.popleft()
        if window[0].start < last_end:
            continue
        score, strongest = _compute_score(window)
        if score >= threshold:
            start, end = window[0].start, max(window_hit.end for window_hit in window)
            first, final = find_original_positions(text, start, max(end - 1, start))
            if text[final + 1 : final + 2] in _CLOSING_QUOTES and signals.is_mention(text[:first]):
                window.clear()
                continue
            matches.append(InstructionMatch(strongest, first, final + 1, score))
            last_end = end
    return matches


def _compute_score(hits: Iterable[SignalHit]) -> tuple[float, str]:
    """Return the sum of each rule's heaviest signal, limited for tone, and the strongest rule."""
    heaviest: dict[str, float] = {}
    for hit in hits:
        heaviest[hit.rule] = max(heaviest.get(hit.rule, 0), hit.weight)
    tone = sum(weight for weight in heaviest.values() if weight <= MAX_TONE_WEIGHT)
    score = sum(weight for weight in heaviest.values() if weight > MAX_TONE_WEIGHT) + min(
        tone, MAX_TONE_SCORE
    )
    return round(score, 2), max(heaviest, key=lambda rule: heaviest[rule])


RULE: Final = "resembles_an_injection"
MODEL: Final = "results"
RESULT_THRESHOLD: Final = 1.5
# The same limit as for the rules.
MAX_CHARACTERS: Final = 240_000


def find_injections(text: str) -> list[InstructionMatch]:
    """Return the instructions to a model in the first 240,000 characters of a result.

    Takes under 60 ms for 16 KiB: keep longer texts off the loop.
    """
    return find_injections_by_rules(text) or _find_resembling_part(text)


def find_injections_by_rules(text: str) -> list[InstructionMatch]:
    """Return the matches of the rules, without the classifier."""
    return find_instructions(text, RESULT_SIGNALS)


def count_injections(text: str) -> dict[str, int]:
    """Return the number of matches by rule."""
    return dict(Counter(match.disguise or match.rule for match in find_injections(text)))


def _find_resembling_part(text: str) -> list[InstructionMatch]:
    """Return the part of a text that resembles an injection most, if it reaches the threshold."""
    text = SURROGATES.sub("?", text[:MAX_CHARACTERS])
    folded = fold_text(text)
    letters = extract_letters(folded)
    best_window = find_heaviest_window(
        read_model(MODEL), letters, RESULT_SIGNALS.find_signals(folded)
    )
    if best_window is None or best_window.score < RESULT_THRESHOLD:
        return []
    first, last = (
        letters.positions[best_window.window.start],
        letters.positions[best_window.window.end - 1],
    )
    start, end = find_original_positions(text, first, last)
    return [InstructionMatch(RULE, start, end + 1, round(best_window.score, 2))]
