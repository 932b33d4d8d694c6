"""Train the scanner's classifiers, or print how they do on what they have not seen.

`python -m benchmarks.train_scanning` writes the weights into `mcp_servers/scanning`, the same for
the same texts; `python -m benchmarks.train_scanning --figures` trains on three quarters of the
families of attacks and of the servers, judges the rest, and prints what is held. Families that want
the same (`kin`) are left out together with `--kin`. It needs scikit-learn
(`uv pip install --group train`) and no network.
"""

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from benchmarks import scanning_texts as texts
from benchmarks.scanning_texts import Sample
from mcp_servers.scanning import classifier, definitions
from mcp_servers.scanning.classifier import BUCKET_COUNT, LinearModel
from mcp_servers.scanning.definition_text import read_definition_text
from mcp_servers.scanning.definitions import scan_by_rules
from mcp_servers.scanning.deobfuscation import (
    build_other_names_pattern,
    extract_letters,
    find_byte_position,
    fold_text,
    mark_names,
)
from mcp_servers.scanning.signals import DEFINITION_SIGNALS, SignalSet

SEED = 1
# The weights are the mean of models of texts from these seeds: one alone depends on what was drawn.
SEEDS = (1, 2, 3)
FOLDS = 4
WINDOW = 240
FEWEST_TEXTS = 4
EACH = 100
EACH_HONEST = 100
SHORT = 3_000
STRENGTH = 3.0
# How much of the attack a window has at least.
LEAST_SHARE = 0.6
# How much more the honest definitions that sound like attacks count than ordinary ones.
HONEST_WEIGHT = 1.5
# How many times the texts of `paired_*` count: there are fewer than in most families of a grammar.
PAIRED_REPEATS = 6
Row = tuple[np.ndarray, np.ndarray]
PACKAGE = Path(__file__).parents[1] / "mcp_servers" / "scanning"


class LearnedSample(NamedTuple):
    """The windows of a sample, as rows of features."""

    sample: Sample
    rows: list[Row]


def build_rows(
    text: str, names: Any, said: SignalSet, size: int, body: tuple[int, int] | None = None
) -> list[Row]:
    """Return the features of each window of a text, with marks for names if there are any.

    `body` only keeps the windows that have most of this part of the text.
    """
    folded = fold_text(text)
    letters = extract_letters(folded)
    if names is not None:
        letters = mark_names(letters, names)
    first, last = 0, len(letters.raw)
    if body:
        first = find_byte_position(letters, len(fold_text(text[: body[0]])))
        last = find_byte_position(letters, len(fold_text(text[: body[1]])))
    rows: list[Row] = []
    for features in classifier.iterate_features(letters, said.find_signals(folded), size):
        window = features.window
        shared = min(window.end, last) - max(window.start, first)
        if body and shared < LEAST_SHARE * min(last - first, window.end - window.start):
            continue
        values: dict[int, float] = defaultdict(float)
        for bucket, weight in features.weigh():
            values[bucket] += weight
        rows.append((np.fromiter(values, np.int32), np.fromiter(values.values(), np.float32)))
    return rows


def learn_honest(sample: Sample) -> LearnedSample:
    """Return all windows of an honest definition, also with its neighbors' names marked."""
    prose = read_definition_text(sample.payload).text
    rows = build_rows(prose, None, DEFINITION_SIGNALS, WINDOW)
    letters = extract_letters(fold_text(prose))
    names = build_other_names_pattern(letters, sample.payload["name"], sample.own)
    if names:
        rows += build_rows(prose, names, DEFINITION_SIGNALS, WINDOW)
    return LearnedSample(sample, rows)


def learn_attack(sample: Sample) -> LearnedSample:
    """Return the windows with the attack, also with its neighbors' names marked.

    Without a body, the whole definition is the attack.
    """
    if not sample.body:
        return learn_honest(sample)
    prose = read_definition_text(sample.payload).text
    start = prose.index(sample.body)
    body = (start, start + len(sample.body))
    rows = build_rows(prose, None, DEFINITION_SIGNALS, WINDOW, body)
    letters = extract_letters(fold_text(prose))
    names = build_other_names_pattern(letters, sample.payload["name"], sample.own)
    if names:
        rows += build_rows(prose, names, DEFINITION_SIGNALS, WINDOW, body)
    return LearnedSample(sample, rows)


