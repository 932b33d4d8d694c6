"""Scan definitions with rules and the classifier (pure).

Each definition stores the version of the rules; with an older version, it is rescanned in the
background (`mcp_servers.scanning.rescan_definitions`).

Where no single rule matches, the classifier's score of the whole definition is compared with a
threshold that was set on legitimate definitions. A definition that names another tool has a lower
threshold.
"""

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple

from bonobot.core.text.linear_regex import LinearPattern
from bonobot.core.text.untrusted_text import format_path_step, make_visible
from mcp_servers.scanning.classifier import (
    LinearModel,
    ScoredWindow,
    compute_length_penalty,
    find_heaviest_phrases,
    find_heaviest_window,
    read_model,
)
from mcp_servers.scanning.definition_text import DefinitionText, read_definition_text
from mcp_servers.scanning.deobfuscation import (
    LetterSequence,
    build_other_names_pattern,
    extract_layers,
    extract_letters,
    find_byte_position,
    find_original_positions,
    fold_text,
    insert_spaces,
    mark_names,
)
from mcp_servers.scanning.hidden_text import TextLayer, find_hidden_runs
from mcp_servers.scanning.parameter_names import scan_parameter_names
from mcp_servers.scanning.prompt_injection import (
    DEFINITION_THRESHOLD,
    find_instructions,
    find_name_instructions,
)
from mcp_servers.scanning.signals import DEFINITION_SIGNALS, SignalHit

RESEMBLANCE_RULE: Final = "resembles_an_attack"
CLASSIFIER_MODEL: Final = "definitions"
MOVED_SPACES: Final = "moved_spaces"
ALONE_THRESHOLD: Final = 1.2
# For windows that contain the name of another tool.
NAMED_TOOL_THRESHOLD: Final = 0.2
# How much higher the text with moved spaces must score than the original.
MIN_SCORE_GAIN: Final = 1.0
_MAX_PHRASE_CHARACTERS: Final = 60
_SURROGATES: Final = dict.fromkeys(range(55296, 57344), "?")


class PreparedDefinition(NamedTuple):
    """A definition's text, letters and signals, and the byte at which its schemas start."""

    source: DefinitionText
    text: str
    folded: str
    letters: LetterSequence
    hits: list[SignalHit]
    schema_start: int

    def find_best_window(self, model: LinearModel) -> ScoredWindow | None:
        """Return the window that resembles an attack most."""
        best_window = find_heaviest_window(
            model, self.letters, self.hits, schema_start=self.schema_start
        )
        return _lower_score(model, self.letters, best_window)

    def find_best_named_window(
        self, model: LinearModel, names: LinearPattern | None
    ) -> ScoredWindow | None:
        """Return the best window that names another tool; None if it names none."""
        marked = mark_names(self.letters, names) if names else self.letters
        if marked is self.letters:
            return None
        best_window = find_heaviest_window(model, marked, self.hits, require_mark=True)
        return _lower_score(model, marked, best_window)


Tier = Literal["hard", "soft"]


