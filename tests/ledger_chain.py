"""The verification of a whole chain of the audit log, which the product does in steps."""

from collections.abc import Iterable
from uuid import UUID

from bonobot.ledger.audit.signed_checkpoints import SignedCheckpoint
from bonobot.ledger.audit.verify_chain import (
    STEP_ROWS,
    VerificationReport,
    advance_verification,
    load_tip,
    start_verification,
)


def verify_whole_chain(
    organization_id: UUID, checkpoints: Iterable[SignedCheckpoint] = ()
) -> VerificationReport:
    """Verify every entry, digest and copied column of an organization's chain.

    `checkpoints` are exported ends of the chain. The progress isn't saved.
    """
    tip, known_checkpoints = load_tip(organization_id), list(checkpoints)
    progress = start_verification(organization_id)
    while not progress.done:
        progress = advance_verification(
            progress, tip, rows=STEP_ROWS, checkpoints=known_checkpoints
        )
    return progress.build_report()