def fit(
    attacks: Iterable[Row],
    honest: Iterable[Row],
    size: int,
    similar: Iterable[Row] = (),
    *,
    strength: float = STRENGTH,
    honest_weight: float = HONEST_WEIGHT,
) -> LinearModel:
    """Return a model of two bytes a weight; `similar` are honest and sound like attacks."""
    bad, good, close = list(attacks), list(honest), list(similar)
    rows = bad + good + close
    ends = np.concatenate(([0], np.cumsum([len(places) for places, _ in rows])))
    matrix = csr_matrix(
        (
            np.concatenate([values for _, values in rows]),
            np.concatenate([places for places, _ in rows]),
            ends,
        ),
        shape=(len(rows), BUCKET_COUNT),
    )
    regression = LogisticRegression(
        C=strength, class_weight="balanced", solver="liblinear", random_state=SEED, max_iter=400
    )
    kinds = [1] * len(bad) + [0] * (len(good) + len(close))
    counts = [1.0] * (len(bad) + len(good)) + [honest_weight] * len(close)
    regression.fit(matrix, kinds, sample_weight=counts)
    return _quantize(regression.coef_[0], float(regression.intercept_[0]), size)


def average_models(models: Sequence[LinearModel]) -> LinearModel:
    """Return the model whose scores are the mean of the models' scores."""
    weights = sum(np.frombuffer(model.weights, "<i2") * model.scale for model in models)
    bias = sum(model.bias for model in models) / len(models)
    return _quantize(np.asarray(weights) / len(models), bias, models[0].size)


def _quantize(weights: np.ndarray, bias: float, size: int) -> LinearModel:
    scale = float(np.abs(weights).max()) / classifier.MAX_WEIGHT
    return LinearModel(np.rint(weights / scale).astype("<i2").tobytes(), scale, bias, size)


def fit_definitions(
    attacks: Iterable[LearnedSample],
    ordinary: Iterable[LearnedSample],
    honest: Iterable[LearnedSample],
) -> LinearModel:
    """Return the model of the samples, in which those of `paired_*` count several times."""
    parts = [
        [row for item in part for row in item.rows * count_repeats(item.sample.group)]
        for part in (attacks, ordinary, honest)
    ]
    return fit(parts[0], parts[1], WINDOW, parts[2])


def count_repeats(group: str) -> int:
    """Return how many times the samples of a family count."""
    return PAIRED_REPEATS if texts.is_paired(group) else 1


def compute_scores(model: LinearModel, sample: Sample) -> tuple[float, float]:
    """Return the score of a definition alone, and of what of it names a neighbor (or -99)."""
    reading = definitions.prepare_definition(sample.payload)
    alone = reading.find_best_window(model)
    neighbors = reading.find_best_named_window(
        model, build_other_names_pattern(reading.letters, sample.payload["name"], sample.own)
    )
    return (alone.score if alone else -99.0, neighbors.score if neighbors else -99.0)


class JudgedDefinition(NamedTuple):
    """What becomes of a definition that nothing was learned from."""

    sample: Sample
    rules: bool
    alone: float
    beside: float

    def is_held(self, *, neighbors: bool, classified: bool = True) -> bool:
        """Tell whether it is held."""
        if not classified:
            return self.rules
        near = neighbors and self.beside >= definitions.NAMED_TOOL_THRESHOLD
        return self.rules or self.alone >= definitions.ALONE_THRESHOLD or near


def judge(model: LinearModel, sample: Sample) -> JudgedDefinition:
    """Return what a model and the rules say of a definition."""
    return JudgedDefinition(
        sample, bool(scan_by_rules(sample.payload)), *compute_scores(model, sample)
    )


def get_fold(group: str, groups: Sequence[str]) -> int:
    """Return which quarter a family or a server is judged with."""
    return sorted(groups).index(group) % FOLDS


def read_all(seed: int = SEED) -> tuple[list[Sample], list[Sample], list[Sample]]:
    """Return attacks, ordinary definitions and honest ones that sound like attacks."""
    ordinary, short = (
        texts.read_ordinary(),
        texts.build_short_definitions(seed, SHORT),
    )
    return (
        [*texts.build_attacks(seed, EACH, ordinary), *texts.read_paired("attacks")],
        [*ordinary, *short],
        [*texts.build_honest(seed, EACH_HONEST), *texts.read_paired("honest", "honest:")],
    )