@dataclass(frozen=True, slots=True)
class ScanFinding:
    """A finding: hard (never callable) or soft (waits for review).

    `path` is a JSON path (`… (key)` for a key), `start` and `end` are character positions in that
    string, `excerpt` makes hidden characters visible.
    """

    tier: Tier
    rule: str
    path: str
    excerpt: str
    start: int = 0
    end: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the stored form."""
        return asdict(self)


def _lower_score(
    model: LinearModel, letters: LetterSequence, best_window: ScoredWindow | None
) -> ScoredWindow | None:
    """Return a window with its score lowered for the length of the text."""
    if best_window is None:
        return None
    penalty = compute_length_penalty(len(letters.raw), model.size)
    return best_window._replace(score=best_window.score - penalty)


def prepare_definition(payload: Any) -> PreparedDefinition:
    """Return a definition prepared for scoring."""
    source = read_definition_text(payload)
    text = source.text.translate(_SURROGATES)
    folded = fold_text(text)
    letters = extract_letters(folded)
    leading_text = fold_text(text[: source.schema_start])
    return PreparedDefinition(
        source,
        text,
        folded,
        letters,
        DEFINITION_SIGNALS.find_signals(folded),
        find_byte_position(letters, len(leading_text)),
    )


def find_attack_resemblance(
    payload: Any, *, own_names: Collection[str] = (), peer_names: Collection[str] = ()
) -> Iterator[ScanFinding]:
    """Yield one finding if a definition resembles an attack; about 2 ms per KiB."""
    model, prepared = read_model(CLASSIFIER_MODEL), prepare_definition(payload)
    best_window = prepared.find_best_window(model)
    if best_window and best_window.score >= ALONE_THRESHOLD:
        yield _build_finding(prepared, model, prepared.letters, best_window)
        return
    names = (
        build_other_names_pattern(prepared.letters, payload.get("name"), own_names, peer_names)
        if isinstance(payload, dict)
        else None
    )
    named_window = prepared.find_best_named_window(model, names)
    if names and named_window and named_window.score >= NAMED_TOOL_THRESHOLD:
        yield _build_finding(prepared, model, mark_names(prepared.letters, names), named_window)
        return
    plain_score = best_window.score if best_window else 0.0
    yield from _find_in_layers(prepared, model, plain_score)


def _find_in_layers(
    prepared: PreparedDefinition, model: LinearModel, plain_score: float
) -> Iterator[ScanFinding]:
    """Yield one finding if a decoded layer resembles an attack."""
    for layer in _iterate_layers(prepared.text):
        folded = fold_text(layer.text)
        letters = extract_letters(folded)
        best_window = _lower_score(
            model,
            letters,
            find_heaviest_window(model, letters, DEFINITION_SIGNALS.find_signals(folded)),
        )
        if best_window is None or not _is_above_threshold(layer, best_window.score, plain_score):
            continue
        phrases = _format_phrases(model, letters, best_window, folded, layer.text)
        path, start = prepared.source.locate(layer.start)
        excerpt = f"{format_probability(best_window.score)} ({layer.rule}): {phrases}"
        yield ScanFinding(
            "soft", RESEMBLANCE_RULE, path, excerpt, start, start + layer.end - layer.start
        )
        return


def _iterate_layers(text: str) -> Iterator[TextLayer]:
    """Yield other readings of a text: decoded, and with spaces restored."""
    yield from extract_layers(text)
    spaced_text = insert_spaces(text)
    if spaced_text is not None:
        yield TextLayer(MOVED_SPACES, spaced_text, 0, len(text))


def _is_above_threshold(layer: TextLayer, layer_score: float, plain_score: float) -> bool:
    """Tell whether a layer's score is above its threshold."""
    if layer.rule != MOVED_SPACES:
        return layer_score >= ALONE_THRESHOLD
    if layer_score < plain_score + MIN_SCORE_GAIN:
        return False
    return layer_score >= ALONE_THRESHOLD or (
        layer_score >= NAMED_TOOL_THRESHOLD and bool(find_instructions(layer.text))
    )


def _build_finding(
    prepared: PreparedDefinition,
    model: LinearModel,
    letters: LetterSequence,
    best_window: ScoredWindow,
) -> ScanFinding:
    folded, text, window = prepared.folded, prepared.text, best_window.window
    phrases = find_heaviest_phrases(model, letters, window, folded)
    first_phrase = (
        phrases[0]
        if phrases
        else (letters.positions[window.start], letters.positions[window.end - 1] + 1)
    )
    text_start, text_end = find_original_positions(
        text, first_phrase[0], max(first_phrase[1] - 1, first_phrase[0])
    )
    path, start = prepared.source.locate(text_start)
    excerpt = (
        f"{format_probability(best_window.score)}: "
        f"{_format_phrases(model, letters, best_window, folded, text)}"
    )
    return ScanFinding(
        "soft", RESEMBLANCE_RULE, path, excerpt, start, start + text_end + 1 - text_start
    )


def format_probability(value: float) -> str:
    """Return a score as a probability, by the training texts."""
    return f"{100 / (1 + math.exp(-max(min(value, 20.0), -20.0))):.0f} %"


def _format_phrases(
    model: LinearModel, letters: LetterSequence, best_window: ScoredWindow, folded: str, text: str
) -> str:
    """Return the heaviest phrases as written, and the rules of the window."""
    phrases: list[str] = []
    for start, end in find_heaviest_phrases(model, letters, best_window.window, folded):
        text_start, text_end = find_original_positions(text, start, max(end - 1, start))
        phrases.append(
            f"“{make_visible(text[text_start : text_end + 1].strip(), _MAX_PHRASE_CHARACTERS)}”"
        )
    rules = sorted({rule for rule, _ in best_window.window.rules})
    return ", ".join(phrases) + (f" ({', '.join(rules)})" if rules else "")


MAX_FINDINGS = 50
_EXCERPT_CONTEXT = 24
_MAX_EXCERPT_CHARACTERS = 160
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{5,127}")
# Values in a schema are no prose: the threshold is lower.
_SCHEMA_VALUE_PATH: Final = re.compile(
    r"Schema\b.*\.(?:default|const|pattern|title|\$comment|(?:enum|examples)\[\d+\])$"
)
VALUE_THRESHOLD: Final = 0.6
# `search` is a word; `create_issue` is a name.
_MULTI_WORD_NAME = re.compile(r"[A-Za-z0-9][_-][A-Za-z0-9]|[a-z][A-Z]", re.A)


