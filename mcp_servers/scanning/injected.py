"""Find text in a result that gives orders to the model that reads it (R18, T20).

A document has other words than a definition, so it has its own signals (`results.toml`). What is
found is a warning and a mark; what an order can do is bounded by policy, labels and approvals.
"""

from collections import Counter

from mcp_servers.scanning.instructions import Order, orders
from mcp_servers.scanning.signals import IN_RESULTS


def injections(text: str) -> list[Order]:
    """Return what in a result's text reads like orders to a model, in its first 240,000 characters.

    Takes under 25 ms for 16 KiB: keep longer texts off the loop.
    """
    return orders(text, IN_RESULTS)


def flagged(text: str) -> dict[str, int]:
    """Return how often which rule found something: rules and numbers, never the text."""
    return dict(Counter(one.disguise or one.rule for one in injections(text)))