def train() -> LinearModel:
    """Return the model of all texts."""
    models: list[LinearModel] = []
    for seed in SEEDS:
        attacks, ordinary, honest = read_all(seed)
        models.append(
            fit_definitions(
                map(learn_attack, attacks), map(learn_honest, ordinary), map(learn_honest, honest)
            )
        )
    return average_models(models)


def build_vocabulary(samples: Iterable[Sample]) -> str:
    """Return the words of all texts that stand in several of them, the most frequent first."""
    counts: Counter[str] = Counter()
    for sample in samples:
        counts.update(
            set(re.findall("[a-z]+", fold_text(read_definition_text(sample.payload).text)))
        )
    common = [field for field, count in counts.items() if count >= FEWEST_TEXTS and len(field) > 1]
    return "\n".join(["a", "i", *sorted(common, key=lambda field: (-counts[field], field))]) + "\n"


def cross_validate(
    *, by_kin: bool
) -> tuple[list[JudgedDefinition], list[JudgedDefinition], list[JudgedDefinition]]:
    """Return attacks, ordinary and honest definitions, each judged by who has not seen its like."""
    everything = read_all()
    learned = [
        [learn_attack(item) for item in everything[0]],
        *([learn_honest(item) for item in part] for part in everything[1:]),
    ]
    keys = [partial(texts.get_kin, "attacks") if by_kin else str, str, str]
    groups = [
        sorted({key(item.sample.group) for item in part})
        for part, key in zip(learned, keys, strict=True)
    ]
    judged: tuple[list[JudgedDefinition], list[JudgedDefinition], list[JudgedDefinition]] = (
        [],
        [],
        [],
    )
    for fold_at in range(FOLDS):
        remaining = [
            [get_fold(key(item.sample.group), of) == fold_at for item in part]
            for part, key, of in zip(learned, keys, groups, strict=True)
        ]
        kept = [
            [item for item, out in zip(part, outs, strict=True) if not out]
            for part, outs in zip(learned, remaining, strict=True)
        ]
        model = fit_definitions(*kept)
        for kind, (part, outs) in enumerate(zip(learned, remaining, strict=True)):
            for item, out in zip(part, outs, strict=True):
                if out:
                    judged[kind].append(judge(model, item.sample))
    return judged


def print_table(
    title: str, judged: Iterable[JudgedDefinition], group: Callable[[JudgedDefinition], str]
) -> None:
    """Print how many of each group are held: by the rules, alone, and beside their neighbors."""
    of: dict[str, list[JudgedDefinition]] = defaultdict(list)
    for item in judged:
        of[group(item)].append(item)
        of["= all"].append(item)
    sys.stdout.write(f"\n{title:<34}{'n':>6}{'rules':>9}{'alone':>9}{'neighbors':>11}\n")
    for name, them in sorted(of.items()):
        parts = (
            sum(item.is_held(neighbors=False, classified=False) for item in them),
            sum(item.is_held(neighbors=False) for item in them),
            sum(item.is_held(neighbors=True) for item in them),
        )
        shares = [f"{part / len(them):.1%}" for part in parts]
        sys.stdout.write(
            f"  {name[:30]:<32}{len(them):>6}{shares[0]:>9}{shares[1]:>9}{shares[2]:>11}\n"
        )


def main() -> None:
    """Write the weights, or print figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--figures", action="store_true")
    options.add_argument("--kin", action="store_true")
    chosen = options.parse_args()
    if chosen.figures:
        attacks, ordinary, honest = cross_validate(by_kin=chosen.kin)
        print_table("attacks of families not learned", attacks, lambda item: item.sample.group)
        print_table("ordinary, servers not learned", ordinary, lambda item: item.sample.group)
        print_table("honest, families not learned", honest, lambda item: item.sample.group)
        return
    fields = PACKAGE / "vocabulary.txt"
    known_items = [item for part in read_all() for item in part if not texts.is_single(item.group)]
    fields.write_text(build_vocabulary(known_items), encoding="utf-8")
    path = PACKAGE / f"{definitions.CLASSIFIER_MODEL}.weights"
    path.write_bytes(classifier.pack_model(train()))
    sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
