"""Train the classifier of results, or print how it does on what it has not seen.

`python -m benchmarks.train_results` writes the weights into `mcp_servers/scanning`. It reads only
files of `scanning_corpus`, `azure_tools.json.gz`, and the scanner's own (signals, concepts,
vocabulary): the same files, scikit-learn and NumPy give the same bytes. The weights that ship were
trained with rules 10; `scanning_figures.txt` says why not with newer ones. `--figures` trains
without a quarter of the families of injections (with `--kin`, of families that want the same) in
turn and judges them. See `train_scanning`.
"""

import argparse
import random
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from benchmarks.scanning_texts import (
    PAIRED,
    Grammar,
    compute_family_seed,
    count_samples,
    get_kin,
    is_paired,
    is_varied,
    read_guides,
    read_handwritten,
    read_ordinary,
    read_passages,
)
from benchmarks.train_scanning import (
    FOLDS,
    PACKAGE,
    SEEDS,
    Row,
    average_models,
    build_rows,
    fit,
    get_fold,
)
from mcp_servers.scanning import classifier, prompt_injection
from mcp_servers.scanning.classifier import LinearModel
from mcp_servers.scanning.deobfuscation import extract_letters, fold_text
from mcp_servers.scanning.signals import RESULT_SIGNALS

SEED = 1
WINDOW = 120
EACH = 300
EACH_HONEST = 300
# How many times as many samples a family of a grammar has as a text written by hand.
ORDER_REPEATS = 25
HONEST_REPEATS = 40
# The same for the varied texts, of which there are more.
VARIED_REPEATS = 100
STRENGTH = 1.0
# How much more results that sound like orders count than ordinary ones.
HONEST_WEIGHT = 2.0
# How many times the texts of `paired_*` count: there are fewer than in most families of a grammar.
PAIRED_REPEATS = 4
# How many of the orders stand in markup, a field, a log or a comment.
FRAMED_SHARE = 0.4


class Text(NamedTuple):
    """A result, which family it is of, and what of it gives orders ("" for an honest one).

    `is_similar` tells that an honest one may sound like an order.
    """

    text: str
    family: str
    order: str = ""
    is_similar: bool = False


def build_documents(seed: int, each: int) -> list[Text]:
    """Return honest results: made-up mail, pages and logs, and what is written anyway."""
    results: list[Text] = []
    for family in Grammar("documents", seed).families:
        grammar = Grammar("documents", compute_family_seed(seed, family))
        texts = grammar.families[family]
        for _ in range(_count(texts, family, each, HONEST_REPEATS)):
            count = grammar.chance.choice((1, 2, 4))
            text = " ".join(grammar.build_sentence(family) for _ in range(count))
            results.append(Text(text, family, is_similar=True))
    results += [Text(item.payload["description"], item.group) for item in read_ordinary()]
    results += [Text(text, source) for source, text in read_passages()]
    results += [
        Text(text, family, is_similar=True)
        for family, texts in read_handwritten("paired_documents", PAIRED).items()
        for text in texts
    ]
    results += [Text(text, source) for source, text in read_guides()]
    return results


def _count(texts: list[str], family: str, each: int, repeats: int) -> int:
    return count_samples(texts, family, each, VARIED_REPEATS if is_varied(family) else repeats)


def build_injections(seed: int, each: int, carriers: list[Text]) -> list[Text]:
    """Return results with an order among honest words."""
    results: list[Text] = []
    for family in Grammar("injected", seed).families:
        grammar = Grammar("injected", compute_family_seed(seed, family))
        chance = grammar.chance
        texts = grammar.families[family]
        for _ in range(_count(texts, family, each, ORDER_REPEATS)):
            order = grammar.build_sentence(family)
            before = chance.choice(carriers).text[-chance.choice((1, 30, 80, 300)) :]
            after = chance.choice(carriers).text[: chance.choice((0, 30, 80, 300))]
            frame = "«order»"
            if chance.random() < FRAMED_SHARE:
                frame = chance.choice(grammar.slots["frame"])
            carried = frame.replace("«order»", order)
            results.append(Text(f"{before}\n{carried}\n{after}", family, order))
    results += [
        Text(text, family, text)
        for family, texts in read_handwritten("paired_injected", PAIRED).items()
        for text in texts
    ]
    return results


