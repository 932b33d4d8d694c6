"""Flow labels: what data a tool reads, whether it has an external effect, and idempotency.

They come from presets and from the reviewer of a definition. A server's own annotations can add a
flow label, but never remove one, and alone don't make a tool idempotent.
"""

from collections.abc import Iterable
from functools import lru_cache, reduce
from typing import Literal
from uuid import UUID

from bonobot.ledger.types import FlowLabel

__all__ = ["LABEL_BITS", "FlowLabel", "build_flow_key", "decode_labels", "encode_labels"]

# The labels that a session keeps after a call.
LABEL_BITS = {FlowLabel.PRIVATE_DATA: 1, FlowLabel.UNTRUSTED_CONTENT: 2, FlowLabel.SENDS_OUT: 4}

# A `text` is a name, a configuration or instructions. A `workspace` has the time of the last write
# of a caller with labels; its labels are a field of the agent.
HolderKind = Literal["session", "agent", "token", "server", "text", "workspace"]


def encode_labels(labels: Iterable[str]) -> int:
    """Return flow labels as the bits in the ledger; other labels are ignored."""
    return reduce(
        lambda label_bits, label: label_bits | LABEL_BITS.get(FlowLabel(label), 0), labels, 0
    )


def decode_labels(label_bits: int) -> tuple[FlowLabel, ...]:
    return tuple(label for label, bit in LABEL_BITS.items() if label_bits & bit)


@lru_cache(maxsize=4096)
def build_flow_key(organization_id: UUID | str, kind: HolderKind, row_id: UUID | str) -> str:
    """Return the ledger key of the labels that a row holds."""
    return f"flow:{organization_id}:{kind}:{row_id}"
