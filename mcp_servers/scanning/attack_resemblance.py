"""Find definitions that resemble attacks as a whole, where no single rule matches.

The classifier's score is compared with a threshold that was set on legitimate definitions. A
definition that names another tool has a lower threshold.
"""

import math
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

from bonobot.core.text.linear_regex import LinearPattern
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.scanning.classifier import Model, Scored, explain, read_model, score
from mcp_servers.scanning.definition_text import Prose, read_prose
from mcp_servers.scanning.deobfuscation import (
    TextLayer,
    extract_layers,
    find_original_positions,
    fold,
)
from mcp_servers.scanning.findings import ScanFinding
from mcp_servers.scanning.letters_only import (
    Letters,
    mark_names,
    names_beside,
    position,
    read_letters,
)
from mcp_servers.scanning.prompt_injection import find_instructions
from mcp_servers.scanning.signals import IN_DEFINITIONS, SignalHit
from mcp_servers.scanning.word_segmentation import insert_spaces

RULE: Final = "resembles_an_attack"
MODEL: Final = "definitions"
MOVED: Final = "moved_spaces"
ALONE: Final = 1.2
# For windows that contain the name of another tool.
BESIDE: Final = 0.0
# How much higher the text with moved spaces must score than the original.
NEWS: Final = 1.0
_LONGEST_PHRASE: Final = 60
_SURROGATES: Final = dict.fromkeys(range(55296, 57344), "?")


class Reading(NamedTuple):
    """A definition's text, letters and signals, and the byte at which its schemas start."""

    prose: Prose
    text: str
    folded: str
    letters: Letters
    hits: list[SignalHit]
    schemas: int

    def score(self, model: Model) -> Scored | None:
        """Return the window that resembles an attack most."""
        return score(model, self.letters, self.hits, aside=self.schemas)

    def score_beside(self, model: Model, names: LinearPattern | None) -> Scored | None:
        """Return the best window that names another tool; None if it names none."""
        marked = mark_names(self.letters, names) if names else self.letters
        if marked is self.letters:
            return None
        return score(model, marked, self.hits, marked=True)


def read_definition(payload: Any) -> Reading:
    """Return a definition prepared for scoring."""
    prose = read_prose(payload)
    text = prose.text.translate(_SURROGATES)
    folded = fold(text)
    letters = read_letters(folded)
    first = fold(text[: prose.head])
    return Reading(
        prose, text, folded, letters, IN_DEFINITIONS.of(folded), position(letters, len(first))
    )


def judge(
    payload: Any, *, own: Collection[str] = (), peers: Collection[str] = ()
) -> Iterator[ScanFinding]:
    """Yield one finding if a definition resembles an attack; about 2 ms per KiB."""
    model, reading = read_model(MODEL), read_definition(payload)
    scored = reading.score(model)
    if scored and scored.score >= ALONE:
        yield _finding(reading, model, reading.letters, scored)
        return
    names = names_beside(payload.get("name"), own, peers) if isinstance(payload, dict) else None
    beside = reading.score_beside(model, names)
    if names and beside and beside.score >= BESIDE:
        yield _finding(reading, model, mark_names(reading.letters, names), beside)
        return
    plainly = scored.score if scored else 0.0
    yield from _behind_layers(reading, model, plainly)


def _behind_layers(reading: Reading, model: Model, plainly: float) -> Iterator[ScanFinding]:
    """Yield one finding if a decoded layer resembles an attack."""
    for layer in _readings(reading.text):
        folded = fold(layer.text)
        letters = read_letters(folded)
        scored = score(model, letters, IN_DEFINITIONS.of(folded))
        if scored is None or not _is_enough(layer, scored.score, plainly):
            continue
        phrases = _phrases(model, letters, scored, folded, layer.text)
        path, start = reading.prose.place(layer.start)
        shown = f"{percent(scored.score)} ({layer.rule}): {phrases}"
        yield ScanFinding("soft", RULE, path, shown, start, start + layer.end - layer.start)
        return


def _readings(text: str) -> Iterator[TextLayer]:
    """Yield other readings of a text: decoded, and with spaces restored."""
    yield from extract_layers(text)
    apart = insert_spaces(text)
    if apart is not None:
        yield TextLayer(MOVED, apart, 0, len(text))


def _is_enough(layer: TextLayer, weight: float, plainly: float) -> bool:
    """Tell whether a layer's score is above its threshold."""
    if layer.rule != MOVED:
        return weight >= ALONE
    if weight < plainly + NEWS:
        return False
    return weight >= ALONE or (weight >= BESIDE and bool(find_instructions(layer.text)))


def _finding(reading: Reading, model: Model, letters: Letters, scored: Scored) -> ScanFinding:
    folded, text, window = reading.folded, reading.text, scored.window
    phrases = explain(model, letters, window, folded)
    first = phrases[0] if phrases else (letters.at[window.start], letters.at[window.end - 1] + 1)
    begin, final = find_original_positions(text, first[0], max(first[1] - 1, first[0]))
    path, start = reading.prose.place(begin)
    shown = f"{percent(scored.score)}: {_phrases(model, letters, scored, folded, text)}"
    return ScanFinding("soft", RULE, path, shown, start, start + final + 1 - begin)


def percent(value: float) -> str:
    """Return a score as a probability, by the training texts."""
    return f"{100 / (1 + math.exp(-max(min(value, 20.0), -20.0))):.0f} %"


def _phrases(model: Model, letters: Letters, scored: Scored, folded: str, text: str) -> str:
    """Return the heaviest phrases as written, and the rules of the window."""
    said: list[str] = []
    for start, end in explain(model, letters, scored.window, folded):
        begin, final = find_original_positions(text, start, max(end - 1, start))
        said.append(f"»{make_visible(text[begin : final + 1].strip(), _LONGEST_PHRASE)}«")
    rules = sorted({rule for rule, _ in scored.window.rules})
    return ", ".join(said) + (f" ({', '.join(rules)})" if rules else "")