def scan_definition(
    payload: Any, *, own_names: Collection[str] = (), peer_names: Collection[str] = ()
) -> tuple[ScanFinding, ...]:
    """Return findings of hidden text (hard) and of instructions to the model (soft).

    `own_names` are the server's tools, `peer_names` those of other servers: naming another tool
    weighs more. One finding per rule and path, at most 50; hard ones first.
    """
    findings = scan_by_rules(payload, own_names=own_names, peer_names=peer_names)
    if len(findings) < MAX_FINDINGS:
        findings += tuple(
            find_attack_resemblance(payload, own_names=own_names, peer_names=peer_names)
        )
    return findings


def scan_by_rules(
    payload: Any, *, own_names: Collection[str] = (), peer_names: Collection[str] = ()
) -> tuple[ScanFinding, ...]:
    """Return the findings of the rules, without the classifier."""
    findings: dict[tuple[str, str], ScanFinding] = {}
    foreign_names = frozenset(
        name for name in peer_names if len(name) >= 6 and _MULTI_WORD_NAME.search(name)
    )
    foreign_names -= frozenset(own_names)
    for path, name in scan_parameter_names(payload):
        excerpt = make_visible(name, _MAX_EXCERPT_CHARACTERS)
        findings["asks_for_context", path] = ScanFinding(
            "soft", "asks_for_context", path, excerpt, 0, len(name)
        )
    for path, text in _walk_strings(payload):
        for finding in (
            *_scan_hidden_text(path, text),
            *_scan_instructions(path, text),
            *_scan_tool_names(path, text, foreign_names),
        ):
            findings.setdefault((finding.rule, finding.path), finding)
        if len(findings) >= MAX_FINDINGS:
            break
    ordered = sorted(findings.values(), key=lambda finding: finding.tier != "hard")
    return tuple(ordered[:MAX_FINDINGS])


def _scan_hidden_text(path: str, text: str) -> Iterator[ScanFinding]:
    for run in find_hidden_runs(text):
        excerpt = _cut_excerpt(text, run.start, run.end)
        yield ScanFinding("hard", run.rule, path, excerpt, run.start, run.end)


def _scan_instructions(path: str, text: str) -> Iterator[ScanFinding]:
    """Yield instructions in sentences, or in an identifier split into words."""
    is_identifier = path.endswith("(key)") or " " not in text
    threshold = VALUE_THRESHOLD if _SCHEMA_VALUE_PATH.search(path) else DEFINITION_THRESHOLD
    for instruction in (
        *find_instructions(text, threshold=threshold),
        *(find_name_instructions(text[:512]) if is_identifier else ()),
    ):
        tier: Tier = "hard" if instruction.disguise else "soft"
        excerpt = make_visible(text[instruction.start : instruction.end], _MAX_EXCERPT_CHARACTERS)
        yield ScanFinding(
            tier,
            instruction.disguise or instruction.rule,
            path,
            excerpt,
            instruction.start,
            instruction.end,
        )


def _scan_tool_names(path: str, text: str, foreign_names: frozenset[str]) -> Iterator[ScanFinding]:
    """Yield the first name of another server's tool; schema keys are ignored."""
    if not foreign_names or path.endswith(("(key)", "$.name")):
        return
    for match in _WORD.finditer(text):
        if match.group() in foreign_names:
            excerpt = _cut_excerpt(text, match.start(), match.end())
            yield ScanFinding("soft", "other_tool_named", path, excerpt, match.start(), match.end())
            return


def _walk_strings(payload: Any) -> Iterator[tuple[str, str]]:
    """Yield (JSON path, text) of every string; not recursive, payloads may nest deeply."""
    pending: list[tuple[str, Any]] = [("$", payload)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, str):
            yield path, value
        elif isinstance(value, dict):
            for key in value:
                yield f"{path}{format_path_step(str(key))} (key)", str(key)
            pending.extend(
                (f"{path}{format_path_step(str(key))}", value[key]) for key in reversed(value)
            )
        elif isinstance(value, list | tuple):
            pending.extend((f"{path}[{i}]", value[i]) for i in range(len(value) - 1, -1, -1))


def _cut_excerpt(text: str, start: int, end: int) -> str:
    prefix = "…" if start > _EXCERPT_CONTEXT else ""
    excerpt = make_visible(
        text[max(start - _EXCERPT_CONTEXT, 0) : end + _EXCERPT_CONTEXT], _MAX_EXCERPT_CHARACTERS
    )
    return (
        prefix
        + excerpt
        + ("…" if end + _EXCERPT_CONTEXT < len(text) and not excerpt.endswith("…") else "")
    )


RULES_VERSION: Final = 12
