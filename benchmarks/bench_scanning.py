"""Measure the recall and precision of scanning by kind and by source, and its cost.

The rules are written by hand and no weight is fitted, so each source of the sample stands for
itself: leaving one out leaves the same rules. Our own lists say how it does on sentences that no
rule was written with. `TEST_CORPUS` names the folder of the sample; without it only our own are
shown.
"""

import math
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from benchmarks import scanning_texts
from mcp_servers.scanning import inspect_result, scan_definition
from mcp_servers.scanning.tool_results import strip_json_value
from tests import corpus
from tests.mcp_servers.scanning import definition_texts, result_texts
from tests.mcp_servers.scanning.definition_texts import described, seen, taking, unseen

LATER_STYLES: dict[str, list[str]] = tomllib.loads(
    Path(result_texts.__file__).with_name("later_styles.toml").read_text(encoding="utf-8")
)

Counts = dict[str, list[int]]
CARRIER_CHARACTERS = 2_000


def _print_table(title: str, found: Iterable[tuple[str, bool]]) -> None:
    counts: Counts = defaultdict(lambda: [0, 0])
    for name, hit in found:
        counts[name][0] += hit
        counts[name][1] += 1
    if counts:
        sys.stdout.write(f"\n{title}\n")
    for name, (hits, complete) in sorted(counts.items()):
        sys.stdout.write(f"  {name[:58]:<58} {hits:>4} / {complete:<4} {hits / complete:>6.1%}\n")


def _build_payload(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("name", "description") if row.get(key)}


def test_what_is_found_in_definitions() -> None:
    attacks = {
        want: list(map(described, texts)) for want, texts in definition_texts.ATTACKS.items()
    }
    attacks["schema fields"] = [taking(schema) for schema in definition_texts.FIELDS]
    for half, of in (("known to the rules", seen), ("unknown to them", unseen)):
        _print_table(
            f"Own attacks, {half}: held or refused",
            (
                (want, bool(scan_definition(item)))
                for want, texts in attacks.items()
                for item in of(texts)
            ),
        )
    poisoned = corpus.read_samples("poisoned_tools.json")
    _print_table(
        "Sample, by source",
        ((row["source"], bool(scan_definition(_build_payload(row)))) for row in poisoned),
    )
    _print_table(
        "Sample, by class",
        ((row["cls"], bool(scan_definition(_build_payload(row)))) for row in poisoned),
    )
    benign = corpus.read_samples("benign_tools.json")
    tiers = [(row, {item.tier for item in scan_definition(_build_payload(row))}) for row in benign]
    _print_table("Sample, honest: refused", (("all", "hard" in results) for _, results in tiers))
    _print_table("Sample, honest: held", (("all", bool(results)) for _, results in tiers))
    _print_table(
        "Sample, honest that sound like attacks: held",
        (("hard negatives", bool(results)) for row, results in tiers if row["hard_negative"]),
    )


def test_what_is_found_in_results() -> None:
    _print_table(
        "Own results: flagged",
        (
            (way, bool(inspect_result(carrier.format(text)).flagged))
            for way, texts in result_texts.OVERT.items()
            for text in texts
            for carrier in result_texts.CARRIERS
        ),
    )
    rows = corpus.read_samples("tool_results.json")
    results = [(row, inspect_result(row["text"])) for row in rows]
    for label in ("malicious", "benign"):
        own = [(row, item) for row, item in results if row["label"] == label]
        _print_table(
            f"Sample, {label}: flagged", ((row["source"], bool(item.flagged)) for row, item in own)
        )
        _print_table(
            f"Sample, {label}: text changed",
            (("all", item.text != row["text"]) for row, item in own),
        )


def test_what_is_found_in_styles_that_nothing_was_trained_on() -> None:
    """Definitions of `unlearned_*.txt` and `later_styles.toml`, alone and beside their tools."""
    for name, title in (("attacks", "attacks"), ("honest", "honest that sound like attacks")):
        samples = scanning_texts.read_unlearned(name, 1)
        later = [{"name": "helper_tool", "description": text} for text in LATER_STYLES[name]]
        for neighbors in (False, True):
            where = "neighbors known" if neighbors else "alone"
            held = [
                (
                    style,
                    bool(scan_definition(item.payload, own_names=item.own if neighbors else ())),
                )
                for style, item in samples
            ]
            own = LATER_STYLES["own"] if neighbors else ()
            held += [("later styles", bool(scan_definition(item, own_names=own))) for item in later]
            _print_table(
                f"Unlearned {title}, {where}: held",
                [*held, *(("= all", hit) for _, hit in held)],
            )
    for name in ("injected", "results"):
        results = [inspect_result(text) for text in LATER_STYLES[name]]
        _print_table(
            f"Later styles, {name}: flagged or changed",
            (("all", bool(item.flagged or item.sanitized)) for item in results),
        )


