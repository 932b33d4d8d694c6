"""Train the classifier of results, or print how it does on what it has not seen.

`python -m benchmarks.train_results` writes the weights into `mcp_servers/scanning`; `--figures`
trains without a quarter of the families of injections (with `--kin`, of families that want the
same) in turn and judges them. See `train_scanning`.
"""

import argparse
import random
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from benchmarks.scanning_texts import (
    FOLDER,
    Grammar,
    count_samples,
    family_seed,
    is_varied,
    kin_of,
    ordinary,
    passages,
)
from benchmarks.train_scanning import FOLDS, PACKAGE, Row, average, fit, fold_of, rows_of
from mcp_servers.scanning import classifier, prompt_injection
from mcp_servers.scanning.classifier import LinearModel
from mcp_servers.scanning.deobfuscation import fold_text
from mcp_servers.scanning.letters_only import extract_letters
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
# Of the model that also learns the varied texts: weaker, because they differ more, and how much
# more results that sound like orders count than ordinary ones.
VARIED_STRENGTH = 1.0
VARIED_HONEST_WEIGHT = 2.0
# How many of the orders stand in markup, a field, a log or a comment.
FRAMED_SHARE = 0.4
DOCS = FOLDER.parents[1] / "docs"


class Text(NamedTuple):
    """A result, which family it is of, and what of it gives orders ("" for an honest one).

    `is_similar` tells that an honest one may sound like an order.
    """

    text: str
    family: str
    order: str = ""
    is_similar: bool = False


def documents(seed: int, each: int) -> list[Text]:
    """Return honest results: made-up mail, pages and logs, and what is written anyway."""
    found: list[Text] = []
    for family in Grammar("documents", seed).families:
        grammar = Grammar("documents", family_seed(seed, family))
        texts = grammar.families[family]
        for _ in range(_count(texts, family, each, HONEST_REPEATS)):
            count = grammar.chance.choice((1, 2, 4))
            text = " ".join(grammar.sentence(family) for _ in range(count))
            found.append(Text(text, family, is_similar=True))
    found += [Text(one.payload["description"], one.group) for one in ordinary()]
    found += [Text(text, source) for source, text in passages()]
    for path in sorted(DOCS.glob("*.md")):
        if path.stem != "scanning":
            said = path.read_text(encoding="utf-8").split("\n\n")
            found += [Text(paragraph, f"docs:{path.stem}") for paragraph in said]
    return found


def _count(texts: list[str], family: str, each: int, repeats: int) -> int:
    return count_samples(texts, family, each, VARIED_REPEATS if is_varied(family) else repeats)


def injections(seed: int, each: int, carriers: list[Text]) -> list[Text]:
    """Return results with an order among honest words."""
    found: list[Text] = []
    for family in Grammar("injected", seed).families:
        grammar = Grammar("injected", family_seed(seed, family))
        chance = grammar.chance
        texts = grammar.families[family]
        for _ in range(_count(texts, family, each, ORDER_REPEATS)):
            order = grammar.sentence(family)
            before = chance.choice(carriers).text[-chance.choice((1, 30, 80, 300)) :]
            after = chance.choice(carriers).text[: chance.choice((0, 30, 80, 300))]
            frame = "«order»"
            if chance.random() < FRAMED_SHARE:
                frame = chance.choice(grammar.slots["frame"])
            carried = frame.replace("«order»", order)
            found.append(Text(f"{before}\n{carried}\n{after}", family, order))
    return found


def learn_order(one: Text, chance: random.Random) -> list[Row]:
    """Return the window with the order and some of the words around it."""
    before, _, after = one.text.partition(one.order)
    around = chance.choice((0, 0, 20, 40))
    near = f"{before[-around:] if around else ''} {one.order} {after[:around]}"
    return rows_of(near, None, RESULT_SIGNALS, WINDOW)[:2]


def fit_results(
    orders: Iterable[tuple[Text, list[Row]]], honest: Iterable[tuple[Text, list[Row]]]
) -> LinearModel:
    """Return the mean of a model without the varied texts and of one with them."""
    bad, good = list(orders), list(honest)
    known = [row for one, rows in bad if not is_varied(one.family) for row in rows]
    known_honest = [row for one, rows in good if not is_varied(one.family) for row in rows]
    return average(
        fit(known, known_honest, WINDOW),
        fit(
            (row for _, rows in bad for row in rows),
            (row for one, rows in good if not one.is_similar for row in rows),
            WINDOW,
            (row for one, rows in good if one.is_similar for row in rows),
            strength=VARIED_STRENGTH,
            honest_weight=VARIED_HONEST_WEIGHT,
        ),
    )


def learn_document(one: Text) -> list[Row]:
    """Return all windows of an honest result."""
    return rows_of(one.text[:20_000], None, RESULT_SIGNALS, WINDOW)


def score(model: LinearModel, text: str) -> float:
    """Return the score of a result."""
    folded = fold_text(text)
    scored = classifier.find_heaviest_window(
        model, extract_letters(folded), RESULT_SIGNALS.find_signals(folded)
    )
    return scored.score if scored else -99.0


def train() -> LinearModel:
    """Return the model of all texts."""
    honest = documents(SEED, EACH_HONEST)
    chance = random.Random(SEED)  # noqa: S311 - how much of what is around
    orders = [(one, learn_order(one, chance)) for one in injections(SEED, EACH, honest)]
    return fit_results(orders, [(one, learn_document(one)) for one in honest])


def cross_validate(*, by_kin: bool) -> Iterator[tuple[Text, float, bool]]:
    """Yield each result, its score by a model that has not seen its like, and the rules' word."""
    honest = documents(SEED, EACH_HONEST // 2)
    orders = injections(SEED, EACH // 2, honest)
    chance = random.Random(SEED)  # noqa: S311 - how much of what is around
    learned = [learn_order(one, chance) for one in orders]
    honest_rows = [learn_document(one) for one in honest]
    keys = [kin_of("injected", one.family) if by_kin else one.family for one in orders]
    groups, sources = sorted(set(keys)), sorted({one.family for one in honest})
    for fold_at in range(FOLDS):
        left = [fold_of(key, groups) == fold_at for key in keys]
        left_honest = [fold_of(one.family, sources) == fold_at for one in honest]
        model = fit_results(
            ((one, rows) for out, one, rows in zip(left, orders, learned, strict=True) if not out),
            (
                (one, rows)
                for out, one, rows in zip(left_honest, honest, honest_rows, strict=True)
                if not out
            ),
        )
        for one, out in zip([*orders, *honest], [*left, *left_honest], strict=True):
            if out:
                rules = bool(prompt_injection.find_injections_by_rules(one.text))
                yield one, score(model, one.text), rules


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
    for one, value, rules in cross_validate(by_kin=chosen.kin):
        name = one.family if one.order else "honest results"
        count = counts.setdefault(name, [0, 0, 0])
        count[0] += 1
        count[1] += rules
        count[2] += rules or value >= prompt_injection.RESULT_THRESHOLD
    sys.stdout.write(f"\n{'results, families not learned':<34}{'n':>6}{'rules':>9}{'both':>9}\n")
    for name, (whole, rules_too, both) in sorted(counts.items()):
        shares = f"{rules_too / whole:>9.1%}{both / whole:>9.1%}"
        sys.stdout.write(f"  {name:<32}{whole:>6}{shares}\n")


if __name__ == "__main__":
    main()
