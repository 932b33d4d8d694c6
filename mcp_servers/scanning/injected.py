"""Find text in a result that gives orders to the model that reads it (R18, T20).

A document has other words than a definition, so it has its own signals (`results.toml`). What is
found is a warning and a mark; what an order can do is bounded by policy, labels and approvals.
"""

import re
from collections import Counter
from typing import Final

from mcp_servers.scanning.instructions import Order, orders
from mcp_servers.scanning.signals import IN_RESULTS

# Words in quotation marks of a sentence are spoken of; the strings of JSON are what they say.
_OPENED: Final = re.compile(r"[\w,] [(]?[\"'`\u201c\u2018\u00ab]{1,2}$")
_CLOSED: Final = frozenset("\"'`\u201d\u2019\u00bb")


def injections(text: str) -> list[Order]:
    """Return what in a result's text reads like orders to a model, in its first 240,000 characters.

    Takes under 25 ms for 16 KiB: keep longer texts off the loop.
    """
    return [one for one in orders(text, IN_RESULTS) if not _mentioned(text, one)]


def flagged(text: str) -> dict[str, int]:
    """Return how often which rule found something: rules and numbers, never the text."""
    return dict(Counter(one.disguise or one.rule for one in injections(text)))


def _mentioned(text: str, found: Order) -> bool:
    closed = text[found.end : found.end + 1] in _CLOSED
    return closed and _OPENED.search(text[max(found.start - 8, 0) : found.start]) is not None
