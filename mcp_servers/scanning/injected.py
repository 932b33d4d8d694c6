"""Find text in a result that gives orders to the model that reads it (R18, T20).

A document has other words than a definition, so it has its own signals (`results.toml`) and its own
classifier. What is found is a warning and a mark; what an order can do is bounded by policy, labels
and approvals.
"""

from collections import Counter
from typing import Final

from mcp_servers.scanning.classifier import read_model, score
from mcp_servers.scanning.folding import fold, origin
from mcp_servers.scanning.instructions import SURROGATES, Order, orders
from mcp_servers.scanning.letters import read_letters
from mcp_servers.scanning.signals import IN_RESULTS

RULE: Final = "resembles_an_injection"
MODEL: Final = "results"
ENOUGH: Final = 2.5
# As much as the rules read.
MOST: Final = 240_000


def injections(text: str) -> list[Order]:
    """Return what in a result's text reads like orders to a model, in its first 240,000 characters.

    Takes under 60 ms for 16 KiB: keep longer texts off the loop.
    """
    return by_rules(text) or _resembling(text)


def by_rules(text: str) -> list[Order]:
    """Return what the rules find, without the classifier's judgement."""
    return orders(text, IN_RESULTS)


def flagged(text: str) -> dict[str, int]:
    """Return how often which rule found something: rules and numbers, never the text."""
    return dict(Counter(one.disguise or one.rule for one in injections(text)))


def _resembling(text: str) -> list[Order]:
    """Return the part of a text that reads most like an order to a model, if any does enough."""
    text = SURROGATES.sub("?", text[:MOST])
    folded = fold(text)
    letters = read_letters(folded)
    scored = score(read_model(MODEL), letters, IN_RESULTS.of(folded))
    if scored is None or scored.score < ENOUGH:
        return []
    first, last = letters.at[scored.window.start], letters.at[scored.window.end - 1]
    start, end = origin(text, first, last)
    return [Order(RULE, start, end + 1, round(scored.score, 2))]