def learn_order(one: Text, chance: random.Random) -> list[Row]:
    """Return the window with the order and some of the words around it."""
    before, _, after = one.text.partition(one.order)
    around = chance.choice((0, 0, 20, 40))
    near = f"{before[-around:] if around else ''} {one.order} {after[:around]}"
    return build_rows(near, None, RESULT_SIGNALS, WINDOW)[:2]


def fit_results(
    orders: Iterable[tuple[Text, list[Row]]], honest: Iterable[tuple[Text, list[Row]]]
) -> LinearModel:
    """Return the model of the samples, in which those of `paired_*` count several times."""
    bad, good, similar = (list[Row](), list[Row](), list[Row]())
    for item, rows in orders:
        bad += rows * count_repeats(item.family)
    for item, rows in honest:
        (similar if item.is_similar else good).extend(rows * count_repeats(item.family))
    return fit(bad, good, WINDOW, similar, strength=STRENGTH, honest_weight=HONEST_WEIGHT)


def count_repeats(family: str) -> int:
    """Return how many times the samples of a family count."""
    return PAIRED_REPEATS if is_paired(family) else 1


def learn_document(one: Text) -> list[Row]:
    """Return all windows of an honest result."""
    return build_rows(one.text[:20_000], None, RESULT_SIGNALS, WINDOW)


def compute_score(model: LinearModel, text: str) -> float:
    """Return the score of a result."""
    folded = fold_text(text)
    scored = classifier.find_heaviest_window(
        model, extract_letters(folded), RESULT_SIGNALS.find_signals(folded)
    )
    return scored.score if scored else -99.0


def train() -> LinearModel:
    """Return the model of all texts."""
    models: list[LinearModel] = []
    for seed in SEEDS:
        honest = build_documents(seed, EACH_HONEST)
        chance = random.Random(seed)  # noqa: S311 - how much of what is around
        injections = build_injections(seed, EACH, honest)
        orders = [(item, learn_order(item, chance)) for item in injections]
        models.append(fit_results(orders, [(item, learn_document(item)) for item in honest]))
    return average_models(models)


def cross_validate(*, by_kin: bool) -> Iterator[tuple[Text, float, bool]]:
    """Yield each result, its score by a model that has not seen its like, and the rules' word."""
    honest = build_documents(SEED, EACH_HONEST // 2)
    orders = build_injections(SEED, EACH // 2, honest)
    chance = random.Random(SEED)  # noqa: S311 - how much of what is around
    learned = [learn_order(item, chance) for item in orders]
    honest_rows = [learn_document(item) for item in honest]
    keys = [get_kin("injected", item.family) if by_kin else item.family for item in orders]
    groups, sources = sorted(set(keys)), sorted({item.family for item in honest})
    for fold_at in range(FOLDS):
        remaining = [get_fold(key, groups) == fold_at for key in keys]
        left_honest = [get_fold(item.family, sources) == fold_at for item in honest]
        model = fit_results(
            (
                (item, rows)
                for out, item, rows in zip(remaining, orders, learned, strict=True)
                if not out
            ),
            (
                (item, rows)
                for out, item, rows in zip(left_honest, honest, honest_rows, strict=True)
                if not out
            ),
        )
        for item, out in zip([*orders, *honest], [*remaining, *left_honest], strict=True):
            if out:
                rules = bool(prompt_injection.find_injections_by_rules(item.text))
                yield item, compute_score(model, item.text), rules


def main() -> None:
    """Write the weights, or print figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--figures", action="store_true")
    options.add_argument("--kin", action="store_true")
    chosen = options.parse_args()
    if not chosen.figures:
        path = PACKAGE / f"{prompt_injection.MODEL}.weights"
        path.write_bytes(classifier.pack_model(train()))
        sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")
        return
    counts: dict[str, list[int]] = {}
    for item, value, rules in cross_validate(by_kin=chosen.kin):
        name = item.family if item.order else "honest results"
        count = counts.setdefault(name, [0, 0, 0])
        count[0] += 1
        count[1] += rules
        count[2] += rules or value >= prompt_injection.RESULT_THRESHOLD
    sys.stdout.write(f"\n{'results, families not learned':<34}{'n':>6}{'rules':>9}{'both':>9}\n")
    for name, (complete, rules_too, both) in sorted(counts.items()):
        shares = f"{rules_too / complete:>9.1%}{both / complete:>9.1%}"
        sys.stdout.write(f"  {name:<32}{complete:>6}{shares}\n")


if __name__ == "__main__":
    main()
