"""The labels that a token holds, and what it can't do while it holds them.

A model with a token could otherwise remove the labels that require an approval of its calls.
"""

import time
from uuid import UUID

from bonobot.accounts.principals import Principal
from bonobot.core.problems import Forbidden
from bonobot.ledger.admission import CallerFlowLabels, compute_held_labels
from bonobot.ledger.models import FlowCell
from bonobot.ledger.types import FlowLabelEffect
from mcp_servers.flow_labels import FlowLabel, build_flow_key, encode_labels

IDLE_S = 24 * 3600
HELD_LABELS = encode_labels((FlowLabel.PRIVATE_DATA, FlowLabel.UNTRUSTED_CONTENT))


class LabeledCaller(Forbidden):
    """A token that holds flow labels can't do this, regardless of its role."""

    code = "labeled_caller"

    def __init__(self) -> None:
        super().__init__(
            "This token holds flow labels, so it can't change or clear labels.",
            rule="flow_labels",
            remedy="A person, or another token without flow labels, must do this.",
        )


def require_no_held_labels(principal: Principal) -> None:
    """Raise `LabeledCaller` for a token that holds labels (one query for a token)."""
    if principal.kind == "token" and load_token_labels(principal.organization_id, principal.id):
        raise LabeledCaller


def load_token_labels(organization_id: UUID, token_id: str) -> int:
    """Return the encoded labels that a token holds from calls without a session (one query)."""
    cell = FlowCell.objects.filter(pk=build_flow_key(organization_id, "token", token_id)).first()
    if cell is None:
        return 0
    current_labels = CallerFlowLabels(cell.labels, cell.touched)
    effect = FlowLabelEffect(cell.key, 0, 0, IDLE_S)
    return compute_held_labels(current_labels, effect, time.time_ns() // 1_000) & HELD_LABELS