def test_what_is_found_in_oblique_texts() -> None:
    """Complete definitions and results of `oblique_*`: the hard end of what attackers write."""
    for name in ("attacks", "honest"):
        rows = scanning_texts.read_oblique(name)
        for neighbors in (False, True):
            held = [
                (
                    row["style"],
                    bool(
                        scan_definition(
                            row["definition"], own_names=row["neighbors"] if neighbors else ()
                        )
                    ),
                )
                for row in rows
            ]
            where = "neighbors known" if neighbors else "alone"
            _print_table(
                f"Oblique {name}, {where}: held",
                [*held, *(("= all", hit) for _, hit in held)],
            )
    for name in ("injected", "documents"):
        results = [
            (row["style"], bool(result.flagged or result.sanitized))
            for row in scanning_texts.read_oblique(name)
            for result in (inspect_result(row["text"]),)
        ]
        _print_table(
            f"Oblique {name}: flagged or changed",
            [*results, *(("= all", hit) for _, hit in results)],
        )


@pytest.mark.parametrize("set_name", ["first", "second", "third"])
def test_what_is_found_in_texts_that_were_written_without_the_rules(set_name: str) -> None:
    """Definitions and results of each set, with 95 % confidence intervals."""
    for name in ("attacks", "honest"):
        samples = scanning_texts.read_measured(set_name, name)
        for beside in (False, True):
            held = [
                (style, bool(scan_definition(one.payload, own_names=one.own if beside else ())))
                for style, one in samples
            ]
            where = "neighbors known" if beside else "alone"
            _print_table_with_interval(f"{set_name}_{name}, {where}: held", held)
    for name in ("injected", "documents"):
        found = [
            (style, bool(result.flagged or result.sanitized))
            for style, texts in scanning_texts.read_handwritten(f"{set_name}_{name}", "").items()
            for text in texts
            for result in (inspect_result(text),)
        ]
        _print_table_with_interval(f"{set_name}_{name}: flagged or changed", found)


@pytest.mark.parametrize("set_name", ["first", "second", "third"])
def test_what_is_found_inside_longer_texts(set_name: str) -> None:
    """Each result with instructions in the middle of about 2 KB of a public package's description.

    Short results alone don't show what a score that depends on the rest of the text costs.
    """
    carriers = _build_carriers()
    texts = [
        text
        for texts in scanning_texts.read_handwritten(f"{set_name}_injected", "").values()
        for text in texts
    ]
    found = []
    for index, text in enumerate(texts):
        around = carriers[index % len(carriers)]
        middle = len(around) // 2
        carried = "\n\n".join([*around[:middle], text, *around[middle:]])
        found.append(("= all", bool(inspect_result(carried).flagged)))
    _print_table(f"{set_name}_injected, inside a description: flagged", found)
    alone = [("= all", bool(inspect_result("\n\n".join(around)).flagged)) for around in carriers]
    _print_table("The same descriptions alone: flagged", alone)


def _build_carriers() -> list[list[str]]:
    """Return the first paragraphs of each package's description, about 2 KB of each."""
    by_source: dict[str, list[str]] = defaultdict(list)
    for source, text in scanning_texts.read_passages():
        if sum(map(len, by_source[source])) < CARRIER_CHARACTERS:
            by_source[source].append(text)
    return [texts for texts in by_source.values() if sum(map(len, texts)) >= CARRIER_CHARACTERS]


def _print_table_with_interval(title: str, found: list[tuple[str, bool]]) -> None:
    low, high = compute_interval(sum(hit for _, hit in found), len(found))
    _print_table(
        f"{title} ({low:.0%} to {high:.0%})", [*found, *(("= all", hit) for _, hit in found)]
    )


def compute_interval(hits: int, count: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share (Wilson)."""
    z, share = 1.96, hits / count
    width = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    center, scale = share + z * z / (2 * count), 1 + z * z / count
    return (center - width) / scale, (center + width) / scale


def test_what_scanning_costs() -> None:
    text = "Returns the rows of a table; `limit` says how many. See https://example.com. " * 850
    for name, title in (
        ("definition", lambda: scan_definition({"description": text})),
        ("result for a model", lambda: inspect_result(text)),
        ("result for another program", lambda: strip_json_value({"content": [{"text": text}]})),
    ):
        title()
        started_at = process_time()
        title()
        processor_time = process_time() - started_at
        sys.stdout.write(
            f"\n{name}: {processor_time * 1000 / (len(text) / 1024):.2f} ms for each KiB"
        )
    sys.stdout.write("\n")
