"""Labels: what a tool does with what it touches, and whether it may be repeated.

They are ours, from presets and from whoever approved the definition. What a server says of itself
may add a label of the flow, never take one away; alone it makes nothing repeatable.
"""

from collections.abc import Iterable
from enum import StrEnum
from functools import reduce


class FlowLabel(StrEnum):
    """The legs of a leak: data that is nobody else's, text that anybody wrote, a way out.

    And `repeatable`: a second call does no more than the first one did.
    """

    PRIVATE_DATA = "private_data"
    UNTRUSTED_CONTENT = "untrusted_content"
    SENDS_OUT = "sends_out"
    REPEATABLE = "repeatable"


# The labels that flow; whoever called holds them afterwards.
BITS = {FlowLabel.PRIVATE_DATA: 1, FlowLabel.UNTRUSTED_CONTENT: 2, FlowLabel.SENDS_OUT: 4}


def encode_labels(labels: Iterable[str]) -> int:
    """Return labels as the ledger holds them: those that flow."""
    return reduce(lambda found, label: found | BITS.get(FlowLabel(label), 0), labels, 0)


def decode_labels(found: int) -> tuple[FlowLabel, ...]:
    """Return the labels of such a number."""
    return tuple(label for label, bit in BITS.items() if found & bit)
